"""Guards of routes: authentication, authorization, idempotency keys and the author of a change."""

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Final, cast

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

from tenantry.accounts.caller_address import UNVERIFIED, CallerAddress
from tenantry.auth.admission import Admission, Admitted, credential_kind
from tenantry.auth.authentication import Authenticator, bearer_credential, requested_organization
from tenantry.common.logs import redact
from tenantry.common.secret import Secret
from tenantry.db.idempotency_store import Claim
from tenantry.db.pagination import Window
from tenantry.domain import errors
from tenantry.domain.audit import ActorKind, Author
from tenantry.domain.permissions import ACCEPTED_MODES, LIVE_MODE_SCOPES, RequestPrincipal
from tenantry.domain.rate_limits import USER_CREATIONS_PER_MINUTE, USER_REQUESTS_PER_MINUTE
from tenantry.integrations.oidc.tokens import Claims
from tenantry.server.asgi_types import (
    BODY_COMPLETE,
    CALLER,
    CLAIMS,
    OPERATOR,
    RATE_LIMITS,
    REQUEST_ID,
    Scope,
    header_of,
)

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110 section 9.2.1)."""
_IDEMPOTENCY_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")

AnyRequest = Request[Any, Any, Any]
Connection = ASGIConnection[Any, Any, Any, Any]
Routes = Sequence[HTTPRouteHandler]
EmailOfToken = Callable[[str, str], Awaitable[str | None]]
"""Asks the identity provider for the address of the user of an access token, given its subject."""
Check = Callable[[Connection, BaseRouteHandler], Awaitable[None]]


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

    def __init__(self, check: Check, credential: Credential, scope: str | None = None) -> None:
        self._check = check
        self.credential = credential
        self.scope = scope

    async def __call__(self, connection: Connection, handler: BaseRouteHandler) -> None:
        """Authorize the caller. Raises `DomainError`, and whatever reading the body raises."""
        await self._check(connection, handler)
        scope = extras(connection)
        if scope["method"] in _SAFE_METHODS or scope.get(BODY_COMPLETE):
            return
        await cast("AnyRequest", connection).body()
        scope[BODY_COMPLETE] = True
        await self._check(connection, handler)


RAISES: Final = "raises"


def raises(*codes: str) -> dict[str, Any]:
    """Name the error codes of a route beyond those that its guard and its parameters imply, for
    OpenAPI.
    """
    return {RAISES: codes}


class Access:
    """Makes the guards of routes."""

    def __init__(
        self,
        admission: Admission,
        authenticator: Authenticator,
        operator_token: Secret | None,
        email_of_token: EmailOfToken,
    ) -> None:
        self._admission = admission
        self._authenticator = authenticator
        self._operator_token = operator_token
        self._email_of_token = email_of_token

    def needs(self, scope: str | None) -> RouteGuard:
        """Require a caller whose grants cover ``scope``, in live mode for `LIVE_MODE_SCOPES`; None:
        any credential.
        """

        async def guard(connection: Connection, _handler: BaseRouteHandler) -> None:
            principal = await self._authenticate(connection)
            if scope is not None:
                principal.require(scope)
            if scope in LIVE_MODE_SCOPES:
                principal.require_mode(ACCEPTED_MODES["live"])

        return RouteGuard(guard, Credential.CALLER, scope)

    def needs_user(self, *, to_create: bool = False) -> RouteGuard:
        """Require a user's token with any scopes, also of a user without a tenant.

        Requests are limited for each user; the limit ``to_create`` tenants is lower.
        """
        what, limit = (
            ("creations", USER_CREATIONS_PER_MINUTE)
            if to_create
            else ("requests", USER_REQUESTS_PER_MINUTE)
        )

        async def guard(connection: Connection, _handler: BaseRouteHandler) -> None:
            authorization = header(connection, "authorization")
            async with self._admission.delaying(credential_kind(authorization)):
                credential = bearer_credential(authorization)
                is_key = credential.startswith(b"svc_")
                claims = None if is_key else await self._authenticator.verify_token(credential)
                if to_create and claims is not None and claims.org_id is not None:
                    requested_organization(claims.org_id, header(connection, "x-organization-id"))
            if claims is None:
                await self._authenticate(connection)
                raise errors.UserTokenRequiredError(
                    "This needs a user's token; an API key belongs to a tenant already."
                )
            if CLAIMS not in extras(connection):  # otherwise the first check counted it
                extras(connection)[RATE_LIMITS] = await self._admission.count_user(
                    claims, f"{what} of", limit
                )
            extras(connection)[CLAIMS] = claims

        return RouteGuard(guard, Credential.USER)

    def needs_operator(self) -> RouteGuard:
        """Require the operator's token."""

        async def guard(connection: Connection, _handler: BaseRouteHandler) -> None:
            expected = self._operator_token
            async with self._admission.delaying("operator_token"):
                credential = bearer_credential(header(connection, "authorization"))
                if expected is None or not hmac.compare_digest(
                    credential, expected.reveal().encode()
                ):
                    raise errors.InvalidCredentialError("This needs the operator's token.")
            extras(connection)[OPERATOR] = True

        return RouteGuard(guard, Credential.OPERATOR)

    async def _authenticate(self, connection: Connection) -> RequestPrincipal:
        scope = extras(connection)
        header_in = partial(header_of, scope)
        if CALLER in scope:  # the first check admitted and counted it
            return await authenticate_again(self._admission, scope, header_in)
        return (await authenticate_and_count(self._admission, scope, header_in)).principal

    async def claims_of(self, request: AnyRequest) -> Claims | None:
        """The token's claims of an authenticated user; None for a key."""
        credential = bearer_credential(header(request, "authorization"))
        return (
            None
            if credential.startswith(b"svc_")
            else await self._authenticator.verify_token(credential)
        )

    async def address_of(self, request: AnyRequest) -> CallerAddress:
        """The verified address of an authenticated request's caller."""
        claims = await self.claims_of(request)
        if claims is None:
            return UNVERIFIED
        token = bearer_credential(header(request, "authorization")).decode()
        return CallerAddress(claims, partial(self._email_of_token, token, claims.subject))


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
IdempotencyClaim = NamedDependency[Claim | None]
"""The type of a handler's argument ``claim``: that of a request with an ``Idempotency-Key``."""


