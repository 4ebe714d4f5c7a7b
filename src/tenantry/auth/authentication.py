"""Authenticate a request by its API key or bearer token; authorize a change again under the
tenant's lock.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from tenantry.auth import api_keys_store
from tenantry.auth.api_keys_store import ImportDigests, KeyUse
from tenantry.auth.authentication_store import (
    NO_PAGE,
    KeyNow,
    KeyQuery,
    KeyRow,
    UserAccessRow,
    UserQuery,
    find_user_access,
    key_lookup,
    keys_in,
    user_access_in,
    user_lookup,
)
from tenantry.auth.credentials import (
    Credential,
    CredentialFinder,
    CredentialKind,
    HeaderReader,
    Sender,
    no_credential,
)
from tenantry.common.clock import Clock
from tenantry.db.batcher import Batcher, Receiver
from tenantry.db.connection import Connection
from tenantry.db.pagination import Window
from tenantry.db.standby_lane import LookupLane
from tenantry.db.tenants_store import TenantRow, get_tenant
from tenantry.domain import api_keys, errors, permissions
from tenantry.domain.access import AccessPhase, current_phase, plan_at
from tenantry.domain.api_keys import Pepper
from tenantry.domain.erased_ids import rejected_aliases
from tenantry.domain.feature_access import feature_access_of
from tenantry.domain.key_addresses import covers
from tenantry.domain.members import User
from tenantry.domain.permissions import (
    AccessLevel,
    Mode,
    PrincipalKind,
    RequestPrincipal,
    UserGrants,
)
from tenantry.domain.plans import Catalog
from tenantry.domain.rejections import KnownSender
from tenantry.domain.roles import BuiltInRole, Role, Roles, common_gives
from tenantry.domain.scopes import intersect
from tenantry.domain.tenants import is_tenant_id
from tenantry.integrations.oidc.claims import Claims
from tenantry.integrations.oidc.tokens import TokenVerifier

_MODES: Final = {mode.value: mode for mode in Mode}
_LEVELS: Final = {level.value: level for level in AccessLevel}

logger = logging.getLogger(__name__)

NO_ISSUER: Final = ""
"""Of a principal that is no user of an identity provider."""

AcceptInvitation = Callable[[Claims, str, str | None], Awaitable[None]]
"""Accepts a user's invitation, given the tenant's id and the client's address.

