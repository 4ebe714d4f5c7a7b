"""The OpenAPI document: Litestar's routes and parameters, msgspec's schemas, the hot routes, and what is said of them.

The schemas are msgspec's because msgspec is what decodes and encodes bodies: so the document cannot promise
anything else. What a route needs of its caller is read from its guard for the same reason.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from litestar import Litestar, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream
from litestar.routes import HTTPRoute

from tenantry.api import auth, projects, webhooks
from tenantry.api.guards import AnyRequest, Credential, RouteGuard
from tenantry.api.openapi_operations import GROUPS, OPERATIONS, Note
from tenantry.api.openapi_schemas import EXAMPLES, FIELDS, IDENTITY, PAGE_FIELDS, PARAMETERS
from tenantry.domain import errors
from tenantry.domain.pages import Page
from tenantry.domain.projects import Project
from tenantry.server import load_shedding as shedding
from tenantry.server import problems as error_codes
from tenantry.server.problems import (
    INVALID_REQUEST,
    MEDIA_TYPE,
    RATE_LIMITED,
    ErrorCode,
    Problem,
    all_codes,
    by_status,
    codes_of,
)

PATH: Final = "/api/v1/openapi.json"
REF_PREFIX: Final = "#/components/schemas/"
CODES_KEY: Final = "x-error-codes"
_REF: Final = REF_PREFIX + "{name}"
_DESCRIPTION: Final = (
    "The account layer of a multi-tenant API: who a request comes from, what it may do, and which plan its tenant is "
    "on. Errors are problem details (RFC 9457); JSON is camelCase; times are RFC 3339 in UTC."
)
_LICENSE: Final = {"name": "Apache License 2.0", "identifier": "Apache-2.0"}
_SCHEMES: Final = {
    Credential.CALLER: (
        "bearer",
        "An API key (`svc_...`) or a user's access token (JWT). `X-Organization-Id` names one of a user's tenants.",
    ),
    Credential.USER: ("userToken", "An access token (JWT) of the identity provider; no API key."),
    Credential.OPERATOR: ("operatorToken", "The operator's token, `OPERATOR_TOKEN` of the settings."),
}
_STATUS_TEXTS: Final = {
    400: "The request cannot be read.",
    401: "There is no credential, or one that does not count.",
    403: "The caller may not do this.",
    404: "There is no such object.",
    408: "The request took too long to arrive.",
    409: "The state of things does not allow it.",
    413: "The body is too large.",
    415: "The body is not JSON by its `Content-Type`.",
    422: "The request is not valid; `errors` says where and why.",
    429: "Too many requests.",
    431: "The request's head is too large.",
    501: "This is not set up here.",
    502: "The payment provider refused.",
    503: "Something that is needed is out of reach; try again.",
}
_HEADERS: Final = {
    "X-Request-Id": "The request's id: the caller's own, or a new one.",
    "Location": "The new object's address.",
    "Retry-After": "Seconds to wait before the next try.",
    "RateLimit-Policy": "The limits of the caller's plan: requests (`q`) in any `w` seconds. Absent without limits.",
    "RateLimit": "What is left of each (`r`), and the seconds until more comes back (`t`). Absent without limits.",
    "WWW-Authenticate": "What is wrong with the credential (RFC 6750).",
}
_NO_NOTE: Final = Note(GROUPS[0].name, "", "")
_IDEMPOTENCY_KEY: Final[dict[str, Any]] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Carries the request out once, however often it is sent within 24 hours. Visible ASCII.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}
_UNAUTHORIZED: Final = 401
_TOO_MANY: Final = 429
_TO_WAIT_FOR: Final = (_TOO_MANY, 503)


class OpenApiDocument:
    """The document of one application, built when a client first asks for it."""

    def __init__(self, base_url: str = "/") -> None:
        self.base_url = base_url
        self._document: dict[str, Any] = {}
        self._encoded = b""

    def describe(self, app: Litestar) -> dict[str, Any]:
        """Return the description of ``app``, always the same application; the first call takes 0.1 s."""
        if not self._document:
            self._document = self._build(app)
        return self._document

    def describe_as_json(self, app: Litestar) -> bytes:
        """Return the description of ``app`` as JSON."""
        if not self._encoded:
            self._encoded = msgspec.json.encode(self.describe(app))
        return self._encoded

    def _build(self, app: Litestar) -> dict[str, Any]:
        generated = app.openapi_schema.to_schema()
        operations = [*_operations(app, generated), *_hot_operations()]
        types = [kind for one in operations for kind in (one.body, one.answer) if kind is not None]
        schemas, components = msgspec.json.schema_components((Problem, *types), ref_template=_REF)
        schema_of = dict(zip(map(str, types), schemas[1:], strict=True))
        codes = all_codes()
        paths: dict[str, dict[str, Any]] = {}
        for one in operations:
            paths.setdefault(one.path, {})[one.method] = one.describe(schema_of, codes)
        return {
            "openapi": "3.1.0",
            "info": {**generated["info"], "description": _DESCRIPTION, "license": _LICENSE},
            "servers": [{"url": self.base_url}],
            "tags": [{"name": group.name, "description": group.description} for group in GROUPS],
            "paths": dict(sorted(paths.items())),
            "components": {
                "schemas": _annotated(components, generated["components"].get("schemas", {})),
                "headers": {
                    name: {"description": text, "schema": {"type": "string"}} for name, text in _HEADERS.items()
                },
                "securitySchemes": {
                    name: {"type": "http", "scheme": "bearer", "description": text} for name, text in _SCHEMES.values()
                },
            },
        }

    def route(self) -> HTTPRouteHandler:
        """The route that serves the document."""

        @get(PATH, include_in_schema=False, opt={"public": True})
        async def show_openapi(request: AnyRequest) -> Response[bytes]:
            return Response(self.describe_as_json(request.app), headers={"content-type": "application/json"})

        return show_openapi


class _Operation(NamedTuple):
    """One operation: what Litestar says of it, the types of its bodies, and what it needs of its caller."""

    path: str
    method: str
    id: str
    generated: dict[str, Any]
    body: Any = None
    answer: Any = None
    credential: Credential | None = None
    scope: str | None = None

    @property
    def note(self) -> Note:
        """What is said of it beyond its route."""
        return OPERATIONS.get(self.id, _NO_NOTE)

    def describe(self, schema_of: dict[str, Any], known: dict[str, ErrorCode]) -> dict[str, Any]:
        """The operation, complete."""
        described: dict[str, Any] = {
            "operationId": self.id,
            "summary": self.generated["summary"],
            "description": self.note.description,
            "tags": [self.note.group],
            "security": [{_SCHEMES[self.credential][0]: [self.scope] if self.scope else []}] if self.credential else [],
        }
        parameters = [_parameter(parameter) for parameter in self.generated.get("parameters", ())]
        if self._is_idempotent:
            parameters.append(_IDEMPOTENCY_KEY)
        if parameters:
            described["parameters"] = parameters
        if self.body is not None:
            schema = schema_of[str(self.body)]
            required = "anyOf" not in schema
            described["requestBody"] = {"required": required, "content": {"application/json": {"schema": schema}}}
        elif "requestBody" in self.generated:
            described["requestBody"] = self.generated["requestBody"]
        answers = {**self.generated["responses"], **{str(k): {"description": v} for k, v in self.note.others.items()}}
        responses = {status: self._answer(int(status), answer, schema_of) for status, answer in answers.items()}
        for number, codes in by_status(self._codes(), known).items():
            responses[str(number)] = _problem(number, codes)
        return {**described, "responses": dict(sorted(responses.items()))}

    @property
    def _is_idempotent(self) -> bool:
        return self.method == "post" and self.credential is not None

    def _answer(self, status: int, generated: dict[str, Any], schema_of: dict[str, Any]) -> dict[str, Any]:
        answer = {
            **generated,
            "description": generated["description"] or self.note.answer,
            "headers": {
                **generated.get("headers", {}),
                **_headers(status, located=self.note.located, limited=self.credential in _LIMITED),
            },
        }
        if self.answer is not None:
            answer["content"] = {"application/json": {"schema": schema_of[str(self.answer)]}}
        elif self.note.text is not None:
            answer["content"] = {self.note.text: {"schema": {"type": "string"}}}
        return answer

    def _codes(self) -> set[str]:
        """The codes of the errors that it may answer with: its own, and those of whole groups of operations."""
        codes = codes_of(*self.note.errors) | error_codes.UNFIT
        if self.path == webhooks.PATH:
            codes.discard(INVALID_REQUEST)  # its own of that status are plain text
        if self.path.startswith(shedding.PREFIX) and self.path != webhooks.PATH:
            codes |= codes_of(errors.OverloadedError)
        if self.credential is None:
            return codes | (error_codes.BODY if self.body is not None else set())
        codes |= _CREDENTIAL_CODES[self.credential]
        if self.scope is not None:
            codes |= codes_of(errors.InsufficientScopeError)
        if self._is_idempotent:
            codes |= error_codes.IDEMPOTENCY
        if self.body is not None:
            codes |= error_codes.BODY
        places = {parameter["in"] for parameter in self.generated.get("parameters", ())}
        names = {parameter["name"] for parameter in self.generated.get("parameters", ())}
        if "path" in places and self.method != "put":
            codes |= codes_of(errors.NotFoundError)
        if "query" in places:
            codes |= codes_of(errors.ValidationError)
        if "cursor" in names:
            codes |= codes_of(errors.InvalidCursorError)
        return codes


_LIMITED: Final = (Credential.CALLER, Credential.USER)
_CREDENTIAL_CODES: Final = {
    Credential.CALLER: error_codes.CREDENTIAL
    | codes_of(
        errors.NoOrganizationError, errors.OrgMismatchError, errors.OrgSuspendedError,
        errors.AuthUnavailableError, errors.DatabaseUnavailableError,
    )
    | {RATE_LIMITED},
    Credential.USER: error_codes.CREDENTIAL
    | codes_of(
        errors.UserTokenRequiredError, errors.OrgSuspendedError,
        errors.AuthUnavailableError, errors.DatabaseUnavailableError,
    )
    | {RATE_LIMITED},
    Credential.OPERATOR: codes_of(
        errors.MissingCredentialError, errors.InvalidCredentialError, errors.DatabaseUnavailableError
    ),
}  # fmt: skip


def _operations(app: Litestar, generated: dict[str, Any]) -> Iterator[_Operation]:
    """The operations of the application's routes."""
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            continue
        described = generated["paths"].get(route.path_format, {})
        for handler in route.route_handlers:
            guard = next((one for one in handler.resolve_guards() if isinstance(one, RouteGuard)), None)
            for method in sorted(handler.http_methods):
                operation = described.get(method.lower())
                if operation:
                    success = next(status for status in operation["responses"] if status.startswith("2"))
                    yield _Operation(
                        path=route.path_format,
                        method=method.lower(),
                        id=_camel_case(handler.handler_name),
                        generated={**operation, "responses": {success: {"description": ""}}},
                        body=handler.parsed_data_field.annotation if handler.parsed_data_field else None,
                        answer=_answer_type(handler),
                        credential=guard.credential if guard else None,
                        scope=guard.scope if guard else None,
                    )


