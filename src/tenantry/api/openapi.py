"""The OpenAPI document: Litestar's routes and parameters, msgspec's schemas, and the texts and hot
routes of a file.

msgspec decodes and encodes the bodies, so its schemas cannot promise anything else. The document
reads a route's credential and scope from its guard, its description from the handler's docstring,
and those of fields from the structs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import chain
from typing import Any, Final, NamedTuple, cast

import msgspec
from litestar import Litestar, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream
from litestar.routes import HTTPRoute

from tenantry.api import webhooks
from tenantry.api.guards import RAISES, AnyRequest, Credential, OperatorRight, RouteGuard
from tenantry.auth.credentials import CredentialFinder
from tenantry.common.encoding import camel_case
from tenantry.domain.api_keys import DEFAULT_PREFIX
from tenantry.domain.branding import DEFAULT_BRANDING, Branding
from tenantry.domain.permissions import LIVE_MODE_SCOPES
from tenantry.server.compression import PublicDocument
from tenantry.server.load_shedding import PREFIX
from tenantry.server.problems import CODES, CREDENTIAL, MEDIA_TYPE, Problem
from tenantry.server.service_app import state_of

PATH: Final = "/api/v1/openapi.json"
REF_PREFIX: Final = "#/components/schemas/"
CODES_KEY: Final = "x-error-codes"
REMEDIES_KEY: Final = "x-error-remedies"
# the codes that an operation names itself; not in the finished document
_RAISES_KEY: Final = "x-raises"
_METHODS: Final = ("get", "post", "put", "patch", "delete")
_SCHEMES: Final = {
    Credential.CALLER: "bearer",
    Credential.USER: "userToken",
    Credential.OPERATOR: "operatorToken",
}
_KEY_SCHEME: Final = "apiKeyHeader"
_ACT_AS: Final = "actAsOrganization"
_MALFORMED: Final = {"invalid_request", "request_timeout", "head_too_large"}
"""The server rejects these before a request exists (docs/reference/limits.md)."""
_BODY: Final = {
    "invalid_json",
    "unsupported_media_type",
    "payload_too_large",
    "validation_failed",
}
_IDEMPOTENCY: Final = {"invalid_idempotency_key", "idempotency_in_flight", "idempotency_mismatch"}
_OF_CALLERS: Final = {
    *CREDENTIAL,
    "org_suspended",
    "auth_unavailable",
    "database_unavailable",
    "rate_limited",
}
_CREDENTIAL_CODES: Final = {
    "bearer": {*_OF_CALLERS, "address_not_allowed", "no_organization", "org_mismatch"},
    "userToken": {*_OF_CALLERS, "user_token_required"},
    "operatorToken": {"missing_credential", "invalid_credential", "database_unavailable"},
    _ACT_AS: {"organization_required", "not_found"},
}
_RATE_LIMITS: Final = ("RateLimit-Policy", "RateLimit")
_HEADERS: Final = {
    "401": ("WWW-Authenticate",),
    "429": ("Retry-After", *_RATE_LIMITS),
    "503": ("Retry-After",),
}


def hand_written_part() -> dict[str, Any]:
    """Return what no route can say: texts, the hot routes, and the meaning and remedy of each error
    code.

    Those are under `CODES_KEY` and `REMEDIES_KEY`, and not in the finished document.
    """
    content = resources.files(__package__).joinpath("openapi.json").read_bytes()
    return msgspec.json.decode(content, type=dict[str, Any])


def describe(
    app: Litestar,
    base_url: str,
    credentials: CredentialFinder | None = None,
    product: Branding = DEFAULT_BRANDING,
) -> dict[str, Any]:
    """Return the OpenAPI document of ``app``, which takes 0.1 s.

    ``credentials`` has the prefix of keys, and names the header that takes them. The title is the
    name of the ``product``.
    """
    document = hand_written_part()
    del document[CODES_KEY], document[REMEDIES_KEY]
    document["servers"] = [{"url": base_url}]
    components = document["components"]
    texts = {status: text["description"] for status, text in components.pop("responses").items()}
    shared = components.pop("parameters")
    generated = app.openapi_schema.to_schema()
    document["info"] = {**generated["info"], **document["info"], "title": product.name}

    routes = sorted(_routes(app), key=lambda route: _METHODS.index(route.method))
    schema_of, found = _schemas_of(routes)
    components["schemas"] = _completed(found, generated["components"]["schemas"])
    tag_of: dict[str, str] = {}
    for tag in document["tags"]:
        tag_of |= dict.fromkeys(tag.pop("x-paths", ()), tag["name"])
    for route in routes:
        operation = route.describe(generated["paths"][route.path][route.method], schema_of, texts)
        operation["tags"] = [route.tag(tag_of)]
        if route.takes_idempotency_key:
            operation["parameters"].append(shared["IdempotencyKey"])
        document["paths"].setdefault(route.path, {})[route.method] = operation
    document["paths"] = dict(sorted(document["paths"].items()))
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _add_errors(path, method, operation, texts)
    return document if credentials is None else _with_credentials(document, credentials)


def _with_credentials(document: dict[str, Any], credentials: CredentialFinder) -> dict[str, Any]:
    """Return the document with the deployment's prefix, and its header for keys."""
    if credentials.api_key_header is not None:
        document["components"]["securitySchemes"][_KEY_SCHEME] = {
            "type": "apiKey",
            "in": "header",
            "name": credentials.api_key_header,
            "description": "An API key (`svc_...`), instead of `Authorization`: a request has one credential. "
            "`Authorization: Api-Key <key>` is the same.",
        }
        operations = chain.from_iterable(map(dict.values, document["paths"].values()))
        for operation in operations:
            needed = operation["security"]
            needed += [{_KEY_SCHEME: each["bearer"]} for each in needed if "bearer" in each]
    prefix = f"{credentials.key_format.prefix}_"
    text = msgspec.json.encode(document).decode().replace(f"{DEFAULT_PREFIX}_", prefix)
    return cast("dict[str, Any]", msgspec.json.decode(text))


