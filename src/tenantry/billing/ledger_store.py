"""The billing ledger with its raw bodies, the tenants' billing state, and the links of customers.

The functions for the webhook take and return whole batches: a batch costs two round trips, its commit included.
Bodies are compressed (zlib's format, RFC 1950).
"""

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import msgspec
import psycopg
from isal import isal_zlib

from tenantry.db.connection import Connection
from tenantry.db.statements import (
    BIGINTS,
    BLOBS,
    BOOLEANS,
    JSONS,
    MOMENT,
    MOMENTS,
    TEXT,
    TEXTS,
    BoundStatement,
    ParameterType,
    Statement,
)
from tenantry.domain.billing.events import Anomaly, BillingEvent
from tenantry.domain.billing.ledger import (
    BatchContext,
    BillingAccount,
    CustomerLink,
    LedgerEntry,
    NameLock,
    ReceivedEvent,
    ReplayNeed,
)
from tenantry.domain.billing.state import BillingState, KnownSubscription

ACCOUNT_COLUMNS: Final = (
    "id, owner_id, deleted_at IS NOT NULL, stripe_customer_id, base_plan, plan, subscription_status, "
    "current_period_end, cancel_at_period_end, provider_status, subscription_id, subscription_created, "
    "tip_created, tip_state::text, other_subscriptions::text"
)
"""What `to_account` reads of a tenant."""

# All transactions lock tenants in the order of their ids, and after all names: this prevents deadlocks.
# The one array keeps this an index scan; an OR would read every tenant.
LOCK_ACCOUNTS: Final = Statement(
    f"""
SELECT {ACCOUNT_COLUMNS}
  FROM tenants
 WHERE id = ANY($1 || ARRAY(SELECT tenant_id FROM customers WHERE id = ANY($2)))
 ORDER BY id
   FOR NO KEY UPDATE
""",  # noqa: S608  # the names of our own columns
    TEXTS,
    TEXTS,
)
TENANTS_OF_CUSTOMERS: Final = Statement("SELECT id, tenant_id FROM customers WHERE id = ANY($1)", TEXTS)
_EXCLUDED: Final = f"'{{{Anomaly.CONNECTED_ACCOUNT}, {Anomaly.IGNORED_LIVEMODE}}}'"
REPLACEABLE: Final = f"(outcome = 'invalid' OR (outcome = 'ignored' AND anomalies && {_EXCLUDED}))"
"""Whether a valid event of the same id replaces an entry."""
SEEN_EVENTS: Final = Statement(f"SELECT id, {REPLACEABLE} FROM billing_events WHERE id = ANY($1)", TEXTS)  # noqa: S608
NEXT_ARRIVAL: Final = Statement("SELECT nextval('billing_arrivals')")
# A transaction that adds a tenant or a customer link locks its name exclusively; one that parks an event because the
# name is missing holds a shared lock. So one of the two sees what the other has done.
LOCK_NAMES: Final = """
SELECT CASE WHEN claimed THEN pg_advisory_xact_lock(hashtextextended(name, 0))
            ELSE pg_advisory_xact_lock_shared(hashtextextended(name, 0)) END
  FROM unnest(%s::text[], %s::boolean[]) AS wanted (name, claimed)
"""

