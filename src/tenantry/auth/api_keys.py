"""Create, list, change, rotate and revoke API keys."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.audit import trail as audit
from tenantry.auth import api_keys_store
from tenantry.auth.api_keys_store import KeyCounts, KeyFilter
from tenantry.auth.authentication import lock_and_reauthorize
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db import idempotency_store as idempotency
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim
from tenantry.db.numbered_pages import NumberedPage, PageRequest
from tenantry.db.pagination import Page, window_after
from tenantry.db.tenants_store import get_tenant
from tenantry.domain import api_keys as rules
from tenantry.domain import errors
from tenantry.domain.access import NO_SUBSCRIPTION, NOTHING, limits_of
from tenantry.domain.api_keys import (
    DEFAULT_FORMAT,
    ApiKey,
    KeyFormat,
    KeyState,
    KeyStatus,
    Pepper,
    RevocationReason,
)
from tenantry.domain.audit import Action, Author
from tenantry.domain.issuers import Issuers
from tenantry.domain.key_metadata import check_key_metadata
from tenantry.domain.names import check_name
from tenantry.domain.outbound_events import EventType, NewEvent
from tenantry.domain.permissions import (
    OWNER_ALIAS,
    AccessLevel,
    Mode,
    PrincipalKind,
    RequestPrincipal,
)
from tenantry.domain.plan_limits import ACTIVE_KEYS, REPLACED_KEYS, limit_in_force
from tenantry.domain.plans import FREE, Catalog, Count, PlanLimit
from tenantry.domain.scopes import ANYTHING
from tenantry.domain.tenants import TenantRecord
from tenantry.outbound.publishing import publish

OPERATOR: Final = "operator"
_SCOPE: Final = "api-keys:write"


class NewKey(msgspec.Struct, frozen=True):
    """A new key. Its secret is stored nowhere."""

    record: ApiKey
    secret: str


class KeySearch(msgspec.Struct, frozen=True):
    """A page of keys, the counts of the same search in every state, and the use of the plan's limit
    of active keys.
    """

    page: NumberedPage[ApiKey]
    counts: KeyCounts
    room: PlanLimit


@dataclass(frozen=True)
class ApiKeyService:
    """The keys of a principal's tenant; test-mode principals see test-mode keys only.

    Changes to the keys of one tenant run one after another, and are recorded in the audit trail.
    ``issuers`` are the identity provider's; ``revoked`` receives the reason and number of revoked
    keys.
    """

    database: Database
    catalog: Catalog
    pepper: Pepper
    clock: Clock
    issuers: Issuers | None = None
    revoked: Callable[[RevocationReason, int], None] = lambda _reason, _number: None
    key_format: KeyFormat = DEFAULT_FORMAT

    async def create(
        self,
        principal: RequestPrincipal,
        author: Author,
        *,
        name: str,
        scopes: tuple[str, ...],
        access_level: AccessLevel | None,
        mode: Mode | None,
        expires_at: datetime | None,
        claim: Claim | None,
        replaces: str | None = None,
        external_id: str | None = None,
        metadata: dict[str, str] | None = None,
    ) -> NewKey:
        """Create a key; without ``mode`` in the principal's.

        ``replaces`` is the id of a leaked key without a successor, whose successor this one
        becomes.

        Raises `ScopeEscalationError`, `ModeMismatchError`, `KeyLimitReachedError`,
        `ValidationError` and the errors of idempotency; with ``replaces`` `NotFoundError` and
        `KeyNotActiveError`.
        """
        check_name(name)
        check_key_metadata(external_id, metadata)
        scopes, level = normalize(scopes, access_level)
        mode = mode or principal.mode

        async with self.database.change(of_tenant(principal.org_id)) as connection:
            await self._begin(connection, claim)
            tenant, caller, now = await lock_and_reauthorize(
                connection,
                principal,
                _SCOPE,
                self.clock,
            )
            end = _to_end(expires_at, now)
            rules.check_may_create(
                caller,
                scopes,
                level,
                mode,
                end,
            )
            await self._check_limit(
                connection,
                tenant.record,
                KeyState.ACTIVE,
                now,
            )
            leaked = None
            if replaces is not None:
                leaked = await self._find_leaked(connection, caller, replaces)
            key = new_key(
                caller.org_id,
                name,
                scopes,
                level,
                mode,
                end,
                caller.id,
                now,
                external_id,
                metadata,
                self.key_format,
            )
            made = await self._insert(connection, author, key, now, leaked)
            await idempotency.keep(connection, claim, made.record, now)
            return made

    async def list_page(
        self, principal: RequestPrincipal, wanted: KeyFilter, limit: int, cursor: str | None
    ) -> Page[ApiKey]:
        """Read a page of keys, newest first. Raises `InvalidCursorError`."""
        window = window_after(limit, cursor)
        org_id = principal.org_id
        now = self.clock()
        wanted = _visible(principal, wanted)
        async with self.database.transaction(of_tenant(org_id)) as connection:
            return await api_keys_store.read_page(
                connection,
                org_id,
                now,
                wanted,
                window,
            )

    async def search_page(
        self, principal: RequestPrincipal, wanted: KeyFilter, request: PageRequest
    ) -> KeySearch:
        """Read a page of keys with its place among them, and the counts of the same search in every
        state. Raises `InvalidCursorError`.
        """
        org_id = principal.org_id
        now = self.clock()
        wanted = _visible(principal, wanted)
        async with self.database.transaction(of_tenant(org_id)) as connection:
            page = await api_keys_store.search_page(
                connection,
                org_id,
                now,
                wanted,
                request,
            )
            return await self._counted(connection, principal, wanted, now, page)

    async def search_ranked(
        self, principal: RequestPrincipal, wanted: KeyFilter, key_ids: Sequence[str], limit: int
    ) -> KeySearch:
        """Read the first ``limit`` keys that match among those with these ids, in their order, as
        the only page.
        """
        org_id = principal.org_id
        now = self.clock()
        wanted = _visible(principal, wanted)
        async with self.database.transaction(of_tenant(org_id)) as connection:
            keys = await api_keys_store.read_ranked(
                connection,
                org_id,
                now,
                wanted,
                key_ids,
                limit,
            )
            page = NumberedPage(
                data=keys,
                size=limit,
                total=Count(len(keys)),
                first=1 if keys else None,
                newer=None,
                older=None,
            )
            return await self._counted(connection, principal, wanted, now, page)

    async def _counted(
        self,
        connection: Connection,
        principal: RequestPrincipal,
        wanted: KeyFilter,
        now: datetime,
        page: NumberedPage[ApiKey],
    ) -> KeySearch:
        org_id = principal.org_id
        counts = await api_keys_store.count_states(
            connection,
            org_id,
            now,
            msgspec.structs.replace(wanted, state=None),
        )
        active = await api_keys_store.count(
            connection,
            org_id,
            now,
            KeyState.ACTIVE,
        )
        most = limits_of(principal.access_phase, self.catalog).api_keys
        return KeySearch(page, counts, PlanLimit(Count(active), most))

    async def get(self, principal: RequestPrincipal, key_id: str) -> ApiKey:
        """Read a key. Raises `NotFoundError`."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await self._find(connection, principal, key_id)

    async def update(
        self,
        principal: RequestPrincipal,
        author: Author,
        key_id: str,
        *,
        name: str | UnsetType = UNSET,
        scopes: tuple[str, ...] | UnsetType = UNSET,
        expires_at: datetime | UnsetType | None = UNSET,
        external_id: str | UnsetType | None = UNSET,
        metadata: dict[str, str] | UnsetType | None = UNSET,
    ) -> ApiKey:
        """Change the given fields of an active key; ``metadata`` replaces all of it.

        Raises `NotFoundError`, `KeyNotActiveError`, `ScopeEscalationError`, `LastOwnerError`,
        `ValidationError`.
        """
        async with self.database.change(of_tenant(principal.org_id)) as connection:
            _, caller, now = await lock_and_reauthorize(
                connection,
                principal,
                _SCOPE,
                self.clock,
            )
            key = await self._find(connection, caller, key_id, lock=True)
            changed = _with_changes(caller, key, name, scopes, expires_at, now)
            changed = _with_metadata(changed, external_id, metadata)
            rules.check_may_change(caller, key, changed)
            _check_active(key)
            _check_rotated_end(key, changed)
            if changed.access_level is not key.access_level:
                await self._check_not_last_owner(connection, key, now)
            await save(
                connection,
                author,
                Action.KEY_UPDATED,
                key,
                changed,
                now,
            )
            return changed

    async def rotate(
        self,
        principal: RequestPrincipal,
        author: Author,
        key_id: str,
        *,
        overlap: timedelta,
        claim: Claim | None,
    ) -> NewKey:
        """Replace an active key by one with the same name, scopes, level, mode, expiry, external id
        and metadata.

        The old key ends after ``overlap``, at the latest at its own expiry. During the overlap it
        does not count towards the plan's limit of keys; a plan allows as many keys in an overlap as
        active keys. Raises `NotFoundError`, `KeyNotActiveError`, `KeyLimitReachedError`,
        `ScopeEscalationError` and the errors of idempotency.
        """

        async with self.database.change(of_tenant(principal.org_id)) as connection:
            await self._begin(connection, claim)
            tenant, caller, now = await lock_and_reauthorize(
                connection,
                principal,
                _SCOPE,
                self.clock,
            )
            old = await self._find(connection, caller, key_id, lock=True)
            caller.require_holding((), old.access_level)
            _check_active(old)
            if old.superseded_by is not None:
                raise errors.KeyNotActiveError(
                    "The key has been rotated before; rotate the key that took its place."
                )
            rules.check_may_create(
                caller,
                old.scopes,
                old.access_level,
                old.mode,
                old.expires_at,
            )
            if overlap:
                await self._check_limit(
                    connection,
                    tenant.record,
                    KeyState.REPLACED,
                    now,
                )
            key = new_key(
                old.org_id,
                old.name,
                old.scopes,
                old.access_level,
                old.mode,
                old.expires_at,
                caller.id,
                now,
                old.external_id,
                old.metadata,
                self.key_format,
            )
            made = await self._insert(
                connection,
                author,
                key,
                now,
                old,
                overlap,
            )
            await idempotency.keep(connection, claim, made.record, now)
        if not overlap:
            self.revoked(RevocationReason.ROTATED, 1)
        return made

    async def revoke(
        self, principal: RequestPrincipal, author: Author, key_id: str, *, force: bool = False
    ) -> None:
        """Revoke a key; do nothing if it is revoked already. ``force`` allows the last OWNER key
        without an owner.

        Raises `NotFoundError`, `ScopeEscalationError` and `LastOwnerError`.
        """
        async with self.database.change(of_tenant(principal.org_id)) as connection:
            _, caller, now = await lock_and_reauthorize(
                connection,
                principal,
                _SCOPE,
                self.clock,
            )
            key = await self._find(connection, caller, key_id, lock=True)
            caller.require_holding((), key.access_level)
            revoked = await self._revoke(connection, author, key, now, force=force)
        if revoked is not key:
            self.revoked(RevocationReason.REVOKED, 1)

    async def revoke_as_operator(
        self, org_id: str, author: Author, key_id: str, *, force: bool = False
    ) -> ApiKey:
        """Revoke a key of a tenant, also of a suspended one; return the revoked key. ``force`` as
        for `revoke`.

        Raises `NotFoundError` and `LastOwnerError`.
        """
        async with self.database.change(of_tenant(org_id)) as connection:
            await get_tenant(
                connection,
                org_id,
                lock=True,
                even_ended=True,
            )
            key = await self._find(
                connection,
                operator_principal(org_id),
                key_id,
                lock=True,
            )
            revoked = await self._revoke(
                connection,
                author,
                key,
                self.clock(),
                force=force,
            )
        if revoked is not key:
            self.revoked(RevocationReason.REVOKED, 1)
        return revoked

    async def _revoke(
        self, connection: Connection, author: Author, key: ApiKey, now: datetime, *, force: bool
    ) -> ApiKey:
        """Return the revoked key: the same one if it is revoked already."""
        if key.revoked_at is not None:
            return key
        if not force:
            await self._check_not_last_owner(connection, key, now)
        revoked = rules.revoked(key, now)
        await save(
            connection,
            author,
            Action.KEY_REVOKED,
            key,
            revoked,
            now,
        )
        return revoked

    async def _find(
        self,
        connection: Connection,
        principal: RequestPrincipal,
        key_id: str,
        *,
        lock: bool = False,
    ) -> ApiKey:
        test_only = principal.mode is Mode.TEST
        now = self.clock()
        key = await api_keys_store.find(
            connection,
            principal.org_id,
            key_id,
            now,
            test_only=test_only,
            lock=lock,
        )
        if key is None:
            raise errors.NotFoundError("API key")
        return key

    async def _find_leaked(
        self, connection: Connection, caller: RequestPrincipal, key_id: str
    ) -> ApiKey:
        """Lock a leaked key that has no successor yet. Raises `NotFoundError` and
        `KeyNotActiveError`.
        """
        leaked = await self._find(connection, caller, key_id, lock=True)
        caller.require_holding((), leaked.access_level)
        if leaked.leak_reported_at is None or leaked.superseded_by is not None:
            raise errors.KeyNotActiveError(
                "The key was not reported as leaked, or has been replaced before."
            )
        return leaked

    async def _begin(self, connection: Connection, claim: Claim | None) -> None:
        """Begin the creation of a key. Raises `IdempotencyReplayError` if the same request created
        one before: its secret is not stored.
        """
        repeated = await idempotency.begin(
            connection,
            claim,
            ApiKey,
            self.clock(),
        )
        if repeated is not None:
            raise errors.IdempotencyReplayError(repeated.id)

    async def _insert(
        self,
        connection: Connection,
        author: Author,
        key: NewKey,
        now: datetime,
        replaced: ApiKey | None,
        overlap: timedelta = timedelta(),
    ) -> NewKey:
        """Store a new key and, if it replaces another, that one's end after ``overlap``."""
        record = key.record
        if replaced is not None:
            record = msgspec.structs.replace(
                record, rotated_from=replaced.id, rotated_from_last_used_at=replaced.last_used_at
            )
        await api_keys_store.insert(
            connection,
            record,
            self.pepper.digest(key.secret.encode()),
            self.pepper.id,
        )
        await audit.record(
            connection,
            author,
            Action.KEY_CREATED,
            (record.org_id, record.id),
            now,
            after=record,
        )
        if replaced is not None:
            ending = rules.superseded(replaced, record.id, overlap, now)
            await save(
                connection,
                author,
                Action.KEY_ROTATED,
                replaced,
                ending,
                now,
            )
        return NewKey(record, key.secret)

    async def _check_limit(
        self, connection: Connection, tenant: TenantRecord, state: KeyState, now: datetime
    ) -> None:
        limited = REPLACED_KEYS if state is KeyState.REPLACED else ACTIVE_KEYS
        limit = limit_in_force(limited, tenant, self.catalog, now)
        if limit is not None:
            limit.check(await api_keys_store.count(connection, tenant.id, now, state))

    async def _check_not_last_owner(
        self, connection: Connection, key: ApiKey, now: datetime
    ) -> None:
        """Raise `LastOwnerError` if this key is the only way to create another OWNER key."""
        if rules.is_live_owner(key) and not await api_keys_store.has_other_owner(
            connection,
            key,
            self.issuers,
            now,
        ):
            raise errors.LastOwnerError(
                "This is the last OWNER key of a tenant without an owner: make or rotate to another first, "
                "or repeat with force=true."
            )