Raises `MemberNotActiveError`, `NotFoundError` and `DatabaseUnavailableError`.
"""
BindKey = Callable[[KeyUse, bytes], Awaitable[bytes | None]]
"""Stores the first use of an imported key, given the digest that was found, and returns the digest
that the key now has. Raises `DatabaseUnavailableError`.
"""


class Authenticated(msgspec.Struct, frozen=True):
    """The sender of a request, and the page that the request asked for."""

    principal: RequestPrincipal
    page: Sequence[str] = ()
    """JSON documents: one more than the limit if there are more."""


class Rejected(msgspec.Struct, frozen=True):
    """Why a request has no sender that is accepted."""

    error: errors.DomainError
    sender: KnownSender | None = None
    """Whose credential it is, where that is known."""
    token_fault: errors.TokenFault | None = None
    """Which check a bearer token fails, for the operator."""


class KeyAnswer(msgspec.Struct, frozen=True):
    """The answer to `Authenticator.look_up`."""

    digests: Sequence[bytes]
    """Of the key that was looked up."""
    row: KeyRow | Exception | None
    """None for an unknown key, an exception if the lookup failed."""
    began: float
    """When the request arrived, on the monotonic clock."""


class FirstUse(msgspec.Struct, frozen=True):
    """The use of an imported key, which counts only if it is the first to be stored."""

    accepted: Authenticated
    use: KeyUse
    unbound: bytes
    """The stored digest: that of the hash."""
    digests: Sequence[bytes]
    """Those of the credential, one of which the key has afterwards."""


@dataclass(eq=False, kw_only=True)
class Authenticator:
    """Authenticates by API key or bearer token.

    Requests that wait while a lookup runs share the next one. A lookup includes only requests that
    arrived before it was sent, so every process sees each revocation that was committed before the
    request arrived. Nothing about keys, tenants and members is cached. A lane may ask a
    standby that has replayed all of them.

    ``key_used`` receives the use of an accepted key: at least once a minute, and when the client's
    address or the pepper differs from the stored one. ``owner_seen`` receives the tenant's id and
    the claims of an owner whose verified address differs from the stored one. ``user_seen``
    receives the tenant's id and the claims of each request by token. ``accept`` is called
    for an invitation to the tenant that a request's ``X-Organization-Id`` names; without it the
    request is accepted and nothing is written. ``bind`` is called for the first use of an imported
    key whose hash other credentials may have too. ``page`` is the query of the pages that requests
    ask for, as in `authentication_store`. ``credentials`` finds the credential of a request. A
    lookup that follows another one waits up to ``gather_seconds`` for most of its requests.
    """

    keys: LookupLane
    users: LookupLane
    peppers: Sequence[Pepper]
    tokens: TokenVerifier | None
    catalog: Catalog
    clock: Clock
    key_used: Callable[[str, KeyUse], None] = lambda _key_id, _use: None
    owner_seen: Callable[[str, Claims], None] = lambda _org_id, _claims: None
    user_seen: Callable[[str, Claims], None] = lambda _org_id, _claims: None
    accept: AcceptInvitation | None = None
    bind: BindKey | None = None
    page: str = NO_PAGE
    credentials: CredentialFinder = field(default_factory=CredentialFinder)
    gather_seconds: float = 0.0

    def __post_init__(self) -> None:
        keys = self.keys
        users = self.users
        limits = self.users.timeouts
        self._keys: Batcher[KeyQuery, KeyRow | None] = Batcher(
            self._find_keys,
            gather_seconds=self.gather_seconds,
            alternates=True,
            start_timeout=keys.timeouts.batch_start,
            deadline=keys.timeouts.batch,
            metrics=keys.metrics,
        )
        self._users: Batcher[UserQuery, list[UserAccessRow]] = Batcher(
            self._find_user_access,
            gather_seconds=self.gather_seconds,
            alternates=True,
            start_timeout=limits.batch_start,
            deadline=limits.batch,
            metrics=users.metrics,
        )

    async def authenticate(
        self,
        sender: Sender,
        window: Window | None = None,
    ) -> Authenticated | Rejected:
        """Authenticate by the header for API keys, ``Authorization`` and ``X-Organization-Id``. The
        sender of a known credential is rejected by a result, all others by an error.

        ``window`` requests a page in the same lookup, whatever the principal's scopes. Raises the
        errors of CONTRACT 5, `AuthUnavailableError` when the database is unavailable.
        """
        credential = self.credentials.find_in(sender.header)
        try:
            if credential.kind is CredentialKind.API_KEY:
                return await self._by_key(credential.value, sender, window)
            claims = await self.verify_token(credential)
            return await self._by_claims(claims, sender, window)
        except errors.DatabaseUnavailableError as error:
            raise errors.AuthUnavailableError(error.detail) from error

    def look_up(
        self,
        receiver: Receiver[KeyRow | None],
        header: HeaderReader,
        window: Window | None = None,
    ) -> Sequence[bytes] | None:
        """Look up the API key of a request for ``receiver``, and return its digests. Return None if
        the request has no API key: then `authenticate` must answer. ``window`` is as in
        `authenticate`.

        Raises `MissingCredentialError`, `InvalidCredentialError` and `DatabaseUnavailableError`.
        """
        # as `find_in` does: every key of a hot route comes here
        credential = self.credentials.find(
            header(b"authorization"), self.credentials.read_key(header)
        )
        if credential.kind is not CredentialKind.API_KEY:
            return None
        digests = self.credentials.digests(credential.value, self.peppers)
        if digests is not None:
            self._keys.submit_for(receiver, KeyQuery(digests, window))
        return digests

    async def accept_key(self, answer: KeyAnswer, sender: Sender) -> Authenticated | Rejected:
        """Authenticate by the answer to `look_up`. Raises as `authenticate`."""
        found = self.accept_key_at_once(answer, sender)
        if not isinstance(found, FirstUse):
            return found
        try:
            return await self._bind(found)
        except errors.DatabaseUnavailableError as error:
            raise errors.AuthUnavailableError(error.detail) from error

    def accept_key_at_once(
        self, answer: KeyAnswer, sender: Sender
    ) -> "Authenticated | Rejected | FirstUse":
        """Authenticate as `accept_key`, unless that takes a write: then return it."""
        row = answer.row
        if isinstance(row, errors.DatabaseUnavailableError):
            raise errors.AuthUnavailableError(row.detail) from row
        if isinstance(row, Exception):
            raise row
        return self._accept_row(row, answer.digests, sender)

    async def as_user(self, claims: Claims, org_id: str) -> tuple[RequestPrincipal, Role]:
        """Return the principal and effective role of a signed-in user in a tenant.

        The scopes of the user's token may restrict the principal to less than the role grants.
        Raises `NoOrganizationError`, `OrgSuspendedError`, `InvalidCredentialError` and
        `DatabaseUnavailableError`.
        """
        rows = await self._find_tenants(UserQuery(claims.issuer, claims.subject, org_id))
        claims_tenant = claims.org_id == org_id
        if not rows or not (claims_tenant or _is_member(rows[0])):
            raise errors.NoOrganizationError("The user does not belong to this organization.")
        row = rows[0]
        self._check_owner_email(row, claims, org_id)
        if not claims_tenant:
            claims = msgspec.structs.replace(claims, role=None)
        granted = grants_of_user(claims, row, self.catalog.roles)
        return self._principal_of_user(claims, row, granted), granted.role

    async def as_operator(
        self, org_id: str, mode: Mode, *, is_use: bool = False
    ) -> RequestPrincipal:
        """Return the operator's principal in a tenant; in a suspended one too, unless the request
        ``is_use`` of what the tenant pays for.

        Raises `NotFoundError` for a tenant that is unknown or has ended, `OrgSuspendedError`, and
        `DatabaseUnavailableError`.
        """
        operator = permissions.operator_principal(org_id)
        rows: list[UserAccessRow] = []
        if is_tenant_id(org_id):  # an operator is no member, so the tenant alone is found
            rows = await self._users.submit(UserQuery(NO_ISSUER, operator.id, org_id))
        if not rows or rows[0].deleted:
            raise errors.NotFoundError("tenant")
        row = rows[0]
        if is_use:
            check_not_suspended(row.suspension)
        phase = _access_of(row, self.catalog, self.clock())
        return msgspec.structs.replace(
            operator,
            mode=mode,
            plan=plan_at(row.plan, row.subscription_status, phase),
            subscription_status=row.subscription_status,
            access_phase=phase,
            feature_access=feature_access_of(phase, self.catalog),
        )

    async def verify_token(self, credential: Credential) -> Claims:
        """Return the claims of a bearer token, whatever its tenant."""
        if credential.kind is not CredentialKind.TOKEN:
            raise no_credential()
        if self.tokens is None:
            raise errors.InvalidCredentialError(
                "Bearer tokens are not accepted here: no identity provider is set up."
            )
        return await self.tokens.verify(credential.value.decode("ascii"))

    async def close(self) -> None:
        """Wait for the lookups under way."""
        await self._keys.close()
        await self._users.close()

    async def _by_key(
        self, secret: bytes, sender: Sender, window: Window | None
    ) -> Authenticated | Rejected:
        digests = self.credentials.digests(secret, self.peppers)
        if digests is None:
            raise errors.InvalidCredentialError("The API key is not valid.")
        key = await self._keys.submit(KeyQuery(digests, window))
        found = self._accept_row(key, digests, sender)
        return await self._bind(found) if isinstance(found, FirstUse) else found

    async def _bind(self, first: "FirstUse") -> Authenticated:
        """Bind an imported key to the credential of its first use. Raises `InvalidCredentialError`
        if another credential was first, and `DatabaseUnavailableError`.
        """
        assert self.bind is not None  # noqa: S101
        if await self.bind(first.use, first.unbound) not in first.digests:
            raise errors.InvalidCredentialError("The API key is not valid.")
        return first.accepted

    def _accept_row(
        self, key: KeyRow | None, digests: Sequence[bytes], sender: Sender
    ) -> "Authenticated | Rejected | FirstUse":
        if key is None:
            raise errors.InvalidCredentialError("The API key is not valid.")
        now = self.clock()
        try:
            principal = _principal_of_key(key, self.catalog, now)
            if principal.allowed_addresses:
                self.credentials.check_address(principal.allowed_addresses, sender)
        except errors.DomainError as error:
            if isinstance(error, errors.AddressNotAllowedError):
                _log_address(key.id, error)
            return Rejected(
                error,
                KnownSender(key.org_id, PrincipalKind.API_KEY, key.id, _MODES[key.mode]),
            )
        accepted = Authenticated(principal, key.page)
        address = sender.address
        if key.recent_address != (address or "") or key.digest != digests[0]:
            use = KeyUse(
                key.id,
                now,
                address,
                digests[0],
                self.peppers[0].id,
                self._import_digests(key, digests),
            )
            of_secret = digests[: len(self.peppers)]
            if self.bind is not None and key.digest not in of_secret:
                return FirstUse(accepted, use, key.digest, of_secret)
            self.key_used(key.id, use)
        return accepted

    def _import_digests(self, key: KeyRow, digests: Sequence[bytes]) -> ImportDigests | None:
        """Return the digests of an imported key's hashes under the newest pepper, if the key is
        stored otherwise than it will be.
        """
        newest, *of_hashes = digests[:: len(self.peppers)]
        return ImportDigests(*of_hashes) if of_hashes and key.digest != newest else None

    async def _by_claims(
        self, claims: Claims, sender: Sender, window: Window | None
    ) -> Authenticated | Rejected:
        organization = sender.header(b"x-organization-id")
        org_id = requested_organization(claims.org_id, organization)
        rows = await self._find_tenants(
            UserQuery(
                claims.issuer,
                claims.subject,
                org_id,
                window,
            )
        )
        row = only_access(claims, rows)
        try:
            granted = grants_of_user(claims, row, self.catalog.roles)
            principal = self._principal_of_user(claims, row, granted)
        except errors.DomainError as error:
            user = KnownSender(row.org_id, PrincipalKind.USER, claims.subject, Mode.LIVE)
            return Rejected(error, None if _is_outsider(claims, row) else user)
        if row.invited and organization is not None and self.accept is not None:
            try:  # naming the tenant accepts its invitation
                await self.accept(claims, principal.org_id, sender.address)
            except (errors.MemberNotActiveError, errors.NotFoundError) as error:
                raise errors.NoOrganizationError(
                    "The user does not belong to this organization any more."
                ) from error
        self._check_owner_email(row, claims, principal.org_id)
        self.user_seen(principal.org_id, claims)
        return Authenticated(principal, row.page)

    def _principal_of_user(
        self, claims: Claims, row: UserAccessRow, granted: UserGrants
    ) -> RequestPrincipal:
        phase = _access_of(row, self.catalog, self.clock())
        return RequestPrincipal(
            kind=PrincipalKind.USER,
            id=claims.subject,
            org_id=row.org_id,
            mode=Mode.LIVE,
            scopes=granted.scopes,
            access_level=granted.access_level,
            plan=plan_at(row.plan, row.subscription_status, phase),
            subscription_status=row.subscription_status,
            access_phase=phase,
            expires_at=claims.expires_at,
            issuer=claims.issuer,
            claimed_role=_claimed_role(claims, row),
            feature_access=feature_access_of(phase, self.catalog),
            gives=granted.role.gives,
            roles=self.catalog.roles,
        )

    def _check_owner_email(self, row: UserAccessRow, claims: Claims, org_id: str) -> None:
        if row.owner_email is None or claims.email in (None, row.owner_email):
            return
        if self._is_surely_owner(row):
            self.owner_seen(org_id, claims)

    def _is_surely_owner(self, row: UserAccessRow) -> bool:
        """Whether a user with the owner's subject is the owner: of several issuers, each may have
        such a user.
        """
        if self.tokens is not None and self.tokens.issuers.only is not None:
            return True
        return row.role == BuiltInRole.OWNER and not row.removed and not row.invited

    async def _find_tenants(self, user: UserQuery) -> list[UserAccessRow]:
        """Find a user's requested tenant as `find_user_access`, with the membership of one who was
        removed before their data was erased.
        """
        rows = await self._users.submit(user)
        if not (rows and rows[0].rejects_erased and rows[0].role is None):
            return rows
        for alias in rejected_aliases(User(user.issuer, user.subject), self.peppers):
            erased = await self._users.submit(msgspec.structs.replace(user, subject=alias))
            if erased and erased[0].removed:
                return erased
        return rows

    async def _find_keys(self, queries: Sequence[KeyQuery]) -> list[KeyRow | Exception | None]:
        lookup = key_lookup(queries, self.clock(), self.page)
        return list(keys_in(await self.keys.look_up(lookup, len(queries)), queries))

    async def _find_user_access(
        self, queries: Sequence[UserQuery]
    ) -> list[list[UserAccessRow] | Exception]:
        lookup = user_lookup(queries, self.page)
        return list(user_access_in(await self.users.look_up(lookup, len(queries)), queries))


def _log_address(key_id: str, error: errors.AddressNotAllowedError) -> None:
    address = error.address or "an unknown address"
    reason = f"needs {error.needed}" if error.needed else error.code
    logger.warning("API key %s refused from %s: %s", key_id, address, reason)


def requested_organization(claimed: str | None, header: bytes | None) -> str | None:
    """Return the tenant that a token's claim and the ``X-Organization-Id`` header request."""
    named = None if header is None else header.decode("latin-1")
    requested = named if claimed is None else claimed
    if named not in (None, requested):
        raise errors.OrgMismatchError("X-Organization-Id does not match the token's organization.")
    if requested is not None and not is_tenant_id(requested):
        raise errors.NoOrganizationError("There is no such organization.")
    return requested