_FACT_TYPES: Final[Mapping[str, ParameterType[Any]]] = {
    "id": TEXTS, "arrival": BIGINTS, "type": TEXTS, "created": BIGINTS, "livemode": BOOLEANS, "api_version": TEXTS,
    "org_id": TEXTS, "customer_id": TEXTS, "subscription_id": TEXTS, "subscription_created": BIGINTS, "status": TEXTS,
    "price_id": TEXTS, "current_period_end": BIGINTS, "cancel_at_period_end": BOOLEANS, "invoice_id": TEXTS,
    "invoice_url": TEXTS, "amount_due": BIGINTS, "amount_remaining": BIGINTS, "attempt_count": BIGINTS,
    "currency": TEXTS, "checkout_mode": TEXTS, "problem": TEXTS, "previous": JSONS, "account": TEXTS,
}  # fmt: skip
FACT_NAMES: Final = tuple(_FACT_TYPES)
# A late event's history begins where the state does not depend on earlier events: at the newest full-state event before
# it that is alone in its second; without one, at the beginning. An event without a subscription's id is not one: it
# does not prove which subscription ended before. MATERIALIZED finds each beginning once: with outdated statistics the
# planner would otherwise find it again for every event of the tenant, and run into the statement timeout.
READ_EVENTS: Final = f"""
WITH beginnings AS MATERIALIZED (
         SELECT tenant_id, CASE WHEN late THEN coalesce((
                  SELECT r.created
                    FROM billing_events r
                   WHERE r.tenant_id = wanted.tenant_id AND r.created < wanted.second
                     AND r.outcome IN ('applied', 'late', 'no_change') AND r.type <> 'checkout.session.completed'
                   GROUP BY r.created
                  HAVING count(*) = 1 AND bool_and(r.type = ANY(%(full_state_types)s) AND r.subscription_id IS NOT NULL)
                   ORDER BY r.created DESC
                   LIMIT 1), -1) ELSE second END AS since
           FROM unnest(%(tenants)s::text[], %(seconds)s::bigint[], %(late)s::boolean[])
                AS wanted (tenant_id, second, late))
SELECT e.tenant_id, {", ".join(f"e.{name}" for name in _FACT_TYPES)}
  FROM beginnings
  JOIN billing_events e ON e.tenant_id = beginnings.tenant_id AND e.created >= beginnings.since
 WHERE e.outcome IN ('applied', 'late', 'no_change') AND e.type <> 'checkout.session.completed'
 ORDER BY e.tenant_id, e.created, e.arrival
"""  # noqa: S608  # the names of our own columns
READ_PARKED: Final = f"""
SELECT received_at, {", ".join(_FACT_TYPES)}
  FROM billing_events
 WHERE outcome = 'parked' AND (org_id = ANY(%s) OR (org_id IS NULL AND customer_id = ANY(%s)))
 ORDER BY created, arrival
"""  # noqa: S608  # the names of our own columns
_state_decoder: Final = msgspec.json.Decoder(BillingState)
_others_decoder: Final = msgspec.json.Decoder(tuple[KnownSubscription, ...])
_encoder: Final = msgspec.json.Encoder()
_EDITION: Final = '{"edition":1'
"""The start of a checkpoint that this release wrote. The previous release reads it, and writes no edition."""


async def read_context(
    connection: Connection, tenants: Collection[str], customers: Collection[str], events: Collection[str]
) -> BatchContext:
    """Lock the tenants that a batch touches and read its context, in one round trip."""
    # Links after the locks: the operator may have moved a customer while this waited for its tenant.
    accounts, links, seen, [(first_arrival,)] = await connection.run_batch(
        LOCK_ACCOUNTS(list(tenants), list(customers)), TENANTS_OF_CUSTOMERS(list(customers)),
        SEEN_EVENTS(list(events)), NEXT_ARRIVAL(),
    )  # fmt: skip
    return BatchContext(
        accounts={row[0]: to_account(row) for row in accounts},
        tenant_of_customer=dict(links),
        seen=frozenset([row[0] for row in seen]),
        first_arrival=first_arrival,
        replaceable=frozenset([event_id for event_id, is_replaceable in seen if is_replaceable]),
    )


def to_account(row: Sequence[Any], read_state: Callable[[str], BillingState] = _state_decoder.decode) -> BillingAccount:
    """Return the account of a row of `ACCOUNT_COLUMNS`; ``read_state`` decodes its checkpoint."""
    tenant_id, owner_id, deleted, customer_id, base_plan = row[:5]
    state = BillingState(*row[5:12])
    if row[14] is not None:
        state = msgspec.structs.replace(state, others=_others_decoder.decode(row[14]))
    return BillingAccount(
        tenant_id, owner_id, deleted, customer_id, base_plan, state, row[12],
        None if row[13] is None else read_state(row[13]),
        is_whole=row[13] is None or row[13].startswith(_EDITION),
    )  # fmt: skip


