"""The billing state of tenants: the results of their folds, and the tenant record's fields.

With `SubscriptionRule.ANY` columns of the tenant hold its one fold, with ``EACH`` the table
``subscriptions`` holds one fold in each row.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
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
    ParameterType,
    Statement,
)
from tenantry.domain.access import AccessPhase, basis_of
from tenantry.domain.billing.events import NO_DETAILS, SubscriptionDetails, SubscriptionItem
from tenantry.domain.billing.ledger import AccountChange, BillingAccount
from tenantry.domain.billing.state import (
    WHOLE_TENANT,
    BillingPolicy,
    BillingState,
    KnownSubscription,
    UnpaidInvoice,
)
from tenantry.domain.billing.tenant_record import BillingRecord
from tenantry.domain.billing.timeline import Folded

ACCOUNT_COLUMNS: Final = (
    "id, owner_id, deleted_at IS NOT NULL, stripe_customer_id, base_plan, plan, subscription_status, "
    "current_period_end, cancel_at_period_end, cancel_at, ends_at, seats, access::text, provider_status, "
    "subscription_id, subscription_created, other_subscriptions::text, billing_details::text, tip_created, "
    "tip_state::text"
)
"""What `to_accounts` reads of a tenant."""
FOLD_COLUMNS: Final = (
    "tenant_id, id, customer_id, created, status, plan, quantity, items::text, current_period_start, "
    "current_period_end, cancel_at, cancel_at_period_end, trial_end, pause_behavior, past_due_since, ended_at, "
    "unpaid_invoices::text, paid_until, provider_status, reported_at, tip_created, moved_at"
)
"""What `to_accounts` reads of a subscription."""
READ_ACCOUNTS: Final = f"SELECT {ACCOUNT_COLUMNS} FROM tenants WHERE id = ANY(%s) ORDER BY id"  # noqa: S608  # our own
READ_FOLDS: Final = f"SELECT {FOLD_COLUMNS} FROM subscriptions WHERE tenant_id = ANY(%s)"  # noqa: S608  # our own

# All transactions lock tenants in the order of their ids, and after all names: this prevents
# deadlocks. The one array keeps this an index scan; an OR would read every tenant.
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
LOCKED_FOLDS: Final = Statement(
    f"""
SELECT {FOLD_COLUMNS}
  FROM subscriptions
 WHERE tenant_id = ANY($1 || ARRAY(SELECT tenant_id FROM subscriptions WHERE id = ANY($2)))
""",  # noqa: S608  # the names of our own columns
    TEXTS,
    TEXTS,
)
"""The folds of these tenants, and of those that have one of these subscriptions."""


class SubscriptionHolders(NamedTuple):
    """The tenant that the newest event of each subscription names, and all tenants that have
    each.
    """

    named: dict[str, str]
    tenants: dict[str, tuple[str, ...]]


def holders_of(
    fold_rows: Iterable[Sequence[Any]], subscriptions: Collection[str]
) -> SubscriptionHolders:
    """Return the tenants of subscriptions."""
    named, tenants = dict[str, str](), dict[str, tuple[str, ...]]()
    for row in fold_rows:
        tenant_id, subscription_id = row[:2]
        if subscription_id not in subscriptions:
            continue
        tenants[subscription_id] = (*tenants.get(subscription_id, ()), tenant_id)
        if row[_MOVED_AT] is None and row[_REPORTED_AT] is not None:
            named[subscription_id] = tenant_id
    return SubscriptionHolders(named, tenants)


_MOVED_AT: Final = -1
_REPORTED_AT: Final = -3


class _FurtherState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts of a tenant's one state that have no column."""

    details: SubscriptionDetails = NO_DETAILS
    past_due_since: int | None = None
    unpaid_invoices: tuple[UnpaidInvoice, ...] = ()
    paid_until: int | None = None