def _answer_type(handler: HTTPRouteHandler) -> Any:  # noqa: ANN401  # any type that msgspec knows
    field = handler.parsed_return_field
    if field.is_subclass_of(Stream):
        return None
    if field.is_subclass_of(Response):
        field = field.inner_types[0]
    return None if field.is_none_type else field.annotation


def _hot_operations() -> Iterator[_Operation]:
    ok = {"200": {"description": ""}}
    yield _Operation(
        projects.PATH, "get", "listProjects", {**projects.OPERATION, "responses": ok},
        answer=Page[Project], credential=Credential.CALLER, scope="projects:read",
    )  # fmt: skip
    headers = {
        name: {"schema": {"type": "string", "maxLength": 256}, "example": example} for name, example in IDENTITY.items()
    }
    yield _Operation(
        auth.VERIFY_TEMPLATE, "get", "verifyCredential",
        {**auth.VERIFY_OPERATION, "responses": {"200": {"description": "", "headers": headers}}},
        credential=Credential.CALLER,
    )  # fmt: skip
    yield _Operation(
        auth.VERIFY_TEMPLATE + "/mode/{mode}", "get", "verifyCredentialInMode",
        {**auth.VERIFY_IN_MODE_OPERATION, "responses": {"200": {"description": "", "headers": headers}}},
        credential=Credential.CALLER,
    )  # fmt: skip
    yield _Operation(webhooks.PATH, "post", "receiveProviderEvent", _webhook())