def _principal_of_key(key: KeyRow, catalog: Catalog, now: datetime) -> RequestPrincipal:
    check_key(key, now)
    phase = _access_of(key, catalog, now)
    return RequestPrincipal(
        kind=PrincipalKind.API_KEY,
        id=key.id,
        org_id=key.org_id,
        mode=_MODES[key.mode],
        scopes=tuple(key.scopes),
        access_level=_LEVELS[key.access_level],
        plan=plan_at(key.plan, key.subscription_status, phase),
        subscription_status=key.subscription_status,
        access_phase=phase,
        expires_at=key.expires_at,
        external_id=key.external_id,
        metadata_document=key.metadata,
        allowed_addresses=tuple(key.allowed_addresses) if key.allowed_addresses else (),
        requests_per_minute=key.requests_per_minute,
        feature_access=feature_access_of(phase, catalog),
    )


def _access_of(row: KeyRow | UserAccessRow, catalog: Catalog, now: datetime) -> AccessPhase:
    return current_phase(
        row.access,
        row.plan,
        row.subscription_status,
        now.timestamp(),
        catalog,
    )


def _is_outsider(claims: Claims, row: UserAccessRow) -> bool:
    """Whether a user is invited, and may read nothing of the tenant before they accept."""
    return row.invited and claims.org_id != row.org_id


