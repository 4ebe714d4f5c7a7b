"""Create, list, change, rotate and revoke API keys."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec import UNSET

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
from tenantry.domain.access import limits_of
from tenantry.domain.api_keys import (
    DEFAULT_FORMAT,
    ApiKey,
    KeyChanges,
    KeyFormat,
    KeyStatus,
    KeyTerms,
    Pepper,
    RevocationReason,
)
from tenantry.domain.audit import Action, Author
from tenantry.domain.issuers import Issuers
from tenantry.domain.key_addresses import NO_PROXIES, TrustedProxies
from tenantry.domain.names import check_name
from tenantry.domain.outbound_events import EventType, NewEvent
from tenantry.domain.permissions import (
    OWNER_ALIAS,
    AccessLevel,
    Mode,
    RequestPrincipal,
)
from tenantry.domain.plan_limits import ACTIVE_KEYS, REPLACED_KEYS, limit_in_force
from tenantry.domain.plans import Catalog, Count, PlanLimit
from tenantry.domain.scopes import ANYTHING
from tenantry.domain.telemetry import SILENT, Telemetry
from tenantry.outbound.publishing import publish

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
    ``issuers`` are the identity provider's.
    """

    database: Database
    catalog: Catalog
    pepper: Pepper
    clock: Clock
    issuers: Issuers | None = None
    telemetry: Telemetry = SILENT
    key_format: KeyFormat = DEFAULT_FORMAT
    proxies: TrustedProxies = NO_PROXIES
    """The trusted ones, from which no key may be used."""

    @property
    def _changes(self) -> Changes:
        return Changes(self.database, self.clock)

    async def create(
        self,
        principal: RequestPrincipal,
        author: Author,
        terms: KeyTerms,
        *,
        claim: Claim | None,
        replaces: str | None = None,
    ) -> NewKey:
        """Create a key; without a mode in the principal's.

        ``replaces`` is the id of a leaked key without a successor, whose successor this one
        becomes.

        Raises `ScopeEscalationError`, `ModeMismatchError`, `KeyLimitReachedError`,
        `ValidationError` and the errors of idempotency; with ``replaces`` `NotFoundError` and
        `KeyNotActiveError`.
        """
        check_terms(terms, self.proxies)
        terms = msgspec.structs.replace(terms, mode=terms.mode or principal.mode)
        async with self._changes.begin_once(
            principal, author, _SCOPE, claim=claim, kind=ApiKey
        ) as begun:
            change = _first_time(begun)
            key = key_of(terms, change.org_id, change.caller.id, change.now)
            key = msgspec.structs.replace(key, expires_at=_to_end(terms.expires_at, change.now))
            rules.check_may_create(change.caller, key)
            await self._check_limit(change)
            leaked = None if replaces is None else await self._find_leaked(change, replaces)
            if leaked is not None:
                key = rules.replacing(key, leaked)
            made = await self._insert(change, key, leaked)
            change.answer(made.record)
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
        active = await api_keys_store.count_active(connection, org_id, now)
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
        self, principal: RequestPrincipal, author: Author, key_id: str, changes: KeyChanges
    ) -> ApiKey:
        """Change an active key. New metadata replaces all of it.

        Raises `NotFoundError`, `KeyNotActiveError`, `ScopeEscalationError`, `LastOwnerError`,
        `ValidationError`.
        """
        async with self._changes.begin(principal, author, _SCOPE) as change:
            key = await self._find_key(change, key_id)
            changed = _with_changes(change, key, changes)
            if changed.allowed_addresses != key.allowed_addresses:
                self.proxies.check_none_in(changed.allowed_addresses)
            rules.check_may_change(change.caller, key, changed)
            rules.check_changeable(key)
            _check_rotated_end(key, changed)
            if not rules.is_live_owner(changed):
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
        """Replace an active key by one with the same name, scopes, level, mode, expiry and optional
        terms.

        The old key ends after ``overlap``, at the latest at its own expiry. During the overlap it
        does not count towards the plan's limit of keys; a plan allows as many keys in an overlap as
        active keys. Raises `NotFoundError`, `KeyNotActiveError`, `KeyLimitReachedError`,
        `ScopeEscalationError` and the errors of idempotency.
        """
        async with self._changes.begin_once(
            principal, author, _SCOPE, claim=claim, kind=ApiKey
        ) as begun:
            change = _first_time(begun)
            old = await self._find_key(change, key_id)
            change.caller.require_holding((), old.access_level)
            rules.check_rotatable(old)
            rules.check_may_create(change.caller, old)
            if overlap:
                await self._check_limit(change, replaced=True)
            successor = rules.successor(old, new_id("key"), change.caller.id, change.now)
            made = await self._insert(change, successor, old, overlap)
            change.answer(made.record)
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
            key = await self._find_key(change, key_id)
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
            key = await find_key(change, key_id, test_only=False)
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
        """Return a leaked key that has no successor yet. Raises `NotFoundError` and
        `KeyNotActiveError`.
        """
        leaked = await self._find_key(change, key_id)
        change.caller.require_holding((), leaked.access_level)
        if leaked.leak_reported_at is None or leaked.superseded_by is not None:
            raise errors.KeyNotActiveError(
                "The key was not reported as leaked, or has been replaced before."
            )
        return leaked

    async def _find_key(self, change: CallersChange, key_id: str) -> ApiKey:
        return await find_key(change, key_id, test_only=change.caller.mode is Mode.TEST)

    async def _insert(
        self,
        change: CallersChange,
        key: ApiKey,
        replaced: ApiKey | None,
        overlap: timedelta = timedelta(),
    ) -> NewKey:
        """Store a new key and, if it replaces another, that one's end after ``overlap``."""
        made = with_secret(key, self.key_format)
        record = made.record
        digest = self.pepper.digest(made.secret.encode())
        await api_keys_store.insert(change.connection, {digest: record}, self.pepper.id)
        await change.record(Action.KEY_CREATED, record.id, after=record)
        if replaced is not None:
            ending = rules.superseded(replaced, record.id, overlap, change.now)
            await save(change, Action.KEY_ROTATED, replaced, ending)
        return made

    async def _check_limit(self, change: Change, *, replaced: bool = False) -> None:
        limited = REPLACED_KEYS if replaced else ACTIVE_KEYS
        limit = limit_in_force(limited, change.tenant.record, self.catalog, change.now)
        if limit is not None:
            used = await api_keys_store.count_active(
                change.connection, change.org_id, change.now, replaced=replaced
            )
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


