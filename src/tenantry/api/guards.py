"""Guards of routes: authentication, authorization, idempotency keys and the author of a change."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from enum import Enum, StrEnum, auto
from functools import partial
from typing import Any, ClassVar, Final, Protocol, cast

import msgspec
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler
from msgspec import UNSET

from tenantry.accounts.caller_address import UNVERIFIED, CallerAddress
from tenantry.api.operator_access import VISIBLE, OperatorAccess, OperatorRequest
from tenantry.auth.admission import Admission
from tenantry.auth.authentication import (
    Authenticated,
    Authenticator,
    KeyAnswer,
    Rejected,
    requested_organization,
)
from tenantry.auth.credentials import UNKNOWN, CredentialKind, HeaderReader, Sender
from tenantry.auth.credentials import Credential as SentCredential
from tenantry.db.idempotency_store import Claim
from tenantry.db.pagination import Window
from tenantry.domain import errors
from tenantry.domain.audit import ActorKind, Author
from tenantry.domain.permissions import (
    ACCEPTED_MODES,
    LIVE_MODE_SCOPES,
    PrincipalKind,
    RequestPrincipal,
)
from tenantry.domain.rate_limits import USER_CREATIONS_PER_MINUTE, USER_REQUESTS_PER_MINUTE
from tenantry.domain.requirements import Requirement
from tenantry.domain.usage import subject_of
from tenantry.integrations.oidc.tokens import Claims
from tenantry.server.asgi_types import (
    BODY_COMPLETE,
    CALLER,
    CLAIMS,
    OPERATOR,
    PEER,
    RATE_LIMITS,
    REJECTED_SENDER,
    REQUEST_ID,
    USAGE_SUBJECT,
    DirectRequest,
    HotRequest,
    Scope,
    header_of,
)
from tenantry.server.problems import log_refused_token
from tenantry.server.service_app import state_of

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110 section 9.2.1)."""
_CREATIONS: Final = ("creations of", USER_CREATIONS_PER_MINUTE)
_REQUESTS: Final = ("requests of", USER_REQUESTS_PER_MINUTE)
"""What is counted of a user, and how many a minute."""

AnyRequest = Request[Any, Any, Any]
Connection = ASGIConnection[Any, Any, Any, Any]
EmailOfToken = Callable[[str, str], Awaitable[str | None]]
"""Asks the identity provider for the address of the user of an access token, given its subject."""


class Credential(StrEnum):
    """The kind of credential that a route accepts."""

    CALLER = "caller"
    USER = "user"
    OPERATOR = "operator"
    SESSION = "session"
    """A user who is signed in to the dashboard."""


class OperatorRight(Enum):
    """When the operator's token is accepted, beside the credential that a route is for."""

    NEVER = auto()
    OF_TENANT = auto()
    """For the tenant that the request names."""
    ALONE = auto()
    """For the tenant that the request names; no other credential is."""
    ALWAYS = auto()


class RouteGuard:
    """A guard that also states its credential and scope, so that the documentation cannot disagree
    with it.

    It authorizes a change at the moment when the body is complete (CONTRACT 8.2). If the body was
    still arriving when the guard checked the headers, it reads the body and checks again. The
    service therefore rejects a caller without the right before it holds a body for them; only the
    guard of pages reads a form of at most 64 KiB first, to offer it again with the error.
    """

    credential: ClassVar[Credential]
    operator: ClassVar[OperatorRight] = OperatorRight.NEVER
    scope: str | None = None
    is_in_quota: bool = False
    """Whether a tenant's quota of requests counts the route's requests, and may reject them."""

    async def __call__(self, connection: Connection, _handler: BaseRouteHandler) -> None:
        """Authorize the caller. Raises `DomainError`, and whatever reading the body raises."""
        await self.authorize(connection)
        scope = extras(connection)
        if scope["method"] in _SAFE_METHODS or scope.get(BODY_COMPLETE):
            return
        await cast("AnyRequest", connection).body()
        scope[BODY_COMPLETE] = True
        await self.authorize(connection)

    async def authorize(self, connection: Connection) -> None:
        """Authorize the caller of a connection. Raises `DomainError`."""
        raise NotImplementedError


MOST_MEMBERS: Final = "most_members"
"""The option of a route whose body may have more than `MAX_MEMBERS`."""
RAISES: Final = "raises"


def raises(*codes: str) -> dict[str, Any]:
    """Name the error codes of a route beyond those that its guard and its parameters imply, for
    OpenAPI.
    """
    return {RAISES: codes}


