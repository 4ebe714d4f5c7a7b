"""Letting a request in: who sent it, and whether its tenant's limits let it through. The one door for every caller."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final, Protocol

import msgspec

from tenantry.auth.api_keys_store import Use
from tenantry.auth.authentication_store import KeyQuery, KeyRow, SeatRow, UserQuery, find_keys, find_seats
from tenantry.auth.failed_authentication_throttle import FailedAuthenticationThrottle
from tenantry.auth.rate_limits import RateLimiter
from tenantry.common.clock import DEFAULT_TIMEOUTS, Clock
from tenantry.db.batcher import Batcher
from tenantry.db.database import Lane
from tenantry.domain import access, api_keys
from tenantry.domain.access import AccessLevel, Mode, Principal, PrincipalKind, Role
from tenantry.domain.api_keys import Pepper
from tenantry.domain.errors import (
    ApiKeyExpiredError,
    ApiKeyRevokedError,
    AuthUnavailableError,
    DatabaseUnavailableError,
    DomainError,
    InvalidCredentialError,
    MemberNotActiveError,
    MissingCredentialError,
    NoOrganizationError,
    NotFoundError,
    OrgMismatchError,
    OrgSuspendedError,
)
from tenantry.domain.projects import Window
from tenantry.domain.rate_limits import RateLimitStatus
from tenantry.domain.tenants import is_tenant_id
from tenantry.integrations.oidc.claims import Claims

_SCHEME: Final = b"bearer "
_KEY_PREFIX: Final = b"svc_"
_JWT_PARTS: Final = 3
_LONGEST_CREDENTIAL: Final = 8192
_MODES: Final = {mode.value: mode for mode in Mode}
_ROLES: Final = {role.value: role for role in Role}
_LEVELS: Final = {level.value: level for level in AccessLevel}

AcceptInvitation = Callable[[Claims, str, str | None], Awaitable[None]]
"""Accepts a user's invitation, given the tenant's id and the client's address.

