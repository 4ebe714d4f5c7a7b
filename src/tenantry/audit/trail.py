"""Write and read the audit trail."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.audit import trail_store as audit
from tenantry.audit.operator_trail import record_acts
from tenantry.audit.trail_store import AuditFilter, read_all
from tenantry.common.encoding import new_id
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.numbered_pages import NumberedPage, PageRequest
from tenantry.db.pagination import Page, window_after
from tenantry.domain.api_keys import check_mode
from tenantry.domain.audit import Action, AuditEvent, Author, update_of
from tenantry.domain.operator_acts import NewAct, act_id_of
from tenantry.domain.outbound_events import AUDIT, TYPE_OF_ACTION, EventType, NewEvent
from tenantry.domain.permissions import Mode, RequestPrincipal
from tenantry.outbound.publishing import publish

__all__ = ["AuditFilter", "AuditService", "RecordedChange", "read_all"]

_EXPORT_ROWS: Final = 500


@dataclass(frozen=True)
class AuditService:
    """Reads the trail of a principal's tenant. Every method raises `ModeMismatchError` for a
    test-mode principal.
    """

    database: Database

    async def list_page(
        self, principal: RequestPrincipal, wanted: AuditFilter, limit: int, cursor: str | None
    ) -> Page[AuditEvent]:
        """Read a page of entries, newest first. Raises `InvalidCursorError`."""
        check_mode(principal, Mode.LIVE)
        org_id = principal.org_id
        window = window_after(limit, cursor)
        async with self.database.transaction(of_tenant(org_id)) as connection:
            return await audit.read_page(connection, org_id, wanted, window)

    async def search_page(
        self, principal: RequestPrincipal, wanted: AuditFilter, request: PageRequest
    ) -> tuple[NumberedPage[AuditEvent], dict[str, str]]:
        """Read a numbered page of a bounded search, and the names of what its entries are about.
        Raises `InvalidCursorError`.
        """
        check_mode(principal, Mode.LIVE)
        org_id = principal.org_id
        async with self.database.transaction(of_tenant(org_id)) as connection:
            page = await audit.search_page(connection, org_id, wanted, request)
            return page, await audit.read_names(connection, org_id, audit.ids_in(page.data))

    async def export(
        self, principal: RequestPrincipal, wanted: AuditFilter
    ) -> AsyncIterator[list[AuditEvent]]:
        """Read all entries, newest first, in parts of one short transaction each."""
        page = await self.list_page(principal, wanted, _EXPORT_ROWS, None)
        yield page.data
        while page.next_cursor is not None:
            page = await self.list_page(principal, wanted, _EXPORT_ROWS, page.next_cursor)
            yield page.data


@dataclass(eq=False)
class RecordedChange:
    """A change to a tenant by an ``author``, in the transaction of ``connection``."""

    connection: Connection
    author: Author
    org_id: str
    now: datetime

    async def record(
        self,
        action: Action,
        target_id: str,
        *,
        before: msgspec.Struct | None = None,
        after: msgspec.Struct | None = None,
        shown: msgspec.Struct | None = None,
        event: EventType | UnsetType | None = UNSET,
    ) -> None:
        """Record what the change did to an object of the tenant, and publish it: the fields that
        differ; nothing where none does.

        ``shown`` is the whole object after the change as the API shows it, where that is not
        ``after``. ``event`` is the type of the published change where that is not the action's;
        None: it is in the trail alone.
        """
        old: dict[str, Any] | None = msgspec.to_builtins(before)
        new: dict[str, Any] | None = msgspec.to_builtins(after)
        if old is not None and new is not None:
            old, new = _differing(old, new)
            if not new:
                return
        entry = self._entry(action, target_id, old, new)
        await audit.insert(self.connection, entry)
        await self._record_acts([entry])
        await publish(self.connection, _events(entry, shown or after, event), self.now)

    async def record_new(self, action: Action, objects: Mapping[str, msgspec.Struct]) -> None:
        """Record new objects of the tenant, by their ids and as the API shows them, and publish
        them.
        """
        entries = [
            self._entry(action, target_id, None, msgspec.to_builtins(new))
            for target_id, new in objects.items()
        ]
        await audit.insert_all(self.connection, entries)
        await self._record_acts(entries)
        events = [_events(entry, objects[entry.target_id]) for entry in entries]
        await publish(self.connection, list(chain.from_iterable(events)), self.now)

    async def _record_acts(self, entries: Sequence[AuditEvent]) -> None:
        """Add the entries to the trail of the operator's people, too."""
        await record_acts(self.connection, self.author, list(map(_act_of, entries)))

    def _entry(
        self, action: Action, target_id: str, old: dict[str, Any] | None, new: dict[str, Any] | None
    ) -> AuditEvent:
        by = self.author
        # where a person of the operator works is not the tenant's to know
        address = None if by.person else by.address
        of_author = by.kind, by.id, by.on_behalf_of, by.reason, address, by.request_id
        id_ = new_id("aud")
        return AuditEvent(id_, self.org_id, self.now, action, *of_author, target_id, old, new)


def _act_of(entry: AuditEvent) -> NewAct:
    # the operator's trail has no values before and after, which tell a suspension from a new name
    action, target_id = update_of(entry) or (entry.action, entry.target_id)
    return NewAct(act_id_of(entry.id), entry.at, action, entry.org_id, target_id)


def _events(
    entry: AuditEvent, shown: msgspec.Struct | None, event: EventType | UnsetType | None = UNSET
) -> list[NewEvent]:
    """Return the events of a change: the entry itself, and the object if the change is one."""
    events = [NewEvent(f"{AUDIT}.{entry.action}", entry.org_id, entry.at, entry)]
    kind = TYPE_OF_ACTION.get(entry.action) if event is UNSET else event
    if kind is None:
        return events
    if shown is None:
        raise TypeError(f"{entry.action} is published without its object")
    return [*events, NewEvent(kind, entry.org_id, entry.at, shown)]


def _differing(old: dict[str, Any], new: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields that differ, as they were and as they are."""
    names = {**old, **new}
    changed = [name for name in names if _text(old.get(name)) != _text(new.get(name))]
    return {name: old.get(name) for name in changed}, {name: new.get(name) for name in changed}


def _text(value: Any) -> bytes:  # noqa: ANN401  # any JSON
    """Return a value as JSON, where true is not 1."""
    return msgspec.json.encode(value, order="deterministic")