class Access(msgspec.Struct, frozen=True):
    """What the guards of an application use: ``access`` in its state."""

    admission: Admission
    authenticator: Authenticator
    operator: OperatorAccess
    email_of_token: EmailOfToken
    public_plans: bool = False
    """Whether the plans are listed without a credential too."""

    async def authenticate(
        self, connection: Connection, *, counts_quota: bool = True, is_use: bool = False
    ) -> RequestPrincipal:
        """Authenticate the caller, and count the request at the first call. The requests of the
        operator are not counted; those that are ``is_use`` of what a tenant pays for are refused
        for a suspended one.

        Raises as `authenticate`, `OperatorAccess.act`, and `OrgMismatchError` for the operator of
        another tenant than the path's.
        """
        request = _ConnectionRequest(extras(connection))
        sent = self.recognize_operator(connection)
        if sent is not None:
            return await act_as_operator(self.operator, sent, request.scope, is_use=is_use)
        found = await authenticate(self.admission, request, counts_quota=counts_quota)
        return found.principal

    @asynccontextmanager
    async def rejecting(self, connection: Connection, kind: str) -> AsyncIterator[None]:
        """Reject the credential of a request, which is of this kind, with the error that the block
        raises.
        """
        try:
            yield
        except errors.DomainError as error:
            rejected = await self.admission.reject(Rejected(error), kind)
            log_refused_token(
                rejected.token_fault, _ConnectionRequest(extras(connection)).request_id
            )
            raise

    def find_credential(self, connection: Connection) -> SentCredential:
        """Return the credential that a request sent. Raises `DomainError`."""
        return self.admission.credentials.find_in(partial(header_of, extras(connection)))

    def recognize_operator(self, connection: Connection) -> OperatorRequest | None:
        """Return what a request of the operator says, and mark it as the operator's; None for
        others.

        Raises as `OperatorAccess.read`, and `OrgMismatchError` if it names another tenant than the
        path.
        """
        scope = extras(connection)
        sent = self.operator.read(partial(header_of, scope))
        if sent is None:
            return None
        scope[OPERATOR] = sent
        of_path = connection.path_params.get("tenant_id")
        if None not in (sent.tenant_id, of_path) and sent.tenant_id != of_path:
            raise errors.OrgMismatchError("X-Act-As-Organization and the path name two tenants.")
        return sent

    def has_credential(self, connection: Connection) -> bool:
        """Whether a request has a header for a credential, be it an empty one."""
        names = self.admission.credentials.header_names
        return any(name in names for name, _ in extras(connection)["headers"])

    def label(self, connection: Connection) -> str:
        """Return the kind of credential that a request seems to have sent, for the metrics."""
        return self.admission.credentials.label_of(partial(header_of, extras(connection)))

    async def verify_token(self, credential: SentCredential) -> Claims | None:
        """Return the verified claims of a token; None for an API key. Raises `DomainError`."""
        if credential.kind is CredentialKind.API_KEY:
            return None
        return await self.authenticator.verify_token(credential)


def access_of(connection: Connection) -> Access:
    """Return what the guards of the connection's service use."""
    access: Access = state_of(connection.scope)["access"]
    return access


class _CallerGuard(RouteGuard):
    credential = Credential.CALLER
    operator = OperatorRight.OF_TENANT

    def __init__(self, scope: str | None, *, is_in_quota: bool, is_use: bool = False) -> None:
        self.scope = scope
        self.is_in_quota = is_in_quota
        self._is_use = is_use
        self._needed = Requirement(
            () if scope is None else (scope,),
            modes=ACCEPTED_MODES["live" if scope in LIVE_MODE_SCOPES else "any"],
        )

    async def authorize(self, connection: Connection) -> None:
        access = access_of(connection)
        caller = await access.authenticate(
            connection, counts_quota=self.is_in_quota, is_use=self._is_use
        )
        self._needed.check(caller)


class _ActingOperatorGuard(_CallerGuard):
    """Require the operator, who acts for a tenant. Other credentials are rejected, whatever their
    scopes.
    """

    operator = OperatorRight.ALONE

    async def authorize(self, connection: Connection) -> None:
        await super().authorize(connection)
        if not is_by_operator(connection):
            raise errors.OperatorRequiredError(
                "This needs the operator's token, with X-Act-As-Organization: <tenant's id>."
            )


def _refuse_operator(access: Access, connection: Connection) -> None:
    if access.recognize_operator(connection) is not None:
        raise errors.UserTokenRequiredError("This is for a user: send the user's token.")


