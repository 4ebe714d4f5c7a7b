"""The OpenAPI document: Litestar's routes and parameters, msgspec's schemas, and the hot routes.

msgspec decodes and encodes the bodies, so its schemas cannot promise anything else. The document reads a route's
credential and scope from its guard, its description from the handler's docstring, and those of fields from the structs.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from litestar import Litestar, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream
from litestar.routes import HTTPRoute

from tenantry.api import auth, webhooks
from tenantry.api.guards import RAISES, AnyRequest, Credential, RouteGuard
from tenantry.domain import errors
from tenantry.server import load_shedding, problems
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
    "The account layer of a multi-tenant API: who sends a request, what it may do, and which plan its tenant has. "
    "Errors are problem details (RFC 9457); JSON is camelCase; times are RFC 3339 in UTC."
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
    200: "Success.",
    201: "Created.",
    204: "Success. The answer has no body.",
    400: "The request is malformed.",
    401: "The credential is missing or invalid.",
    403: "The caller is not allowed to do this.",
    404: "The object does not exist.",
    408: "The request took too long to arrive.",
    409: "The current state does not allow this.",
    413: "The body is too large.",
    415: "The body is not JSON by its `Content-Type`.",
    422: "The request is invalid; `errors` says where and why.",
    429: "Too many requests.",
    431: "The request headers are too large.",
    501: "This is not configured.",
    502: "The payment provider refused.",
    503: "A dependency is unavailable; try again.",
}
_HEADERS: Final = {
    "X-Request-Id": "The request's id: the caller's own, or a new one.",
    "Location": "The new object's address.",
    "Retry-After": "Seconds to wait before the next try.",
    "RateLimit-Policy": "The limits of the caller's plan: requests (`q`) in any `w` seconds. Absent without limits.",
    "RateLimit": "The remaining requests of each limit (`r`), and the seconds until more (`t`). Absent without limits.",
    "WWW-Authenticate": "What is wrong with the credential (RFC 6750).",
}
_IDEMPOTENCY_KEY: Final[dict[str, Any]] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Within 24 hours, a repeated request with this key gets the first answer. Visible ASCII.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}
_UNAUTHORIZED: Final = 401
_TOO_MANY: Final = 429
_TO_WAIT_FOR: Final = (_TOO_MANY, 503)
_LIVE_ONLY: Final = {"tenants:write", "billing:write", "members:write", "audit:read"}
"""Scopes whose routes refuse test-mode keys."""
_LOCATED: Final = {"createProject", "createApiKey", "rotateApiKey", "createTenant", "createMember", "putTenant"}
"""Operations whose answer names the new object's address."""
_PARAMETERS: Final = {
    "project_id": "proj_01975c3a4f10b7e2d4a6c8f01e3b5d7f",
    "key_id": "key_01975c3a51c2a1b3c5d7e9f10213a5b7",
    "tenant_id": "acme",
    "member_id": "mbr_01975c3a5b3ef0a1b2c3d4e5f6071829",
    "membership_id": "mbr_01975c3a5b3ef0a1b2c3d4e5f6071829",
    "event_id": "evt_1SQk7xLm3Rk2pXw7",
    "scope": "projects:read",
    "mode": "any",
}
"""Examples of path parameters."""
_PAGE_FIELDS: Final = {"data": "The objects, at most `limit`.", "nextCursor": "For the next page; null on the last."}


class Group(NamedTuple):
    """A group of operations, which OpenAPI calls a tag: its paths, and the schemas of its objects."""

    name: str
    description: str
    prefixes: tuple[str, ...]
    objects: tuple[str, ...] = ()


