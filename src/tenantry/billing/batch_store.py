"""What a batch of events reads and writes: the accounts of tenants, which it locks first, and its
entries, links and raw bodies.

The functions take and return whole batches: a batch costs two round trips, its commit included. A
tenant's folds are one document, so an event writes one row. The table ``subscription_tenants``
finds tenants by the subscriptions of their folds.
"""

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

import msgspec
import psycopg
from isal import isal_zlib

from tenantry.billing.ledger_rows import encode_document
from tenantry.db.connection import Connection
from tenantry.db.standby_waits import CommittedChange, commit_change
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
    Statement,
)
from tenantry.domain.access import AccessPhase
from tenantry.domain.billing.batch import BatchChanges
from tenantry.domain.billing.events import Anomaly
from tenantry.domain.billing.ledger import (
    AccountChange,
    BatchContext,
    BillingAccount,
    KnownTenants,
    LedgerEntry,
    TenantProfile,
    holders_of,
)
from tenantry.domain.billing.ledger_fold import DamagedFoldsError, read_folds
from tenantry.domain.billing.published_changes import published_changes, repaired_grants
from tenantry.domain.billing.state import BillingPolicy, RawBodies
from tenantry.domain.billing.tenant_record import BillingRecord
from tenantry.domain.billing.timeline import Folded
from tenantry.domain.entitlements import BillingPhase
from tenantry.outbound.events_store import publication