async def save(
    connection: Connection,
    author: Author,
    action: Action,
    before: ApiKey,
    after: ApiKey,
    now: datetime,
    *,
    shown: ApiKey | None = None,
) -> None:
    """Store a changed key and record the change in the audit trail. ``shown`` is the key as the API
    shows it, where that is not ``after``.
    """
    await api_keys_store.update(connection, after)
    await audit.record(
        connection,
        author,
        action,
        (after.org_id, after.id),
        now,
        before=before,
        after=after,
        shown=shown,
    )


async def revoke_all(connection: Connection, org_id: str, now: datetime) -> int:
    """Revoke every key of a locked tenant that is not revoked yet, and publish that; return how
    many. The end of the tenant is their entry in the audit trail.
    """
    revoked = await api_keys_store.revoke_all(connection, org_id, now)
    events = [NewEvent(EventType.KEY_REVOKED, org_id, now, key) for key in revoked]
    await publish(connection, events, now)
    return len(revoked)


def operator_principal(org_id: str) -> RequestPrincipal:
    """Return a principal with all permissions, for operator commands."""
    return RequestPrincipal(
        kind=PrincipalKind.USER,
        id=OPERATOR,
        org_id=org_id,
        mode=Mode.LIVE,
        scopes=(ANYTHING,),
        access_level=AccessLevel.OWNER,
        plan=FREE,
        subscription_status=NO_SUBSCRIPTION,
        access_phase=NOTHING,
        expires_at=None,
    )


