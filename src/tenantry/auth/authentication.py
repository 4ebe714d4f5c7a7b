"""Authenticate a request by its API key or bearer token; authorize a change again under the
tenant's lock.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

import msgspec

from tenantry.auth import api_keys_store
from tenantry.auth.api_keys_store import ImportDigests, KeyUse
from tenantry.auth.authentication_store import (
    NO_PAGE,
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
from tenantry.domain.api_keys import KeyStatus, Pepper
from tenantry.domain.feature_access import feature_access_of
from tenantry.domain.permissions import (
    AccessLevel,
    Mode,
    PrincipalKind,
    RequestPrincipal,
    UserGrants,
)
from tenantry.domain.plans import Catalog
from tenantry.domain.roles import BuiltInRole, Role, Roles, common_gives
from tenantry.domain.scopes import intersect
from tenantry.domain.tenants import is_tenant_id
from tenantry.domain.usage import ALL_USERS
from tenantry.integrations.oidc.claims import Claims
from tenantry.integrations.oidc.tokens import TokenVerifier

_REVOKED: Final = "The API key has been revoked."
_MODES: Final = {mode.value: mode for mode in Mode}
_LEVELS: Final = {level.value: level for level in AccessLevel}

AcceptInvitation = Callable[[Claims, str, str | None], Awaitable[None]]
"""Accepts a user's invitation, given the tenant's id and the client's address.