class _OwnTokenGuard(_CallerGuard):
    """Require a user's token for the tenant. A key is rejected, whatever its scopes."""

    credential = Credential.USER
    operator = OperatorRight.NEVER

    async def authorize(self, connection: Connection) -> None:
        _refuse_operator(access_of(connection), connection)
        await super().authorize(connection)
        if extras(connection)[CALLER].kind is not PrincipalKind.USER:
            raise errors.UserTokenRequiredError(
                "This needs a user's own token; an API key may not do it."
            )


class _PlansGuard(_CallerGuard):
    """Require any credential, or none where the plans are public. A wrong one is rejected."""

    operator = OperatorRight.ALWAYS

    async def authorize(self, connection: Connection) -> None:
        access = access_of(connection)
        if access.recognize_operator(connection) is not None:
            return
        if access.has_credential(connection) or not access.public_plans:
            await super().authorize(connection)


class _UserGuard(RouteGuard):
    credential = Credential.USER

    def __init__(self, *, to_create: bool) -> None:
        self._to_create = to_create
        self._limit = _CREATIONS if to_create else _REQUESTS

    async def authorize(self, connection: Connection) -> None:
        access = access_of(connection)
        _refuse_operator(access, connection)
        async with access.rejecting(connection, access.label(connection)):
            claims = await access.verify_token(access.find_credential(connection))
            if self._to_create and claims is not None and claims.org_id is not None:
                requested_organization(claims.org_id, header(connection, "x-organization-id"))
        if claims is None:
            await access.authenticate(connection, counts_quota=False)
            raise errors.UserTokenRequiredError(
                "This needs a user's token; an API key belongs to a tenant already."
            )
        scope = extras(connection)
        if CLAIMS not in scope:  # otherwise the first check counted it
            scope[RATE_LIMITS] = await access.admission.count_user(claims, *self._limit)
        scope[CLAIMS] = claims


class _OperatorGuard(RouteGuard):
    credential = Credential.OPERATOR

    async def authorize(self, connection: Connection) -> None:
        access = access_of(connection)
        async with access.rejecting(connection, "operator_token"):
            access.find_credential(connection)
            if access.recognize_operator(connection) is None:
                raise errors.InvalidCredentialError(
                    "This route needs the operator's token: Authorization: Bearer <OPERATOR_TOKEN>. "
                    "API keys and users' tokens are not accepted here."
                )


def needs(scope: str | None, *, in_quota: bool = True, is_use: bool = False) -> RouteGuard:
    """Require a caller whose grants cover ``scope``, in live mode for `LIVE_MODE_SCOPES`; None: any
    credential.

    Without ``in_quota`` a tenant's quota of requests does not count: for routes through which a
    caller learns of an exhausted quota, and changes the plan. A route that ``is_use`` of what a
    tenant pays for refuses the operator of a suspended tenant.
    """
    return _CallerGuard(scope, is_in_quota=in_quota, is_use=is_use)


def needs_acting_operator() -> RouteGuard:
    """Require the operator's token, for a tenant that the request names, a suspended one too."""
    return _ActingOperatorGuard(None, is_in_quota=False)


def needs_own_token(scope: str) -> RouteGuard:
    """Require a user's token whose grants cover ``scope``: for what a leaked key must not do."""
    return _OwnTokenGuard(scope, is_in_quota=True)


def needs_plan_access() -> RouteGuard:
    """Require any credential, unless the plans are public."""
    return _PlansGuard(None, is_in_quota=False)


def needs_user(*, to_create: bool = False) -> RouteGuard:
    """Require a user's token with any scopes, also of a user without a tenant.

    Requests are limited for each user; the limit ``to_create`` tenants is lower.
    """
    return _UserGuard(to_create=to_create)


def needs_operator() -> RouteGuard:
    """Require the operator's token."""
    return _OperatorGuard()


def extras(connection: Connection) -> dict[str, Any]:
    """The ASGI scope, as a dictionary that also holds this service's values."""
    return cast("dict[str, Any]", connection.scope)


def header(connection: Connection, name: str) -> bytes | None:
    """The raw value of a header. Repeated headers are joined, which makes a credential invalid."""
    return header_of(extras(connection), name.encode())