def new_key(
    org_id: str,
    name: str,
    scopes: tuple[str, ...],
    level: AccessLevel,
    mode: Mode,
    expires_at: datetime | None,
    created_by: str,
    now: datetime,
    external_id: str | None = None,
    metadata: dict[str, str] | None = None,
    key_format: KeyFormat = DEFAULT_FORMAT,
) -> NewKey:
    """Generate a key."""
    secret = key_format.compose(mode, secrets.token_bytes(rules.RANDOM_BYTES))
    start, last4 = rules.shown_parts(secret)
    record = ApiKey(
        id=new_id("key"),
        org_id=org_id,
        name=name,
        scopes=scopes,
        access_level=level,
        mode=mode,
        expires_at=expires_at,
        status=KeyStatus.ACTIVE,
        start=start,
        last4=last4,
        created_at=now,
        created_by=created_by,
        last_used_at=None,
        revoked_at=None,
        rotated_from=None,
        superseded_by=None,
        external_id=external_id,
        metadata=metadata or {},
    )
    return NewKey(record, secret)


def normalize(
    scopes: tuple[str, ...], level: AccessLevel | None
) -> tuple[tuple[str, ...], AccessLevel]:
    """Return the scopes without duplicates, and the level; ``OWNER`` as a scope or level means all
    scopes.

    Raises `ValidationError` for a scoped key without scopes, and for OWNER with ``SCOPED`` or other
    scopes.
    """
    if OWNER_ALIAS in scopes or level is AccessLevel.OWNER:
        others = set(scopes) - {OWNER_ALIAS, ANYTHING}
        if others or level is AccessLevel.SCOPED:
            raise errors.ValidationError(
                ("scopes", "OWNER stands alone: give no other scopes with it")
            )
        return (ANYTHING,), AccessLevel.OWNER
    if not scopes:
        raise errors.ValidationError(("scopes", "give at least one scope"))
    return tuple(dict.fromkeys(scopes)), AccessLevel.SCOPED


