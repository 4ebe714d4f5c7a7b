"""The API reference: one page, made from the OpenAPI document."""

import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import msgspec
from jinja2 import PackageLoader
from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler
from markupsafe import Markup, escape

from tenantry.api import webhooks
from tenantry.api.guards import AnyRequest
from tenantry.api.openapi import CODES_KEY, REF_PREFIX, OpenApiDocument
from tenantry.api.openapi import PATH as DOCUMENT_PATH
from tenantry.server.page_assets import PageAssets, page_templates
from tenantry.server.problems import all_codes
from tenantry.server.security_headers import PAGE_HEADERS

PATH: Final = "/docs"
_DEFAULT_ADDRESS: Final = "http://127.0.0.1:3001"
_SCHEMES: Final = {
    "": ("No credential", None),
    "bearer": ("Any credential", "TENANTRY_API_KEY"),
    "userToken": ("A user's token", "USER_TOKEN"),
    "operatorToken": ("The operator's token", "OPERATOR_TOKEN"),
}
"""What an operation needs, and the variable that holds it in examples, by security scheme."""
_BOUNDS: Final = {
    "minLength": "length at least {}",
    "maxLength": "length at most {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "default": "by default `{}`",
}
_PLACEHOLDERS: Final[Mapping[object, object]] = {"string": "...", "integer": 1, "boolean": True, "object": {}}

Schema = Mapping[str, Any]


def reference_routes(document: OpenApiDocument, assets: PageAssets) -> Sequence[HTTPRouteHandler]:
    """The route of the reference page; the page is rendered when it is first asked for."""
    pages: list[str] = []
    headers = {**PAGE_HEADERS, "Cache-Control": "public, max-age=300"}

    @get(PATH, include_in_schema=False, opt={"public": True})
    async def show_reference(request: AnyRequest) -> Response[str]:
        if not pages:
            pages.append(render(document.describe(request.app), document.base_url, assets.address))
        return Response(pages[0], media_type=MediaType.HTML, headers=headers)

    return [show_reference]


def render(document: dict[str, Any], base_url: str, assets: str) -> str:
    """The page of this OpenAPI document; ``assets`` is the address of its style sheets and its script."""
    environment = page_templates(PackageLoader(str(__package__)))
    environment.filters.update(prose=prose, slug=slug)
    return environment.get_template("reference.html").render(
        info=document["info"],
        outline=Outline(document),
        errors=all_codes().values(),
        address=base_url if base_url.startswith("http") else _DEFAULT_ADDRESS,
        document_path=DOCUMENT_PATH,
        assets=assets,
        webhook_path=webhooks.PATH,
        codes_key=CODES_KEY,
    )


def prose(text: str) -> Markup:
    """Text in which backticks mark code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", escape(text)))  # noqa: S704  # escaped before


def slug(text: str) -> str:
    """A name for an address: lower case, words joined by hyphens."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")


