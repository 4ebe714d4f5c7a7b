"""Writing and reading the audit trail."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.audit import trail_store as audit
from tenantry.audit.trail_store import Filter, Names, read_all
from tenantry.common.clock import to_micros
from tenantry.common.encoding import Position, new_id
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.pagination import MOST_LOOKED_AT, parse_time_cursor, time_end, to_page, to_sought_page
from tenantry.domain.access import Mode, Principal
from tenantry.domain.api_keys import check_mode
from tenantry.domain.audit import Action, AuditEvent, Author, differences
from tenantry.domain.pages import Page, SoughtPage

__all__ = ["AuditService", "Filter", "Names", "read_all", "record"]

_AT_A_TIME: Final = 500


class AuditService:
    """The trail of a principal's tenant, to read."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_page(self, principal: Principal, wanted: Filter, limit: int, cursor: str | None) -> Page[AuditEvent]:
        """A page of entries, newest first. Raises `InvalidCursorError` and `ModeMismatchError`."""
        check_mode(principal, Mode.LIVE)
        after = parse_time_cursor(cursor)
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            rows = await audit.read_page(connection, principal.org_id, wanted, limit=limit, after=after)
        return to_page(rows, limit, _position)

    async def show(
        self, principal: Principal, wanted: Filter, limit: int, cursor: str | None
    ) -> tuple[SoughtPage[AuditEvent], Names]:
        """The entries of a page that fit, newest first, and what the keys, members and projects in them are called.

        Raises `InvalidCursorError` and `ModeMismatchError`.
        """
        check_mode(principal, Mode.LIVE)
        after = parse_time_cursor(cursor)
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            rows, end = await audit.seek_page(connection, principal.org_id, wanted, limit=limit, after=after)
            named = {row.target_id for row in rows} | {row.actor_id for row in rows if row.actor_id}
            names = await audit.read_names(connection, principal.org_id, named)
        return to_sought_page(rows, limit, _position, time_end(end, MOST_LOOKED_AT)), names

    async def read_pages(self, principal: Principal, wanted: Filter) -> AsyncIterator[list[AuditEvent]]:
        """All entries, newest first, a few hundred at a time, each in a short transaction of its own.

        Raises `ModeMismatchError` before the first.
        """
        check_mode(principal, Mode.LIVE)
        after: tuple[datetime | None, str | None] = (None, None)
        while True:
            async with self._database.transaction(of_tenant(principal.org_id)) as connection:
                rows = await audit.read_page(connection, principal.org_id, wanted, limit=_AT_A_TIME, after=after)
            yield rows[:_AT_A_TIME]
            if len(rows) <= _AT_A_TIME:
                return
            last = rows[_AT_A_TIME - 1]
            after = last.at, last.id


def _position(event: AuditEvent) -> Position:
    return Position(to_micros(event.at), event.id)


async def record(
    connection: Connection,
    author: Author,
    action: Action,
    *,
    org_id: str,
    target_id: str,
    before: msgspec.Struct | None = None,
    after: msgspec.Struct | None = None,
    now: datetime,
) -> None:
    """Enter a change into the trail, in the transaction that makes it.

    Of what there was before and is there after, the fields that differ are kept. A change that changes nothing is
    no change.
    """
    was, became = _told(before, after)
    if was == became and before is not None:
        return
    await audit.insert(
        connection,
        AuditEvent(
            id=new_id("aud"),
            org_id=org_id,
            at=now,
            action=action,
            actor_kind=author.kind,
            actor_id=author.id,
            address=author.address,
            request_id=author.request_id,
            target_id=target_id,
            before=was,
            after=became,
        ),
    )


def _told(
    before: msgspec.Struct | None, after: msgspec.Struct | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    if before is not None and after is not None:
        return differences(before, after)
    was: dict[str, Any] | None = None if before is None else msgspec.to_builtins(before)
    return was, None if after is None else msgspec.to_builtins(after)
