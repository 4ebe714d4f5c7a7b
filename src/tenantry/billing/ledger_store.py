"""The billing ledger, the tenants' billing state, and which tenant a customer belongs to.

The functions for the webhook's batch take and give whole batches, so that a batch costs two round trips, its commit
among them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import msgspec
import psycopg

from tenantry.billing.bodies_store import insert_bodies
from tenantry.db.connection import Connection
from tenantry.db.pagination import Listing
from tenantry.db.statements import (
    BIGINTS,
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
from tenantry.domain.billing.ledger import Account, Arrival, BatchContext, Entry, Link
from tenantry.domain.billing.state import BillingState, KnownSubscription
from tenantry.domain.billing.timeline import ReplayDepth

ARRIVALS_PER_BATCH: Final = 1024
ACCOUNT_COLUMNS: Final = (
    "id, owner_id, deleted_at IS NOT NULL, stripe_customer_id, base_plan, plan, subscription_status, "
    "current_period_end, cancel_at_period_end, provider_status, subscription_id, subscription_created, "
    "tip_created, tip_state::text, other_subscriptions::text"
)
"""What `to_account` reads of a tenant."""

# Tenants are always locked in the order of their ids, and after all names: transactions can wait for each other,
# never in a circle. The one array keeps this an index scan; an OR would read every tenant there is.
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
_LEFT_OUT: Final = f"'{{{Anomaly.CONNECTED_ACCOUNT}, {Anomaly.IGNORED_LIVEMODE}}}'"
REPLACEABLE: Final = f"(outcome = 'invalid' OR (outcome = 'ignored' AND anomalies && {_LEFT_OUT}))"
"""Whether an entry gives way to a valid event of the same id."""
SEEN_EVENTS: Final = Statement(f"SELECT id, {REPLACEABLE} FROM billing_events WHERE id = ANY($1)", TEXTS)  # noqa: S608
NEXT_ARRIVAL: Final = Statement("SELECT nextval('billing_arrivals')")
# Whoever adds a tenant or a customer link claims its name for itself, whoever parks an event because it is
# missing holds the name together with others who do: so one of the two sees what the other has done.
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
"""The columns that hold the facts of an event."""
_FACTS: Final = ", ".join(_FACT_TYPES)
# A late event's history begins where the state does not depend on earlier events: at the newest full-state event before
# it that is alone in its second; without one, at the beginning. An event without a subscription's id is none: it says
# nothing about which subscription ended before.
READ_EVENTS: Final = f"""
SELECT e.tenant_id, {", ".join(f"e.{name}" for name in _FACT_TYPES)}
  FROM unnest(%(tenants)s::text[], %(seconds)s::bigint[], %(late)s::boolean[]) AS wanted (tenant_id, second, late)
 CROSS JOIN LATERAL (
         SELECT CASE WHEN wanted.late THEN coalesce((
                  SELECT r.created
                    FROM billing_events r
                   WHERE r.tenant_id = wanted.tenant_id AND r.created < wanted.second
                     AND r.type = ANY(%(telling)s) AND r.subscription_id IS NOT NULL
                     AND r.outcome IN ('applied', 'late', 'no_change')
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
_others_decoder: Final = msgspec.json.Decoder(tuple[KnownSubscription, ...])
_encoder: Final = msgspec.json.Encoder()
_EDITION: Final = '{"edition":1'
"""How a checkpoint begins that this release wrote. The release before reads it, and leaves the edition out again."""


async def read_standing(
    connection: Connection, tenants: Collection[str], customers: Collection[str], events: Collection[str]
) -> BatchContext:
    """Lock the tenants that a batch touches and read what is known, in one round trip."""
    links, accounts, seen, [(first_arrival,)] = await connection.together(
        TENANTS_OF_CUSTOMERS(list(customers)),
        LOCK_ACCOUNTS(list(tenants), list(customers)),
        SEEN_EVENTS(list(events)),
        NEXT_ARRIVAL(),
    )
    return BatchContext(
        accounts={row[0]: to_account(row) for row in accounts},
        tenant_of_customer=dict(links),
        seen=frozenset([row[0] for row in seen]),
        first_arrival=first_arrival,
        replaceable=frozenset([event_id for event_id, is_replaceable in seen if is_replaceable]),
    )


def to_account(row: Sequence[Any], read_state: Callable[[str], BillingState] = _state_decoder.decode) -> Account:
    """The account of a row of `ACCOUNT_COLUMNS`; ``read_state`` reads its checkpoint."""
    state = BillingState(*row[5:12])
    if row[14] is not None:
        state = msgspec.structs.replace(state, others=_others_decoder.decode(row[14]))
    return Account(
        tenant_id=row[0],
        owner_id=row[1],
        deleted=row[2],
        customer_id=row[3],
        base_plan=row[4],
        state=state,
        tip_created=row[12],
        tip_state=None if row[13] is None else read_state(row[13]),
        is_whole=row[13] is None or row[13].startswith(_EDITION),
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
    [rows] = await connection.together(LOCK_ACCOUNTS([tenant_id], []))
    return to_account(rows[0]) if rows else None


async def read_events(
    connection: Connection, needs: Mapping[str, tuple[ReplayDepth, int]], full_state_types: Collection[str]
) -> dict[str, list[BillingEvent]]:
    """The folded events of tenants that a timeline needs, by tenant; ``{tenant: (reach, second)}`` as `Need` has it.

    Types ``full_state_types`` let a history begin with an event that is alone in its second.
    """
    cursor = await connection.execute(
        READ_EVENTS,
        {
            "tenants": list(needs),
            "seconds": [second for _, second in needs.values()],
            "late": [reach is ReplayDepth.BEGINNING for reach, _ in needs.values()],
            "telling": list(full_state_types),
        },
    )
    events: dict[str, list[BillingEvent]] = {tenant: [] for tenant in needs}
    for tenant_id, *facts in await cursor.fetchall():
        events[tenant_id].append(to_event(facts))
    return events


def to_event(row: Sequence[Any]) -> BillingEvent:
    """The event of a row of `FACT_NAMES`."""
    return BillingEvent(**dict(zip(_FACT_TYPES, row, strict=True)))


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
    return [Arrival(to_event(facts), received_at) for received_at, *facts in await cursor.fetchall()]


async def customers_of(connection: Connection, tenant_id: str) -> list[str]:
    """The provider's customers that belong to a tenant."""
    cursor = await connection.execute(
        "SELECT id FROM customers WHERE tenant_id = %s ORDER BY linked_at, id", (tenant_id,)
    )
    return [row[0] for row in await cursor.fetchall()]


_ENTRY_TYPES: Final[Mapping[str, ParameterType[Any]]] = {
    **_FACT_TYPES,
    "received_at": MOMENTS, "tenant_id": TEXTS, "outcome": TEXTS, "reason": TEXTS, "before": JSONS, "after": JSONS,
    "anomalies": TEXTS,
}  # fmt: skip


def _unnested(types: Mapping[str, ParameterType[Any]]) -> str:
    """What makes a table of parameters of these types, the first being ``$1``."""
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
# An entry that is read again keeps its arrival number, and so its body.
DELETE_REPLACED: Final = Statement(
    f"""
WITH gone AS (DELETE FROM billing_events WHERE id = ANY($1) AND {REPLACEABLE} RETURNING arrival)
DELETE FROM billing_bodies b USING gone WHERE b.arrival = gone.arrival AND b.arrival <> ALL($2)
""",  # noqa: S608  # our own condition
    TEXTS, BIGINTS,
)  # fmt: skip
_SETTLED_TYPES: Final[Mapping[str, ParameterType[Any]]] = {
    name: _ENTRY_TYPES[name] for name in ("id", "tenant_id", "outcome", "reason", "before", "after", "anomalies")
}
SETTLE_PARKED: Final = Statement(
    f"""
UPDATE billing_events e
   SET tenant_id = given.tenant_id, outcome = given.outcome, reason = given.reason, before = given.before,
       after = given.after, anomalies = string_to_array(given.anomalies, ' ')
  FROM {_unnested(_SETTLED_TYPES)}
 WHERE e.id = given.id
""",  # noqa: S608  # our own columns
    *_SETTLED_TYPES.values(),
)

_facts_of: Final = attrgetter(*_FACT_TYPES)
_state_of: Final = attrgetter(*BillingState.__struct_fields__[:-1])
"""Of a state, all but ``others``, its last field."""


class EntryTakenError(Exception):
    """Another transaction has put one of the events into the ledger meanwhile."""


def insert_entries(entries: Sequence[Entry], now: datetime) -> list[BoundStatement]:
    """Write events into the ledger, and their raw bodies beside it."""
    if not entries:
        return []
    # sorted by id, so that two batches with the same new events wait for each other in one direction
    entries = sorted(entries, key=lambda entry: entry.arrival.event.id)
    *facts, previous, account = zip(*[_facts_of(entry.arrival.event) for entry in entries], strict=True)
    calls = [
        INSERT_ENTRIES(
            *facts, _jsons(previous), account, [entry.arrival.received_at for entry in entries],
            [entry.tenant_id for entry in entries], [entry.outcome for entry in entries], *_decisions(entries),
        )
    ]  # fmt: skip
    kept = [(entry.arrival.event.arrival, entry.arrival.body) for entry in entries if entry.arrival.body is not None]
    return calls + insert_bodies(kept, now)


def _decisions(entries: Sequence[Entry]) -> tuple[list[Any], ...]:
    """The columns from the reason to the anomalies."""
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
    """Take entries that newer ones have made superfluous out of the ledger; one that tells of drift stays."""
    return [DELETE_ENTRIES(ids, Anomaly.DRIFT)] if ids else []


def delete_replaced(ids: Collection[str], entries: Sequence[Entry]) -> list[BoundStatement]:
    """Take entries out of the ledger that give way to those of the same id among ``entries``, before these go in."""
    return [DELETE_REPLACED(sorted(ids), [entry.arrival.event.arrival for entry in entries])] if ids else []


def settle_parked(entries: Sequence[Entry]) -> list[BoundStatement]:
    """Write what became of parked events once their tenant was known."""
    if not entries:
        return []
    return [
        SETTLE_PARKED(
            [entry.arrival.event.id for entry in entries], [entry.tenant_id for entry in entries],
            [entry.outcome for entry in entries], *_decisions(entries),
        )
    ]  # fmt: skip


def update_accounts(accounts: Sequence[tuple[Account, bool]], now: datetime) -> list[BoundStatement]:
    """Write back accounts; those whose tenant record changed, as the flag says, were updated ``now``."""
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


def insert_links(links: Sequence[Link]) -> list[BoundStatement]:
    """Record customers' tenants; the first claim on a customer stands."""
    return [INSERT_LINKS(*zip(*links, strict=True))] if links else []


async def write(connection: Connection, calls: Sequence[BoundStatement], *, commit: bool) -> None:
    """Write what these calls say, together. Raises `EntryTakenError`; the transaction is to be rolled back then."""
    if not calls and not commit:
        return
    try:
        await connection.together(*calls, commit=commit)
    except psycopg.errors.UniqueViolation as error:
        if error.diag.constraint_name == "billing_events_pkey":
            raise EntryTakenError("one of them was delivered twice at once, and the other is in the ledger") from error
        raise


FORMER_AMBIGUOUS_ORDER: Final = "undecidable_order"
"""What the release before calls `Anomaly.AMBIGUOUS_ORDER`; its entries keep the name."""
_FORMER_ANOMALIES: Final = {FORMER_AMBIGUOUS_ORDER: Anomaly.AMBIGUOUS_ORDER.value}
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
        anomalies=[_FORMER_ANOMALIES.get(name, name) for name in anomalies or ()],
    )


_LISTING: Final = Listing(_ENTRY_COLUMNS, "billing_events", "created", "arrival")
_OF_TENANT: Final = "tenant_id = %(tenant)s AND (created, arrival) < (%(created)s, %(arrival)s)"


async def read_entries(
    connection: Connection, tenant_id: str, limit: int, after: tuple[int, int] | None
) -> list[LedgerRecord]:
    """A tenant's ledger, newest first, from a position ``(created, arrival)`` on; one more than ``limit``."""
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
    """The entries of a type and with an outcome, where these are given, among the next `MOST_LOOKED_AT` of the ledger.

    With them comes the position of the last one that was looked at, if there are older ones.
    """
    filtered = "(%(type)s::text IS NULL OR type = %(type)s) AND (%(outcome)s::text IS NULL OR outcome = %(outcome)s)"
    values = {**_from(tenant_id, after), "type": event_type, "outcome": outcome}
    rows, end = await _LISTING.seek(connection, _OF_TENANT, filtered, values, limit)
    return [_record(row) for row in rows], end


def _from(tenant_id: str, after: tuple[int, int] | None) -> dict[str, object]:
    created, arrival = after or (2**62, 0)
    return {"tenant": tenant_id, "created": created, "arrival": arrival}


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
