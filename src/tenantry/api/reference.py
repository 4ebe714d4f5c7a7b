"""The API reference: one page, made from the OpenAPI document."""

import gzip
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
from tenantry.api.openapi import CODES_KEY, GROUPS, REF_PREFIX, OpenApiDocument
from tenantry.api.openapi import PATH as DOCUMENT_PATH
from tenantry.server.page_assets import PageAssets, page_templates
from tenantry.server.problems import all_codes

PATH: Final = "/docs"
_DEFAULT_ADDRESS: Final = "http://127.0.0.1:3001"
_CACHING: Final = {"Cache-Control": "public, max-age=300", "Vary": "Accept-Encoding"}
_CODE_SPAN: Final = re.compile("`([^`]+)`")
_GZIP: Final = re.compile(r"(?:^|,)\s*gzip\s*(?:;\s*q=(0(?:\.\d*)?|1(?:\.0*)?)\s*)?(?:,|$)", re.IGNORECASE)
_JSON_TOKEN: Final = re.compile(
    r'(?P<key>"[^"\n]*")(?=:)|(?P<string>"[^"\n]*")|(?P<word>\b(?:true|false|null|-?\d+)\b)'
)


def reference_routes(document: OpenApiDocument, assets: PageAssets) -> Sequence[HTTPRouteHandler]:
    """The route of the reference page; the page is rendered when it is first asked for."""
    made: list[tuple[bytes, bytes]] = []
    headers = {**assets.headers, **_CACHING}

    @get(PATH, include_in_schema=False, opt={"public": True})
    async def show_reference(request: AnyRequest) -> Response[bytes]:
        if not made:
            page = render(document.describe(request.app), document.base_url, assets.address).encode()
            made.append((page, gzip.compress(page)))  # it holds nothing secret that its length could tell
        [(plain, compressed)] = made
        if takes_gzip(request.headers.get("accept-encoding", "")):
            return Response(compressed, media_type=MediaType.HTML, headers={**headers, "Content-Encoding": "gzip"})
        return Response(plain, media_type=MediaType.HTML, headers=headers)

    return [show_reference]


def takes_gzip(accept_encoding: str) -> bool:
    """Whether a header names gzip among the codings that its sender takes (RFC 9110 section 12.5.3)."""
    found = _GZIP.search(accept_encoding)
    return found is not None and float(found[1] or 1) > 0


def render(document: dict[str, Any], base_url: str, assets: str) -> str:
    """The page of this OpenAPI document; ``assets`` is the address of its style sheets and its script."""
    environment = page_templates(PackageLoader(str(__package__)))
    environment.filters.update(prose=prose, json=highlighted, slug=slug)
    outline = Outline(document, {group.name: group.objects for group in GROUPS})
    return environment.get_template("reference.html").render(
        info=document["info"],
        outline=outline,
        problem=outline.problem(),
        errors=all_codes().values(),
        address=base_url if base_url.startswith("http") else _DEFAULT_ADDRESS,
        document_path=DOCUMENT_PATH,
        assets=assets,
        webhook_path=webhooks.PATH,
    )


def prose(text: str) -> Markup:
    """Text in which backticks mark code, with typographic apostrophes outside of it."""
    parts = [escape(part) for part in _CODE_SPAN.split(text)]
    parts[1::2] = [Markup("<code>{}</code>").format(part) for part in parts[1::2]]
    parts[::2] = [part.replace("&#39;", "\N{RIGHT SINGLE QUOTATION MARK}") for part in parts[::2]]
    return Markup("").join(parts)


def highlighted(text: str) -> Markup:
    """Pretty-printed JSON with its keys, strings and words marked."""
    parts: list[Markup] = []
    position = 0
    for found in _JSON_TOKEN.finditer(text):
        parts += [
            escape(text[position : found.start()]),
            Markup('<span class="{}">{}</span>').format(found.lastgroup, found[0]),
        ]
        position = found.end()
    return Markup("").join([*parts, escape(text[position:])])