def _is_member(row: UserAccessRow) -> bool:
    return row.role is not None and not row.invited


def only_access(claims: Claims, rows: Sequence[UserAccessRow]) -> UserAccessRow:
    """Return the tenant that a user's request is for. Raises `NoOrganizationError`."""
    if claims.org_id is None:  # then only a membership gives access
        rows = [row for row in rows if row.role is not None and not row.removed]
    if len(rows) != 1:
        raise errors.NoOrganizationError(
            "The user belongs to no organization, or the request does not say to which."
        )
    return rows[0]


def grants_of_user(claims: Claims, row: UserAccessRow, roles: Roles) -> UserGrants:
    """Return what a user may do in this tenant. Raises the errors of `Authenticator.as_user`."""
    if row.deleted:
        raise errors.InvalidCredentialError("The organization has ended.")
    is_claimed_owner = _claimed_role(claims, row) == BuiltInRole.OWNER
    if row.removed and (row.binds_owner or not is_claimed_owner):
        raise errors.NoOrganizationError("The user does not belong to this organization any more.")
    if row.suspension is not None:
        raise errors.OrgSuspendedError("" if _is_outsider(claims, row) else row.suspension)
    return permissions.user_grants(
        roles,
        claims.role,
        row.role,
        claims.scopes,
        binds_owner=row.binds_owner or claims.org_id != row.org_id,
    )


