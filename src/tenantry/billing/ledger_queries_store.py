"""Reading the billing ledger: pages, single events and their raw bodies, counts, and the newest arrivals."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.billing.ledger_store import unpack
from tenantry.db.connection import Connection
from tenantry.db.pagination import MAX_SCANNED_ROWS, Listing
from tenantry.domain.billing.events import Anomaly
from tenantry.domain.billing.state import BillingState

FORMER_AMBIGUOUS_ORDER: Final = "undecidable_order"
"""The previous release's name of `Anomaly.AMBIGUOUS_ORDER`, which its entries keep."""
_ENTRY_COLUMNS: Final = (
    "id, type, created, received_at, livemode, outcome, reason, before::text, after::text, arrival, anomalies"
)
_LISTING: Final = Listing(_ENTRY_COLUMNS, "billing_events", "created", "arrival")
_OF_TENANT: Final = "tenant_id = %(tenant)s AND (created, arrival) < (%(created)s, %(arrival)s)"
_FILTERED: Final = (
    "(%(type)s::text IS NULL OR type = %(type)s) AND (%(outcome)s::text IS NULL OR outcome = %(outcome)s)"
)
_ENTRIES: Final = f"SELECT {_ENTRY_COLUMNS} FROM billing_events WHERE tenant_id = %s"  # noqa: S608  # our own columns
FIND_ENTRY: Final = f"{_ENTRIES} AND id = %s"
ALL_ENTRIES: Final = f"{_ENTRIES} ORDER BY created, arrival"
FIND_BODY: Final = "SELECT event_body(e.id) FROM billing_events e WHERE e.id = %s"
FIND_BODY_OF_TENANT: Final = "SELECT tenant_event_body(e.id) FROM billing_events e WHERE e.tenant_id = %s AND e.id = %s"
NEWEST_SECOND: Final = "SELECT max(tip_created) FROM tenants"
COUNT_PARKED: Final = "SELECT count(*) FROM billing_events WHERE outcome = 'parked'"

# The feed looks at the events of the four days before a tenant's newest, because the provider retries an event for
# three days, and at the newest MAX_SCANNED_ROWS of these. The index has a tenant's events by ``created``.
_SECONDS: Final = 4 * 86_400
_RECENT: Final = f"""
        SELECT arrival
          FROM billing_events
         WHERE tenant_id = t.id AND created > coalesce(t.tip_created, 0) - {_SECONDS}
         ORDER BY created DESC, arrival DESC
         LIMIT {MAX_SCANNED_ROWS}
"""  # noqa: S608  # our own numbers
NEWEST: Final = f"""
SELECT coalesce(max(recent.arrival), 0)
  FROM tenants t
 CROSS JOIN LATERAL ({_RECENT}) AS recent
 WHERE t.id = %s
"""  # noqa: S608  # our own statement
AFTER: Final = f"""
SELECT watched.tenant_id, news.arrival
  FROM unnest(%s::text[], %s::bigint[]) AS watched (tenant_id, since)
  JOIN tenants t ON t.id = watched.tenant_id
 CROSS JOIN LATERAL (
         SELECT max(recent.arrival) AS arrival
           FROM ({_RECENT}) AS recent
          WHERE recent.arrival > watched.since) AS news
 WHERE news.arrival IS NOT NULL
"""  # noqa: S608  # our own statement
_state_decoder: Final = msgspec.json.Decoder(BillingState | None)


class LedgerRecord(msgspec.Struct, frozen=True):
    id: str
    type: str
    created: int
    received_at: datetime
    livemode: bool | None
    outcome: str
    reason: str
    before: BillingState | None
    after: BillingState | None
    arrival: int
    anomalies: list[str]


def _record(row: Sequence[Any]) -> LedgerRecord:
    *facts, before, after, arrival, anomalies = row
    states = [_state_decoder.decode(state or "null") for state in (before, after)]
    former = {FORMER_AMBIGUOUS_ORDER: Anomaly.AMBIGUOUS_ORDER.value}
    values = [*facts, *states, arrival, [former.get(name, name) for name in anomalies or ()]]
    return LedgerRecord(*values)


async def read_entries(
    connection: Connection, tenant_id: str, limit: int, after: tuple[int, int] | None
) -> list[LedgerRecord]:
    """Return a tenant's entries, newest first, after a position ``(created, arrival)``; one more than ``limit``."""
    return [_record(row) for row in await _LISTING.read(connection, _OF_TENANT, "true", _from(tenant_id, after), limit)]


async def seek_entries(
    connection: Connection,
    tenant_id: str,
    limit: int,
    after: tuple[int, int] | None,
    *,
    event_type: str | None,
    outcome: str | None,
) -> tuple[list[LedgerRecord], tuple[int, int] | None]:
    """Return the entries of a type and outcome, where given, among the next `MAX_SCANNED_ROWS` of the ledger.

    Also returns the position of the last entry that was looked at, if there are older ones.
    """
    values = {**_from(tenant_id, after), "type": event_type, "outcome": outcome}
    rows, end = await _LISTING.search(connection, _OF_TENANT, _FILTERED, values, limit)
    return [_record(row) for row in rows], end


def _from(tenant_id: str, after: tuple[int, int] | None) -> dict[str, object]:
    created, arrival = after or (2**62, 0)
    return {"tenant": tenant_id, "created": created, "arrival": arrival}


async def find_entry(connection: Connection, tenant_id: str, event_id: str) -> LedgerRecord | None:
    row = await connection.fetch_row(FIND_ENTRY, (tenant_id, event_id))
    return _record(row) if row else None


async def read_all_entries(connection: Connection, tenant_id: str) -> list[LedgerRecord]:
    """Return a tenant's whole ledger, by ``created`` and arrival."""
    return [_record(row) for row in await connection.fetch(ALL_ENTRIES, (tenant_id,))]


async def find_body(connection: Connection, event_id: str) -> tuple[bool, bytes | None]:
    """Return whether the event exists, and its raw body if that is still stored."""
    row = await connection.fetch_row(FIND_BODY, (event_id,))
    return row is not None, unpack(row[0]) if row and row[0] is not None else None


async def find_body_of_tenant(connection: Connection, tenant_id: str, event_id: str) -> bytes | None:
    """Return the raw body of an event in a tenant's ledger, if that is still stored."""
    row = await connection.fetch_row(FIND_BODY_OF_TENANT, (tenant_id, event_id))
    return unpack(row[0]) if row and row[0] is not None else None


async def newest_second(connection: Connection) -> int | None:
    """Return the second of the newest event of all tenants (Unix time); reads every tenant."""
    second: int | None = await connection.fetch_value(NEWEST_SECOND)
    return second


async def count_parked(connection: Connection) -> int:
    return int(await connection.fetch_value(COUNT_PARKED))


async def newest_arrival(connection: Connection, tenant_id: str) -> int:
    """Return the arrival number of a tenant's latest event; 0 if there is none."""
    return int(await connection.fetch_value(NEWEST, (tenant_id,)) or 0)


async def arrivals_after(connection: Connection, watched: Mapping[str, int]) -> dict[str, int]:
    """Return the latest arrival of each tenant that has an event after the arrival given for it."""
    return dict(await connection.fetch(AFTER, (list(watched), list(watched.values()))))