Raises `MemberNotActiveError`, `NotFoundError` and `DatabaseUnavailableError`.
"""


class Authenticated(msgspec.Struct, frozen=True):
    """The sender of a request, and the page that the request asked for."""

    principal: RequestPrincipal
    page: Sequence[str] = ()
    """JSON documents: one more than the limit if there are more."""


class KeyAnswer(msgspec.Struct, frozen=True):
    """The answer to `Authenticator.look_up`."""

    digests: Sequence[bytes]
    """Of the key that was looked up."""
    row: KeyRow | Exception | None
    """None for an unknown key, an exception if the lookup failed."""
    began: float
    """When the request arrived, on the monotonic clock."""


class ChangeableKey(Protocol):
    """What may end an API key, or suspend it."""

    @property
    def revoked_at(self) -> datetime | None: ...
    @property
    def expires_at(self) -> datetime | None: ...
    @property
    def suspended(self) -> bool: ...
    @property
    def deleted(self) -> bool: ...


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
    request is accepted and nothing is written. ``page`` is the query of the pages that requests ask
    for, as in `authentication_store`. ``credentials`` finds the credential of a request. A lookup
    that follows another one waits up to ``gather_seconds`` for most of its requests.
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
        authorization: bytes | None,
        organization: bytes | None,
        address: str | None = None,
        window: Window | None = None,
        api_key: bytes | None = None,
    ) -> Authenticated:
        """Authenticate by the ``Authorization`` and ``X-Organization-Id`` headers.

        ``address`` is the client's, for the key's last use; ``window`` requests a page in the same
        lookup, whatever the principal's scopes; ``api_key`` is the value of the header for API
        keys. Raises the errors of CONTRACT 5, `AuthUnavailableError` when the database is
        unavailable.
        """
        credential = self.credentials.find(authorization, api_key)
        try:
            if credential.kind is CredentialKind.API_KEY:
                return await self._by_key(credential.value, address, window)
            claims = await self.verify_token(credential)
            return await self._by_claims(claims, organization, address, window)
        except errors.DatabaseUnavailableError as error:
            raise errors.AuthUnavailableError(error.detail) from error

    def look_up(
        self,
        receiver: Receiver[KeyRow | None],
        authorization: bytes | None,
        window: Window | None = None,
        api_key: bytes | None = None,
    ) -> Sequence[bytes] | None:
        """Look up the API key of a request for ``receiver``, and return its digests. Return None if
        the request has no API key: then `authenticate` must answer. The parameters are those of
        `authenticate`.

        Raises `MissingCredentialError`, `InvalidCredentialError` and `DatabaseUnavailableError`.
        """
        credential = self.credentials.find(authorization, api_key)
        if credential.kind is not CredentialKind.API_KEY:
            return None
        digests = self.credentials.digests(credential.value, self.peppers)
        if digests is not None:
            self._keys.submit_for(receiver, KeyQuery(digests, window))
        return digests

    def accept_key(self, answer: KeyAnswer, address: str | None) -> Authenticated:
        """Authenticate by the answer to `look_up`. Raises as `authenticate`."""
        row = answer.row
        if isinstance(row, errors.DatabaseUnavailableError):
            raise errors.AuthUnavailableError(row.detail) from row
        if isinstance(row, Exception):
            raise row
        return self._accept_row(row, answer.digests, address)

    async def as_user(self, claims: Claims, org_id: str) -> tuple[RequestPrincipal, Role]:
        """Return the principal and effective role of a signed-in user in a tenant.

        The scopes of the user's token may restrict the principal to less than the role grants.
        Raises `NoOrganizationError`, `OrgSuspendedError`, `InvalidCredentialError` and
        `DatabaseUnavailableError`.
        """
        rows = await self._users.submit(UserQuery(claims.issuer, claims.subject, org_id))
        claims_tenant = claims.org_id == org_id
        if not rows or not (claims_tenant or _is_member(rows[0])):
            raise errors.NoOrganizationError("The user does not belong to this organization.")
        row = rows[0]
        self._check_owner_email(row, claims, org_id)
        if not claims_tenant:
            claims = msgspec.structs.replace(claims, role=None)
        granted = grants_of_user(claims, row, self.catalog.roles)
        return self._principal_of_user(claims, row, granted), granted.role

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
        self, secret: bytes, address: str | None, window: Window | None
    ) -> Authenticated:
        digests = self.credentials.digests(secret, self.peppers)
        if digests is None:
            raise errors.InvalidCredentialError("The API key is not valid.")
        key = await self._keys.submit(KeyQuery(digests, window))
        return self._accept_row(key, digests, address)

    def _accept_row(
        self, key: KeyRow | None, digests: Sequence[bytes], address: str | None
    ) -> Authenticated:
        if key is None:
            raise errors.InvalidCredentialError("The API key is not valid.")
        now = self.clock()
        try:
            principal = _principal_of_key(key, self.catalog, now)
        except errors.DomainError as error:
            error.sender = key.org_id, key.id
            raise
        if key.recent_address != (address or "") or key.digest != digests[0]:
            self.key_used(
                key.id,
                KeyUse(
                    key.id,
                    now,
                    address,
                    digests[0],
                    self.peppers[0].id,
                    self._import_digests(key, digests),
                ),
            )
        return Authenticated(principal, key.page)

    def _import_digests(self, key: KeyRow, digests: Sequence[bytes]) -> ImportDigests | None:
        """Return the digests of an imported key's hashes under the newest pepper, if the key is
        stored otherwise than it will be.
        """
        newest, *of_hashes = digests[:: len(self.peppers)]
        return ImportDigests(*of_hashes) if of_hashes and key.digest != newest else None

    async def _by_claims(
        self, claims: Claims, organization: bytes | None, address: str | None, window: Window | None
    ) -> Authenticated:
        org_id = requested_organization(claims.org_id, organization)
        rows = await self._users.submit(
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
            error.sender = row.org_id, ALL_USERS
            raise
        if row.invited and organization is not None and self.accept is not None:
            try:  # naming the tenant accepts its invitation
                await self.accept(claims, principal.org_id, address)
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

    async def _find_keys(self, queries: Sequence[KeyQuery]) -> list[KeyRow | Exception | None]:
        lookup = key_lookup(queries, self.clock(), self.page)
        return list(keys_in(await self.keys.look_up(lookup, len(queries)), queries))

    async def _find_user_access(
        self, queries: Sequence[UserQuery]
    ) -> list[list[UserAccessRow] | Exception]:
        lookup = user_lookup(queries, self.page)
        return list(user_access_in(await self.users.look_up(lookup, len(queries)), queries))


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
    _check_not_suspended(suspended=row.suspended)
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
    connection: Connection, principal: RequestPrincipal, scope: str, clock: Clock
) -> tuple[TenantRow, RequestPrincipal, datetime]:
    """Lock the principal's tenant for a change that needs ``scope``; return it, the principal as of
    now, and the time.

    Every change by a principal begins with this (CONTRACT 8.2). While a request waited for the
    lock, its key may have been revoked or narrowed, its user removed or given a lower role, or its
    tenant suspended. The operator may also change a suspended tenant.

    Raises `ApiKeyRevokedError`, `ApiKeyExpiredError`, `NoOrganizationError`, `OrgSuspendedError`,
    `InsufficientScopeError`, and `NotFoundError` for an ended tenant.
    """
    tenant = await get_tenant(
        connection,
        principal.org_id,
        lock=True,
        even_ended=True,
    )
    now = clock()
    if _is_operator(principal):
        caller = principal
    else:
        caller = await _reauthorize(connection, principal, now)
        _check_not_suspended(suspended=tenant.suspended)
    if tenant.deleted:
        raise errors.NotFoundError("tenant")
    caller.require(scope)
    return tenant, caller, now


def _is_operator(principal: RequestPrincipal) -> bool:
    """Whether this is the principal of an operator's command: a user of no issuer."""
    return principal.kind is PrincipalKind.USER and principal.issuer is None