def _claimed_role(claims: Claims, row: UserAccessRow) -> str | None:
    return (claims.role or BuiltInRole.MEMBER) if claims.org_id == row.org_id else None


async def lock_and_reauthorize(
    connection: Connection,
    principal: RequestPrincipal,
    scope: str,
    clock: Clock,
    *,
    is_use: bool = False,
) -> tuple[TenantRow, RequestPrincipal, datetime]:
    """Lock the principal's tenant for a change that needs ``scope``; return it, the principal as of
    now, and the time.

    Every change by a principal begins with this (CONTRACT 8.2). While a request waited for the
    lock, its key may have been revoked or narrowed, its user removed or given a lower role, or its
    tenant suspended. The operator may also change a suspended tenant, unless the change ``is_use``
    of what the tenant pays for.

    Raises `KEY_REFUSALS`, `NoOrganizationError`, `OrgSuspendedError`,
    `AddressNotAllowedError`, `InsufficientScopeError`, and `NotFoundError` for an
    ended tenant.
    """
    tenant = await get_tenant(
        connection,
        principal.org_id,
        lock=True,
        even_ended=True,
    )
    now = clock()
    caller = await _reauthorize(connection, principal, now)
    if is_use or caller.kind is not PrincipalKind.OPERATOR:
        check_not_suspended(tenant.suspension)
    if not covers(caller.allowed_addresses, principal.allowed_addresses):
        raise errors.AddressNotAllowedError(
            "The key's allowed addresses changed during the request. Send it again."
        )
    if tenant.deleted:
        raise errors.NotFoundError("tenant")
    caller.require(scope)
    return tenant, caller, now


