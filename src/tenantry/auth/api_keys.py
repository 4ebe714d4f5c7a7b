"""Create, list, change, rotate and revoke API keys."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.auth import api_keys_store
from tenantry.auth.api_keys_store import KeyCounts, KeyFilter
from tenantry.auth.changes import AnsweredChange, CallersChange, Change, Changes, Repeated
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim
from tenantry.db.numbered_pages import NumberedPage, PageRequest
from tenantry.db.pagination import Page, window_after
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
from tenantry.domain.telemetry import SILENT, Telemetry
from tenantry.outbound.publishing import publish

OPERATOR: Final = "operator"
_SCOPE: Final = "api-keys:write"


class NewKey(msgspec.Struct, frozen=True):
    """A new key. Its secret is stored nowhere."""

    record: ApiKey
    secret: str


class KeyTerms(msgspec.Struct, frozen=True):
    """What a new key is to be; ``metadata`` None is none."""

    name: str
    scopes: tuple[str, ...]
    access_level: AccessLevel
    mode: Mode
    expires_at: datetime | None
    external_id: str | None = None
    metadata: dict[str, str] | None = None

    @classmethod
    def of(cls, key: ApiKey) -> "KeyTerms":
        """Return those of another key."""
        return cls(
            key.name,
            key.scopes,
            key.access_level,
            key.mode,
            key.expires_at,
            key.external_id,
            key.metadata,
        )


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
    ``issuers`` are the identity provider's.
    """

    database: Database
    catalog: Catalog
    pepper: Pepper
    clock: Clock
    issuers: Issuers | None = None
    telemetry: Telemetry = SILENT
    key_format: KeyFormat = DEFAULT_FORMAT

    @property
    def _changes(self) -> Changes:
        return Changes(self.database, self.clock)

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
        async with self._changes.begin_once(
            principal, author, _SCOPE, claim=claim, kind=ApiKey
        ) as begun:
            change = _first_time(begun)
            end = _to_end(expires_at, change.now)
            rules.check_may_create(change.caller, scopes, level, mode, end)
            await self._check_limit(change, KeyState.ACTIVE)
            leaked = None if replaces is None else await self._find_leaked(change, replaces)
            terms = KeyTerms(name, scopes, level, mode, end, external_id, metadata)
            made = await self._insert(change, terms, leaked)
            await change.answer(made.record)
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
        test_only = principal.mode is Mode.TEST
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            key = await api_keys_store.find(
                connection,
                principal.org_id,
                key_id,
                self.clock(),
                test_only=test_only,
            )
        if key is None:
            raise errors.NotFoundError("API key")
        return key

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
        async with self._changes.begin(principal, author, _SCOPE) as change:
            key = await self._find_and_lock(change, key_id)
            changed = _with_changes(change, key, name, scopes, expires_at)
            changed = _with_metadata(changed, external_id, metadata)
            rules.check_may_change(change.caller, key, changed)
            _check_active(key)
            _check_rotated_end(key, changed)
            if changed.access_level is not key.access_level:
                await self._check_not_last_owner(change, key)
            await save(change, Action.KEY_UPDATED, key, changed)
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
        async with self._changes.begin_once(
            principal, author, _SCOPE, claim=claim, kind=ApiKey
        ) as begun:
            change = _first_time(begun)
            old = await self._find_and_lock(change, key_id)
            change.caller.require_holding((), old.access_level)
            _check_active(old)
            if old.superseded_by is not None:
                raise errors.KeyNotActiveError(
                    "The key has been rotated before; rotate the key that took its place."
                )
            rules.check_may_create(
                change.caller,
                old.scopes,
                old.access_level,
                old.mode,
                old.expires_at,
            )
            if overlap:
                await self._check_limit(change, KeyState.REPLACED)
            made = await self._insert(change, KeyTerms.of(old), old, overlap)
            await change.answer(made.record)
        if not overlap:
            self.telemetry.keys_revoked(RevocationReason.ROTATED, 1)
        return made

    async def revoke(
        self, principal: RequestPrincipal, author: Author, key_id: str, *, force: bool = False
    ) -> None:
        """Revoke a key; do nothing if it is revoked already. ``force`` allows the last OWNER key
        without an owner.

        Raises `NotFoundError`, `ScopeEscalationError` and `LastOwnerError`.
        """
        async with self._changes.begin(principal, author, _SCOPE) as change:
            key = await self._find_and_lock(change, key_id)
            change.caller.require_holding((), key.access_level)
            revoked = await self._revoke(change, key, force=force)
        if revoked is not key:
            self.telemetry.keys_revoked(RevocationReason.REVOKED, 1)

    async def revoke_as_operator(
        self, org_id: str, author: Author, key_id: str, *, force: bool = False
    ) -> ApiKey:
        """Revoke a key of a tenant, also of a suspended one; return the revoked key. ``force`` as
        for `revoke`.

        Raises `NotFoundError` and `LastOwnerError`.
        """
        async with self._changes.begin_in_tenant(org_id, author, even_ended=True) as change:
            key = await find_and_lock(change, key_id, test_only=False)
            revoked = await self._revoke(change, key, force=force)
        if revoked is not key:
            self.telemetry.keys_revoked(RevocationReason.REVOKED, 1)
        return revoked

    async def _revoke(self, change: Change, key: ApiKey, *, force: bool) -> ApiKey:
        """Return the revoked key: the same one if it is revoked already."""
        if key.revoked_at is not None:
            return key
        if not force:
            await self._check_not_last_owner(change, key)
        revoked = rules.revoked(key, change.now)
        await save(change, Action.KEY_REVOKED, key, revoked)
        return revoked

    async def _find_leaked(self, change: CallersChange, key_id: str) -> ApiKey:
        """Lock a leaked key that has no successor yet. Raises `NotFoundError` and
        `KeyNotActiveError`.
        """
        leaked = await self._find_and_lock(change, key_id)
        change.caller.require_holding((), leaked.access_level)
        if leaked.leak_reported_at is None or leaked.superseded_by is not None:
            raise errors.KeyNotActiveError(
                "The key was not reported as leaked, or has been replaced before."
            )
        return leaked

    async def _find_and_lock(self, change: CallersChange, key_id: str) -> ApiKey:
        return await find_and_lock(change, key_id, test_only=change.caller.mode is Mode.TEST)

    async def _insert(
        self,
        change: CallersChange,
        terms: KeyTerms,
        replaced: ApiKey | None,
        overlap: timedelta = timedelta(),
    ) -> NewKey:
        """Store a new key and, if it replaces another, that one's end after ``overlap``."""
        key = new_key(change.org_id, change.caller.id, change.now, terms, self.key_format)
        record = key.record
        if replaced is not None:
            record = msgspec.structs.replace(
                record, rotated_from=replaced.id, rotated_from_last_used_at=replaced.last_used_at
            )
        await api_keys_store.insert(
            change.connection,
            record,
            self.pepper.digest(key.secret.encode()),
            self.pepper.id,
        )
        await change.record(Action.KEY_CREATED, record.id, after=record)
        if replaced is not None:
            ending = rules.superseded(replaced, record.id, overlap, change.now)
            await save(change, Action.KEY_ROTATED, replaced, ending)
        return NewKey(record, key.secret)

    async def _check_limit(self, change: Change, state: KeyState) -> None:
        limited = REPLACED_KEYS if state is KeyState.REPLACED else ACTIVE_KEYS
        limit = limit_in_force(limited, change.tenant.record, self.catalog, change.now)
        if limit is not None:
            used = await api_keys_store.count(change.connection, change.org_id, change.now, state)
            limit.check(used)

    async def _check_not_last_owner(self, change: Change, key: ApiKey) -> None:
        """Raise `LastOwnerError` if this key is the only way to create another OWNER key."""
        if rules.is_live_owner(key) and not await api_keys_store.has_other_owner(
            change.connection,
            key,
            self.issuers,
            change.now,
        ):
            raise errors.LastOwnerError(
                "This is the last OWNER key of a tenant without an owner: make or rotate to another first, "
                "or repeat with force=true."
            )


