"""Billing notices to a tenant's owner: what causes one, once for each cause."""

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
    PAYMENT_FAILED,
    AccessEndedData,
    NewMail,
    NoticeData,
    OwnerNotice,
    PaymentFailedData,
    PaymentRecoveredData,
    SubscriptionEndedData,
    TrialEndingData,
)
from tenantry.domain.plans import FREE, OVER, AccessState

ACCESS_END_MAILED: Final = timedelta(days=3)
"""How long after access ended by time its owner may still be mailed of it."""

_MOVABLE: Final = 3 * 86_400


class BillingNotice(NewMail, frozen=True):
    """A notice to a tenant's owner that may not count.

    With ``paid_invoice`` it counts only if the owner was mailed that a payment of this invoice
    failed; with ``recovered`` so it does of the newest paid invoice of this subscription, whose id
    the cause then ends with. An end whose cause began at the second ``begun`` counts only if no end
    of the tenant's access then or later was mailed.
    """

    paid_invoice: str | None = None
    recovered: str | None = None
    begun: int | None = None


class Occasion(NamedTuple):
    """An event that may cause a notice, and the plan before it."""

    notice: OwnerNotice
    tenant_id: str
    event: BillingEvent
    plan: str


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
        notice = OwnerNotice.PAYMENT_RECOVERED
    elif _is_end(placement) and OwnerNotice.SUBSCRIPTION_ENDED in policy.notices:
        notice = OwnerNotice.SUBSCRIPTION_ENDED
    elif _is_access_lost(before, after, policy, now) and not _is_paid_since(event, placement):
        notice = OwnerNotice.ACCESS_ENDED
    else:
        return None
    return notice if notice in policy.notices else None


def _is_end(placement: Placement) -> bool:
    status = placement.after.subscription_status
    return status == CANCELED and placement.before.subscription_status not in OVER


def _is_access_lost(
    before: BillingRecord, after: BillingRecord, policy: BillingPolicy, now: datetime
) -> bool:
    """Whether access ended, other than by a failed payment."""
    if after.subscription_status == PAST_DUE or _has_access(after, policy, now):
        return False
    return _has_access(before, policy, now)


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


def moves_of(
    before: Mapping[str, BillingAccount],
    after: Mapping[str, BillingAccount],
    policy: BillingPolicy,
    now: datetime,
    since: float,
) -> list[Occasion]:
    """Return the ends of subscriptions that left a tenant after the second ``since``, and by which
    it loses access that its own events gave; ``before`` and ``after`` are the accounts of a batch.

    The invoices of the next tenant have left by then. A subscription has ended for the tenant that
    it left, or else the access has.
    """
    endings = (OwnerNotice.SUBSCRIPTION_ENDED, OwnerNotice.ACCESS_ENDED)
    notice = next((each for each in endings if each in policy.notices), None)
    if notice is None:
        return []
    occasions = list[Occasion]()
    for tenant_id, account in after.items():
        for key in _newly_moved(before[tenant_id], account):
            moved_at = account.moved_at[key]
            if moved_at > since and _gave_access(account, key, policy, now):
                end = BillingEvent(
                    id=key, type=ev.SUBSCRIPTION_DELETED, created=moved_at, subscription_id=key
                )
                occasions.append(Occasion(notice, tenant_id, end, account.folds[key].state.plan))
    return occasions


def _newly_moved(before: BillingAccount, after: BillingAccount) -> list[str]:
    """Return the subscriptions that have left a tenant, and that its own events had reported."""
    known = {key for key, fold in before.folds.items() if fold.state.reported_at is not None}
    return sorted(after.moved_at.keys() & known - before.moved_at.keys())


def _gave_access(account: BillingAccount, moved: str, policy: BillingPolicy, now: datetime) -> bool:
    """Whether an account without access had some if its moved subscription still counted."""
    stayed = account.with_move(moved, None, policy)
    return _has_access(stayed.record, policy, now) and not _has_access(account.record, policy, now)


def due_notices(
    occasions: Iterable[Occasion],
    before: Mapping[str, BillingAccount],
    after: Mapping[str, BillingAccount],
    policy: BillingPolicy,
    now: datetime,
) -> list[BillingNotice]:
    """Return the notices of what is still true after a batch; ``before`` and ``after`` are its
    accounts by tenant.

    Of one tenant the end of a subscription covers the end of its access.
    """
    found = [
        *(_lapse(before[tenant_id], account, policy, now) for tenant_id, account in after.items()),
        *(_notice_of(each, after[each.tenant_id], policy, now) for each in occasions),
    ]
    return _without_covered(each for each in found if each and not after[each.tenant_id].deleted)


def _without_covered(notices: Iterable[BillingNotice]) -> list[BillingNotice]:
    """Return one notice for each cause, and one end of access for each tenant: the last of several,
    and none beside the end of a subscription.
    """
    lost, others = dict[str, BillingNotice](), dict[str | None, BillingNotice]()
    for notice in notices:
        if notice.type == OwnerNotice.ACCESS_ENDED.mail_type:
            lost[notice.tenant_id] = notice
        else:
            others[notice.cause] = notice
    for notice in others.values():
        if notice.type == OwnerNotice.SUBSCRIPTION_ENDED.mail_type:
            lost.pop(notice.tenant_id, None)
    return [*others.values(), *lost.values()]