async def lock_names(connection: Connection, locks: Iterable[NameLock]) -> None:
    """Lock names until the transaction ends: all tenants first, then all customers. Call it before locking any row."""
    claimed = dict(sorted(locks))  # of two locks of one name the claim counts
    names = sorted(claimed, key=lambda name: name.startswith("customer "))
    if names:
        await connection.execute(LOCK_NAMES, (names, [claimed[name] for name in names]))


async def lock_account(connection: Connection, tenant_id: str) -> BillingAccount | None:
    """Lock one tenant until the transaction ends."""
    [rows] = await connection.run_batch(LOCK_ACCOUNTS([tenant_id], []))
    return to_account(rows[0]) if rows else None


async def read_events(
    connection: Connection, needs: Mapping[str, ReplayNeed], full_state_types: Collection[str]
) -> dict[str, list[BillingEvent]]:
    """Return the folded events that timelines need, by tenant."""
    values = {
        "tenants": list(needs),
        "seconds": [need.second for need in needs.values()],
        "late": [need.late for need in needs.values()],
        "full_state_types": list(full_state_types),
    }
    events: dict[str, list[BillingEvent]] = {tenant: [] for tenant in needs}
    for tenant_id, *facts in await connection.fetch(READ_EVENTS, values):
        events[tenant_id].append(to_event(facts))
    return events


def to_event(row: Sequence[Any]) -> BillingEvent:
    return BillingEvent(**dict(zip(_FACT_TYPES, row, strict=True)))


async def read_parked(connection: Connection, tenants: Sequence[str], customers: Sequence[str]) -> list[ReceivedEvent]:
    """Return the parked events that wait for these tenants or customers, oldest first."""
    return [
        ReceivedEvent(to_event(facts), received_at)
        for received_at, *facts in await connection.fetch(READ_PARKED, (list(tenants), list(customers)))
    ]


async def known_events(connection: Connection, ids: Collection[str]) -> dict[str, bool]:
    """Return which of these events the ledger has, and whether a valid event of the same id replaces the entry."""
    [rows] = await connection.run_batch(SEEN_EVENTS(list(ids)))
    return {event_id: bool(is_replaceable) for event_id, is_replaceable in rows}


async def tenants_of_customers(connection: Connection, events: Iterable[BillingEvent]) -> dict[str, str]:
    """Return the tenants of the events' customers, by customer; unlinked customers are left out."""
    customers = {event.customer_id for event in events if event.customer_id}
    [rows] = await connection.run_batch(TENANTS_OF_CUSTOMERS(list(customers)))
    return dict(rows)


async def customers_of(connection: Connection, tenant_id: str) -> list[str]:
    query = "SELECT id FROM customers WHERE tenant_id = %s ORDER BY linked_at, id"
    return [row[0] for row in await connection.fetch(query, (tenant_id,))]


_ENTRY_TYPES: Final[Mapping[str, ParameterType[Any]]] = {
    **_FACT_TYPES,
    "received_at": MOMENTS, "tenant_id": TEXTS, "outcome": TEXTS, "reason": TEXTS, "before": JSONS, "after": JSONS,
    "anomalies": TEXTS,
}  # fmt: skip


def _unnested(types: Mapping[str, ParameterType[Any]]) -> str:
    """Return SQL for a table of parameters of these types, the first being ``$1``."""
    return f"unnest({', '.join(f'${number}' for number in range(1, len(types) + 1))}) AS given ({', '.join(types)})"