Raises `MemberNotActiveError`, `NotFoundError` and `DatabaseUnavailableError`.
"""


class TokenVerifier(Protocol):
    """What `tenantry.integrations.oidc` offers."""

    async def verify(self, token: str) -> Claims:
        """The claims of a valid access token."""


class Authenticated(msgspec.Struct, frozen=True):
    """Who sent a request, and the projects that were asked for with it, as JSON: one more than asked if there are."""

    principal: Principal
    projects: Sequence[str]


class Authenticator:
    """Authenticates by API key or bearer token.

    Lookups are grouped: those that wait while one is under way form the next. A lookup joins only a query
    that has not been sent, so a revocation committed before the request came in is always seen, by every
    process. Nothing about keys, tenants and members is cached.
    """

    def __init__(
        self,
        *,
        keys: Lane,
        users: Lane,
        peppers: Sequence[Pepper],
        tokens: TokenVerifier | None,
        clock: Clock,
        key_used: Callable[[Use], None] = lambda _: None,
        owner_seen: Callable[[str, Claims], None] = lambda _org_id, _claims: None,
        accept: AcceptInvitation | None = None,
    ) -> None:
        """``key_used`` is told of keys that were let in: of each at least once a minute, and when its client's address
        or its pepper is another than what is written of it. ``owner_seen`` is told of every owner whose address has
        changed at the identity provider, with the tenant's id. ``accept`` is called for an invitation to the tenant
        that a request's ``X-Organization-Id`` names; without it such a request is let in, and nothing is written.
        """
        self._key_lane = keys
        self._user_lane = users
        self._peppers = tuple(peppers)
        self._tokens = tokens
        self._clock = clock
        self._key_used = key_used
        self._owner_seen = owner_seen
        self._accept = accept
        self._keys: Batcher[KeyQuery, KeyRow | None] = Batcher(
            self._find_keys, start_timeout=keys.timeouts.batch_start, deadline=keys.timeouts.batch, metrics=keys.metrics
        )
        self._users: Batcher[UserQuery, list[SeatRow]] = Batcher(
            self._find_seats,
            start_timeout=users.timeouts.batch_start,
            deadline=users.timeouts.batch,
            metrics=users.metrics,
        )

    async def authenticate(
        self,
        authorization: bytes | None,
        organization: bytes | None,
        address: str | None = None,
        window: Window | None = None,
    ) -> Authenticated:
        """The principal of a request, from its ``Authorization`` and ``X-Organization-Id`` headers.

        ``address`` is the client's, for the record of the key's last use; ``window`` says which of its projects to
        look up with it, whatever its scopes.
        Raises the errors of CONTRACT 5; `AuthUnavailableError` when nobody can tell.
        """
        credential = bearer(authorization)
        try:
            if credential.startswith(_KEY_PREFIX):
                return await self._by_key(credential, address, window)
            claims = await self.verify_token(credential)
            return await self._by_claims(claims, organization, address, window)
        except DatabaseUnavailableError as error:
            raise AuthUnavailableError(error.detail) from error

    async def as_user(self, claims: Claims, org_id: str) -> tuple[Principal, Role]:
        """What a user, whom the identity provider vouched for with these claims, is in a tenant now.

        The role is the one that counts; what their token says of scopes may leave the principal less than it grants.
        Raises `NoOrganizationError`, `OrgSuspendedError`, `InvalidCredentialError` and `DatabaseUnavailableError`.
        """
        seats = await self._users.submit(UserQuery(claims.issuer, claims.subject, org_id))
        member = [seat for seat in seats if claims.org_id == org_id or (seat.role is not None and not seat.invited)]
        if not member:
            raise NoOrganizationError("The user does not belong to this organization.")
        self._look_at_owner(member[0], claims, org_id)
        elsewhere = claims if claims.org_id == org_id else msgspec.structs.replace(claims, role=None)
        return _principal_of_user(elsewhere, member[0]), role_of(elsewhere, member[0])

    async def verify_token(self, credential: bytes) -> Claims:
        """The claims of a bearer token, whichever tenant it is for."""
        if credential.count(b".") != _JWT_PARTS - 1:
            raise InvalidCredentialError("The credential is neither an API key nor a token.")
        if self._tokens is None:
            raise InvalidCredentialError("Bearer tokens are not accepted here: no identity provider is set up.")
        return await self._tokens.verify(credential.decode("ascii"))

    async def close(self) -> None:
        """Wait for the lookups under way."""
        await self._keys.close()
        await self._users.close()

    async def _by_key(self, secret: bytes, address: str | None, window: Window | None) -> Authenticated:
        if not api_keys.is_well_formed(secret):
            raise InvalidCredentialError("The API key is not valid.")
        digests = [pepper.digest(secret) for pepper in self._peppers]
        key = await self._keys.submit(KeyQuery(digests, window))
        if key is None:
            raise InvalidCredentialError("The API key is not valid.")
        now = self._clock()
        principal = _principal_of_key(key, now)
        if key.lately_from != (address or "") or key.digest != digests[0]:
            self._key_used(Use(key.id, now, address, digests[0], self._peppers[0].id))
        return Authenticated(principal, key.projects)

    async def _by_claims(
        self, claims: Claims, organization: bytes | None, address: str | None, window: Window | None
    ) -> Authenticated:
        org_id = wanted_organization(claims.org_id, organization)
        seats = await self._users.submit(UserQuery(claims.issuer, claims.subject, org_id, window))
        if claims.org_id is None:  # then only a membership ties the user to a tenant
            seats = [seat for seat in seats if seat.role is not None and not seat.removed]
        if len(seats) != 1:
            raise NoOrganizationError("The user belongs to no organization, or the request does not say to which.")
        principal = _principal_of_user(claims, seats[0])
        if seats[0].invited and organization is not None:  # to name the tenant is to accept its invitation
            await self._accept_invitation(claims, principal.org_id, address)
        self._look_at_owner(seats[0], claims, principal.org_id)
        return Authenticated(principal, seats[0].projects)

    def _look_at_owner(self, seat: SeatRow, claims: Claims, org_id: str) -> None:
        if seat.owner_email is not None and claims.email not in (None, seat.owner_email):
            self._owner_seen(org_id, claims)

    async def _accept_invitation(self, claims: Claims, org_id: str, address: str | None) -> None:
        if self._accept is None:
            return
        try:
            await self._accept(claims, org_id, address)
        except (MemberNotActiveError, NotFoundError) as error:
            raise NoOrganizationError("The user does not belong to this organization any more.") from error

    async def _find_keys(self, secrets: Sequence[KeyQuery]) -> list[KeyRow | Exception | None]:
        async with self._key_lane.use(autocommit=True) as connection:
            return list(await find_keys(connection, secrets, self._clock()))

    async def _find_seats(self, users: Sequence[UserQuery]) -> list[list[SeatRow] | Exception]:
        async with self._user_lane.use(autocommit=True) as connection:
            return list(await find_seats(connection, users))


def bearer(authorization: bytes | None) -> bytes:
    """The credential in an ``Authorization`` header (RFC 6750, section 2.1)."""
    if not authorization:
        raise MissingCredentialError("Send a credential: Authorization: Bearer <API key or token>.")
    if authorization[: len(_SCHEME)].lower() != _SCHEME:
        raise InvalidCredentialError("The Authorization header must be: Bearer <API key or token>.")
    credential = authorization[len(_SCHEME) :].strip()
    if not credential.isascii() or not credential or len(credential) > _LONGEST_CREDENTIAL:
        raise InvalidCredentialError("The credential is neither an API key nor a token.")
    return credential


def wanted_organization(claimed: str | None, header: bytes | None) -> str | None:
    """The tenant that a token's claim and the ``X-Organization-Id`` header ask for together."""
    named = None if header is None else header.decode("latin-1")
    if claimed is not None and named is not None and named != claimed:
        raise OrgMismatchError("X-Organization-Id does not match the token's organization.")
    wanted = claimed if claimed is not None else named
    if wanted is not None and not is_tenant_id(wanted):
        raise NoOrganizationError("There is no such organization.")
    return wanted