def payment_failed_notice(tenant_id: str, event: BillingEvent) -> NewMail:
    """Return the notice of a failed payment, whose cause is its event (SPEC 2.4)."""
    return NewMail(PAYMENT_FAILED, tenant_id, PaymentFailedData(event.invoice_url), event.id)


def access_end_notice(
    tenant_id: str, ended_at: int, reason: str, *, begun: int | None = None
) -> BillingNotice:
    """Return the notice that a tenant's access ended at this second."""
    data = AccessEndedData(reason)
    return _built(tenant_id, OwnerNotice.ACCESS_ENDED, str(ended_at), data, begun)


def _has_access(record: BillingRecord, policy: BillingPolicy, now: datetime) -> bool:
    return access_phase(record, now.timestamp(), policy.catalog).state != "none"


def _notice_of(
    occasion: Occasion, account: BillingAccount, policy: BillingPolicy, now: datetime
) -> BillingNotice | None:
    """Return the notice of an occasion if it is still true of its tenant's account."""
    event = occasion.event
    if occasion.notice is OwnerNotice.TRIAL_ENDING:
        return _trial_ending(event, account, policy, now)
    if occasion.notice is OwnerNotice.PAYMENT_RECOVERED:
        return _payment_recovered(event, account, policy)
    if _has_access(account.record, policy, now):
        return None
    if occasion.notice is OwnerNotice.SUBSCRIPTION_ENDED:
        name, plan = event.subscription_id or event.id, occasion.plan
        data = SubscriptionEndedData(None if plan == FREE else policy.catalog.name(plan))
        return _built(account.tenant_id, occasion.notice, name, data, begun=event.created)
    reason = access_phase(account.record, now.timestamp(), policy.catalog).reason
    return access_end_notice(account.tenant_id, event.created, reason, begun=event.created)


def _trial_ending(
    event: BillingEvent, account: BillingAccount, policy: BillingPolicy, now: datetime
) -> BillingNotice | None:
    trial_end = event.details.trial_end
    if (
        trial_end is None
        or trial_end <= now.timestamp()
        or not _is_trialing(event, account, policy)
    ):
        return None
    name = f"{event.subscription_id or event.id} {trial_end}"
    plan = policy.catalog.name(plan_item(event, policy).plan)
    data = TrialEndingData(plan, from_epoch(trial_end))
    return _built(account.tenant_id, OwnerNotice.TRIAL_ENDING, name, data)


def _payment_recovered(
    event: BillingEvent,
    account: BillingAccount,
    policy: BillingPolicy,
) -> BillingNotice | None:
    """Return the notice of a payment; None while its subscription owes another one."""
    key = fold_key(event, policy)
    fold = None if key is None else account.folds.get(key)
    if fold is not None and fold.state.subscription_status in OWING:
        return None
    invoice, data = event.invoice_id or "", PaymentRecoveredData(event.invoice_url)
    notice = _built(account.tenant_id, OwnerNotice.PAYMENT_RECOVERED, invoice, data)
    if event.type in ev.PAYMENT_TYPES:
        return msgspec.structs.replace(notice, paid_invoice=invoice)
    return msgspec.structs.replace(notice, recovered=event.subscription_id or "")


def _built(
    tenant_id: str, notice: OwnerNotice, name: str, data: NoticeData, begun: int | None = None
) -> BillingNotice:
    cause = f"{notice.mail_type} {tenant_id} {name}"  # no event id: it has spaces
    return BillingNotice(notice.mail_type, tenant_id, data, cause, begun=begun)


def _is_trialing(event: BillingEvent, account: BillingAccount, policy: BillingPolicy) -> bool:
    """Whether a trial will end when an event says so, by all that is known of its subscription."""
    if event.status != TRIALING:
        return False
    key = (event.subscription_id if policy.is_each else None) or WHOLE_TENANT
    fold = account.folds.get(key)
    if fold is None or not _is_newer(fold, event):
        return True
    state = fold.state
    if state.subscription_id == event.subscription_id:
        has_same_end = state.details.trial_end in (None, event.details.trial_end)
        return state.subscription_status == TRIALING and has_same_end
    known = known_of(state, event.subscription_id)  # of several, with `SubscriptionRule.ANY`
    return known is not None and known.status == TRIALING


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


def _lapse(
    before: BillingAccount, account: BillingAccount, policy: BillingPolicy, now: datetime
) -> BillingNotice | None:
    """Return the notice of access that has ended by time, where a change of the account hides that
    from the job.
    """
    end, other = access_end(before.record), access_end(account.record)
    if end is None or (other is not None and other.second == end.second):
        return None
    is_recent = 0 <= now.timestamp() - end.second < ACCESS_END_MAILED.total_seconds()
    is_wanted = OwnerNotice.ACCESS_ENDED in policy.notices
    if not is_wanted or not is_recent or _has_access(account.record, policy, now):
        return None
    begun = end.second - time_to_end(end.before.state, policy)
    return access_end_notice(account.tenant_id, end.second, end.after.reason, begun=begun)


def time_to_end(access: AccessState, policy: BillingPolicy) -> int:
    """Return how many seconds before access of this kind ends by time the cause of that began, at
    most.

    A grace period has a length. Of any other end it is not known: a few days, so that a late event
    may move it, and less than a billing period, so that the next end is another one.
    """
    return policy.past_due_grace if access == "grace" else _MOVABLE
