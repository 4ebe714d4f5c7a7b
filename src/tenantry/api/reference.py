"""The API reference: one page, made from the OpenAPI document."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment
from litestar import Litestar, Response, get
from markupsafe import Markup, escape

from tenantry.api import webhooks
from tenantry.api.guards import AnyRequest
from tenantry.api.openapi import (
    CODES_KEY,
    REF_PREFIX,
    describe,
    hand_written_part,
)
from tenantry.api.openapi import PATH as DOCUMENT_PATH
from tenantry.auth.credentials import CredentialFinder
from tenantry.domain.branding import DEFAULT_BRANDING, Branding
from tenantry.server.compression import PublicDocument
from tenantry.server.page_assets import PageAssets, page_templates
from tenantry.server.problems import CODES
from tenantry.server.security_headers import PAGE_HEADERS
from tenantry.server.service_app import state_of

PATH: Final = "/docs"
DEFAULT_ADDRESS: Final = "http://127.0.0.1:3001"
_SCHEMES: Final = {
    "": ("No credential", None),
    "bearer": ("Any credential", "TENANTRY_API_KEY"),
    "userToken": ("A user's token", "USER_TOKEN"),
    "operatorToken": ("The operator's token", "OPERATOR_TOKEN"),
}
"""What an operation needs, and the variable that holds it in examples, by security scheme."""
_BOUNDS: Final = (
    ("length {}", "minLength", "maxLength"),
    ("{} items", "minItems", "maxItems"),
    ("{}", "minimum", "maximum"),
)
"""Each range in words, and the keywords of its ends."""
_PLACEHOLDERS: Final[Mapping[object, object]] = {
    "string": "...",
    "integer": 1,
    "boolean": True,
    "object": {},
}
_HEADERS: Final = {
    **PAGE_HEADERS,
    "Cache-Control": "public, max-age=300",
    "Content-Type": "text/html; charset=utf-8",
}

Schema = Mapping[str, Any]


def reference_page(
    app: Litestar,
    base_url: str,
    credentials: CredentialFinder,
    product: Branding,
    *,
    assets: PageAssets,
) -> PublicDocument:
    """Return the reference page of one service: ``reference`` in the application's state."""

    def page() -> bytes:
        document = describe(app, base_url, credentials, product)
        return render(document, base_url, assets.address, credentials, product).encode()

    return PublicDocument(page, _HEADERS)


@get(PATH, include_in_schema=False, opt={"public": True})
async def show_reference(request: AnyRequest) -> Response[bytes]:
    page: PublicDocument = state_of(request.scope)["reference"]
    return page.response(request)


def reference_templates() -> Environment:
    environment = page_templates(Path(__file__).parent / "templates")
    environment.filters.update(prose=prose, slug=slug, pretty=pretty)
    return environment


def render(
    document: dict[str, Any],
    base_url: str,
    assets: str,
    credentials: CredentialFinder,
    product: Branding = DEFAULT_BRANDING,
) -> str:
    """The page of this OpenAPI document; ``assets`` is the address of its style sheets and its
    script.
    """
    template = reference_templates().get_template("reference.html")
    return template.render(
        contents(document),
        address=base_url if base_url.startswith("http") else DEFAULT_ADDRESS,
        document_path=DOCUMENT_PATH,
        assets=assets,
        key_prefix=credentials.key_format.prefix,
        api_key_header=credentials.api_key_header,
        product=product,
    )


def contents(document: dict[str, Any]) -> dict[str, Any]:
    """What a page about this OpenAPI document shows, in the variables of a template."""
    schemas = Schemas(document["components"]["schemas"])
    operations = [
        _operation(path, method, operation, schemas)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return {
        "info": document["info"],
        "groups": list(_groups(document["tags"], operations, schemas)),
        "operations": operations,
        "shared_codes": set.intersection(*[one["codes"] for one in operations if one["scope"]]),
        "schemas": schemas,
        "error_codes": CODES,
        "meanings": hand_written_part()[CODES_KEY],
        "webhook_path": webhooks.PATH,
        "codes_key": CODES_KEY,
    }


def _groups(tags: list[Schema], operations: list[Schema], schemas: "Schemas") -> Iterator[Schema]:
    """Yield each tag with its operations, and with the objects that no group before it shows."""
    known = set[str]()
    for tag in tags:
        own = [operation for operation in operations if tag["name"] in operation["tags"]]
        objects = [each for each in schemas.objects(own) if each["title"] not in known]
        known.update(each["title"] for each in objects)
        yield {**tag, "operations": own, "objects": objects}


def prose(text: str) -> Markup:
    """Text in which backticks mark code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", escape(text)))  # noqa: S704  # escaped before


def slug(text: str) -> str:
    """A name for an address: lower case, words joined by hyphens."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")


