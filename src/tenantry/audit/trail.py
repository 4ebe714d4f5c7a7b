"""Write and read the audit trail."""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.audit import trail_store as audit
from tenantry.audit.trail_store import AuditFilter, read_all
from tenantry.common.encoding import new_id
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.numbered_pages import NumberedPage, PageRequest
from tenantry.db.pagination import Page, window_after
from tenantry.domain.api_keys import check_mode
from tenantry.domain.audit import Action, AuditEvent, Author
from tenantry.domain.permissions import Mode, RequestPrincipal

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
) -> None:
    """Record a change in its own transaction: the fields that differ; nothing where none does.

    ``target`` is the id of the tenant and the id of what was changed.
    """
    old: dict[str, Any] | None = msgspec.to_builtins(before)
    new: dict[str, Any] | None = msgspec.to_builtins(after)
    if old is not None and new is not None:
        old, new = _differing(old, new)
        if not new:
            return
    await audit.insert(connection, _entry(author, action, target, now, old, new))


async def record_new(
    connection: Connection,
    author: Author,
    action: Action,
    org_id: str,
    objects: Mapping[str, msgspec.Struct],
    now: datetime,
) -> None:
    """Record new objects of a tenant, by their ids, in their own transaction."""
    entries = [
        _entry(author, action, (org_id, target_id), now, None, msgspec.to_builtins(new))
        for target_id, new in objects.items()
    ]
    await audit.insert_all(connection, entries)


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
    changed = [name for name in new if _text(old.get(name)) != _text(new[name])]
    return {name: old.get(name) for name in changed}, {name: new[name] for name in changed}


def _text(value: Any) -> bytes:  # noqa: ANN401  # any JSON
    """Return a value as JSON, where true is not 1."""
    return msgspec.json.encode(value, order="deterministic")
