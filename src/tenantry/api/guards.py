"""Guards of routes: authentication, authorization, idempotency keys and the author of a change."""

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar, Final, cast

import msgspec
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler
from msgspec import UNSET

from tenantry.accounts.caller_address import UNVERIFIED, CallerAddress
from tenantry.auth.admission import Admission
from tenantry.auth.authentication import (
    Authenticated,
    Authenticator,
    KeyAnswer,
    requested_organization,
)
from tenantry.auth.credentials import Credential as SentCredential
from tenantry.auth.credentials import CredentialKind
from tenantry.common.logs import redact
from tenantry.common.secret import Secret
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
from tenantry.domain.usage import subject_of
from tenantry.integrations.oidc.tokens import Claims
from tenantry.server.asgi_types import (
    BODY_COMPLETE,
    CALLER,
    CLAIMS,
    OPERATOR,
    RATE_LIMITS,
    REQUEST_ID,
    USAGE_SUBJECT,
    DirectRequest,
    HotRequest,
    Scope,
    header_of,
)
from tenantry.server.service_app import state_of

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110 section 9.2.1)."""
_IDEMPOTENCY_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")

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


class RouteGuard:
    """A guard that also states its credential and scope, so that the documentation cannot disagree
    with it.

    It authorizes a change at the moment when the body is complete (CONTRACT 8.2). If the body was
    still arriving when the guard checked the headers, it reads the body and checks again. The
    service therefore rejects a caller without the right before it holds a body for them.
    """

    credential: ClassVar[Credential]
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
    operator_tokens: Sequence[Secret]
    email_of_token: EmailOfToken
    public_plans: bool = False
    """Whether the plans are listed without a credential too."""

    async def authenticate(
        self, connection: Connection, *, counts_quota: bool = True
    ) -> RequestPrincipal:
        """Authenticate the caller, and count the request at the first call. Raises as
        `authenticate`.
        """
        scope = extras(connection)
        header = partial(header_of, scope)
        found = await authenticate(self.admission, scope, header, counts_quota=counts_quota)
        return found.principal

    def find_credential(self, connection: Connection) -> SentCredential:
        """Return the credential that a request sent. Raises `DomainError`."""
        return self.admission.credentials.find_in(partial(header_of, extras(connection)))

    def is_operator(self, connection: Connection) -> bool:
        """Whether a request sent one of the operator's tokens, as its bearer credential. Raises
        `DomainError`.
        """
        sent = self.find_credential(connection)
        tokens = [token.reveal().encode() for token in self.operator_tokens]
        matches = [hmac.compare_digest(sent.value, token) for token in tokens]
        return sent.kind is CredentialKind.OTHER and any(matches)

    def has_credential(self, connection: Connection) -> bool:
        """Whether a request has a header for a credential, be it an empty one."""
        names = self.admission.credentials.header_names
        return any(name in names for name, _ in extras(connection)["headers"])

    def label(self, connection: Connection) -> str:
        """Return the kind of credential that a request seems to have sent, for the metrics."""
        credentials = self.admission.credentials
        key = credentials.read_key(partial(header_of, extras(connection)))
        return credentials.label(header(connection, "authorization"), key)

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

    def __init__(self, scope: str | None, *, is_in_quota: bool) -> None:
        self.scope = scope
        self.is_in_quota = is_in_quota

    async def authorize(self, connection: Connection) -> None:
        access = access_of(connection)
        principal = await access.authenticate(connection, counts_quota=self.is_in_quota)
        if self.scope is not None:
            principal.require(self.scope)
        if self.scope in LIVE_MODE_SCOPES:
            principal.require_mode(ACCEPTED_MODES["live"])


class _OwnTokenGuard(_CallerGuard):
    """Require a user's token for the tenant. A key is rejected, whatever its scopes."""

    credential = Credential.USER

    async def authorize(self, connection: Connection) -> None:
        await super().authorize(connection)
        if extras(connection)[CALLER].kind is not PrincipalKind.USER:
            raise errors.UserTokenRequiredError(
                "This needs a user's own token; an API key may not do it."
            )


class _PlansGuard(_CallerGuard):
    """Require any credential, or none where the plans are public. A wrong one is rejected."""

    async def authorize(self, connection: Connection) -> None:
        access = access_of(connection)
        if access.has_credential(connection) or not access.public_plans:
            await super().authorize(connection)


class _UserGuard(RouteGuard):
    credential = Credential.USER

    def __init__(self, what: str, limit: int, *, to_create: bool) -> None:
        self._what = what
        self._limit = limit
        self._to_create = to_create

    async def authorize(self, connection: Connection) -> None:
        access = access_of(connection)
        async with access.admission.delaying(access.label(connection)):
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
            scope[RATE_LIMITS] = await access.admission.count_user(claims, self._what, self._limit)
        scope[CLAIMS] = claims


class _OperatorGuard(RouteGuard):
    credential = Credential.OPERATOR

    async def authorize(self, connection: Connection) -> None:
        access = access_of(connection)
        async with access.admission.delaying("operator_token"):
            if not access.is_operator(connection):
                raise errors.InvalidCredentialError(
                    "This route needs the operator's token: Authorization: Bearer <OPERATOR_TOKEN>. "
                    "API keys and users' tokens are not accepted here."
                )
        extras(connection)[OPERATOR] = True


