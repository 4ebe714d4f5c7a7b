"""The billing ledger, the tenants' billing state, and which tenant a customer belongs to.

The functions for the webhook's batch take and give whole batches, so that a batch costs two round trips and its commit.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from psycopg import AsyncCursor

from tenantry.db.database import Connection
from tenantry.domain.billing.events import Anomaly, BillingEvent, Outcome
from tenantry.domain.billing.ledger import Account, Arrival, Entry, Link, Standing
from tenantry.domain.billing.state import BillingState
from tenantry.domain.billing.timeline import Reach

ARRIVALS_PER_BATCH: Final = 1024
ACCOUNT_COLUMNS: Final = (
    "id, owner_id, deleted_at IS NOT NULL, stripe_customer_id, base_plan, plan, subscription_status, "
    "current_period_end, cancel_at_period_end, provider_status, subscription_id, subscription_created, "
    "tip_created, tip_state::text"
)
"""What `to_account` reads of a tenant."""

# Tenants are always locked in the order of their ids, and after all names: transactions can wait for each other,
# never in a circle. The one array keeps this an index scan; an OR would read every tenant there is.
LOCK_ACCOUNTS: Final = f"""
SELECT {ACCOUNT_COLUMNS}
  FROM tenants
 WHERE id = ANY(%(tenants)s::text[] || ARRAY(SELECT tenant_id FROM customers WHERE id = ANY(%(customers)s)))
 ORDER BY id
   FOR NO KEY UPDATE
"""  # noqa: S608  # the names of our own columns
TENANTS_OF_CUSTOMERS: Final = "SELECT id, tenant_id FROM customers WHERE id = ANY(%s)"
SEEN_EVENTS: Final = "SELECT id FROM billing_events WHERE id = ANY(%s)"
NEXT_ARRIVAL: Final = "SELECT nextval('billing_arrivals')"
# Whoever adds a tenant or a customer link claims its name for itself, whoever parks an event because it is
# missing holds the name together with others who do: so one of the two sees what the other has done.
LOCK_NAMES: Final = """
SELECT CASE WHEN claimed THEN pg_advisory_xact_lock(hashtextextended(name, 0))
            ELSE pg_advisory_xact_lock_shared(hashtextextended(name, 0)) END
  FROM unnest(%s::text[], %s::boolean[]) AS wanted (name, claimed)
"""

_FACTS: Final = (
    "id, arrival, type, created, livemode, api_version, org_id, customer_id, subscription_id, "
    "subscription_created, status, price_id, current_period_end, cancel_at_period_end, previous, "
    "invoice_id, invoice_url, amount_due, currency, checkout_mode, problem"
)
# A late event's history begins where the state does not depend on what was before: at the newest event before it that
# says everything and has no other in its second (whose order could depend on it); without one, at the beginning.
READ_EVENTS: Final = f"""
SELECT e.tenant_id, {", ".join(f"e.{name}" for name in _FACTS.split(", "))}
  FROM unnest(%(tenants)s::text[], %(seconds)s::bigint[], %(late)s::boolean[]) AS wanted (tenant_id, second, late)
 CROSS JOIN LATERAL (
         SELECT CASE WHEN wanted.late THEN coalesce((
                  SELECT r.created
                    FROM billing_events r
                   WHERE r.tenant_id = wanted.tenant_id AND r.created < wanted.second
                     AND r.type = ANY(%(telling)s) AND r.outcome IN ('applied', 'late', 'no_change')
                     AND NOT EXISTS (
                           SELECT FROM billing_events o
                            WHERE o.tenant_id = r.tenant_id AND o.created = r.created AND o.id <> r.id
                              AND o.outcome IN ('applied', 'late', 'no_change')
                              AND o.type <> 'checkout.session.completed')
                   ORDER BY r.created DESC
                   LIMIT 1), -1) ELSE wanted.second END AS since) AS beginning
  JOIN billing_events e ON e.tenant_id = wanted.tenant_id AND e.created >= beginning.since
 WHERE e.outcome IN ('applied', 'late', 'no_change') AND e.type <> 'checkout.session.completed'
 ORDER BY e.tenant_id, e.created, e.arrival
