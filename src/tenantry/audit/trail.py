"""Write and read the audit trail."""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.audit import trail_store as audit
from tenantry.audit.trail_store import AuditFilter, read_all
from tenantry.common.encoding import new_id
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.numbered_pages import NumberedPage, PageRequest
from tenantry.db.pagination import Page, window_after
from tenantry.domain.api_keys import check_mode
from tenantry.domain.audit import Action, AuditEvent, Author
from tenantry.domain.outbound_events import AUDIT, TYPE_OF_ACTION, EventType, NewEvent
from tenantry.domain.permissions import Mode, RequestPrincipal
from tenantry.outbound.publishing import publish

__all__ = ["AuditFilter", "AuditService", "read_all", "record", "record_new"]

_EXPORT_ROWS: Final = 500


class AuditService:
    """Reads the trail of a principal's tenant. Every method raises `ModeMismatchError` for a
    test-mode principal.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_page(
        self, principal: RequestPrincipal, wanted: AuditFilter, limit: int, cursor: str | None
    ) -> Page[AuditEvent]:
        """Read a page of entries, newest first. Raises `InvalidCursorError`."""
        check_mode(principal, Mode.LIVE)
        org_id = principal.org_id
        window = window_after(limit, cursor)
        async with self._database.transaction(of_tenant(org_id)) as connection:
            return await audit.read_page(connection, org_id, wanted, window)

    async def search_page(
        self, principal: RequestPrincipal, wanted: AuditFilter, request: PageRequest
    ) -> tuple[NumberedPage[AuditEvent], dict[str, str]]:
        """Read a numbered page of a bounded search, and the names of what its entries are about.
        Raises `InvalidCursorError`.
        """
        check_mode(principal, Mode.LIVE)
        org_id = principal.org_id
        async with self._database.transaction(of_tenant(org_id)) as connection:
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


async def record(
    connection: Connection,
    author: Author,
    action: Action,
    target: tuple[str, str],
    now: datetime,
    *,
    before: msgspec.Struct | None = None,
    after: msgspec.Struct | None = None,
    shown: msgspec.Struct | None = None,
    event: EventType | UnsetType | None = UNSET,
) -> None:
    """Record a change in its own transaction, and publish it: the fields that differ; nothing where
    none does.

    ``target`` is the id of the tenant and the id of what was changed. ``shown`` is the whole object
    after the change as the API shows it, where that is not ``after``. ``event`` is the type of the
    published change where that is not the action's; None: it is in the trail alone.
    """
    old: dict[str, Any] | None = msgspec.to_builtins(before)
    new: dict[str, Any] | None = msgspec.to_builtins(after)
    if old is not None and new is not None:
        old, new = _differing(old, new)
        if not new:
            return
    entry = _entry(author, action, target, now, old, new)
    await audit.insert(connection, entry)
    await publish(connection, _events(entry, shown or after, event), now)


async def record_new(
    connection: Connection,
    author: Author,
    action: Action,
    org_id: str,
    objects: Mapping[str, msgspec.Struct],
    now: datetime,
) -> None:
    """Record new objects of a tenant, by their ids, in their own transaction, and publish them.

    They are the objects as the API shows them.
    """
    entries = [
        _entry(author, action, (org_id, target_id), now, None, msgspec.to_builtins(new))
        for target_id, new in objects.items()
    ]
    await audit.insert_all(connection, entries)
    events = [_events(entry, objects[entry.target_id]) for entry in entries]
    await publish(connection, list(chain.from_iterable(events)), now)


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


def _entry(
    author: Author,
    action: Action,
    target: tuple[str, str],
    now: datetime,
    old: dict[str, Any] | None,
    new: dict[str, Any] | None,
) -> AuditEvent:
    org_id, target_id = target
    of_author = author.kind, author.id, author.address, author.request_id
    return AuditEvent(new_id("aud"), org_id, now, action, *of_author, target_id, old, new)


def _differing(old: dict[str, Any], new: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields that differ, as they were and as they are."""
    names = {**old, **new}
    changed = [name for name in names if _text(old.get(name)) != _text(new.get(name))]
    return {name: old.get(name) for name in changed}, {name: new.get(name) for name in changed}


def _text(value: Any) -> bytes:  # noqa: ANN401  # any JSON
    """Return a value as JSON, where true is not 1."""
    return msgspec.json.encode(value, order="deterministic")