def _to_end(expires_at: datetime | None, now: datetime) -> datetime | None:
    try:
        end = expires_at and expires_at.astimezone(UTC)
    except OverflowError as error:  # the last hours of the year 9999, west of Greenwich
        raise errors.ValidationError(("expiresAt", "is too far away")) from error
    if end is not None and end <= now:
        raise errors.ValidationError(("expiresAt", "must be in the future"))
    return end


def _with_changes(
    caller: RequestPrincipal,
    key: ApiKey,
    name: str | UnsetType,
    scopes: tuple[str, ...] | UnsetType,
    expires_at: datetime | UnsetType | None,
    now: datetime,
) -> ApiKey:
    """Return a key with the given fields. Raises `ValidationError` and `ScopeEscalationError`."""
    changes: dict[str, object] = {}
    if name is not UNSET:
        check_name(name)
        changes["name"] = name
    if scopes is not UNSET:
        given, level = normalize(scopes, None)
        caller.require_holding(given, level)
        changes |= {"scopes": given, "access_level": level}
    if expires_at is not UNSET and expires_at != key.expires_at:
        changes["expires_at"] = _to_end(expires_at, now)
    return msgspec.structs.replace(key, **changes)


def _with_metadata(
    key: ApiKey, external_id: str | UnsetType | None, metadata: dict[str, str] | UnsetType | None
) -> ApiKey:
    """Return a key with the given external id and metadata. Raises `ValidationError`."""
    new_external_id = key.external_id if external_id is UNSET else external_id
    new_metadata = key.metadata if metadata is UNSET else metadata or {}
    check_key_metadata(new_external_id, new_metadata)
    return msgspec.structs.replace(key, external_id=new_external_id, metadata=new_metadata)


def _check_rotated_end(key: ApiKey, changed: ApiKey) -> None:
    is_later = rules.expires_later(key.expires_at, changed.expires_at)
    if key.superseded_by is not None and is_later:
        raise errors.KeyNotActiveError(
            "A rotated key's expiry can only be moved to an earlier time."
        )


def _visible(principal: RequestPrincipal, wanted: KeyFilter) -> KeyFilter:
    """Return the filter with the mode to which a test-mode principal is limited."""
    if principal.mode is Mode.TEST:
        return msgspec.structs.replace(wanted, mode=Mode.TEST)
    return wanted


def _check_active(key: ApiKey) -> None:
    if key.status is not KeyStatus.ACTIVE:
        raise errors.KeyNotActiveError(f"The key is {key.status.value}.")