class Outline:
    """The OpenAPI document, arranged for reading; groups, operations, objects and fields are dictionaries."""

    def __init__(self, document: Schema) -> None:
        self._schemas: Schema = document["components"]["schemas"]
        operations = [
            self._operation(path, method, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]
        self.shared_codes = set.intersection(*[one["codes"] for one in operations if one["scope"]])
        """The errors of every operation that needs a scope; described once."""
        self.groups = [
            {**tag, **self._group([one for one in operations if tag["name"] in one["tags"]])}
            for tag in document["tags"]
        ]

    def scopes(self) -> dict[str, list[Schema]]:
        """Return the operations by the scope that they need."""
        found: defaultdict[str, list[Schema]] = defaultdict(list)
        for group in self.groups:
            for operation in group["operations"]:
                found[operation["scope"]].append(operation)
        found.pop("", None)
        return dict(sorted(found.items()))

    def object(self, name: str) -> Schema:
        """Return the fields of an object, and an example."""
        schema = self._schemas[name]
        return {
            "name": schema["title"].removesuffix("View"),
            "text": schema.get("description", ""),
            "fields": self._fields(schema),
            "example": _pretty(self.example(schema)),
        }

    def example(self, schema: Schema) -> Any:  # noqa: ANN401  # any JSON
        """Return a value that fits a schema: its own example where it has one."""
        given = [*schema.get("examples", ()), *schema.get("enum", ())]
        if given:
            return given[0]
        if "$ref" in schema:
            return self.example(self._resolve(schema))
        if "anyOf" in schema:
            return schema.get("default") if _present(schema) is not schema else self.example(schema["anyOf"][0])
        if "default" in schema:
            return schema["default"]
        if "properties" in schema:
            required = schema.get("required", ())
            shown = {k: v for k, v in schema["properties"].items() if k in required or "examples" in v}
            return {name: self.example(field) for name, field in shown.items()}
        return [self.example(schema["items"])] if "items" in schema else _PLACEHOLDERS.get(schema.get("type"))

    def _resolve(self, schema: Schema) -> Schema:
        return self._schemas[schema["$ref"].removeprefix(REF_PREFIX)] if "$ref" in schema else schema

    def _group(self, operations: list[Schema]) -> Schema:
        """Return the operations of a group, and the objects that they show."""
        names: dict[str, None] = {}
        for operation in operations:
            if operation["method"] == "get" and operation["answer_schema"]:
                schema = self._resolve(operation["answer_schema"])
                names[_item_of_page(schema) or schema["title"]] = None
        return {"operations": operations, "objects": [self.object(name) for name in names]}

    def _operation(self, path: str, method: str, operation: Schema) -> Schema:
        scheme, scopes = next(iter(operation["security"][0].items())) if operation["security"] else ("", [])
        needs, token = _SCHEMES[scheme]
        body = _json_schema(operation.get("requestBody", {}))
        status, success = next(one for one in operation["responses"].items() if one[0].startswith("2"))
        answer = _json_schema(success)
        headers = [f"{name}: {one['example']}" for name, one in success["headers"].items() if "example" in one]
        return {
            **operation,
            "method": method,
            "path": path,
            "scope": "".join(scopes),
            "needs": needs,
            "codes": {code for one in operation["responses"].values() for code in one.get(CODES_KEY, ())},
            "parameters": [
                self._field(one["name"], one["schema"], required=one["required"], text=one["description"])
                | {"place": one["in"]}
                for one in operation.get("parameters", ())
            ],
            "fields": self._fields(body) if body else [],
            "request": self._request(path, method, operation, token, body),
            "answer": f"{status} {HTTPStatus(int(status)).phrase}",
            "answer_schema": answer,
            "answer_body": _pretty(self.example(answer)) if answer else "\n".join(headers),
        }

    def _request(self, path: str, method: str, operation: Schema, token: str | None, body: Schema | None) -> str:
        """Return a command line that makes the request."""
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", quote(parameter["example"], safe=":"))
        option = "" if method == "get" or (method == "post" and body is not None) else f"-X {method.upper()} "
        lines = [f'curl {option}"$TENANTRY_BASE_URL{path}"']
        if token is not None:
            lines.append(f'-H "Authorization: Bearer ${token}"')
        if body is not None:
            text = _pretty(self.example(_present(body))).replace("\n", "\n  ")
            lines += ['-H "Content-Type: application/json"', f"-d {shlex.quote(text)}"]
        return " \\\n  ".join(lines)

    def _fields(self, schema: Schema) -> list[Schema]:
        schema = self._resolve(_present(schema))
        required = schema.get("required", ())
        return [
            self._field(name, field, required=name in required, text=field.get("description", ""))
            for name, field in schema.get("properties", {}).items()
        ]

    def _field(self, name: str, schema: Schema, *, required: bool, text: str) -> dict[str, Any]:
        """Return a field of a body, or a parameter, with its bounds in words."""
        present = self._resolve(_present(schema))
        known = {**present, **{key: schema[key] for key in ("default",) if schema.get(key) not in (None, [])}}
        bounds = [" or ".join(f"`{value}`" for value in present["enum"])] if "enum" in present else []
        bounds += [words.format(known[key]) for key, words in _BOUNDS.items() if key in known]
        return {
            "name": name,
            "type": self._type(schema),
            "bounds": ", ".join(bounds),
            "required": required,
            "text": text,
        }

    def _type(self, schema: Schema) -> str:
        if "$ref" in schema:
            target = self._resolve(schema)
            return "string" if "enum" in target else str(target["title"]).removesuffix("View")
        if "anyOf" in schema:
            return " or ".join(self._type(choice) for choice in schema["anyOf"])
        if schema.get("type") == "array":
            return f"array of {self._type(schema['items'])}"
        return str(schema.get("format") or schema.get("type", "any"))


def _json_schema(part: Schema) -> Schema | None:
    content: Schema = part.get("content", {}).get("application/json", {})
    return content.get("schema")


def _item_of_page(schema: Schema) -> str:
    """Return the name of the objects on a page of a list; empty for other objects."""
    items: Schema = schema["properties"].get("data", {}).get("items", {})
    return str(items.get("$ref", "")).removeprefix(REF_PREFIX)


def _present(schema: Schema) -> Schema:
    """Return the schema of a value that is not null."""
    return next((choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"), schema)


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
