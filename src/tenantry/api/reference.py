"""The API reference: one page, made from the OpenAPI document."""

import gzip
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple
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
    environment.filters.update(prose=prose, json=highlighted, slug=slug, breakable=breakable)
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


def breakable(name: str) -> Markup:
    """A name that may wrap after an underscore."""
    return Markup("_<wbr>").join(name.split("_"))


def slug(text: str) -> str:
    """A name for an address: lower case, words joined by hyphens."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")


_METHODS: Final = ("get", "post", "put", "patch", "delete")
_TOKENS: Final = {"bearer": "TENANTRY_API_KEY", "userToken": "USER_TOKEN", "operatorToken": "OPERATOR_TOKEN"}
_NEEDS: Final = {"bearer": "Any credential", "userToken": "A user's token", "operatorToken": "The operator's token"}

_PLACEHOLDERS: Final[Mapping[object, object]] = {
    "string": "...",
    "integer": 1,
    "number": 1,
    "boolean": True,
    "object": {},
}

Schema = Mapping[str, Any]


class Field(NamedTuple):
    """A parameter, or a field of a body."""

    name: str
    type: str
    bounds: str
    required: bool
    text: str
    place: str = ""


class ReferenceAnswer(NamedTuple):
    """A status, what it means, and the error codes that come with it."""

    status: int
    phrase: str
    text: str
    codes: list[str]


class Operation(NamedTuple):
    """One operation. ``scope`` is what a credential must cover; ``needs`` says in words what a caller needs."""

    id: str
    method: str
    path: str
    summary: str
    text: str
    scope: str | None
    needs: str
    parameters: list[Field]
    fields: list[Field]
    request: str
    answer: ReferenceAnswer
    answer_body: str
    answers: list[ReferenceAnswer]
    shared: list[int]


class Object(NamedTuple):
    """An object that operations answer with."""

    name: str
    text: str
    fields: list[Field]
    example: str


class ReferenceGroup(NamedTuple):
    """Operations on one kind of object."""

    name: str
    text: str
    operations: list[Operation]
    objects: list[Object]


class Outline:
    """The OpenAPI document, arranged for reading."""

    def __init__(self, document: Schema, objects: Mapping[str, tuple[str, ...]]) -> None:
        self._document = document
        self._schemas: Schema = document["components"]["schemas"]
        self._shared = self._codes_of_every_caller()
        self.groups = [
            ReferenceGroup(
                tag["name"],
                tag["description"],
                [self._operation(*found) for found in self._operations() if tag["name"] in found[2]["tags"]],
                [self._object(name) for name in objects.get(tag["name"], ()) if name in self._schemas],
            )
            for tag in document["tags"]
        ]

    def scopes(self) -> dict[str, list[Operation]]:
        """What each scope is good for."""
        found: dict[str, list[Operation]] = {}
        for group in self.groups:
            for operation in group.operations:
                if operation.scope is not None:
                    found.setdefault(operation.scope, []).append(operation)
        return dict(sorted(found.items()))

    def problem(self) -> tuple[list[Field], str]:
        """The fields of an error answer, and an example."""
        schema = self._schemas["Problem"]
        return self._fields(schema), _pretty(self.example(schema))

    def example(self, schema: Schema) -> Any:  # noqa: ANN401  # any JSON
        """A value that fits a schema: its own example where it has one."""
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

    def _operations(self) -> Iterator[tuple[str, str, Schema]]:
        for path, methods in self._document["paths"].items():
            for method in _METHODS:
                if method in methods:
                    yield path, method, methods[method]

    def _codes_of_every_caller(self) -> set[str]:
        """The codes that every operation with a scope may answer with: the page says them once."""
        codes = [
            {code for answer in operation["responses"].values() for code in answer.get(CODES_KEY, ())}
            for _, _, operation in self._operations()
            if any(operation["security"] and next(iter(operation["security"][0].values())))
        ]
        return set.intersection(*codes) if codes else set()

    def _resolve(self, schema: Schema) -> Schema:
        found: Schema = self._schemas[schema["$ref"].removeprefix(REF_PREFIX)]
        return found

    def _operation(self, path: str, method: str, operation: Schema) -> Operation:
        scheme, scopes = next(iter(operation["security"][0].items())) if operation["security"] else ("", [])
        body = _json_schema(operation.get("requestBody", {}))
        successes = [one for one in operation["responses"].items() if one[0].startswith("2")]
        answer_schema = _json_schema(successes[0][1])
        answers = [self._answer(status, answer) for status, answer in operation["responses"].items()]
        return Operation(
            id=operation["operationId"],
            method=method.upper(),
            path=path,
            summary=operation["summary"],
            text=operation["description"],
            scope=scopes[0] if scopes else None,
            needs=_NEEDS.get(scheme, "No credential"),
            parameters=[self._parameter(parameter) for parameter in operation.get("parameters", ())],
            fields=self._fields(body) if body else [],
            request=self._request(path, method, operation, _TOKENS.get(scheme), body),
            answer=answers[0],
            answer_body=_pretty(self.example(answer_schema)) if answer_schema else _header_lines(successes[0][1]),
            answers=[answer for answer in answers if answer.codes or answer.text],
            shared=[
                int(status)
                for status, answer in operation["responses"].items()
                if self._shared.intersection(answer.get(CODES_KEY, ()))
            ],
        )

    def _answer(self, status: str, answer: Schema) -> ReferenceAnswer:
        number = int(status)
        codes = [code for code in answer.get(CODES_KEY, ()) if code not in self._shared]
        text = "" if CODES_KEY in answer else answer["description"]
        return ReferenceAnswer(number, HTTPStatus(number).phrase, text, codes)

    def _request(self, path: str, method: str, operation: Schema, token: str | None, body: Schema | None) -> str:
        """A command line that makes the request."""
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", quote(str(parameter.get("example", "ID")), safe=":"))
        asks = [] if method == "get" or (method == "post" and body is not None) else [f"-X {method.upper()} "]
        lines = [f'curl {"".join(asks)}"$TENANTRY_BASE_URL{path}"']
        if token is not None:
            lines.append(f'-H "Authorization: Bearer ${token}"')
        if body is not None:
            text = _pretty(self.example(_present(body))).replace("\n", "\n  ")
            lines += ['-H "Content-Type: application/json"', f"-d {shlex.quote(text)}"]
        return " \\\n  ".join(lines)

    def _object(self, name: str) -> Object:
        schema = self._schemas[name]
        title = schema["title"].removesuffix("View")
        return Object(title, schema.get("description", ""), self._fields(schema), _pretty(self.example(schema)))

    def _fields(self, schema: Schema) -> list[Field]:
        schema = _present(schema)
        if "$ref" in schema:
            schema = self._resolve(schema)
        required = schema.get("required", ())
        return [
            Field(name, self._type(field), self._bounds(field), name in required, field.get("description", ""))
            for name, field in schema.get("properties", {}).items()
        ]

    def _parameter(self, parameter: Schema) -> Field:
        schema = parameter["schema"]
        return Field(
            parameter["name"],
            self._type(schema),
            self._bounds(schema),
            parameter["required"],
            parameter.get("description", ""),
            parameter["in"],
        )

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
        """The bounds, in words."""
        present = _present(schema)
        if "$ref" in present:
            present = self._resolve(present)
        bounds = []
        if "enum" in present:
            bounds.append(" or ".join(f"`{value}`" for value in present["enum"]))
        bounds += _range(present.get("minLength"), present.get("maxLength"), "characters")
        bounds += _range(present.get("minItems"), present.get("maxItems"), "items")
        bounds += _range(present.get("minimum"), present.get("maximum"), "")
        if schema.get("default") not in (None, []):
            bounds.append(f"by default `{schema['default']}`")
        return ", ".join(bounds)


def _json_schema(part: Schema) -> Schema | None:
    content: Schema = part.get("content", {}).get("application/json", {})
    return content.get("schema")


def _header_lines(answer: Schema) -> str:
    """The headers that tell something, with their examples."""
    headers = answer.get("headers", {}).items()
    return "\n".join(f"{name}: {header['example']}" for name, header in headers if "example" in header)


def _present(schema: Schema) -> Schema:
    """The schema of a value that is not null."""
    return next((choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"), schema)


def _range(least: float | None, most: float | None, unit: str) -> list[str]:
    if least is None and most is None:
        return []
    if least is None:
        text = f"at most {most}"
    elif most is None:
        text = f"at least {least}"
    else:
        text = f"{least} to {most}"
    return [f"{text} {unit}".strip()]


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
