"""The billing state of tenants: the results of their folds, and the tenant record's fields.

A tenant's folds are one document, so an event writes one row. The table ``subscription_tenants``
finds tenants by the subscriptions of their folds.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.db.connection import Connection
from tenantry.db.statements import (
    BIGINTS,
    BOOLEANS,
    JSONS,
    MOMENT,
    TEXTS,
    BoundStatement,
    Statement,
)
from tenantry.domain.access import AccessPhase
from tenantry.domain.billing.fold_document import DamagedFoldsError, read_folds
from tenantry.domain.billing.ledger import AccountChange, BillingAccount, TenantProfile
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.billing.tenant_record import BillingRecord
from tenantry.domain.billing.timeline import Folded
from tenantry.domain.entitlements import BillingPhase

READ_ACCOUNTS: Final = Statement(
    """
SELECT id, owner_id, deleted_at IS NOT NULL,
       name, owner_email, created_at, time_zone, suspended_at IS NOT NULL, stripe_customer_id,
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
       name, owner_email, created_at, time_zone, suspended_at IS NOT NULL, stripe_customer_id,
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
# Of these tenants, or of all. One whose other tenant was removed may have moved there before. The
# rows of tenants are read by their ids: the view `subscriptions` would read all of them.
SHARED_SUBSCRIPTIONS: Final = """
WITH wanted AS (
         SELECT subscription_id FROM subscription_tenants WHERE tenant_id = ANY(%(tenants)s)
          UNION
         SELECT subscription_id FROM subscription_tenants WHERE %(tenants)s::text[] IS NULL)
SELECT s.subscription_id
  FROM wanted
  JOIN subscription_tenants s USING (subscription_id)
  JOIN tenants t ON t.id = s.tenant_id
 GROUP BY s.subscription_id
HAVING count(*) > 1 OR bool_or(t.folds->s.subscription_id->>'moved_at' IS NOT NULL)
 ORDER BY s.subscription_id
"""
_access_decoder: Final = msgspec.json.Decoder(tuple[AccessPhase, ...])
_billing_decoder: Final = msgspec.json.Decoder(tuple[BillingPhase, ...])
_encoder: Final = msgspec.json.Encoder()

logger = logging.getLogger(__name__)


class AccountRow(NamedTuple):
    """A row of `READ_ACCOUNTS` and `LOCK_ACCOUNTS`."""

    id: str
    owner_id: str
    is_deleted: bool
    name: str
    owner_email: str
    created_at: datetime
    time_zone: str | None
    is_suspended: bool
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
        TenantProfile(row.name, row.owner_email, row.created_at, row.time_zone, row.is_suspended),
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
    connection: Connection,
    tenants: Sequence[str],
    policy: BillingPolicy,
    *,
    lock: bool = False,
) -> list[BillingAccount]:
    """Return accounts by id; with ``lock`` lock them until the transaction ends."""
    ids = list(tenants)
    call = LOCK_ACCOUNTS(ids, [], []) if lock else READ_ACCOUNTS(ids)
    [rows] = await connection.run_batch(call)
    return list(to_accounts(rows, policy).values())


async def shared_subscriptions(
    connection: Connection, tenants: Collection[str] | None = None
) -> list[str]:
    """Return the subscriptions of these tenants, or all, that several tenants have or had, by
    events or invoices.
    """
    values = {"tenants": None if tenants is None else list(tenants)}
    return [row[0] for row in await connection.fetch(SHARED_SUBSCRIPTIONS, values)]


_record_of: Final = attrgetter(*BillingRecord.__struct_fields__[:-1])


def update_accounts(
    changes: Sequence[AccountChange], policy: BillingPolicy, now: datetime
) -> list[BoundStatement]:
    """Write back accounts; a tenant whose record changed has ``now`` as its time of update."""
    return [
        *UPDATE_ACCOUNTS.for_rows([_row(change, policy) for change in changes], now),
        *INSERT_HOLDERS.for_rows(list(chain.from_iterable(map(_new_holders, changes)))),
    ]


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