"""  # noqa: S608  # the names of our own columns
_state_decoder: Final = msgspec.json.Decoder(BillingState)
_encoder: Final = msgspec.json.Encoder()


async def read_standing(
    connection: Connection, tenants: Collection[str], customers: Collection[str], events: Collection[str]
) -> Standing:
    """Lock the tenants that a batch touches and read what is known, in one round trip."""
    async with connection.pipeline():
        links = await connection.execute(TENANTS_OF_CUSTOMERS, (list(customers),))
        accounts = await connection.execute(
            LOCK_ACCOUNTS, {"tenants": list(tenants), "customers": list(customers)}, binary=True
        )
        seen = await connection.execute(SEEN_EVENTS, (list(events),))
        arrival = await connection.execute(NEXT_ARRIVAL, binary=True)
    return Standing(
        accounts={row[0]: to_account(row) for row in await accounts.fetchall()},
        tenant_of_customer=dict(await links.fetchall()),
        seen=frozenset(row[0] for row in await seen.fetchall()),
        first_arrival=(await arrival.fetchall())[0][0],
    )


def to_account(row: Sequence[Any], read_state: Callable[[str], BillingState] = _state_decoder.decode) -> Account:
    """The account of a row of `ACCOUNT_COLUMNS`; ``read_state`` reads its checkpoint."""
    return Account(
        tenant_id=row[0],
        owner_id=row[1],
        deleted=row[2],
        customer_id=row[3],
        base_plan=row[4],
        state=BillingState(*row[5:12]),
        tip_created=row[12],
        tip_state=None if row[13] is None else read_state(row[13]),
    )


async def lock_names(
    connection: Connection,
    *,
    claimed_tenants: Iterable[str] = (),
    claimed_customers: Iterable[str] = (),
    missing_tenants: Iterable[str] = (),
    missing_customers: Iterable[str] = (),
) -> None:
    """Lock the names of tenants and customers until the transaction ends: all tenants first, then all customers.

    Claim what is to be added, to wait for those who park events for it and make others wait; name as missing
    what events are to be parked for, so that nobody adds it meanwhile. A transaction locks names before any
    tenant's row, and a customer's name never before a tenant's.
    """
    tenants = {**dict.fromkeys(missing_tenants, False), **dict.fromkeys(claimed_tenants, True)}
    customers = {**dict.fromkeys(missing_customers, False), **dict.fromkeys(claimed_customers, True)}
    wanted = [(f"tenant {tenant_id}", claimed) for tenant_id, claimed in sorted(tenants.items())]
    wanted += [(f"customer {customer_id}", claimed) for customer_id, claimed in sorted(customers.items())]
    if wanted:
        await connection.execute(LOCK_NAMES, ([name for name, _ in wanted], [claimed for _, claimed in wanted]))


async def lock_account(connection: Connection, tenant_id: str) -> Account | None:
    """Lock one tenant until the transaction ends."""
    cursor = await connection.execute(LOCK_ACCOUNTS, {"tenants": [tenant_id], "customers": []})
    row = await cursor.fetchone()
    return to_account(row) if row else None


async def read_events(
    connection: Connection, needs: Mapping[str, tuple[Reach, int]], telling_everything: Collection[str]
) -> dict[str, list[BillingEvent]]:
    """The folded events of tenants that a timeline needs, by tenant; ``{tenant: (reach, second)}`` as `Need` has it.

    Types ``telling_everything`` let a history begin with an event that is alone in its second.
    """
    cursor = await connection.execute(
        READ_EVENTS,
        {
            "tenants": list(needs),
            "seconds": [second for _, second in needs.values()],
            "late": [reach is Reach.BEGINNING for reach, _ in needs.values()],
            "telling": list(telling_everything),
        },
    )
    events: dict[str, list[BillingEvent]] = {tenant: [] for tenant in needs}
    for tenant_id, *facts in await cursor.fetchall():
        events[tenant_id].append(_event(facts))
    return events


def _event(row: Sequence[Any]) -> BillingEvent:
    return BillingEvent(**dict(zip(_FACTS.split(", "), row, strict=True)))


async def read_parked(connection: Connection, tenants: Sequence[str], customers: Sequence[str]) -> list[Arrival]:
    """The parked events that wait for these tenants or customers, oldest first."""
    cursor = await connection.execute(
        f"""
        SELECT received_at, {_FACTS} FROM billing_events
         WHERE outcome = 'parked' AND (org_id = ANY(%s) OR (org_id IS NULL AND customer_id = ANY(%s)))
         ORDER BY created, arrival
        """,  # noqa: S608  # the names of our own columns
        (list(tenants), list(customers)),
    )
    return [Arrival(_event(facts), received_at) for received_at, *facts in await cursor.fetchall()]


async def customers_of(connection: Connection, tenant_id: str) -> list[str]:
    """The provider's customers that belong to a tenant."""
    cursor = await connection.execute(
        "SELECT id FROM customers WHERE tenant_id = %s ORDER BY linked_at, id", (tenant_id,)
    )
    return [row[0] for row in await cursor.fetchall()]