def current_principal(request: AnyRequest) -> RequestPrincipal:
    """Return the caller that a guard authorized."""
    principal = extras(request).get(CALLER)
    if not isinstance(principal, RequestPrincipal):
        raise errors.MissingCredentialError("This route has no guard.")
    return principal


def current_claims(request: AnyRequest) -> Claims:
    """Return the claims of the user that a guard authorized."""
    claims = extras(request).get(CLAIMS)
    if not isinstance(claims, Claims):
        raise errors.MissingCredentialError("This route has no guard.")
    return claims


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
    if redact(key) != key:  # a client may send a credential here by mistake; it must not be stored
        key = "sha256:" + hashlib.sha256(key.encode()).hexdigest()
    user = extras(request).get(CLAIMS)
    owner = (
        f"user:{user.issuer}:{user.subject}"
        if isinstance(user, Claims)
        else claimant(current_principal(request))
    )
    return Claim(
        owner,
        f"{request.method} {request.url.path}",
        key,
        hashlib.sha256(await request.body()).digest(),
    )


def claimant(principal: RequestPrincipal) -> str:
    """Return the owner of a principal's idempotency keys: users of two directories may have the
    same subject.
    """
    issuer = "" if principal.issuer is None else f"{principal.issuer}:"
    return f"{principal.kind}:{principal.org_id}:{issuer}{principal.id}"


def current_author(request: AnyRequest) -> Author:
    """Return the author of a change: whom a guard authorized, or an anonymous client."""
    scope = extras(request)
    claims, principal = scope.get(CLAIMS), scope.get(CALLER)
    if isinstance(claims, Claims):
        return author_of(request, ActorKind.USER, claims.subject)
    if isinstance(principal, RequestPrincipal):
        return author_of(request, ActorKind(principal.kind), principal.id)
    return author_of(request, ActorKind.OPERATOR if OPERATOR in scope else ActorKind.ANYBODY)


def author_of(request: AnyRequest, kind: ActorKind, actor_id: str | None = None) -> Author:
    """Return the author of a change by this request."""
    address = request.client.host if request.client else None
    return Author(kind, actor_id, address, str(request.scope.get(REQUEST_ID, "")) or None)


async def authenticate_and_count(
    admission: Admission,
    scope: Scope,
    header: Callable[[bytes], bytes | None],
    window: Window | None = None,
) -> Admitted:
    """Authenticate and count a request; store caller and status in the scope. Raises as
    `Admission.admit`.
    """
    client = scope.get("client")
    address = client[0] if client else None
    note = partial(scope.__setitem__, CALLER)
    admitted = await admission.admit(
        header(b"authorization"), header(b"x-organization-id"), address, window, note
    )
    scope[RATE_LIMITS] = admitted.rate_limits
    return admitted


async def authenticate_again(
    admission: Admission, scope: Scope, header: Callable[[bytes], bytes | None]
) -> RequestPrincipal:
    """Authenticate an admitted request as of now. Raises the errors of authentication."""
    client = scope.get("client")
    caller = await admission.authenticate_again(
        header(b"authorization"), header(b"x-organization-id"), client[0] if client else None
    )
    scope[CALLER] = caller
    return caller