_NOTHING_FURTHER: Final = _FurtherState()
_further_of: Final = attrgetter(*_FurtherState.__struct_fields__)
_NO_VALUES: Final = _further_of(_NOTHING_FURTHER)
_state_decoder: Final = msgspec.json.Decoder(BillingState)
_others_decoder: Final = msgspec.json.Decoder(tuple[KnownSubscription, ...])
_further_decoder: Final = msgspec.json.Decoder(_FurtherState)
_access_decoder: Final = msgspec.json.Decoder(tuple[AccessPhase, ...])
_items_decoder: Final = msgspec.json.Decoder(tuple[SubscriptionItem, ...])
_invoices_decoder: Final = msgspec.json.Decoder(tuple[UnpaidInvoice, ...])
_encoder: Final = msgspec.json.Encoder()
_EDITIONS: Final = {False: '{"edition":2', True: '{"edition":3'}
"""The start of a tenant's checkpoint that this release wrote, by whether each subscription has its
own state.

The previous release reads no other edition than its own: it folds such a tenant from the beginning,
as this one does.
"""

_NO_EDITION: Final = '{"edition":0'
"""The start of a checkpoint that no release continues from: the tenant's next event is folded from
the beginning.
"""

ReadState = Callable[[str], BillingState]


def to_accounts(
    rows: Iterable[Sequence[Any]],
    fold_rows: Iterable[Sequence[Any]],
    policy: BillingPolicy,
    read_state: ReadState = _state_decoder.decode,
) -> dict[str, BillingAccount]:
    """Return the accounts of rows of `ACCOUNT_COLUMNS` and `FOLD_COLUMNS`; ``read_state`` decodes
    checkpoints.
    """
    folds, moved_at = (
        defaultdict[str, dict[str, Folded]](dict),
        defaultdict[str, dict[str, int]](dict),
    )
    for row in fold_rows:
        folds[row[0]][row[1]] = _to_fold(row)
        if row[-1] is not None:
            moved_at[row[0]][row[1]] = row[-1]
    accounts = {}
    for row in rows:
        (
            tenant_id,
            owner_id,
            deleted,
            customer_id,
            base_plan,
            plan,
            status,
            period_end,
            ends,
            *more,
        ) = row
        (
            cancel_at,
            ends_at,
            seats,
            access,
            provider_status,
            subscription_id,
            created,
            *checkpoint,
        ) = more
        others, further, tip_created, tip_state = checkpoint
        phases = () if access is None else _without_basis(_access_decoder.decode(access))
        own = folds.get(tenant_id, {})
        if not policy.is_each and tip_created is not None:
            rest = _NOTHING_FURTHER if further is None else _further_decoder.decode(further)
            state = BillingState(
                plan,
                status,
                period_end,
                ends,
                provider_status,
                subscription_id,
                created,
                () if others is None else _others_decoder.decode(others),
                None,
                seats,
                *_further_of(rest),
            )
            tip = None if tip_state is None else read_state(tip_state)
            own = {WHOLE_TENANT: Folded(state, tip_created, tip)}
        accounts[tenant_id] = BillingAccount(
            tenant_id,
            owner_id,
            deleted,
            customer_id,
            base_plan,
            BillingRecord(plan, status, period_end, ends, cancel_at, ends_at, seats, phases),
            own,
            moved_at.get(tenant_id, {}),
            is_whole=tip_created is None
            or (tip_state is not None and tip_state.startswith(_EDITIONS[policy.is_each])),
        )
    return accounts


def _to_fold(row: Sequence[Any]) -> Folded:
    _, key, customer_id, created, status, plan, quantity, items, period_start, period_end, *more = (
        row
    )
    cancel_at, ends, trial_end, pause, past_due_since, ended_at, *rest = more
    invoices, paid_until, provider_status, reported_at, tip_created, _ = rest
    details = SubscriptionDetails(
        () if items is None else _items_decoder.decode(items),
        period_start,
        cancel_at,
        trial_end,
        pause,
        ended_at,
    )
    state = BillingState(
        plan,
        status,
        period_end,
        ends,
        provider_status,
        key or None,
        created,
        (),
        customer_id,
        quantity,
        details,
        past_due_since,
        () if invoices is None else _invoices_decoder.decode(invoices),
        paid_until,
        reported_at,
    )
    return Folded(state, tip_created)


