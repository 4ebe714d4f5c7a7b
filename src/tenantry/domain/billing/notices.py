"""Billing notices to a tenant's owner beside those of failed payments: what causes one, once for
each cause.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from tenantry.common.clock import from_epoch
from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.ledger import BillingAccount
from tenantry.domain.billing.state import (
    CANCELED,
    INCOMPLETE,
    OWING,
    PAST_DUE,
    TRIALING,
    UNPAID,
    WHOLE_TENANT,
    BillingPolicy,
    fold_key,
    known_of,
    plan_item,
)
from tenantry.domain.billing.tenant_record import BillingRecord, access_end, access_phase
from tenantry.domain.billing.timeline import Folded, Placement
from tenantry.domain.owner_mails import (
    AccessEndedData,
    NoticeData,
    OwnerNotice,
    PaymentRecoveredData,
    SubscriptionEndedData,
    TrialEndingData,
)
from tenantry.domain.plans import FREE, OVER, AccessState, Catalog

ACCESS_END_MAILED: Final = timedelta(days=3)
"""How long after access ended by time its owner may still be mailed of it."""

_MOVABLE: Final = 3 * 86_400


class BillingNotice(msgspec.Struct, frozen=True):
    """A notice to a tenant's owner. Each ``cause`` is mailed once.

    With ``paid_invoice`` it counts only if the owner was mailed that a payment of this invoice
    failed; with ``recovered`` so it does of the newest paid invoice of this subscription, whose id
    the cause then ends with. An end whose cause began at the second ``begun`` counts only if no end
    of the tenant's access then or later was mailed.
    """

    type: str
    tenant_id: str
    owner_id: str
    cause: str
    data: NoticeData
    paid_invoice: str | None = None
    recovered: str | None = None
    begun: int | None = None


class Move(NamedTuple):
    """A subscription that has left a tenant for another one, and the plan that the tenant had by
    it.
    """

    tenant_id: str
    subscription_id: str
    plan: str
    moved_at: int


class Occasion(NamedTuple):
    """An event that may cause a notice, and the plan before it; ``belated`` as in
    `ReceivedEvent`.
    """

    notice: OwnerNotice
    tenant_id: str
    event: BillingEvent
    plan: str
    belated: bool


def notice_of_type(event: BillingEvent, policy: BillingPolicy) -> OwnerNotice | None:
    """Return the notice that an event may cause by its type, whatever it changes.

    The provider reports a recovered payment twice, by the subscription and by its invoice, in any
    order. So the state need not be past due when the invoice's event arrives.
    """
    if event.type == ev.TRIAL_WILL_END:
        notice = OwnerNotice.TRIAL_ENDING
    elif event.type in ev.PAYMENT_TYPES and event.invoice_id is not None:
        notice = OwnerNotice.PAYMENT_RECOVERED
    else:
        return None
    return notice if notice in policy.notices else None


def notice_of_change(
    event: BillingEvent,
    placement: Placement,
    before: BillingRecord,
    after: BillingRecord,
    policy: BillingPolicy,
    now: datetime,
) -> OwnerNotice | None:
    """Return the notice of what an event changed; ``before`` and ``after`` are the tenant's
    records.

    Access that a failed payment ended is no cause: its own mail reports it.
    """
    if event.type in ev.INVOICE_TYPES:
        return None
    if _is_recovery(placement):
        return (
            OwnerNotice.PAYMENT_RECOVERED
            if OwnerNotice.PAYMENT_RECOVERED in policy.notices
            else None
        )
    ending = _ending_of(placement, before, after, policy, now)
    is_paid = ending is OwnerNotice.ACCESS_ENDED and _is_paid_since(event, placement)
    return None if is_paid else ending


def _is_recovery(placement: Placement) -> bool:
    """Whether a subscription is unpaid no longer. A payment alone does not end that status, but may
    come before.
    """
    status = placement.after.subscription_status
    return (
        placement.before.subscription_status == UNPAID
        and status not in OWING
        and status not in OVER
    )


def _is_paid_since(event: BillingEvent, placement: Placement) -> bool:
    """Whether a late event made a subscription unpaid whose failed invoices newer events have paid.

    The provider gives the access back then.
    """
    state = placement.after
    if state.subscription_status != UNPAID or state.unpaid_invoices:
        return False
    return any(newer.type in ev.PAYMENT_TYPES for newer in placement.timeline.after(event))


def _ending_of(
    placement: Placement,
    before: BillingRecord,
    after: BillingRecord,
    policy: BillingPolicy,
    now: datetime,
) -> OwnerNotice | None:
    """Return the notice of what ended: the subscription, or else the access."""
    is_end = (
        placement.before.subscription_status not in OVER
        and placement.after.subscription_status == CANCELED
    )
    if is_end and OwnerNotice.SUBSCRIPTION_ENDED in policy.notices:
        return OwnerNotice.SUBSCRIPTION_ENDED
    lost = _has_access(before, policy.catalog, now) and not _has_access(after, policy.catalog, now)
    if (
        lost
        and after.subscription_status != PAST_DUE
        and OwnerNotice.ACCESS_ENDED in policy.notices
    ):
        return OwnerNotice.ACCESS_ENDED
    return None


def moves_of(
    before: Mapping[str, BillingAccount],
    after: Mapping[str, BillingAccount],
    policy: BillingPolicy,
    now: datetime,
    since: float,
) -> list[Move]:
    """Return the subscriptions that left a tenant after the second ``since``, and by which it loses
    access that its own events gave; ``before`` and ``after`` are the accounts of a batch.

    The invoices of the next tenant have left by then.
    """
    moves = list[Move]()
    for tenant_id, account in after.items():
        former = before[tenant_id]
        known = {key for key, fold in former.folds.items() if fold.state.reported_at is not None}
        for key in sorted(account.moved_at.keys() & known - former.moved_at.keys()):
            moved_at = account.moved_at[key]
            if moved_at > since and _gave_access(account, key, policy, now):
                plan = account.folds[key].state.plan
                moves.append(Move(tenant_id, key, plan, moved_at))
    return moves


def _gave_access(account: BillingAccount, moved: str, policy: BillingPolicy, now: datetime) -> bool:
    """Whether an account without access had some if its moved subscription still counted."""
    if _has_access(account.record, policy.catalog, now):
        return False
    stayed = account.with_move(moved, None, policy)
    return _has_access(stayed.record, policy.catalog, now)


def due_notices(
    occasions: Iterable[Occasion],
    moves: Iterable[Move],
    before: Mapping[str, BillingAccount],
    after: Mapping[str, BillingAccount],
    policy: BillingPolicy,
    now: datetime,
) -> list[BillingNotice]:
    """Return the notices of what is still true after a batch; ``before`` and ``after`` are its
    accounts by tenant.

    Of one tenant the end of a subscription covers the end of its access.
    """
    notices: dict[str, BillingNotice] = {}
    access: dict[str, BillingNotice] = {}
    for occasion in occasions:
        account = after[occasion.tenant_id]
        if account.deleted or not (notice := _notice(occasion, account, policy, now)):
            continue
        if occasion.notice is OwnerNotice.ACCESS_ENDED:
            access[account.tenant_id] = notice
        else:
            notices[notice.cause] = notice
    for move in moves:
        if notice := _notice_of_move(move, after[move.tenant_id], policy, now):
            if notice.type == OwnerNotice.SUBSCRIPTION_ENDED.mail_type:
                notices[notice.cause] = notice
            else:
                access[notice.tenant_id] = notice
    if OwnerNotice.ACCESS_ENDED in policy.notices:
        for tenant_id, account in after.items():
            if not account.deleted and (notice := _lapsed(before[tenant_id], account, policy, now)):
                access.setdefault(tenant_id, notice)
    ended = {
        each.tenant_id
        for each in notices.values()
        if each.type == OwnerNotice.SUBSCRIPTION_ENDED.mail_type
    }
    return [
        *notices.values(),
        *(notice for tenant_id, notice in access.items() if tenant_id not in ended),
    ]


def access_end_cause(tenant_id: str, ended_at: int) -> str:
    """Return the cause of the notice that a tenant's access ended at this second, by time or by an
    event.
    """
    return _cause(OwnerNotice.ACCESS_ENDED, tenant_id, str(ended_at))


def _cause(notice: OwnerNotice, tenant_id: str, name: str) -> str:
    return f"{notice.mail_type} {tenant_id} {name}"  # no event id: it has spaces


def _has_access(record: BillingRecord, catalog: Catalog, now: datetime) -> bool:
    return access_phase(record, now.timestamp(), catalog).state != "none"


def _notice(
    occasion: Occasion, account: BillingAccount, policy: BillingPolicy, now: datetime
) -> BillingNotice | None:
    """Return the notice of an occasion, if it is still true of its tenant's account."""
    notice, tenant_id, event, plan, _ = occasion
    data: NoticeData
    paid_invoice = recovered = begun = None
    if notice is OwnerNotice.TRIAL_ENDING:
        trial_end = event.details.trial_end
        if trial_end is None or not _is_trialing(event, trial_end, account, policy, now):
            return None
        name = f"{event.subscription_id or event.id} {trial_end}"
        data = TrialEndingData(
            policy.catalog.name(plan_item(event, policy).plan), from_epoch(trial_end)
        )
    elif notice is OwnerNotice.PAYMENT_RECOVERED:
        name = event.invoice_id or ""
        key = fold_key(event, policy)
        fold = None if key is None else account.folds.get(key)
        if fold is not None and fold.state.subscription_status in OWING:
            return None
        if event.type in ev.PAYMENT_TYPES:
            paid_invoice = name
        else:
            recovered = event.subscription_id or ""
        data = PaymentRecoveredData(event.invoice_url)
    elif _has_access(account.record, policy.catalog, now):
        return None
    elif notice is OwnerNotice.SUBSCRIPTION_ENDED:
        begun, name = event.created, event.subscription_id or event.id
        data = SubscriptionEndedData(None if plan == FREE else policy.catalog.name(plan))
    else:
        begun, name = event.created, str(event.created)
        data = AccessEndedData(access_phase(account.record, now.timestamp(), policy.catalog).reason)
    cause = _cause(notice, tenant_id, name)
    return BillingNotice(
        notice.mail_type, tenant_id, account.owner_id, cause, data, paid_invoice, recovered, begun
    )