class _Decision(msgspec.Struct):
    received_at: datetime
    tenant_id: str | None
    outcome: Outcome
    reason: str
    before: BillingState | None
    after: BillingState | None
    anomalies: tuple[Anomaly, ...] | None


# Rows go in sorted by id, so that two batches with the same new events wait for each other in one direction.
INSERT_ENTRIES: Final = """
INSERT INTO billing_events (
    id, arrival, type, created, livemode, api_version, org_id, customer_id, subscription_id,
    subscription_created, status, price_id, current_period_end, cancel_at_period_end, previous, invoice_id,
    invoice_url, amount_due, currency, checkout_mode, problem,
    received_at, tenant_id, outcome, reason, before, after, anomalies)
SELECT *
  FROM ROWS FROM (
         json_to_recordset(%(events)s::json) AS (
           id text, arrival bigint, type text, created bigint, livemode boolean, api_version text, org_id text,
           customer_id text, subscription_id text, subscription_created bigint, status text, price_id text,
           current_period_end bigint, cancel_at_period_end boolean, previous jsonb, invoice_id text,
           invoice_url text, amount_due bigint, currency text, checkout_mode text, problem text),
         json_to_recordset(%(decisions)s::json) AS (
           received_at timestamptz, tenant_id text, outcome text, reason text, before jsonb, after jsonb,
           anomalies text[])
       ) AS entry
 ORDER BY id
    ON CONFLICT (id) DO NOTHING
"""
INSERT_BODIES: Final = """
INSERT INTO billing_bodies (arrival, received_at, body)
SELECT arrival, %s, body FROM unnest(%s::bigint[], %b::bytea[]) AS kept (arrival, body)
"""
UPDATE_ACCOUNTS: Final = """
UPDATE tenants t
   SET plan = s.plan, subscription_status = s.subscription_status, current_period_end = s.current_period_end,
       cancel_at_period_end = s.cancel_at_period_end, provider_status = s.provider_status,
       subscription_id = s.subscription_id, subscription_created = s.subscription_created,
       stripe_customer_id = s.customer_id, tip_created = s.tip_created, tip_state = s.tip_state,
       updated_at = CASE WHEN s.visible THEN %(now)s ELSE t.updated_at END
  FROM json_to_recordset(%(accounts)s::json) AS s (
         tenant_id text, plan text, subscription_status text, current_period_end bigint,
         cancel_at_period_end boolean, provider_status text, subscription_id text, subscription_created bigint,
         customer_id text, tip_created bigint, tip_state jsonb, visible boolean)
 WHERE t.id = s.tenant_id
"""
INSERT_LINKS: Final = """
INSERT INTO customers (id, tenant_id, linked_by)
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[])
    ON CONFLICT (id) DO NOTHING
"""
DELETE_ENTRIES: Final = """
DELETE FROM billing_events WHERE id = ANY(%(ids)s) AND NOT coalesce(%(drift)s = ANY(anomalies), false)
"""
SETTLE_PARKED: Final = """
UPDATE billing_events e
   SET tenant_id = r.tenant_id, outcome = r.outcome, reason = r.reason, before = r.before, after = r.after,
       anomalies = r.anomalies
  FROM json_to_recordset(%s::json) AS r (
         id text, tenant_id text, outcome text, reason text, before jsonb, after jsonb, anomalies text[])
 WHERE e.id = r.id
"""


async def insert_entries(connection: Connection, entries: Sequence[Entry]) -> AsyncCursor[Any]:
    """Write events into the ledger; the cursor's ``rowcount`` says how many were new."""
    decisions = [
        _Decision(e.arrival.received_at, e.tenant_id, e.outcome, e.reason, e.before, e.after, e.anomalies or None)
        for e in entries
    ]
    return await connection.execute(
        INSERT_ENTRIES,
        {
            "events": _encoder.encode([entry.arrival.event for entry in entries]).decode(),
            "decisions": _encoder.encode(decisions).decode(),
        },
    )


async def insert_bodies(connection: Connection, entries: Sequence[Entry], now: datetime) -> None:
    """Keep the raw bodies of entries, beside the ledger."""
    kept = [(entry.arrival.event.arrival, entry.arrival.body) for entry in entries if entry.arrival.body is not None]
    if kept:
        arrivals, bodies = zip(*kept, strict=True)
        await connection.execute(INSERT_BODIES, (now, list(arrivals), list(bodies)))