READ_ACCOUNTS: Final = Statement(
    """
SELECT id, owner_id, deleted_at IS NOT NULL,
       name, owner_email, created_at, time_zone, suspension, stripe_customer_id,
       plan, subscription_status, current_period_end, cancel_at_period_end, cancel_at, ends_at,
       seats, access::text, folded_by, folds::text, billing_periods::text
  FROM tenants
 WHERE id = ANY($1)
 ORDER BY id
""",
    TEXTS,
)
# All transactions lock tenants in the order of their ids, and after all names: this prevents
# deadlocks. The one array keeps this an index scan; an OR would read every tenant.
LOCK_ACCOUNTS: Final = Statement(
    """
SELECT id, owner_id, deleted_at IS NOT NULL,
       name, owner_email, created_at, time_zone, suspension, stripe_customer_id,
       plan, subscription_status, current_period_end, cancel_at_period_end, cancel_at, ends_at,
       seats, access::text, folded_by, folds::text, billing_periods::text
  FROM tenants
 WHERE id = ANY($1
                || ARRAY(SELECT tenant_id FROM customers WHERE id = ANY($2))
                || ARRAY(SELECT tenant_id FROM subscription_tenants WHERE subscription_id = ANY($3)))
 ORDER BY id
   FOR NO KEY UPDATE
""",
    TEXTS,
    TEXTS,
    TEXTS,
)
HOLDERS: Final = Statement(
    "SELECT tenant_id FROM subscription_tenants WHERE subscription_id = ANY($1)", TEXTS
)
"""The tenants that have, or had, one of these subscriptions."""
UPDATE_ACCOUNTS: Final = Statement(
    """
UPDATE tenants t
   SET plan = given.plan,
       subscription_status = given.subscription_status,
       current_period_end = given.current_period_end,
       cancel_at_period_end = given.cancel_at_period_end,
       cancel_at = given.cancel_at,
       ends_at = given.ends_at,
       seats = given.seats,
       access = given.access,
       stripe_customer_id = given.stripe_customer_id,
       folded_by = given.folded_by,
       folds = given.folds,
       billing_periods = given.billing_periods,
       updated_at = CASE WHEN given.is_visible THEN $15 ELSE t.updated_at END
  FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) AS given (
         tenant_id, plan, subscription_status, current_period_end, cancel_at_period_end, cancel_at,
         ends_at, seats, access, stripe_customer_id, folded_by, folds, billing_periods, is_visible)
 WHERE t.id = given.tenant_id
""",
    TEXTS,
    TEXTS,
    TEXTS,
    BIGINTS,
    BOOLEANS,
    BIGINTS,
    BIGINTS,
    BIGINTS,
    JSONS,
    TEXTS,
    TEXTS,
    JSONS,
    JSONS,
    BOOLEANS,
    MOMENT,
)
INSERT_HOLDERS: Final = Statement(
    """
INSERT INTO subscription_tenants AS known (tenant_id, subscription_id, customer_id)
SELECT tenant_id, subscription_id, customer_id
  FROM unnest($1, $2, $3) AS given (tenant_id, subscription_id, customer_id)
    ON CONFLICT (subscription_id, tenant_id) DO UPDATE
   SET customer_id = excluded.customer_id
 WHERE known.customer_id IS DISTINCT FROM excluded.customer_id
""",
    TEXTS,
    TEXTS,
    TEXTS,
)
TENANTS_OF_CUSTOMERS: Final = Statement(
    "SELECT id, tenant_id, gone_by IS NOT NULL FROM customers WHERE id = ANY($1)", TEXTS
)
# Each event in the ledger, and whether a valid event of the same id replaces its entry.
SEEN_EVENTS: Final = Statement(
    """
SELECT id,
       outcome = 'invalid'
       OR (outcome = 'ignored' AND anomalies && '{connected_account,ignored_livemode}')
  FROM billing_events
 WHERE id = ANY($1)
""",
    TEXTS,
)
NEXT_ARRIVAL: Final = Statement("SELECT nextval('billing_arrivals')")
INSERT_ENTRIES: Final = Statement(
    """
INSERT INTO billing_events (
       id, type, created, arrival, received_at, org_id, customer_id, subscription_id, invoice_url,
       payments, tenant_id, outcome, anomalies, document)
SELECT id, type, created, arrival, received_at, org_id, customer_id, subscription_id, invoice_url,
       string_to_array(payments, ' '), tenant_id, outcome, string_to_array(anomalies, ' '), document
  FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) AS given (
       id, type, created, arrival, received_at, org_id, customer_id, subscription_id, invoice_url,
       payments, tenant_id, outcome, anomalies, document)
""",
    TEXTS,
    TEXTS,
    BIGINTS,
    BIGINTS,
    MOMENTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    JSONS,
)
INSERT_LINKS: Final = Statement(
    """
INSERT INTO customers (id, tenant_id, linked_by)
SELECT * FROM unnest($1, $2, $3)
    ON CONFLICT (id) DO NOTHING
""",
    TEXTS,
    TEXTS,
    TEXTS,
)
SET_CUSTOMER_USES: Final = Statement(
    """
UPDATE customers
   SET gone_by = given.event_id
  FROM unnest($1, $2, $3) AS given (id, tenant_id, event_id)
 WHERE customers.id = given.id AND customers.tenant_id = given.tenant_id
""",
    TEXTS,
    TEXTS,
    TEXTS,
)
DELETE_ENTRIES: Final = Statement(
    "DELETE FROM billing_events WHERE id = ANY($1) AND NOT coalesce($2 = ANY(anomalies), false)",
    TEXTS,
    TEXT,
)
# An entry that is decoded again keeps its arrival number, and so its body.
DELETE_REPLACED: Final = Statement(
    """
WITH gone AS (
         DELETE FROM billing_events
          WHERE id = ANY($1)
            AND (outcome = 'invalid'
                 OR (outcome = 'ignored' AND anomalies && '{connected_account,ignored_livemode}'))
      RETURNING arrival)
DELETE FROM billing_bodies b
 USING gone
 WHERE b.arrival = gone.arrival AND b.arrival <> ALL($2)
""",
    TEXTS,
    BIGINTS,
)
UPDATE_PARKED: Final = Statement(
    """
UPDATE billing_events e
   SET tenant_id = given.tenant_id,
       outcome = given.outcome,
       anomalies = string_to_array(given.anomalies, ' '),
       document = given.document
  FROM unnest($1, $2, $3, $4, $5) AS given (id, tenant_id, outcome, anomalies, document)
 WHERE e.id = given.id
""",
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    JSONS,
)
INSERT_BODIES: Final = Statement(
    """
INSERT INTO billing_bodies (arrival, received_at, body)
SELECT arrival, $3, body FROM unnest($1, $2) AS kept (arrival, body)
""",
    BIGINTS,
    BLOBS,
    MOMENT,
)
_FASTEST: Final = 0
_ENTRY_KEY: Final = re.compile(r"billing_events(_\w+)?_pkey")
"""The primary key of the ledger, or of one of its partitions."""
_first: Final = itemgetter(0)
_event_id: Final = attrgetter("received.event.id")
_columns_of: Final = attrgetter(
    "event.id",
    "event.type",
    "event.created",
    "event.arrival",
    "received_at",
    "event.org_id",
    "event.customer_id",
    "event.subscription_id",
    "event.invoice_url",
)
_access_decoder: Final = msgspec.json.Decoder(tuple[AccessPhase, ...])
_billing_decoder: Final = msgspec.json.Decoder(tuple[BillingPhase, ...])
_encoder: Final = msgspec.json.Encoder()
_record_of: Final = attrgetter(*BillingRecord.__struct_fields__[:-1])
logger = logging.getLogger(__name__)