async def find_and_lock(change: Change, key_id: str, *, test_only: bool) -> ApiKey:
    """Read a key of the changed tenant, and lock it. Raises `NotFoundError`."""
    key = await api_keys_store.find(
        change.connection,
        change.org_id,
        key_id,
        change.now,
        test_only=test_only,
        lock=True,
    )
    if key is None:
        raise errors.NotFoundError("API key")
    return key


async def save(
    change: Change,
    action: Action,
    before: ApiKey,
    after: ApiKey,
    *,
    shown: ApiKey | None = None,
) -> None:
    """Store a changed key and record the change in the audit trail. ``shown`` is the key as the API
    shows it, where that is not ``after``.
    """
    await api_keys_store.update(change.connection, after)
    await change.record(action, after.id, before=before, after=after, shown=shown)


async def revoke_all(change: Change) -> int:
    """Revoke every key of a tenant that is not revoked yet, and publish that; return how many. The
    end of the tenant is their entry in the audit trail.
    """
    revoked = await api_keys_store.revoke_all(change.connection, change.org_id, change.now)
    events = [NewEvent(EventType.KEY_REVOKED, change.org_id, change.now, key) for key in revoked]
    await publish(change.connection, events, change.now)
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
    created_by: str,
    now: datetime,
    terms: KeyTerms,
    key_format: KeyFormat = DEFAULT_FORMAT,
) -> NewKey:
    """Generate a key."""
    secret = key_format.compose(terms.mode, secrets.token_bytes(rules.RANDOM_BYTES))
    start, last4 = rules.shown_parts(secret)
    record = ApiKey(
        id=new_id("key"),
        org_id=org_id,
        name=terms.name,
        scopes=terms.scopes,
        access_level=terms.access_level,
        mode=terms.mode,
        expires_at=terms.expires_at,
        status=KeyStatus.ACTIVE,
        start=start,
        last4=last4,
        created_at=now,
        created_by=created_by,
        last_used_at=None,
        revoked_at=None,
        rotated_from=None,
        superseded_by=None,
        external_id=terms.external_id,
        metadata=terms.metadata or {},
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


def _first_time(change: AnsweredChange[ApiKey] | Repeated[ApiKey]) -> AnsweredChange[ApiKey]:
    """Raise `IdempotencyReplayError` if the same request created a key before: its secret is not
    stored.
    """
    if isinstance(change, Repeated):
        raise errors.IdempotencyReplayError(change.first_answer.id)
    return change


def _to_end(expires_at: datetime | None, now: datetime) -> datetime | None:
    try:
        end = expires_at and expires_at.astimezone(UTC)
    except OverflowError as error:  # the last hours of the year 9999, west of Greenwich
        raise errors.ValidationError(("expiresAt", "is too far away")) from error
    if end is not None and end <= now:
        raise errors.ValidationError(("expiresAt", "must be in the future"))
    return end


def _with_changes(
    change: CallersChange,
    key: ApiKey,
    name: str | UnsetType,
    scopes: tuple[str, ...] | UnsetType,
    expires_at: datetime | UnsetType | None,
) -> ApiKey:
    """Return a key with the given fields. Raises `ValidationError` and `ScopeEscalationError`."""
    changes: dict[str, object] = {}
    if name is not UNSET:
        check_name(name)
        changes["name"] = name
    if scopes is not UNSET:
        given, level = normalize(scopes, None)
        change.caller.require_holding(given, level)
        changes |= {"scopes": given, "access_level": level}
    if expires_at is not UNSET and expires_at != key.expires_at:
        changes["expires_at"] = _to_end(expires_at, change.now)
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