def _notice_of_move(
    move: Move, after: BillingAccount, policy: BillingPolicy, now: datetime
) -> BillingNotice | None:
    """Return the notice to the tenant that a subscription has left: it has ended there, or else the
    access has.
    """
    if after.deleted:
        return None
    catalog = policy.catalog
    tenant_id, owner_id = after.tenant_id, after.owner_id
    if OwnerNotice.SUBSCRIPTION_ENDED in policy.notices:
        cause = _cause(OwnerNotice.SUBSCRIPTION_ENDED, tenant_id, move.subscription_id)
        ended = SubscriptionEndedData(None if move.plan == FREE else catalog.name(move.plan))
        kind = OwnerNotice.SUBSCRIPTION_ENDED.mail_type
        return BillingNotice(kind, tenant_id, owner_id, cause, ended, begun=move.moved_at)
    if OwnerNotice.ACCESS_ENDED not in policy.notices:
        return None
    cause = access_end_cause(tenant_id, move.moved_at)
    lost = AccessEndedData(access_phase(after.record, now.timestamp(), catalog).reason)
    return BillingNotice(
        OwnerNotice.ACCESS_ENDED.mail_type, tenant_id, owner_id, cause, lost, begun=move.moved_at
    )


def _is_trialing(
    event: BillingEvent,
    trial_end: int,
    account: BillingAccount,
    policy: BillingPolicy,
    now: datetime,
) -> bool:
    """Whether a trial will end when an event says so, by all that is known of its subscription."""
    if trial_end <= now.timestamp() or event.status != TRIALING:
        return False
    fold = account.folds.get(
        (event.subscription_id or WHOLE_TENANT) if policy.is_each else WHOLE_TENANT
    )
    if fold is None or not _is_newer(fold, event):
        return True
    # of several, with `SubscriptionRule.ANY`
    if fold.state.subscription_id != event.subscription_id:
        known = known_of(fold.state, event.subscription_id)
        return known is not None and known.status == TRIALING
    return fold.state.subscription_status == TRIALING and fold.state.details.trial_end in (
        None,
        trial_end,
    )