async def _reauthorize(
    connection: Connection, principal: RequestPrincipal, now: datetime
) -> RequestPrincipal:
    if principal.issuer is not None:
        return await _reauthorize_user(connection, principal, principal.issuer)
    org_id, key_id = principal.org_id, principal.id
    key = await api_keys_store.find(connection, org_id, key_id, now, test_only=False)
    if key is None:
        raise errors.ApiKeyRevokedError(_REVOKED)
    _check_active(key.status)
    return msgspec.structs.replace(
        principal,
        scopes=key.scopes,
        access_level=key.access_level,
        expires_at=key.expires_at,
    )


async def _reauthorize_user(
    connection: Connection, principal: RequestPrincipal, issuer: str
) -> RequestPrincipal:
    user = UserQuery(issuer, principal.id, principal.org_id)
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


def check_key(key: ChangeableKey | None, now: datetime) -> None:
    """Raise `ApiKeyRevokedError`, `ApiKeyExpiredError` or `OrgSuspendedError` for a key that is not
    accepted; None is one that is gone.
    """
    if key is None or key.deleted:
        raise errors.ApiKeyRevokedError(_REVOKED)
    _check_active(api_keys.status_at(now, key.revoked_at, key.expires_at))
    _check_not_suspended(suspended=key.suspended)


def check_user(principal: RequestPrincipal, row: UserAccessRow | None) -> None:
    """Raise `NotFoundError`, `OrgSuspendedError` or `NoOrganizationError` for a user who may not
    act for the tenant any more.
    """
    if row is None or row.deleted:
        raise errors.NotFoundError("tenant")
    _check_not_suspended(suspended=row.suspended)
    _check_member(principal, row)


def _check_member(principal: RequestPrincipal, row: UserAccessRow) -> None:
    """Raise `NoOrganizationError` for a user who does not belong to the tenant any more."""
    is_declined = row.removed or (row.invited and principal.claimed_role is None)
    if _binds(row, principal) and is_declined:
        raise errors.NoOrganizationError("The user does not belong to this organization any more.")


def _binds(row: UserAccessRow, principal: RequestPrincipal) -> bool:
    """Whether the membership counts beside the token's claims."""
    is_owner = principal.claimed_role == BuiltInRole.OWNER
    return row.role is not None and (row.binds_owner or not is_owner)


def _check_active(status: KeyStatus) -> None:
    if status is KeyStatus.REVOKED:
        raise errors.ApiKeyRevokedError(_REVOKED)
    if status is KeyStatus.EXPIRED:
        raise errors.ApiKeyExpiredError("The API key has expired.")


def _check_not_suspended(*, suspended: bool) -> None:
    if suspended:
        raise errors.OrgSuspendedError("The organization is suspended.")