async def read_accounts(
    connection: Connection,
    tenants: Sequence[str],
    policy: BillingPolicy,
    *,
    lock: bool = False,
    read_state: ReadState = _state_decoder.decode,
) -> list[BillingAccount]:
    """Return accounts by id; with ``lock`` lock them until the transaction ends."""
    rows = await connection.fetch(
        f"{READ_ACCOUNTS} FOR NO KEY UPDATE" if lock else READ_ACCOUNTS, (list(tenants),)
    )
    folds = await connection.fetch(READ_FOLDS, (list(tenants),)) if policy.is_each else []
    return list(to_accounts(rows, folds, policy, read_state).values())


_ACCOUNT_TYPES: Final[Mapping[str, ParameterType[Any]]] = {
    "tenant_id": TEXTS,
    "plan": TEXTS,
    "subscription_status": TEXTS,
    "current_period_end": BIGINTS,
    "cancel_at_period_end": BOOLEANS,
    "cancel_at": BIGINTS,
    "ends_at": BIGINTS,
    "seats": BIGINTS,
    "access": JSONS,
    "stripe_customer_id": TEXTS,
    "tip_created": BIGINTS,
    "tip_state": JSONS,
    "visible": BOOLEANS,
}
_STATE_TYPES: Final[Mapping[str, ParameterType[Any]]] = {
    "provider_status": TEXTS,
    "subscription_id": TEXTS,
    "subscription_created": BIGINTS,
    "other_subscriptions": JSONS,
    "billing_details": JSONS,
}
"""The columns of a tenant's one state; NULL where each subscription has its own."""


def _update_accounts(
    types: Mapping[str, ParameterType[Any]], absent: Collection[str] = ()
) -> Statement:
    """Return the statement that writes these columns of tenants, and NULL into ``absent`` ones."""
    written = [name for name in types if name not in {"tenant_id", "visible"}]
    return Statement(
        f"""
UPDATE tenants t
   SET {", ".join(f"{name} = given.{name}" for name in written)}{"".join(f", {name} = NULL" for name in absent)},
       updated_at = CASE WHEN given.visible THEN ${len(types) + 1} ELSE t.updated_at END
  FROM {_given(types)} AS given ({", ".join(types)})
 WHERE t.id = given.tenant_id
""",  # noqa: S608  # our own columns
        *types.values(),
        MOMENT,
    )


def _given(types: Mapping[str, ParameterType[Any]]) -> str:
    return f"unnest({', '.join(f'${number}' for number in range(1, len(types) + 1))})"