def pretty(value: object) -> str:
    """JSON on several lines."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


class Schemas:
    """The schemas of the document, described for reading."""

    def __init__(self, schemas: Schema) -> None:
        self._schemas = schemas
        self.problem: Schema = schemas["Problem"]

    def resolve(self, schema: Schema) -> Schema:
        """Return the schema of a value that is not null, itself instead of a reference to it."""
        choices = schema.get("anyOf", [schema])
        present: Schema = next((one for one in choices if one.get("type") != "null"), schema)
        reference = present.get("$ref", "").removeprefix(REF_PREFIX)
        found: Schema = self._schemas.get(reference, present)
        return found

    def objects(self, operations: list[Schema]) -> list[Schema]:
        """Return the objects that these operations show, alone or in a list."""
        found = {}
        for operation in operations:
            if operation["method"] == "get" and operation["answer_schema"]:
                answer = self.resolve(operation["answer_schema"])
                items = answer["properties"].get("data", {}).get("items")
                shown = self.resolve(items) if items else answer
                found[shown["title"]] = shown
        return list(found.values())

    def example(self, schema: Schema) -> Any:  # noqa: ANN401  # any JSON
        """Return a value that fits a schema: its own example where it has one."""
        given = [*schema.get("examples", ()), *schema.get("enum", ())]
        if given:
            return given[0]
        if "anyOf" in schema:
            first, *_ = choices = schema["anyOf"]
            is_nullable = {"type": "null"} in choices
            return schema.get("default") if is_nullable else self.example(first)
        if "$ref" in schema:
            return self.example(self.resolve(schema))
        if "default" in schema:
            return schema["default"]
        if "properties" in schema:
            return self._example_of_object(schema)
        items = schema.get("items")
        return [self.example(items)] if items else _PLACEHOLDERS.get(schema.get("type"))

    def _example_of_object(self, schema: Schema) -> dict[str, Any]:
        """Return the fields that are required, or have their own example."""
        required = schema.get("required", ())
        return {
            name: self.example(field)
            for name, field in schema["properties"].items()
            if name in required or "examples" in field
        }

    def type_of(self, schema: Schema) -> str:
        if "anyOf" in schema:
            return " or ".join(self.type_of(choice) for choice in schema["anyOf"])
        if "$ref" in schema:
            target = self.resolve(schema)
            return "string" if "enum" in target else str(target["title"]).removesuffix("View")
        if schema.get("type") == "array":
            return f"array of {self.type_of(schema['items'])}"
        kinds = schema.get("format") or schema.get("type", "string" if "enum" in schema else "any")
        if isinstance(kinds, str):
            return kinds
        return " or ".join(sorted(kinds, key=lambda kind: kind == "null"))

    def bounds(self, schema: Schema) -> str:
        """Return the bounds of a value, in words."""
        known = self.resolve(schema)
        values = [f"`{value}`" for value in known.get("enum", ()) if value is not None]
        ranges = [
            words.format(_range(known.get(least), known.get(most)))
            for words, least, most in _BOUNDS
            if least in known or most in known
        ]
        choice = f"one of {', '.join(values)}" if values else ""
        return ", ".join(filter(None, [choice, *ranges, _default(schema.get("default"))]))


def _default(value: object) -> str:
    if value in (None, "", [], {}):
        return ""
    return f"by default `{str(value).lower() if isinstance(value, bool) else value}`"


def _range(least: float | None, most: float | None) -> str:
    if least is None:
        return f"at most {most}"
    return f"at least {least}" if most is None else f"{least} to {most}"


def _operation(path: str, method: str, operation: Schema, schemas: Schemas) -> Schema:
    scheme, scopes = _credential(operation)
    needs, token = _SCHEMES[scheme]
    body = _json_schema(operation.get("requestBody", {}))
    example = schemas.example(schemas.resolve(body)) if body else None
    status, success = next(one for one in operation["responses"].items() if one[0].startswith("2"))
    answer = _json_schema(success)
    headers = [
        f"{name}: {one['example']}" for name, one in success["headers"].items() if "example" in one
    ]
    codes = [one.get(CODES_KEY, ()) for one in operation["responses"].values()]
    return {
        **operation,
        "method": method,
        "path": path,
        "scope": "".join(scopes),
        "needs": f"{needs}, for a tenant" if _needs_tenant(operation) else needs,
        "codes": set(chain.from_iterable(codes)),
        "body": body,
        "request": _request(path, method, operation, token, example),
        "answer": f"{status} {HTTPStatus(int(status)).phrase}",
        "answer_schema": answer,
        "answer_body": pretty(schemas.example(answer)) if answer else "\n".join(headers),
    }


def _credential(operation: Schema) -> tuple[str, Sequence[str]]:
    """Return the security scheme of an operation's credential, and the scopes that it needs."""
    needed: Mapping[str, Sequence[str]] = next(iter(operation["security"]), {"": []})
    [credential] = [each for each in needed.items() if each[0] in _SCHEMES]
    return credential


def _needs_tenant(operation: Schema) -> bool:
    """Whether an operation is for the operator alone, who names a tenant."""
    return [{*needed} for needed in operation["security"]] == [
        {"operatorToken", "actAsOrganization"}
    ]


def _request(path: str, method: str, operation: Schema, token: str | None, body: object) -> str:
    """Return a command line that makes the request."""
    is_default = method == "get" or (method == "post" and body is not None)
    option = "" if is_default else f"-X {method.upper()} "
    target = _target(path, operation.get("parameters", ()))
    lines = [f'curl {option}"$TENANTRY_BASE_URL{target}"']
    if token is not None:
        lines.append(f'-H "Authorization: Bearer ${token}"')
    if _needs_tenant(operation):
        lines.append('-H "X-Act-As-Organization: $TENANT_ID"')
    if body is not None:
        text = pretty(body).replace("\n", "\n  ")
        lines += ['-H "Content-Type: application/json"', f"-d {shlex.quote(text)}"]
    return " \\\n  ".join(lines)


def _target(path: str, parameters: Sequence[Schema]) -> str:
    """Return the path with the examples of its parameters, and of those that the query needs."""
    needed = []
    for parameter in parameters:
        name = parameter["name"]
        example = parameter.get("example")
        if parameter["in"] == "path":
            path = path.replace(f"{{{name}}}", quote(str(example), safe=":"))
        elif parameter["in"] == "query" and parameter["required"]:
            needed.append((name, example))
    return f"{path}?{urlencode(needed)}" if needed else path


def _json_schema(part: Schema) -> Schema | None:
    content: Schema = part.get("content", {}).get("application/json", {})
    return content.get("schema")