def needs(scope: str | None, *, in_quota: bool = True) -> RouteGuard:
    """Require a caller whose grants cover ``scope``, in live mode for `LIVE_MODE_SCOPES`; None: any
    credential.

    Without ``in_quota`` a tenant's quota of requests does not count: for routes through which a
    caller learns of an exhausted quota, and changes the plan.
    """
    return _CallerGuard(scope, is_in_quota=in_quota)


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
    if to_create:
        return _UserGuard("creations of", USER_CREATIONS_PER_MINUTE, to_create=True)
    return _UserGuard("requests of", USER_REQUESTS_PER_MINUTE, to_create=False)


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
"""The type of a handler's argument ``token_claims``: those of an authorized user; None for a
key.
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
    return CALLER in extras(request)


def current_claims(request: AnyRequest) -> Claims:
    """Return the claims of the user that a guard authorized."""
    claims = extras(request).get(CLAIMS)
    if not isinstance(claims, Claims):
        raise errors.MissingCredentialError("This route has no guard.")
    return claims


async def current_token_claims(request: AnyRequest) -> Claims | None:
    """Return the token's claims of an authorized user; None for a key."""
    access = access_of(request)
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
    key = raw.decode("latin-1")
    if not _IDEMPOTENCY_KEY.fullmatch(key):
        raise errors.InvalidIdempotencyKeyError(
            "Idempotency-Key must be 1 to 255 visible ASCII characters."
        )
    # a client may send a credential here by mistake; it must not be stored
    credentials = access_of(request).admission.credentials
    if redact(key) != key or credentials.may_be_imported(key.encode()):
        key = "sha256:" + hashlib.sha256(key.encode()).hexdigest()
    return Claim(
        _claim_owner(request),
        f"{request.method} {request.url.path}",
        key,
        hashlib.sha256(await request.body()).digest(),
    )


def _claim_owner(request: AnyRequest) -> str:
    user = extras(request).get(CLAIMS)
    if isinstance(user, Claims):
        return f"user:{user.issuer}:{user.subject}"
    return claimant(current_principal(request))


def claimant(principal: RequestPrincipal) -> str:
    """Return the owner of a principal's idempotency keys: users of two directories may have the
    same subject.
    """
    issuer = "" if principal.issuer is None else f"{principal.issuer}:"
    return f"{principal.kind}:{principal.org_id}:{issuer}{principal.id}"


def current_author(request: AnyRequest) -> Author:
    """Return the author of a change: whom a guard authorized, or an anonymous client."""
    scope = extras(request)
    claims = scope.get(CLAIMS)
    principal = scope.get(CALLER)
    if isinstance(claims, Claims):
        return author_of(request, ActorKind.USER, claims.subject)
    if isinstance(principal, RequestPrincipal):
        return author_of(request, ActorKind(principal.kind), principal.id)
    return author_of(request, ActorKind.OPERATOR if OPERATOR in scope else ActorKind.ANYBODY)


def author_of(request: AnyRequest, kind: ActorKind, actor_id: str | None = None) -> Author:
    """Return the author of a change by this request."""
    address = request.client.host if request.client else None
    return Author(
        kind,
        actor_id,
        address,
        str(request.scope.get(REQUEST_ID, "")) or None,
    )


async def authenticate(
    admission: Admission,
    scope: Scope,
    header: Callable[[bytes], bytes | None],
    window: Window | None = None,
    *,
    counts_quota: bool = True,
    answer: KeyAnswer | None = None,
) -> Authenticated:
    """Authenticate a request as of now, and count it at the first call; store caller and status in
    the scope. ``counts_quota`` is as in `Admission.count`; ``answer`` is that of `look_up_key`.

    Raises as `Admission.authenticate` and `Admission.count`.
    """
    is_first = CALLER not in scope
    began = admission.monotonic() if answer is None else answer.began
    address = _address_of(scope)
    try:
        if answer is None:
            found = await admission.authenticate(
                header(b"authorization"),
                header(b"x-organization-id"),
                address,
                window,
                admission.credentials.read_key(header),
            )
        else:
            found = await admission.accept_key(answer, address)
    except errors.DomainError as error:
        scope[USAGE_SUBJECT] = error.sender
        raise
    _store_caller(scope, found.principal)
    if is_first:
        scope[RATE_LIMITS] = await admission.count(
            found.principal, began, counts_quota=counts_quota
        )
    return found


def _address_of(scope: Scope) -> str | None:
    client = scope.get("client")
    return client[0] if client else None


def _store_caller(scope: Scope, principal: RequestPrincipal) -> None:
    scope[CALLER] = principal
    scope[USAGE_SUBJECT] = subject_of(principal)


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
        request.header(b"authorization"),
        window,
        admission.credentials.read_key(request.header),
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

    Return None if the key is rejected, which takes time, or if counting needs a query: nothing was
    counted then. Raises `RateLimitedError`.
    """
    answer = key_answer(request)
    if answer is None:
        return None
    try:
        found = admission.authenticator.accept_key(answer, _address_of(request.scope))
    except Exception:  # noqa: BLE001  # `authenticate` raises it again
        return None
    _store_caller(request.scope, found.principal)
    status = admission.count_locally(found.principal)
    if status is None:
        del request.scope[CALLER]  # so that `authenticate` counts
        return None
    request.scope[RATE_LIMITS] = status
    return found