INSERT_ENTRIES: Final = Statement(
    f"""
INSERT INTO billing_events ({", ".join(_ENTRY_TYPES)})
SELECT {", ".join(_ENTRY_TYPES).replace("anomalies", "string_to_array(anomalies, ' ')")}
  FROM {_unnested(_ENTRY_TYPES)}
""",  # noqa: S608  # our own columns
    *_ENTRY_TYPES.values(),
)
_ACCOUNT_TYPES: Final[Mapping[str, ParameterType[Any]]] = {
    "tenant_id": TEXTS, "plan": TEXTS, "subscription_status": TEXTS, "current_period_end": BIGINTS,
    "cancel_at_period_end": BOOLEANS, "provider_status": TEXTS, "subscription_id": TEXTS,
    "subscription_created": BIGINTS, "others": JSONS, "customer_id": TEXTS, "tip_created": BIGINTS,
    "tip_state": JSONS, "visible": BOOLEANS,
}  # fmt: skip
UPDATE_ACCOUNTS: Final = Statement(
    f"""
UPDATE tenants t
   SET plan = given.plan, subscription_status = given.subscription_status,
       current_period_end = given.current_period_end, cancel_at_period_end = given.cancel_at_period_end,
       provider_status = given.provider_status, subscription_id = given.subscription_id,
       subscription_created = given.subscription_created, other_subscriptions = given.others,
       stripe_customer_id = given.customer_id,
       tip_created = given.tip_created, tip_state = given.tip_state,
       updated_at = CASE WHEN given.visible THEN ${len(_ACCOUNT_TYPES) + 1} ELSE t.updated_at END
  FROM {_unnested(_ACCOUNT_TYPES)}
 WHERE t.id = given.tenant_id
""",  # noqa: S608  # our own columns
    *_ACCOUNT_TYPES.values(), MOMENT,
)  # fmt: skip
INSERT_LINKS: Final = Statement(
    """
INSERT INTO customers (id, tenant_id, linked_by)
SELECT * FROM unnest($1, $2, $3)
    ON CONFLICT (id) DO NOTHING
""",
    TEXTS, TEXTS, TEXTS,
)  # fmt: skip
DELETE_ENTRIES: Final = Statement(
    "DELETE FROM billing_events WHERE id = ANY($1) AND NOT coalesce($2 = ANY(anomalies), false)", TEXTS, TEXT
)
# An entry that is decoded again keeps its arrival number, and so its body.
DELETE_REPLACED: Final = Statement(
    f"""
WITH gone AS (DELETE FROM billing_events WHERE id = ANY($1) AND {REPLACEABLE} RETURNING arrival)
DELETE FROM billing_bodies b USING gone WHERE b.arrival = gone.arrival AND b.arrival <> ALL($2)
""",  # noqa: S608  # our own condition
    TEXTS, BIGINTS,
)  # fmt: skip
_UNPARKED_TYPES: Final[Mapping[str, ParameterType[Any]]] = {
    name: _ENTRY_TYPES[name] for name in ("id", "tenant_id", "outcome", "reason", "before", "after", "anomalies")
}
UPDATE_PARKED: Final = Statement(
    f"""
UPDATE billing_events e
   SET tenant_id = given.tenant_id, outcome = given.outcome, reason = given.reason, before = given.before,
       after = given.after, anomalies = string_to_array(given.anomalies, ' ')
  FROM {_unnested(_UNPARKED_TYPES)}
 WHERE e.id = given.id
""",  # noqa: S608  # our own columns
    *_UNPARKED_TYPES.values(),
)

INSERT_BODIES: Final = Statement(
    """
INSERT INTO billing_bodies (arrival, received_at, body)
SELECT arrival, $1, body FROM unnest($2, $3) AS kept (arrival, body)
""",
    MOMENT, BIGINTS, BLOBS,
)  # fmt: skip
_FASTEST: Final = 0
_ZLIB: Final = b"\x78"
"""The first byte of zlib's header, and of no JSON text: older releases stored bodies uncompressed."""

_facts_of: Final = attrgetter(*_FACT_TYPES)
_state_of: Final = attrgetter(*BillingState.__struct_fields__[:-1])


class EntryTakenError(Exception):
    """Another transaction has added one of the events to the ledger meanwhile."""