def _principal_of_key(key: KeyRow, now: datetime) -> Principal:
    if key.revoked_at is not None or key.deleted:
        raise ApiKeyRevokedError("The API key has been revoked.")
    if key.expires_at is not None and key.expires_at <= now:
        raise ApiKeyExpiredError("The API key has expired.")
    if key.suspended:
        raise OrgSuspendedError("The organization is suspended.")
    return Principal(
        kind=PrincipalKind.API_KEY,
        id=key.id,
        org_id=key.org_id,
        mode=_MODES[key.mode],
        scopes=tuple(key.scopes),
        access_level=_LEVELS[key.access_level],
        plan=key.plan,
        subscription_status=key.subscription_status,
        expires_at=key.expires_at,
    )


def _principal_of_user(claims: Claims, seat: SeatRow) -> Principal:
    claimed = _claimed_here(claims, seat)
    if seat.deleted:
        raise InvalidCredentialError("The organization has ended.")
    if seat.removed and (seat.binds_owner or claimed is not Role.OWNER):
        raise NoOrganizationError("The user does not belong to this organization any more.")
    if seat.suspended:
        raise OrgSuspendedError("The organization is suspended.")
    scopes, level = access.role_grants(role_of(claims, seat), claims.scopes)
    return Principal(
        kind=PrincipalKind.USER,
        id=claims.subject,
        org_id=seat.org_id,
        mode=Mode.LIVE,
        scopes=scopes,
        access_level=level,
        plan=seat.plan,
        subscription_status=seat.subscription_status,
        expires_at=claims.expires_at,
        claimed_role=claimed,
    )


def _claimed_here(claims: Claims, seat: SeatRow) -> Role | None:
    """The role that the token's claim of this tenant gives; None where the token does not claim the tenant."""
    return (claimed_role(claims.role) or Role.MEMBER) if claims.org_id == seat.org_id else None