UPDATE_ACCOUNTS: Final = {
    False: _update_accounts({**_ACCOUNT_TYPES, **_STATE_TYPES}),
    True: _update_accounts(_ACCOUNT_TYPES, absent=_STATE_TYPES),
}
"""Write back tenants, by whether each subscription has its own state."""
_FACTS: Final[Mapping[str, tuple[ParameterType[Any], str]]] = {
    "customer_id": (TEXTS, "customer_id"),
    "created": (BIGINTS, "subscription_created"),
    "status": (TEXTS, "subscription_status"),
    "plan": (TEXTS, "plan"),
    "quantity": (BIGINTS, "seats"),
    "cancel_at": (BIGINTS, "details.cancel_at"),
    "cancel_at_period_end": (BOOLEANS, "cancel_at_period_end"),
    "trial_end": (BIGINTS, "details.trial_end"),
    "pause_behavior": (TEXTS, "details.pause"),
    "past_due_since": (BIGINTS, "past_due_since"),
    "ended_at": (BIGINTS, "details.ended_at"),
    "paid_until": (BIGINTS, "paid_until"),
    "provider_status": (TEXTS, "provider_status"),
}
"""Columns of a fold that a renewal leaves as they are, by name, with the attribute of the state."""
_PERIOD: Final[Mapping[str, tuple[ParameterType[Any], str]]] = {
    "current_period_start": (BIGINTS, "details.period_start"),
    "current_period_end": (BIGINTS, "current_period_end"),
    "reported_at": (BIGINTS, "reported_at"),
}
"""Columns that a renewal changes."""
_facts_of: Final = attrgetter(*(attribute for _, attribute in _FACTS.values()))
_period_of: Final = attrgetter(*(attribute for _, attribute in _PERIOD.values()))
_RENEWAL_TYPES: Final[Mapping[str, ParameterType[Any]]] = {
    "tenant_id": TEXTS,
    "id": TEXTS,
    "tip_created": BIGINTS,
    **{name: kind for name, (kind, _) in _PERIOD.items()},
}
_FOLD_TYPES: Final[Mapping[str, ParameterType[Any]]] = {
    **_RENEWAL_TYPES,
    **{name: kind for name, (kind, _) in _FACTS.items()},
    "moved_at": BIGINTS,
    "items": JSONS,
    "unpaid_invoices": JSONS,
}
INSERT_FOLDS: Final = Statement(
    f"INSERT INTO subscriptions ({', '.join(_FOLD_TYPES)}) SELECT * FROM {_given(_FOLD_TYPES)}",  # noqa: S608  # our own columns
    *_FOLD_TYPES.values(),
)


def _update_folds(types: Mapping[str, ParameterType[Any]]) -> Statement:
    """Return the statement that writes these columns of folds; not an upsert, which locks each row
    first.
    """
    return Statement(
        f"""
UPDATE subscriptions s
   SET {", ".join(f"{name} = given.{name}" for name in types if name not in {"tenant_id", "id"})}
  FROM {_given(types)} AS given ({", ".join(types)})
 WHERE s.tenant_id = given.tenant_id AND s.id = given.id
""",  # noqa: S608  # our own columns
        *types.values(),
    )


UPDATE_FOLDS: Final = _update_folds(_FOLD_TYPES)
RENEW_FOLDS: Final = _update_folds(_RENEWAL_TYPES)
"""Write the new period; most events change nothing else."""
DELETE_FOLDS: Final = Statement(
    """
DELETE FROM subscriptions s USING unnest($1, $2) AS gone (tenant_id, id)
 WHERE s.tenant_id = gone.tenant_id AND s.id = gone.id
""",
    TEXTS,
    TEXTS,
)
# Of these tenants, or of all. One that has moved may have left only its former tenant, with the
# link of a customer.
SHARED_SUBSCRIPTIONS: Final = """
SELECT id
  FROM subscriptions
 WHERE %(tenants)s::text[] IS NULL OR id IN (SELECT id FROM subscriptions WHERE tenant_id = ANY(%(tenants)s))
 GROUP BY id
HAVING count(*) > 1 OR max(moved_at) IS NOT NULL
 ORDER BY id
"""
# The mark of mode each is in the checkpoint of the tenant: a tenant without it is of mode any by
# now.
DELETE_OF_OTHER_MODE: Final = """
DELETE FROM subscriptions s USING tenants t
 WHERE t.id = s.tenant_id AND t.tip_state::text NOT LIKE '{"edition":3%%'
"""