async def _reauthorize(
    connection: Connection, principal: RequestPrincipal, now: datetime
) -> RequestPrincipal:
    match principal.kind:
        case PrincipalKind.OPERATOR:
            return principal
        case PrincipalKind.USER:
            return await _reauthorize_user(connection, principal)
        case PrincipalKind.API_KEY:
            return await _reauthorize_key(connection, principal, now)


async def _reauthorize_key(
    connection: Connection, principal: RequestPrincipal, now: datetime
) -> RequestPrincipal:
    org_id, key_id = principal.org_id, principal.id
    key = await api_keys_store.find(connection, org_id, key_id, now, test_only=False)
    if key is None:
        raise errors.ApiKeyRevokedError(api_keys.REVOKED)
    api_keys.check_accepted(key, now)
    return msgspec.structs.replace(
        principal,
        scopes=key.scopes,
        access_level=key.access_level,
        expires_at=key.expires_at,
        allowed_addresses=key.allowed_addresses,
        requests_per_minute=key.requests_per_minute,
    )


async def _reauthorize_user(
    connection: Connection, principal: RequestPrincipal
) -> RequestPrincipal:
    user = UserQuery(principal.issuer or NO_ISSUER, principal.id, principal.org_id)
    [[row]] = await find_user_access(connection, [user])
    _check_member(principal, row)
    if row.role is None or not _binds(row, principal):
        return principal
    role = principal.roles.find(row.role)
    return msgspec.structs.replace(
        principal,
        scopes=intersect(principal.scopes, role.scopes),
        access_level=principal.access_level if role.is_owner else AccessLevel.SCOPED,
        gives=common_gives(principal.gives, role.gives),
    )


def check_key(key: KeyRow | KeyNow | None, now: datetime) -> None:
    """Raise `ApiKeyRevokedError`, `ApiKeyExpiredError` or `OrgSuspendedError` for a key that is not
    accepted; None is one that is gone.
    """
    if key is None or key.deleted:
        raise errors.ApiKeyRevokedError(api_keys.REVOKED)
    api_keys.check_accepted(key, now)
    check_not_suspended(key.suspension)


def check_user(principal: RequestPrincipal, row: UserAccessRow | None) -> None:
    """Raise `NotFoundError`, `OrgSuspendedError` or `NoOrganizationError` for a user who may not
    act for the tenant any more.
    """
    if row is None or row.deleted:
        raise errors.NotFoundError("tenant")
    check_not_suspended(row.suspension)
    _check_member(principal, row)


def _check_member(principal: RequestPrincipal, row: UserAccessRow) -> None:
    """Raise `NoOrganizationError` for a user who does not belong to the tenant any more."""
    is_declined = row.removed or (row.invited and principal.claimed_role is None)
    is_user = principal.kind is PrincipalKind.USER
    is_erased = is_user and row.role is None and principal.claimed_role is None
    if is_erased or (_binds(row, principal) and is_declined):
        raise errors.NoOrganizationError("The user does not belong to this organization any more.")


def _binds(row: UserAccessRow, principal: RequestPrincipal) -> bool:
    """Whether the membership counts beside the token's claims."""
    is_owner = principal.claimed_role == BuiltInRole.OWNER
    return row.role is not None and (row.binds_owner or not is_owner)


def check_not_suspended(suspension: str | None) -> None:
    """Raise `OrgSuspendedError` if there is a suspension, with its reason."""
    if suspension is not None:
        raise errors.OrgSuspendedError(suspension)