def slug(text: str) -> str:
    """A name for an address: lower case, words joined by hyphens."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")


_METHODS: Final = ("get", "post", "put", "patch", "delete")
_TOKENS: Final = {"bearer": "TENANTRY_API_KEY", "userToken": "USER_TOKEN", "operatorToken": "OPERATOR_TOKEN"}
_BOUNDS: Final = (
    ("minLength", "maxLength", "characters"),
    ("minItems", "maxItems", "items"),
    ("minimum", "maximum", ""),
)
_NEEDS: Final = {"bearer": "Any credential", "userToken": "A user's token", "operatorToken": "The operator's token"}

_PLACEHOLDERS: Final[Mapping[object, object]] = {
    "string": "...",
    "integer": 1,
    "number": 1,
    "boolean": True,
    "object": {},
}

Schema = Mapping[str, Any]


class Outline:
    """The OpenAPI document, arranged for reading; groups, operations, objects and fields are dictionaries."""

    def __init__(self, document: Schema, objects: Mapping[str, tuple[str, ...]]) -> None:
        self._schemas: Schema = document["components"]["schemas"]
        found = [
            (path, method, methods[method])
            for path, methods in document["paths"].items()
            for method in _METHODS
            if method in methods
        ]
        of_scopes = [_codes(operation) for _, _, operation in found if _credential(operation)[1]]
        self._shared = set.intersection(*of_scopes) if of_scopes else set()
        self.groups = [
            {
                **tag,
                "operations": [self._operation(*one) for one in found if tag["name"] in one[2]["tags"]],
                "objects": [self._object(name) for name in objects.get(tag["name"], ()) if name in self._schemas],
            }
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

    def problem(self) -> tuple[list[Schema], str]:
        """Return the fields of an error answer, and an example."""
        schema = self._schemas["Problem"]
        return self._fields(schema), _pretty(self.example(schema))

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

    def _operation(self, path: str, method: str, operation: Schema) -> Schema:
        scheme, scopes = _credential(operation)
        body = _json_schema(operation.get("requestBody", {}))
        answers = [self._answer(int(status), answer) for status, answer in operation["responses"].items()]
        success = next(answer for status, answer in operation["responses"].items() if status.startswith("2"))
        answer_schema = _json_schema(success)
        return {
            **operation,
            "method": method,
            "path": path,
            "scope": "".join(scopes),
            "needs": _NEEDS.get(scheme, "No credential"),
            "parameters": [self._field(one["name"], one["schema"], one) for one in operation.get("parameters", ())],
            "fields": self._fields(body) if body else [],
            "request": self._request(path, method, operation, _TOKENS.get(scheme), body),
            "answer": answers[0],
            "answer_body": _pretty(self.example(answer_schema)) if answer_schema else _header_lines(success),
            "answers": [answer for answer in answers if answer["codes"] or answer["text"]],
            "shared": [answer["status"] for answer in answers if answer["is_shared"]],
        }

    def _answer(self, status: int, answer: Schema) -> Schema:
        codes = answer.get(CODES_KEY, [])
        return {
            "status": status,
            "phrase": HTTPStatus(status).phrase,
            "text": "" if codes else answer["description"],
            "codes": [code for code in codes if code not in self._shared],
            "is_shared": not self._shared.isdisjoint(codes),
        }

    def _request(self, path: str, method: str, operation: Schema, token: str | None, body: Schema | None) -> str:
        """Return a command line that makes the request."""
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", quote(str(parameter.get("example", "ID")), safe=":"))
        option = "" if method == "get" or (method == "post" and body is not None) else f"-X {method.upper()} "
        lines = [f'curl {option}"$TENANTRY_BASE_URL{path}"']
        if token is not None:
            lines.append(f'-H "Authorization: Bearer ${token}"')
        if body is not None:
            text = _pretty(self.example(_present(body))).replace("\n", "\n  ")
            lines += ['-H "Content-Type: application/json"', f"-d {shlex.quote(text)}"]
        return " \\\n  ".join(lines)

    def _object(self, name: str) -> Schema:
        schema = self._schemas[name]
        return {
            "name": schema["title"].removesuffix("View"),
            "text": schema.get("description", ""),
            "fields": self._fields(schema),
            "example": _pretty(self.example(schema)),
        }

    def _fields(self, schema: Schema) -> list[Schema]:
        schema = self._resolve(_present(schema))
        required = schema.get("required", ())
        return [
            self._field(name, field, {**field, "required": name in required})
            for name, field in schema.get("properties", {}).items()
        ]

    def _field(self, name: str, schema: Schema, described: Schema) -> Schema:
        """Return a field of a body, or a parameter, whose place ``described`` says."""
        return {
            "name": name,
            "type": self._type(schema),
            "bounds": self._bounds(schema),
            "required": described["required"],
            "text": described.get("description", ""),
            "place": described.get("in", ""),
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

    def _bounds(self, schema: Schema) -> str:
        """Return the bounds, in words."""
        present = self._resolve(_present(schema))
        bounds = [" or ".join(f"`{value}`" for value in present["enum"])] if "enum" in present else []
        for least, most, unit in _BOUNDS:
            bounds += _range(present.get(least), present.get(most), unit)
        if schema.get("default") not in (None, []):
            bounds.append(f"by default `{schema['default']}`")
        return ", ".join(bounds)


def _credential(operation: Schema) -> tuple[str, list[str]]:
    """Return the security scheme of an operation, and its scopes."""
    return next(iter(operation["security"][0].items())) if operation["security"] else ("", [])


def _codes(operation: Schema) -> set[str]:
    return {code for answer in operation["responses"].values() for code in answer.get(CODES_KEY, ())}


def _json_schema(part: Schema) -> Schema | None:
    content: Schema = part.get("content", {}).get("application/json", {})
    return content.get("schema")


def _header_lines(answer: Schema) -> str:
    """Return the headers that have an example."""
    headers = answer.get("headers", {}).items()
    return "\n".join(f"{name}: {header['example']}" for name, header in headers if "example" in header)


def _present(schema: Schema) -> Schema:
    """Return the schema of a value that is not null."""
    return next((choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"), schema)


def _range(least: float | None, most: float | None, unit: str) -> list[str]:
    if least is None and most is None:
        return []
    text = f"at most {most}" if least is None else f"at least {least}" if most is None else f"{least} to {most}"
    return [f"{text} {unit}".strip()]


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