_OPERATOR: Final = "Operator"
GROUPS: Final = (
    Group(
        "Projects",
        "Objects of a tenant, each in live or test mode. A caller sees those of its tenant and mode only.",
        ("/api/v1/projects",),
        ("Project",),
    ),
    Group(
        "API keys",
        "Long-lived credentials that belong to a tenant, not to a user. tenantry stores only a digest of the secret. "
        "No caller can give a key more scopes, level or mode than it holds itself.",
        ("/api/v1/api-keys",),
        ("ApiKey",),
    ),
    Group(
        "Tenants",
        "The organizations that use the API. Plan and subscription status follow the payment provider's events.",
        ("/api/v1/tenants",),
        ("Tenant",),
    ),
    Group(
        "Members",
        "Users of the identity provider who belong to a tenant, each with a role. A membership is an invitation until "
        "the user accepts it. The lower of the role and the one that the token claims counts; the API rejects a "
        "removed user whatever the token claims. Only an OWNER or the operator can lower or remove a user whose token "
        "claims the role owner. Members have no test mode.",
        ("/api/v1/members",),
        ("Member",),
    ),
    Group(
        "Memberships",
        "A user's memberships and invitations in all tenants. They need the user's token, with any scopes, and no "
        "organization. A request that names a tenant with `X-Organization-Id` accepts its invitation too.",
        ("/api/v1/me/memberships", "/api/v1/memberships"),
        ("Membership",),
    ),
    Group(
        _OPERATOR,
        "For your own backend, with the operator's token: `OPERATOR_TOKEN` of the settings as the bearer credential. "
        "If it is not set, these operations answer 401.",
        (),
        ("TenantExport",),
    ),
    Group(
        "Audit trail",
        "Every change to keys, members and the tenant: who made it, from where, and the values before and after. "
        "tenantry writes an entry in the transaction of the change, never alters it, and deletes it only with its "
        "tenant. Changes of billing state are in the ledger of billing events.",
        ("/api/v1/audit-events",),
        ("AuditEvent",),
    ),
    Group(
        "Billing",
        "The plans, the ledger of the payment provider's events, and links to the provider's pages. Tenants and "
        "billing have no test mode: a test-mode key can read but not change them.",
        ("/api/v1/plans", "/api/v1/billing"),
        ("PlanView", "BillingEventView"),
    ),
    Group(
        "Identity",
        "Who a credential belongs to, for clients and for gateways in front of other services.",
        ("/api/v1/auth",),
        ("Whoami",),
    ),
    Group(
        "Webhook",
        "The payment provider sends its events here. The signature alone authenticates a request; there is no API key "
        "or token. Every answer is plain text.",
        ("/api/v1/webhooks",),
    ),
    Group(
        "Health",
        "For orchestrators and monitoring. Prometheus finds the metrics at `/metrics`.",
        ("/healthz", "/readyz"),
    ),
)


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
                "schemas": _completed(components, generated["components"].get("schemas", {})),
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
    errors: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """The name of its group."""
        if self.credential is Credential.OPERATOR:
            return _OPERATOR
        return next(group.name for group in GROUPS if self.path.startswith(group.prefixes))

    def describe(self, schema_of: dict[str, Any], known: dict[str, ErrorCode]) -> dict[str, Any]:
        """The operation, complete."""
        described: dict[str, Any] = {
            "operationId": self.id,
            "summary": self.generated["summary"],
            "description": self.generated["description"].replace("\n\n", " ").replace("\n", " "),
            "tags": [self.group],
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
        responses = {
            status: self._answer(int(status), answer, schema_of)
            for status, answer in self.generated["responses"].items()
        }
        for number, codes in by_status(self._codes(), known).items():
            responses[str(number)] = _problem(number, codes)
        return {**described, "responses": dict(sorted(responses.items()))}

    @property
    def _is_idempotent(self) -> bool:
        return self.method == "post" and self.credential is not None

    def _answer(self, status: int, generated: dict[str, Any], schema_of: dict[str, Any]) -> dict[str, Any]:
        answer = {
            **generated,
            "description": generated["description"] or _STATUS_TEXTS[status],
            "headers": {
                **generated.get("headers", {}),
                **_headers(status, located=self.id in _LOCATED, limited=self.credential in _LIMITED),
            },
        }
        if self.answer is not None:
            answer["content"] = {"application/json": {"schema": schema_of[str(self.answer)]}}
        return answer

    def _codes(self) -> set[str]:
        """The codes of the errors that it may answer with: its own, and those of whole groups of operations."""
        codes = {*self.errors, *problems.MALFORMED}
        if self.path == webhooks.PATH:
            codes.discard(INVALID_REQUEST)  # its own of that status are plain text
        if self.path.startswith(load_shedding.PREFIX) and self.path != webhooks.PATH:
            codes |= codes_of(errors.OverloadedError)
        if self.credential is None:
            return codes | (problems.BODY if self.body is not None else set())
        codes |= _CREDENTIAL_CODES[self.credential]
        if self.scope is not None:
            codes |= codes_of(errors.InsufficientScopeError)
            codes |= codes_of(errors.ModeMismatchError) if self.scope in _LIVE_ONLY else set()
        if self._is_idempotent:
            codes |= problems.IDEMPOTENCY
        if self.body is not None:
            codes |= problems.BODY
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
    Credential.CALLER: problems.CREDENTIAL
    | codes_of(
        errors.NoOrganizationError, errors.OrgMismatchError, errors.OrgSuspendedError,
        errors.AuthUnavailableError, errors.DatabaseUnavailableError,
    )
    | {RATE_LIMITED},
    Credential.USER: problems.CREDENTIAL
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
                    yield _Operation(
                        path=route.path_format,
                        method=method.lower(),
                        id=_camel_case(handler.handler_name),
                        generated={**operation, "responses": _successes(operation["responses"], handler)},
                        body=handler.parsed_data_field.annotation if handler.parsed_data_field else None,
                        answer=_answer_type(handler),
                        credential=guard.credential if guard else None,
                        scope=guard.scope if guard else None,
                        errors=handler.opt.get(RAISES, ()),
                    )


def _answer_type(handler: HTTPRouteHandler) -> Any:  # noqa: ANN401  # any type that msgspec knows
    field = handler.parsed_return_field
    if field.is_subclass_of(Stream):
        return None
    if field.is_subclass_of(Response):
        field = field.inner_types[0]
    return None if field.is_none_type else field.annotation


def _successes(responses: dict[str, Any], handler: HTTPRouteHandler) -> dict[str, Any]:
    """The answers that are no problem documents, without what Litestar says of them."""
    kept: dict[str, dict[str, Any]] = {status: {"description": ""} for status in responses if status.startswith("2")}
    further = {str(status): {"description": one.description} for status, one in (handler.responses or {}).items()}
    if handler.parsed_return_field.is_subclass_of(Stream):
        kept["200"]["content"] = {handler.media_type: {"schema": {"type": "string"}}}
    return {**kept, **further}


def _hot_operations() -> Iterator[_Operation]:
    """The operations whose routes the dispatcher answers, which Litestar does not know."""
    for path, id_, described in auth.OPERATIONS:
        yield _Operation(
            path, "get", id_, described,
            credential=Credential.CALLER, errors=("not_found", "insufficient_scope", "mode_mismatch"),
        )  # fmt: skip
    yield _Operation(webhooks.PATH, "post", "receiveProviderEvent", webhooks.OPERATION)


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
    if described["name"] in _PARAMETERS:
        described["example"] = _PARAMETERS[described["name"]]
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


def _completed(components: dict[str, Any], generated: dict[str, Any]) -> dict[str, Any]:
    """The schemas with the format of times, and with the descriptions of pages."""
    for name, schema in components.items():
        if "description" in schema:
            schema["description"] = schema["description"].replace("``", "`").replace("next_cursor", "nextCursor")
        theirs = generated.get(name, {}).get("properties", {})
        for field, described in schema.get("properties", {}).items():
            if name.startswith("Page_"):
                described["description"] = _PAGE_FIELDS[field]
            text = next(_texts(described), None)
            if text is not None:
                described["description"] = text
            if "date-time" in str(theirs.get(field)):
                _mark_as_time(described)
    return components


def _texts(schema: dict[str, Any]) -> Iterator[str]:
    """The descriptions in a type that may also be null."""
    return (choice["description"] for choice in (schema, *schema.get("anyOf", ())) if "description" in choice)


def _mark_as_time(schema: dict[str, Any]) -> None:
    for choice in (schema, *schema.get("anyOf", ())):
        if choice.get("type") == "string":
            choice["format"] = "date-time"