def _is_newer(fold: Folded, event: BillingEvent) -> bool:
    """Whether a fold has a later state of a subscription than an event by which a trial will end.

    In the event's own second only what precedes a trial came before it. Any other state has ended
    it since then.
    """
    if fold.tip_created != event.created:
        return fold.tip_created is not None and fold.tip_created > event.created
    if fold.state.reported_at not in (None, event.created):
        return False  # of this second only an invoice is known
    known = known_of(fold.state, event.subscription_id)
    return known is not None and known.status not in (None, INCOMPLETE)


def _lapsed(
    before: BillingAccount, after: BillingAccount, policy: BillingPolicy, now: datetime
) -> BillingNotice | None:
    """Return the notice of access that has ended by time, if a change of the account hides that
    from the job.
    """
    ended_at = access_end(before.record)
    if ended_at is None or ended_at == access_end(after.record):
        return None
    age = now.timestamp() - ended_at
    if not 0 <= age < ACCESS_END_MAILED.total_seconds() or _has_access(
        after.record, policy.catalog, now
    ):
        return None
    cause = access_end_cause(after.tenant_id, ended_at)
    data = AccessEndedData(before.record.access[-1].reason)
    begun = ended_at - time_to_end(before.record.access[-2].state, policy)
    return BillingNotice(
        OwnerNotice.ACCESS_ENDED.mail_type,
        after.tenant_id,
        after.owner_id,
        cause,
        data,
        begun=begun,
    )


def time_to_end(access: AccessState, policy: BillingPolicy) -> int:
    """Return how many seconds before access of this kind ends by time the cause of that began, at
    most.

    A grace period has a length. Of any other end it is not known: a few days, so that a late event
    may move it, and less than a billing period, so that the next end is another one.
    """
    return policy.past_due_grace if access == "grace" else _MOVABLE