def _schemas_of(routes: Sequence["_Route"]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of each type of a body, by its text, and the components of all."""
    bodies = chain.from_iterable((route.body, route.answer) for route in routes)
    types = {str(kind): kind for kind in bodies if kind is not None}
    schemas, components = msgspec.json.schema_components(
        (Problem, *types.values()), ref_template=REF_PREFIX + "{name}"
    )
    return dict(zip(types, schemas[1:], strict=True)), components


def openapi_document(
    app: Litestar, base_url: str, credentials: CredentialFinder, product: Branding
) -> PublicDocument:
    """Return the document of one service: ``openapi`` in the application's state."""
    return PublicDocument(
        lambda: msgspec.json.encode(describe(app, base_url, credentials, product)),
        {"content-type": "application/json"},
    )


@get(PATH, include_in_schema=False, opt={"public": True})
async def show_openapi(request: AnyRequest) -> Response[bytes]:
    document: PublicDocument = state_of(request.scope)["openapi"]
    return document.response(request)


class _Route(NamedTuple):
    """A method of a route, and what its handler says of it."""

    path: str
    method: str
    handler: HTTPRouteHandler
    body: Any  # the types of its bodies; None without one
    answer: Any
    guard: RouteGuard | None

    @property
    def credential(self) -> Credential | None:
        """The kind of credential that the guard accepts."""
        return None if self.guard is None else self.guard.credential

    @property
    def takes_idempotency_key(self) -> bool:
        is_of_caller = self.credential not in (None, Credential.OPERATOR)
        return is_of_caller and self.method == "post"

    def tag(self, tag_of: Mapping[str, str]) -> str:
        """Return the tag of the route's part of the API."""
        if self.credential is Credential.OPERATOR:
            return "Operator"
        return tag_of[self.path.removeprefix("/api/v1/").strip("/").partition("/")[0]]

    def describe(
        self, generated: dict[str, Any], schema_of: dict[str, Any], texts: dict[str, str]
    ) -> dict[str, Any]:
        """Return the operation with its successful answers."""
        operation = {
            "operationId": camel_case(self.handler.handler_name),
            "summary": generated["summary"],
            "description": " ".join(generated["description"].split()),
            "security": list(self._security()),
            "parameters": [_parameter(parameter) for parameter in generated.get("parameters", ())],
            _RAISES_KEY: (
                *self.handler.opt.get(RAISES, ()),
                *(("quota_exceeded",) if self.guard and self.guard.is_in_quota else ()),
            ),
        }
        if self.body is not None:
            schema = schema_of[str(self.body)]
            content = {"application/json": {"schema": schema}}
            operation["requestBody"] = {"required": "anyOf" not in schema, "content": content}
        return {**operation, "responses": self._successes(generated["responses"], schema_of, texts)}

    def _security(self) -> Iterator[dict[str, list[str]]]:
        """Yield each set of credentials that is enough."""
        if self.guard is None:
            return
        if self.guard.operator is not OperatorRight.ALONE:
            yield {_SCHEMES[self.guard.credential]: [self.guard.scope] if self.guard.scope else []}
        match self.guard.operator:
            case OperatorRight.OF_TENANT | OperatorRight.ALONE:
                yield {_SCHEMES[Credential.OPERATOR]: [], _ACT_AS: []}
            case OperatorRight.ALWAYS:
                yield {_SCHEMES[Credential.OPERATOR]: []}

    def _successes(
        self, statuses: Iterable[str], schema_of: dict[str, Any], texts: dict[str, str]
    ) -> dict[str, Any]:
        specified = self.handler.responses or {}
        own = {str(status): spec.description for status, spec in specified.items()}
        answer = self._content(schema_of)
        if "201" in statuses and "id" in getattr(self.answer, "__struct_fields__", ()):
            answer["headers"] = _headers("Location")
        return {
            status: {"description": own.get(status) or texts[status], **answer}
            for status in statuses
            if status in own or status.startswith("2")
        }

    def _content(self, schema_of: dict[str, Any]) -> dict[str, Any]:
        if self.answer is not None:
            return {"content": {"application/json": {"schema": schema_of[str(self.answer)]}}}
        if self.handler.parsed_return_field.is_subclass_of(Stream):
            return {"content": {self.handler.media_type: {"schema": {"type": "string"}}}}
        return {}


def _routes(app: Litestar) -> Iterator[_Route]:
    """The application's routes that belong to the document."""
    for route in filter(lambda one: isinstance(one, HTTPRoute), app.routes):
        for handler in cast("HTTPRoute", route).route_handlers:
            if handler.resolve_include_in_schema():
                yield from _methods(route.path_format, handler)


def _methods(path: str, handler: HTTPRouteHandler) -> Iterator[_Route]:
    guards = [one for one in handler.resolve_guards() if isinstance(one, RouteGuard)]
    data = handler.parsed_data_field
    for method in sorted(handler.http_methods):
        yield _Route(
            path,
            method.lower(),
            handler,
            data.annotation if data else None,
            _answer_type(handler),
            next(iter(guards), None),
        )


def _answer_type(handler: HTTPRouteHandler) -> Any:  # noqa: ANN401  # any type that msgspec knows
    field = handler.parsed_return_field
    if field.is_subclass_of(Stream):
        return None
    if field.is_subclass_of(Response):
        field = field.inner_types[0]
    return None if field.is_none_type else field.annotation


def _parameter(generated: dict[str, Any]) -> dict[str, Any]:
    """A parameter without what says nothing; a parameter cannot be null, only absent."""
    schema = dict(generated["schema"])
    schema.pop("description", None)
    example = schema.pop("example", None)
    for choice in schema.pop("oneOf", ()):
        if choice.get("type") != "null":
            schema = {**choice, **schema}
    bounds = {key: int(schema[key]) for key in ("minimum", "maximum") if key in schema}
    known = ("name", "in", "required", "description")
    described = {key: generated[key] for key in known if key in generated}
    if example is not None:
        described["example"] = example
    return {**described, "schema": {**schema, **bounds}}


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _add_errors(path: str, method: str, operation: dict[str, Any], texts: dict[str, str]) -> None:
    """Add the errors that an operation may answer with, and the headers of every answer."""
    codes = _codes(path, method, operation)
    if not operation.get("parameters"):
        operation.pop("parameters", None)
    limits = _RATE_LIMITS if "rate_limited" in codes else ()
    for status, answer in operation["responses"].items():
        headers = _headers("X-Request-Id", *_HEADERS.get(status, limits))
        answer["headers"] = {**answer.get("headers", {}), **headers}
    for number, known in CODES.items():
        if names := [code for code in known if code in codes]:
            status = str(number)
            operation["responses"][status] = _error_answer(status, names, texts)


def _error_answer(status: str, names: Sequence[str], texts: dict[str, str]) -> dict[str, Any]:
    return {
        "description": f"{texts[status]} {', '.join(f'`{name}`' for name in names)}",
        "headers": _headers("X-Request-Id", *_HEADERS.get(status, ())),
        "content": {MEDIA_TYPE: {"schema": {"$ref": f"{REF_PREFIX}Problem"}}},
        CODES_KEY: names,
    }


def _codes(path: str, method: str, operation: dict[str, Any]) -> set[str]:
    """The codes of an operation's errors: its own, and those that its credential, scope, body and
    parameters imply.
    """
    codes = {*operation.pop(_RAISES_KEY), *_MALFORMED}
    if path == webhooks.PATH:
        return codes - {"invalid_request"}  # the other errors of this route are plain text
    if path.startswith(PREFIX):
        codes.add("overloaded")
    for security in operation["security"]:
        codes |= _codes_of_credential(security)
    if "requestBody" in operation:
        codes |= _BODY
    for parameter in operation.get("parameters", ()):
        codes |= _codes_of_parameter(parameter, method)
    return codes


def _codes_of_credential(security: Mapping[str, Sequence[str]]) -> set[str]:
    codes = set(chain.from_iterable(_CREDENTIAL_CODES[scheme] for scheme in security))
    scopes = [*chain.from_iterable(security.values())]
    if scopes:
        codes.add("insufficient_scope")
    if not LIVE_MODE_SCOPES.isdisjoint(scopes):
        codes.add("mode_mismatch")
    return codes


def _codes_of_parameter(parameter: Mapping[str, Any], method: str) -> set[str]:
    match parameter:
        case {"name": "Idempotency-Key"}:
            return _IDEMPOTENCY
        case {"in": "path"} if method != "put":
            return {"not_found"}
        case {"in": "query", "name": "cursor" | "after"}:
            return {"validation_failed", "invalid_cursor"}
        case {"in": "query"}:
            return {"validation_failed"}
    return set()


def _completed(components: dict[str, Any], generated: dict[str, Any]) -> dict[str, Any]:
    """The schemas with the format of times, and with the descriptions of nullable fields."""
    for name, schema in components.items():
        if "description" in schema:
            text = " ".join(schema["description"].split())
            schema["description"] = text.replace("``", "`").replace("next_cursor", "nextCursor")
        theirs = generated.get(name, {}).get("properties", {})
        for field, described in schema.get("properties", {}).items():
            _complete_field(described, is_time="date-time" in str(theirs.get(field)))
    return components


def _complete_field(described: dict[str, Any], *, is_time: bool) -> None:
    for choice in (described, *described.get("anyOf", ())):
        if "description" in choice:
            described.setdefault("description", choice["description"])
        if is_time and choice.get("type") == "string":
            choice["format"] = "date-time"