class EntryTakenError(Exception):
    """Another transaction has added one of the events to the ledger meanwhile."""


class BatchNames(NamedTuple):
    """What the events of a batch name; ``subscriptions`` only with `SubscriptionRule.EACH`."""

    tenants: frozenset[str] = frozenset()
    customers: frozenset[str] = frozenset()
    subscriptions: frozenset[str] = frozenset()


_NONE_CURRENT: Final[Mapping[str, str]] = {}


async def read_context(
    connection: Connection,
    policy: BillingPolicy,
    names: BatchNames,
    events: Collection[str] = (),
    current: Mapping[str, str] = _NONE_CURRENT,
) -> BatchContext:
    """Lock the tenants that a batch touches and read its context, in one round trip.

    ``events`` are the ids of its events; ``current`` (`tenants_of_current`) is empty with
    `SubscriptionRule.EACH`.
    """
    tenants, customers, subscriptions = names
    # Links and holders after the locks: another transaction may have changed them while this waited
    # for a tenant.
    calls = [
        LOCK_ACCOUNTS([*tenants, *current.values()], list(customers), list(subscriptions)),
        TENANTS_OF_CUSTOMERS(list(customers)),
        SEEN_EVENTS(list(events)),
        NEXT_ARRIVAL(),
    ]
    if subscriptions:
        calls.append(HOLDERS(list(subscriptions)))
    rows, links, seen, [(first_arrival,)], *holders = await connection.run_batch(*calls)
    locked = to_accounts(rows, policy)
    with_subscriptions, named = holders_of(subscriptions, locked)
    return BatchContext(
        accounts=locked,
        known=KnownTenants(by_customer(links), named, dict(current)),
        seen=frozenset(map(_first, seen)),
        first_arrival=first_arrival,
        replaceable=frozenset([event_id for event_id, is_replaceable in seen if is_replaceable]),
        tenants_of_subscription=with_subscriptions,
        missing=frozenset(map(_first, chain(*holders))).difference(locked),
        gone_customers=frozenset([customer_id for customer_id, _, is_gone in links if is_gone]),
    )


def by_customer(links: Iterable[Sequence[Any]]) -> dict[str, str]:
    """Return the tenants of rows of `TENANTS_OF_CUSTOMERS`."""
    return {customer_id: tenant_id for customer_id, tenant_id, _ in links}


class AccountRow(NamedTuple):
    """A row of `READ_ACCOUNTS` and `LOCK_ACCOUNTS`."""

    id: str
    owner_id: str
    is_deleted: bool
    name: str
    owner_email: str
    created_at: datetime
    time_zone: str | None
    suspension: str | None
    customer_id: str | None
    plan: str
    subscription_status: str
    current_period_end: int | None
    cancel_at_period_end: bool
    cancel_at: int | None
    ends_at: int | None
    seats: int | None
    access: str | None
    folded_by: str | None
    folds: str | None
    billing_periods: str | None