def insert_entries(entries: Sequence[LedgerEntry], now: datetime) -> list[BoundStatement]:
    if not entries:
        return []
    # sorted by id, so that two batches with the same new events cannot deadlock
    entries = sorted(entries, key=lambda entry: entry.received.event.id)
    *facts, previous, account = zip(*[_facts_of(entry.received.event) for entry in entries], strict=True)
    calls = [
        INSERT_ENTRIES(
            *facts, _jsons(previous), account, [entry.received.received_at for entry in entries],
            [entry.tenant_id for entry in entries], [entry.outcome for entry in entries], *_decisions(entries),
        )
    ]  # fmt: skip
    kept = [(entry.received.event.arrival, entry.received.body) for entry in entries if entry.received.body is not None]
    if kept:
        calls.append(INSERT_BODIES(now, [arrival for arrival, _ in kept], [pack(body) for _, body in kept]))
    return calls


def pack(body: bytes) -> bytes:
    return isal_zlib.compress(body, _FASTEST)


def unpack(packed: bytes) -> bytes:
    return zlib.decompress(packed) if packed.startswith(_ZLIB) else packed


def _decisions(entries: Sequence[LedgerEntry]) -> tuple[list[Any], ...]:
    return (
        [entry.reason for entry in entries],
        _jsons([entry.before for entry in entries]),
        _jsons([entry.after for entry in entries]),
        [" ".join(entry.anomalies) or None for entry in entries],
    )


def _checkpoint(state: BillingState) -> bytes:
    fields = _encoder.encode(state)[1:]
    return _EDITION.encode() + (b"," if len(fields) > 1 else b"") + fields


def _jsons(values: Iterable[object]) -> list[bytes | None]:
    return [None if value is None else _encoder.encode(value) for value in values]


def delete_entries(ids: Sequence[str]) -> list[BoundStatement]:
    """Delete entries that a newer snapshot superseded; those that report drift stay."""
    return [DELETE_ENTRIES(ids, Anomaly.DRIFT)] if ids else []


def delete_replaced(ids: Collection[str], entries: Sequence[LedgerEntry]) -> list[BoundStatement]:
    """Delete the entries that new ``entries`` of the same id replace; call it before inserting these."""
    return [DELETE_REPLACED(sorted(ids), [entry.received.event.arrival for entry in entries])] if ids else []


def update_parked(entries: Sequence[LedgerEntry]) -> list[BoundStatement]:
    """Write the outcome of parked events whose tenant has become known."""
    if not entries:
        return []
    return [
        UPDATE_PARKED(
            [entry.received.event.id for entry in entries], [entry.tenant_id for entry in entries],
            [entry.outcome for entry in entries], *_decisions(entries),
        )
    ]  # fmt: skip


def update_accounts(accounts: Sequence[tuple[BillingAccount, bool]], now: datetime) -> list[BoundStatement]:
    """Write back accounts; the flag says whether the tenant record changed, and so its time of update."""
    if not accounts:
        return []
    return [
        UPDATE_ACCOUNTS(
            [account.tenant_id for account, _ in accounts],
            *zip(*[_state_of(account.state) for account, _ in accounts], strict=True),
            _jsons([account.state.others or None for account, _ in accounts]),
            [account.customer_id for account, _ in accounts],
            [account.tip_created for account, _ in accounts],
            [None if account.tip_state is None else _checkpoint(account.tip_state) for account, _ in accounts],
            [visible for _, visible in accounts],
            now,
        )
    ]


def insert_links(links: Sequence[CustomerLink]) -> list[BoundStatement]:
    """Add links of customers; the first claim on a customer stands."""
    return [INSERT_LINKS(*zip(*links, strict=True))] if links else []


async def write(connection: Connection, calls: Sequence[BoundStatement], *, commit: bool) -> None:
    """Run these calls together. Raises `EntryTakenError`; roll back then."""
    if not calls and not commit:
        return
    try:
        await connection.run_batch(*calls, commit=commit)
    except psycopg.errors.UniqueViolation as error:
        if error.diag.constraint_name == "billing_events_pkey":
            raise EntryTakenError("one of them was delivered twice at once, and the other is in the ledger") from error
        raise