async def delete_entries(connection: Connection, ids: Sequence[str]) -> None:
    """Take entries that newer ones have made superfluous out of the ledger; one that tells of drift stays."""
    await connection.execute(DELETE_ENTRIES, {"ids": list(ids), "drift": Anomaly.DRIFT})


async def settle_parked(connection: Connection, entries: Sequence[Entry]) -> None:
    """Write what became of parked events once their tenant was known."""
    rows = [
        {
            "id": entry.arrival.event.id,
            "tenant_id": entry.tenant_id,
            "outcome": entry.outcome,
            "reason": entry.reason,
            "before": entry.before,
            "after": entry.after,
            "anomalies": entry.anomalies or None,
        }
        for entry in entries
    ]
    await connection.execute(SETTLE_PARKED, (_encoder.encode(rows).decode(),))


async def update_accounts(connection: Connection, accounts: Iterable[tuple[Account, bool]], now: datetime) -> None:
    """Write back accounts; those whose tenant record changed, as the flag says, were updated ``now``."""
    rows = [
        {
            "tenant_id": account.tenant_id,
            "customer_id": account.customer_id,
            "tip_created": account.tip_created,
            "tip_state": account.tip_state,
            "visible": visible,
            **msgspec.structs.asdict(account.state),
        }
        for account, visible in accounts
    ]
    await connection.execute(UPDATE_ACCOUNTS, {"accounts": _encoder.encode(rows).decode(), "now": now})


async def insert_links(connection: Connection, links: Sequence[Link]) -> None:
    """Record customers' tenants; the first claim on a customer stands."""
    await connection.execute(INSERT_LINKS, tuple(list(column) for column in zip(*links, strict=True)))


_ENTRY_COLUMNS: Final = (
    "id, type, created, received_at, livemode, outcome, reason, before::text, after::text, arrival, anomalies"
)


class LedgerRecord(msgspec.Struct, frozen=True):
    """An entry of a tenant's ledger, to be read."""

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
    event_id, kind, created, received_at, livemode, outcome, reason, before, after, arrival, anomalies = row
    return LedgerRecord(
        id=event_id,
        type=kind,
        created=created,
        received_at=received_at,
        livemode=livemode,
        outcome=outcome,
        reason=reason,
        before=_state_decoder.decode(before) if before is not None else None,
        after=_state_decoder.decode(after) if after is not None else None,
        arrival=arrival,
        anomalies=anomalies or [],
    )


async def read_entries(
    connection: Connection, tenant_id: str, limit: int, after: tuple[int, int] | None
) -> list[LedgerRecord]:
    """A tenant's ledger, newest first, from a position ``(created, arrival)`` on; one more than ``limit``."""
    cursor = await connection.execute(
        f"SELECT {_ENTRY_COLUMNS} FROM billing_events "  # noqa: S608  # our own columns
        "WHERE tenant_id = %s AND (created, arrival) < (%s, %s) ORDER BY created DESC, arrival DESC LIMIT %s",
        (tenant_id, *(after or (2**62, 0)), limit + 1),
    )
    return [_record(row) for row in await cursor.fetchall()]


async def find_entry(connection: Connection, tenant_id: str, event_id: str) -> LedgerRecord | None:
    """One entry of a tenant's ledger."""
    cursor = await connection.execute(
        f"SELECT {_ENTRY_COLUMNS} FROM billing_events WHERE tenant_id = %s AND id = %s",  # noqa: S608  # our own
        (tenant_id, event_id),
    )
    row = await cursor.fetchone()
    return _record(row) if row else None


async def read_all_entries(connection: Connection, tenant_id: str) -> list[LedgerRecord]:
    """A tenant's whole ledger, in the order of the events."""
    cursor = await connection.execute(
        f"SELECT {_ENTRY_COLUMNS} FROM billing_events WHERE tenant_id = %s ORDER BY created, arrival",  # noqa: S608
        (tenant_id,),
    )
    return [_record(row) for row in await cursor.fetchall()]


async def newest_second(connection: Connection) -> int | None:
    """The second of the newest event of all tenants, since the Unix epoch; reads every tenant."""
    cursor = await connection.execute("SELECT max(tip_created) FROM tenants")
    row = await cursor.fetchone()
    return row[0] if row else None


async def count_parked(connection: Connection) -> int:
    """How many events wait for a tenant or customer that is not known yet."""
    cursor = await connection.execute("SELECT count(*) FROM billing_events WHERE outcome = 'parked'")
    row = await cursor.fetchone()
    return int(row[0]) if row else 0