def _webhook() -> dict[str, Any]:
    def text(description: str) -> dict[str, Any]:
        return {"description": description, "content": {"text/plain": {"schema": {"type": "string"}}}}

    return {
        "summary": "Receive a payment-provider event",
        "parameters": [
            {
                "name": "Provider-Signature",
                "in": "header",
                "required": False,
                "schema": {"type": "string"},
                "description": "`t=<unix seconds>,v1=<hex HMAC-SHA256 of t.body>`",
            }
        ],
        "requestBody": {
            "required": True,
            "description": "The event as the provider sends it; the signature is over exactly these bytes.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        "responses": {
            "200": text(""),
            "400": text("The signature is missing or invalid, or the body is not an event. Nothing was processed."),
            "413": text("The body is larger than 1 MiB."),
            "500": text("Handling failed and was rolled back; send it again."),
            "503": text("The database is out of reach; send it again."),
        },
    }


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def _parameter(generated: dict[str, Any]) -> dict[str, Any]:
    """A parameter without what says nothing; a parameter cannot be null, only absent."""
    schema = {key: value for key, value in generated["schema"].items() if key != "description"}
    for choice in schema.pop("oneOf", ()):
        if choice.get("type") != "null":
            schema = {**choice, **schema}
    numbers = {key: int(value) for key, value in schema.items() if key in ("minimum", "maximum")}
    described: dict[str, Any] = {
        key: generated[key] for key in ("name", "in", "required", "description") if key in generated
    }
    if described["name"] in PARAMETERS:
        described["example"] = PARAMETERS[described["name"]]
    return {**described, "schema": {**schema, **numbers}}