def to_accounts(rows: Iterable[Sequence[Any]], policy: BillingPolicy) -> dict[str, BillingAccount]:
    """Return the accounts of rows of `READ_ACCOUNTS` or `LOCK_ACCOUNTS`, by tenant."""
    return {row.id: _to_account(row, policy) for row in map(AccountRow._make, rows)}


def _to_account(row: AccountRow, policy: BillingPolicy) -> BillingAccount:
    folds, is_whole = _folds_of(row, policy)
    record = BillingRecord(
        row.plan,
        row.subscription_status,
        row.current_period_end,
        row.cancel_at_period_end,
        row.cancel_at,
        row.ends_at,
        row.seats,
        () if row.access is None else _access_decoder.decode(row.access),
    )
    return BillingAccount(
        row.id,
        row.owner_id,
        row.is_deleted,
        TenantProfile(row.name, row.owner_email, row.created_at, row.time_zone, row.suspension),
        row.customer_id,
        record,
        folds,
        is_whole,
        () if row.billing_periods is None else _billing_decoder.decode(row.billing_periods),
    )


def _folds_of(row: AccountRow, policy: BillingPolicy) -> tuple[Mapping[str, Folded], bool]:
    """Return the stored folds, and whether they are whole.

    If they are not, the next event folds the whole ledger: the other mode has written them, or they
    are damaged.
    """
    if row.folds is None:
        return {}, True
    if row.folded_by != policy.subscriptions:
        return {}, False
    try:
        return read_folds(row.folds), True
    except DamagedFoldsError as error:
        logger.error("tenant %s: %s. Its next event folds its whole ledger.", row.id, error)  # noqa: TRY400
        return error.moves, False


async def read_accounts(
    connection: Connection, tenants: Sequence[str], policy: BillingPolicy
) -> list[BillingAccount]:
    """Return accounts by id."""
    [rows] = await connection.run_batch(READ_ACCOUNTS(list(tenants)))
    return list(to_accounts(rows, policy).values())


async def lock_account(
    connection: Connection,
    tenant_id: str,
    policy: BillingPolicy,
    customers: Collection[str] = (),
) -> BillingAccount | None:
    """Lock a tenant, and with it those that have these customers, in the order of their ids, until
    the transaction ends; return the one.
    """
    [rows] = await connection.run_batch(LOCK_ACCOUNTS([tenant_id], list(customers), []))
    return to_accounts(rows, policy).get(tenant_id)


def batch_calls(changes: BatchChanges, now: datetime) -> list[BoundStatement]:
    """Write all changes of a batch, in this order."""
    return [
        *_delete_replaced(changes.replaceable, changes.entries),
        *insert_entries(changes.entries),
        *_insert_bodies(changes.entries, changes.policy.raw_bodies, now),
        *_delete_entries(changes.superseded),
        *write_accounts(changes.changed_accounts, changes.policy, now),
        *INSERT_LINKS.for_rows(changes.links),  # the first claim on a customer stands
        *SET_CUSTOMER_USES.for_rows(changes.customer_uses),
        *_update_parked(changes.unparked),
        *publication(changes.published, now),
    ]


def write_accounts(
    changes: Sequence[AccountChange], policy: BillingPolicy, now: datetime
) -> list[BoundStatement]:
    """Write back the accounts of locked tenants, and publish what changed. A tenant whose record
    changed has ``now`` as its time of update.
    """
    return [
        *UPDATE_ACCOUNTS.for_rows([_row(change, policy) for change in changes], now),
        *INSERT_HOLDERS.for_rows(list(chain.from_iterable(map(_new_holders, changes)))),
        *publication(published_changes(changes, policy.catalog, now), now),
    ]


def write_repair(
    change: AccountChange, policy: BillingPolicy, now: datetime
) -> list[BoundStatement]:
    """As `write_accounts`, for what a replay repaired of a tenant: its account, and its grants."""
    grants = publication(repaired_grants(change, now), now)
    return [*write_accounts([change], policy, now), *grants]