Caller = NamedDependency[RequestPrincipal]
"""The type of a handler's argument ``principal``: the caller that the route's guard authorized."""
CallerClaims = NamedDependency[Claims]
"""The type of a handler's argument ``claims``: those of the user that the route's guard
authorized.
"""
ChangeAuthor = NamedDependency[Author]
"""The type of a handler's argument ``author``: the author of a change by whom the route's guard
authorized.
"""
TokenClaims = NamedDependency[Claims | None]
"""The type of a handler's argument ``token_claims``: those of an authorized user; None for a key
and for the operator.
"""
VerifiedAddress = NamedDependency[CallerAddress]
"""The type of a handler's argument ``address``: the verified address of the authorized caller."""
IdempotencyClaim = NamedDependency[Claim | None]
"""The type of a handler's argument ``claim``: that of a request with an ``Idempotency-Key``."""


def current_principal(request: AnyRequest) -> RequestPrincipal:
    """Return the caller that a guard authorized."""
    principal = extras(request).get(CALLER)
    if not isinstance(principal, RequestPrincipal):
        raise errors.MissingCredentialError("This route has no guard.")
    return principal


def has_caller(request: AnyRequest) -> bool:
    """Whether a guard authorized a caller."""
    return CALLER in extras(request) or is_by_operator(request)


def is_by_operator(request: Connection) -> bool:
    """Whether a guard authorized the operator, for a tenant or for all of them."""
    return OPERATOR in extras(request)


def current_claims(request: AnyRequest) -> Claims:
    """Return the claims of the user that a guard authorized."""
    claims = extras(request).get(CLAIMS)
    if not isinstance(claims, Claims):
        raise errors.MissingCredentialError("This route has no guard.")
    return claims


async def current_token_claims(request: AnyRequest) -> Claims | None:
    """Return the token's claims of an authorized user; None for a key and for the operator."""
    access = access_of(request)
    if is_by_operator(request):
        return None
    return await access.verify_token(access.find_credential(request))


async def current_address(request: AnyRequest) -> CallerAddress:
    """Return the verified address of an authorized request's caller."""
    claims = await current_token_claims(request)
    if claims is None:
        return UNVERIFIED
    access = access_of(request)
    token = access.find_credential(request).value.decode()
    find_email = access.email_of_token
    return CallerAddress(claims, partial(find_email, token, claims.subject))


async def current_claim(request: AnyRequest) -> Claim | None:
    """Return the idempotency claim of the caller or user that a guard authorized (CONTRACT 4).

    Raises `InvalidIdempotencyKeyError` unless the key is 1 to 255 visible ASCII characters.
    """
    raw = header(request, "idempotency-key")
    if raw is None:
        return None
    if not VISIBLE.fullmatch(raw):
        raise errors.InvalidIdempotencyKeyError(
            "Idempotency-Key must be 1 to 255 visible ASCII characters."
        )
    return Claim(
        _claim_owner(request),
        f"{request.method} {request.url.path}",
        stored_key(request, raw),
        hashlib.sha256(await request.body()).digest(),
    )


def stored_key(request: AnyRequest, key: bytes) -> str:
    """Return an idempotency key as it is stored: a client may send a credential by mistake."""
    return access_of(request).operator.without_secret(key.decode())


def _claim_owner(request: AnyRequest) -> str:
    user = extras(request).get(CLAIMS)
    if isinstance(user, Claims):
        return f"user:{user.issuer}:{user.subject}"
    return claimant(current_principal(request))


def claimant(principal: RequestPrincipal) -> str:
    """Return the owner of a principal's idempotency keys: users of two directories may have the
    same subject, and the operator has both modes.
    """
    other = principal.mode if principal.kind is PrincipalKind.OPERATOR else principal.issuer
    realm = "" if other is None else f"{other}:"
    return f"{principal.kind}:{principal.org_id}:{realm}{principal.id}"


def current_author(request: AnyRequest) -> Author:
    """Return the author of a change: whom a guard authorized, or an anonymous client."""
    scope = extras(request)
    claims = scope.get(CLAIMS)
    principal = scope.get(CALLER)
    if isinstance(claims, Claims):
        return author_of(request, ActorKind.USER, claims.subject)
    if operator := scope.get(OPERATOR):
        author = author_of(request, ActorKind.OPERATOR)
        return msgspec.structs.replace(author, on_behalf_of=operator.on_behalf_of)
    if isinstance(principal, RequestPrincipal):
        return author_of(request, ActorKind(principal.kind), principal.id)
    return author_of(request, ActorKind.ANYBODY)


def author_of(request: AnyRequest, kind: ActorKind, actor_id: str | None = None) -> Author:
    """Return the author of a change by this request."""
    address = request.client.host if request.client else None
    return Author(
        kind,
        actor_id,
        address,
        str(request.scope.get(REQUEST_ID, "")) or None,
    )