async def find_key(change: Change, key_id: str, *, test_only: bool) -> ApiKey:
    """Read a key of the changed tenant, whose lock guards it. Raises `NotFoundError`."""
    key = await api_keys_store.find(
        change.connection, change.org_id, key_id, change.now, test_only=test_only
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


def check_terms(terms: KeyTerms, proxies: TrustedProxies) -> None:
    """Raise `ValidationError` for terms that no key may have, behind these trusted proxies."""
    check_name(terms.name)
    rules.check_optional_terms(terms)
    proxies.check_none_in(terms.allowed_addresses or ())
    normalize(terms.scopes, terms.access_level)


def key_of(terms: KeyTerms, org_id: str, created_by: str, now: datetime) -> ApiKey:
    """Return the record of a new key, without the shown parts of its secret; without a mode a live
    one.
    """
    scopes, level = normalize(terms.scopes, terms.access_level)
    key = ApiKey(
        id=new_id("key"),
        org_id=org_id,
        name=terms.name,
        scopes=scopes,
        access_level=level,
        mode=terms.mode or Mode.LIVE,
        expires_at=terms.expires_at,
        status=KeyStatus.ACTIVE,
        start="",
        last4="",
        created_at=now,
        created_by=created_by,
        last_used_at=None,
        revoked_at=None,
        rotated_from=None,
        superseded_by=None,
    )
    return rules.with_optional_terms(key, terms)


def with_secret(key: ApiKey, key_format: KeyFormat = DEFAULT_FORMAT) -> NewKey:
    """Generate the secret of a new key."""
    secret = key_format.compose(key.mode, secrets.token_bytes(rules.RANDOM_BYTES))
    start, last4 = rules.shown_parts(secret)
    return NewKey(msgspec.structs.replace(key, start=start, last4=last4), secret)


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


def _with_changes(change: CallersChange, key: ApiKey, changes: KeyChanges) -> ApiKey:
    """Return the changed key. Raises `ValidationError` and `ScopeEscalationError`."""
    rules.check_optional_terms(changes)
    new: dict[str, object] = {}
    if changes.name is not UNSET:
        check_name(changes.name)
        new["name"] = changes.name
    if changes.scopes is not UNSET:
        scopes, level = normalize(changes.scopes, None)
        change.caller.require_holding(scopes, level)
        new |= {"scopes": scopes, "access_level": level}
    if changes.expires_at is not UNSET and changes.expires_at != key.expires_at:
        new["expires_at"] = _to_end(changes.expires_at, change.now)
    return rules.with_optional_terms(msgspec.structs.replace(key, **new), changes)


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