def _row(change: AccountChange, policy: BillingPolicy) -> tuple[object, ...]:
    account, access = change.account, change.account.record.access
    return (
        account.tenant_id,
        *_record_of(account.record),
        _encoder.encode(access) if access else None,
        account.customer_id,
        policy.subscriptions if account.is_whole else None,
        _encoder.encode(account.folds),
        _encoder.encode(account.billing_periods) if account.billing_periods else None,
        change.is_visible,
    )


def _new_holders(change: AccountChange) -> list[tuple[str, str, str | None]]:
    """Return the rows by which the subscriptions that an account has not had before find it."""
    return [(change.account.tenant_id, *found) for found in sorted(change.new_subscriptions())]


def insert_entries(entries: Sequence[LedgerEntry]) -> list[BoundStatement]:
    # sorted by id, so that two batches with the same new events cannot deadlock
    rows = [
        (*_columns_of(entry.received), _payments_of(entry), *_effect_of(entry))
        for entry in sorted(entries, key=_event_id)
    ]
    return INSERT_ENTRIES.for_rows(rows)


def _payments_of(entry: LedgerEntry) -> str | None:
    """Return the column by which refunds and disputes find the entry."""
    return " ".join(entry.received.event.payments) or None


def _insert_bodies(
    entries: Sequence[LedgerEntry], raw_bodies: RawBodies, now: datetime
) -> list[BoundStatement]:
    """Store the raw bodies of new entries, as far as the setting wants them."""
    stored = [
        (entry.received.event.arrival, pack(entry.received.body))
        for entry in entries
        if entry.received.body is not None and raw_bodies.stores_body_of(entry.received.event)
    ]
    return INSERT_BODIES.for_rows(stored, now)


def pack(body: bytes) -> bytes:
    """Compress a raw body (zlib's format, RFC 1950)."""
    return isal_zlib.compress(body, _FASTEST)


def _effect_of(entry: LedgerEntry) -> tuple[str | None, str, str | None, bytes]:
    """Return the columns of an entry that follow from its tenant."""
    anomalies = " ".join(entry.anomalies) or None
    return entry.tenant_id, entry.outcome, anomalies, encode_document(entry)


def _delete_entries(ids: Sequence[str]) -> list[BoundStatement]:
    """Delete entries that a newer snapshot superseded; those that report drift stay."""
    return [DELETE_ENTRIES(ids, Anomaly.DRIFT)] if ids else []


def _delete_replaced(ids: Collection[str], entries: Sequence[LedgerEntry]) -> list[BoundStatement]:
    """Delete the entries that new ``entries`` of the same id replace; call it before inserting
    these.
    """
    arrivals = [entry.received.event.arrival for entry in entries]
    return [DELETE_REPLACED(sorted(ids), arrivals)] if ids else []


def _update_parked(entries: Sequence[LedgerEntry]) -> list[BoundStatement]:
    """Write the outcome of parked events whose tenant has become known."""
    return UPDATE_PARKED.for_rows([(_event_id(entry), *_effect_of(entry)) for entry in entries])


async def write(connection: Connection, calls: Sequence[BoundStatement], *, commit: bool) -> None:
    """Run these calls together. Raises `EntryTakenError`; roll back then."""
    if not calls and not commit:
        return
    with _entries_taken():
        await connection.run_batch(*calls, commit=commit)


async def write_change(connection: Connection, calls: Sequence[BoundStatement]) -> CommittedChange:
    """Run these calls, in a transaction that changes what checks read, and commit. Raises
    `EntryTakenError`; roll back then.
    """
    with _entries_taken():
        return await commit_change(connection, *calls)


@contextmanager
def _entries_taken() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.UniqueViolation as error:
        if _ENTRY_KEY.fullmatch(error.diag.constraint_name or ""):
            raise EntryTakenError(
                "an event of the batch was delivered twice at once, and the other is in the ledger"
            ) from error
        raise