class SentRequest(Protocol):
    """A request of any route."""

    @property
    def scope(self) -> Scope: ...
    @property
    def request_id(self) -> bytes: ...
    def header(self, name: bytes) -> bytes | None:
        """Return a header's value, joined if there are several."""


class _ConnectionRequest(msgspec.Struct, frozen=True):
    """The request of a route that Litestar handles."""

    scope: dict[str, Any]

    @property
    def request_id(self) -> bytes:
        return str(self.scope.get(REQUEST_ID, "")).encode()

    def header(self, name: bytes) -> bytes | None:
        return header_of(self.scope, name)


async def authenticate(
    admission: Admission,
    request: SentRequest,
    window: Window | None = None,
    *,
    counts_quota: bool = True,
    answer: KeyAnswer | None = None,
) -> Authenticated:
    """Authenticate a request as of now, and count it at the first call; store caller and status in
    the scope. ``counts_quota`` is as in `Admission.count`; ``answer`` is that of `look_up_key`.

    Raises the errors of rejections, and as `Admission.count`.
    """
    scope = request.scope
    is_first = CALLER not in scope
    began = admission.monotonic() if answer is None else answer.began
    sender = _sender_of(scope, request.header)
    if answer is None:
        found = await admission.authenticate(sender, window)
    else:
        found = await admission.accept_key(answer, sender)
    if isinstance(found, Rejected):
        if found.sender is not None:
            scope[REJECTED_SENDER] = found.sender
            scope[USAGE_SUBJECT] = found.sender.usage_subject
        log_refused_token(found.token_fault, request.request_id)
        raise found.error
    _store_caller(scope, found.principal)
    if is_first:
        scope[RATE_LIMITS] = await admission.count(
            found.principal, began, counts_quota=counts_quota
        )
    return found


def _sender_of(scope: Scope, header: HeaderReader) -> Sender:
    client = scope.get("client")
    if not client or client[0] == UNKNOWN:
        return Sender(header)
    return Sender(header, client[0], PEER in scope and scope[PEER] is not client)


def _store_caller(scope: Scope, principal: RequestPrincipal) -> None:
    scope[CALLER] = principal
    scope[USAGE_SUBJECT] = subject_of(principal)


async def act_as_operator(
    operator: OperatorAccess, sent: OperatorRequest, scope: Scope, *, is_use: bool = False
) -> RequestPrincipal:
    """Let the operator be the caller of a request. Neither usage nor limits count it. Raises as
    `OperatorAccess.act`.
    """
    scope[OPERATOR] = sent
    scope[CALLER] = principal = await operator.act(sent, is_use=is_use)
    return principal


class _KeyLookup(msgspec.Struct, frozen=True):
    """What `look_up_key` began."""

    digests: Sequence[bytes]
    began: float


def look_up_key(admission: Admission, request: DirectRequest, window: Window | None = None) -> bool:
    """Look up the API key of a request for it, as `DirectHandler.begin`; ``window`` requests a
    page.
    """
    began = admission.monotonic()
    digests = admission.authenticator.look_up(
        request,
        request.header,
        window,
    )
    if digests is None:
        return False
    request.begun = _KeyLookup(digests, began)
    return True


def key_answer(request: HotRequest) -> KeyAnswer | None:
    """Return the answer to `look_up_key`, if there is one."""
    if request.answer is UNSET:
        return None
    lookup: _KeyLookup = request.begun
    return KeyAnswer(lookup.digests, request.answer, lookup.began)


def admit_at_once(admission: Admission, request: HotRequest) -> Authenticated | None:
    """Authenticate and count a request by the answer to `look_up_key`, as `authenticate`.

    Return None if the key is rejected, which takes time, or if binding it or counting needs a
    query: nothing was counted then. Raises `RateLimitedError`.
    """
    answer = key_answer(request)
    if answer is None:
        return None
    try:
        found = admission.authenticator.accept_key_at_once(
            answer, _sender_of(request.scope, request.header)
        )
    except Exception:  # noqa: BLE001  # `authenticate` raises it again
        return None
    if not isinstance(found, Authenticated):  # `authenticate` counts and delays it, or binds it
        return None
    _store_caller(request.scope, found.principal)
    status = admission.count_locally(found.principal)
    if status is None:
        del request.scope[CALLER]  # so that `authenticate` counts
        return None
    request.scope[RATE_LIMITS] = status
    return found