def role_of(claims: Claims, seat: SeatRow) -> Role:
    """The role that counts in this tenant for a user with these claims."""
    binds_owner = seat.binds_owner or claims.org_id != seat.org_id
    stored = _ROLES[seat.role] if seat.role else None
    return access.effective_role(claimed_role(claims.role), stored, binds_owner=binds_owner)


def claimed_role(claim: str | None) -> Role | None:
    """The role that a token claims; one that we do not know counts as the least."""
    return None if claim is None else _ROLES.get(claim, Role.MEMBER)


class Admitted(msgspec.Struct, frozen=True):
    """Who was let in, what is left of their limits, and the projects asked for, as `Authenticated` has them."""

    principal: Principal
    standing: RateLimitStatus
    projects: Sequence[str] = ()


class Admission:
    """Authenticates, then counts. Refused credentials leave at the pace of ``refusals``."""

    def __init__(
        self,
        authenticator: Authenticator,
        limiter: RateLimiter,
        *,
        deadline: float = DEFAULT_TIMEOUTS.request,
        monotonic: Callable[[], float] = time.monotonic,
        refused: Callable[[str, str], None] = lambda _kind, _reason: None,
    ) -> None:
        """A request must be counted ``deadline`` seconds after it came in.

        ``monotonic`` returns seconds that never go back. ``refused`` is as `FailedAuthenticationThrottle` has it.
        """
        self._authenticator = authenticator
        self._limiter = limiter
        self._deadline = deadline
        self._monotonic = monotonic
        self.refusals = FailedAuthenticationThrottle(refused)

    async def admit(
        self,
        authorization: bytes | None,
        organization: bytes | None,
        address: str | None,
        window: Window | None = None,
        known: Callable[[Principal], None] = lambda _: None,
    ) -> Admitted:
        """Let a request in, from its ``Authorization`` and ``X-Organization-Id`` headers and its client's address.

        ``window`` says which projects to look up on the way; ``known`` is told who it is before they are counted.
        Raises the errors of authentication (CONTRACT 5), `RateLimitedError` with the caller's standing, and
        `AuthUnavailableError` when nobody can tell: a request that cannot be counted is not let in.
        """
        began = self._monotonic()
        try:
            found = await self._authenticator.authenticate(authorization, organization, address, window)
        except DomainError as error:
            await self.refusals.hold(error, kind_of(authorization))
            raise
        principal = found.principal
        known(principal)
        standing = self._limiter.count_at_once(principal)
        if standing is None:
            standing = await self._count(principal, self._deadline - (self._monotonic() - began))
        return Admitted(principal, standing, found.projects)

    async def authenticate_again(
        self, authorization: bytes | None, organization: bytes | None, address: str | None
    ) -> Principal:
        """The principal of a request that was let in before, as of now; the request is not counted again.

        Raises the errors of authentication (CONTRACT 5).
        """
        async with self.refusals.of(kind_of(authorization)):
            return (await self._authenticator.authenticate(authorization, organization, address)).principal

    async def count_user(self, claims: Claims, what: str, limit: int) -> RateLimitStatus:
        """Count a user's request that is for no tenant, such as creating one: ``limit`` of ``what`` a minute.

        Raises `RateLimitedError` and `AuthUnavailableError`.
        """
        return await _in_time(
            self._limiter.count_user(f"{what} {claims.issuer} {claims.subject}", limit), self._deadline
        )

    async def _count(self, principal: Principal, seconds: float) -> RateLimitStatus:
        return await _in_time(self._limiter.count(principal), seconds)


async def _in_time(counting: Awaitable[RateLimitStatus], seconds: float) -> RateLimitStatus:
    try:
        async with asyncio.timeout(seconds):
            return await counting
    except TimeoutError as error:
        raise AuthUnavailableError("The database is too slow to count requests. Try again shortly.") from error


def kind_of(authorization: bytes | None) -> str:
    """What sort of credential an ``Authorization`` header holds: ``api_key``, ``token`` or ``none``."""
    if not authorization:
        return "none"
    return "api_key" if b" svc_" in authorization else "token"