async def delete_folds_of_other_mode(connection: Connection) -> None:
    """Delete the folds of subscriptions of tenants that have one fold."""
    await connection.execute(DELETE_OF_OTHER_MODE, ())


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
    if not changes:
        return []
    accounts = [change.account for change in changes]
    values: list[Sequence[Any]] = [
        [account.tenant_id for account in accounts],
        *zip(*[_record_of(account.record) for account in accounts], strict=True),
        [_stored_access(account.record) for account in accounts],
        [account.customer_id for account in accounts],
        [account.tip_created for account in accounts],
        [_checkpoint(account, policy) for account in accounts],
        [change.is_visible for change in changes],
    ]
    if policy.is_each:
        return [UPDATE_ACCOUNTS[True](*values, now), *_write_folds(changes)]
    return [UPDATE_ACCOUNTS[False](*values, *zip(*map(_whole_tenant, accounts), strict=True), now)]


def _without_basis(phases: tuple[AccessPhase, ...]) -> tuple[AccessPhase, ...]:
    return (msgspec.structs.replace(phases[0], basis=None), *phases[1:])


def _stored_access(record: BillingRecord) -> bytes | None:
    if not record.access:
        return None
    first, *others = record.access
    return _encoder.encode(
        [
            msgspec.structs.replace(first, basis=basis_of(record.plan, record.subscription_status)),
            *others,
        ]
    )


def _whole_tenant(account: BillingAccount) -> tuple[object, ...]:
    """Return the columns of the tenant's one state."""
    state = account.state
    values = _further_of(state)
    return (
        state.provider_status,
        state.subscription_id,
        state.subscription_created,
        _encoder.encode(state.others) if state.others else None,
        None if values == _NO_VALUES else _encoder.encode(_FurtherState(*values)),
    )


def _write_folds(changes: Sequence[AccountChange]) -> list[BoundStatement]:
    added, updated, renewed, gone = [], [], [], []
    for account, stored in changes:
        for key, fold in account.folds.items():
            known, moves = (
                stored.folds.get(key),
                account.moved_at.get(key) != stored.moved_at.get(key),
            )
            if known is fold and not moves:
                continue
            if known is None:
                added.append(_fold_values(account, key, fold))
            elif moves or not _is_renewal(known.state, fold.state):
                updated.append(_fold_values(account, key, fold))
            else:
                renewed.append((account.tenant_id, key, fold.tip_created, *_period_of(fold.state)))
        gone += [(account.tenant_id, key) for key in stored.folds if key not in account.folds]
    calls = [INSERT_FOLDS(*zip(*added, strict=True))] if added else []
    calls += [UPDATE_FOLDS(*zip(*updated, strict=True))] if updated else []
    calls += [RENEW_FOLDS(*zip(*renewed, strict=True))] if renewed else []
    return calls + ([DELETE_FOLDS(*zip(*gone, strict=True))] if gone else [])


def _fold_values(account: BillingAccount, key: str, fold: Folded) -> tuple[Any, ...]:
    state, items, invoices = fold.state, fold.state.details.items, fold.state.unpaid_invoices
    return (
        account.tenant_id,
        key,
        fold.tip_created,
        *_period_of(state),
        *_facts_of(state),
        account.moved_at.get(key),
        _encoder.encode(items) if items else None,
        _encoder.encode(invoices) if invoices else None,
    )


def _is_renewal(before: BillingState, after: BillingState) -> bool:
    """Whether two states of a fold are the same but for the period."""
    return (
        _facts_of(before) == _facts_of(after)
        and before.details.items == after.details.items
        and before.unpaid_invoices == after.unpaid_invoices
    )


def _checkpoint(account: BillingAccount, policy: BillingPolicy) -> bytes | None:
    """Return the checkpoint of the tenant's one state; where each subscription has its own, only
    the mark of that.
    """
    edition = (_EDITIONS[policy.is_each] if account.is_whole else _NO_EDITION).encode()
    if policy.is_each:
        return edition + b"}" if account.folds else None
    tip_state = account.whole_tenant.tip_state
    if tip_state is None:
        return None
    fields = _encoder.encode(tip_state)[1:]
    return edition + (b"," if len(fields) > 1 else b"") + fields