def _headers(status: int, *, located: bool = False, limited: bool = False) -> dict[str, Any]:
    names = ["X-Request-Id"]
    if located:
        names.append("Location")
    if status == _UNAUTHORIZED:
        names.append("WWW-Authenticate")
    if status in _TO_WAIT_FOR:
        names.append("Retry-After")
    if limited or status == _TOO_MANY:
        names += ["RateLimit-Policy", "RateLimit"]
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _problem(status: int, codes: list[str]) -> dict[str, Any]:
    return {
        "description": f"{_STATUS_TEXTS[status]} {', '.join(f'`{code}`' for code in codes)}",
        "headers": _headers(status),
        "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}},
        CODES_KEY: codes,
    }


def _annotated(components: dict[str, Any], generated: dict[str, Any]) -> dict[str, Any]:
    """The schemas with the meaning of their fields, the format of times, and examples."""
    for name, schema in components.items():
        if "description" in schema:
            schema["description"] = schema["description"].replace("``", "`").replace("next_cursor", "nextCursor")
        texts = PAGE_FIELDS if name.startswith("Page_") else FIELDS.get(name, {})
        theirs = generated.get(name, {}).get("properties", {})
        for field, described in schema.get("properties", {}).items():
            text = texts.get(field) or next(_texts(described), None)
            if text is not None:
                described["description"] = text
            if "date-time" in str(theirs.get(field)):
                _mark_as_time(described)
        if name in EXAMPLES:
            schema["examples"] = [EXAMPLES[name]]
    return components


def _texts(schema: dict[str, Any]) -> Iterator[str]:
    """What a type that may also be null says of itself."""
    return (choice["description"] for choice in (schema, *schema.get("anyOf", ())) if "description" in choice)


def _mark_as_time(schema: dict[str, Any]) -> None:
    for choice in (schema, *schema.get("anyOf", ())):
        if choice.get("type") == "string":
            choice["format"] = "date-time"
