"""A batch of events, applied to the accounts that it touches, in memory."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tenantry.domain.billing.events import (
    CHECKOUT_COMPLETED,
    FOLDED_TYPES,
    HANDLED_TYPES,
    INVOICE_TYPES,
    SUBSCRIPTION_TYPES,
    SUBSCRIPTION_UPDATED,
    BillingEvent,
    Outcome,
)
from tenantry.domain.billing.ledger import Account, Arrival, Entry, FailedPayment, Link, Standing
from tenantry.domain.billing.state import PAST_DUE, BillingPolicy
from tenantry.domain.billing.timeline import Placement, Reach, Timeline, begin, place, reach, tip
from tenantry.domain.plans import Catalog

_SUBSCRIPTION_MODE: Final = "subscription"


def useless(event: BillingEvent) -> tuple[Outcome, str] | None:
    """What to say of an event that no tenant can ever be found for, or that says nothing about billing."""
    if event.type not in HANDLED_TYPES:
        return Outcome.IGNORED, "This type is not handled."
    if event.problem is not None:
        return Outcome.INVALID, event.problem
    if event.type in INVOICE_TYPES:
        return None if event.customer_id else (Outcome.IGNORED, "The invoice names no customer.")
    if event.type == CHECKOUT_COMPLETED:
        if event.checkout_mode != _SUBSCRIPTION_MODE:
            return Outcome.IGNORED, "The checkout session is not for a subscription."
        if event.customer_id is None:
            return Outcome.IGNORED, "The checkout session names no customer."
    return None if event.org_id else (Outcome.IGNORED, "The metadata names no orgId.")


def anomaly(event: BillingEvent, catalog: Catalog) -> str | None:
    """A short name for what is unexpected about an event, to be counted."""
    if event.problem is not None:
        return "unusable_object"
    if event.type in SUBSCRIPTION_TYPES and event.org_id is None:
        return "missing_org_id"
    if event.type == SUBSCRIPTION_UPDATED:
        if event.price_id is None:
            return "missing_price"
        if catalog.plan_of_price(event.price_id) is None:
            return "unknown_price"
    return None


def may_link(event: BillingEvent) -> bool:
    """Whether the event can tie its customer to a tenant."""
    return event.type in (CHECKOUT_COMPLETED, SUBSCRIPTION_UPDATED) and bool(event.customer_id and event.org_id)


def reaches(standing: Standing, events: Iterable[tuple[str | None, BillingEvent]]) -> dict[str, tuple[Reach, int]]:
    """How far back each account's history is needed to place these events, each given with its tenant.

    The answer is ``{tenant: (reach, second of its newest event)}``; accounts that need no history are left out.
    """
    needed: dict[str, tuple[Reach, int]] = {}
    for tenant_id, event in events:
        account = standing.accounts.get(tenant_id) if tenant_id else None
        if account is None or account.tip_created is None or event.type not in FOLDED_TYPES:
            continue
        far = reach(event.created, account.tip_created)
        known, _ = needed.get(account.tenant_id, (Reach.TIP, 0))
        if far > known:
            needed[account.tenant_id] = far, account.tip_created
    return needed


def wants_link(event: BillingEvent, standing: Standing) -> bool:
    """Whether the event would tie its customer to its tenant, as far as is known."""
    account = standing.accounts.get(event.org_id or "")
    return (
        may_link(event)
        and account is not None
        and event.customer_id not in standing.tenant_of_customer
        and (event.type == CHECKOUT_COMPLETED or account.customer_id is None)
    )


def tenant_of(event: BillingEvent, tenant_of_customer: Mapping[str, str]) -> str | None:
    """The tenant that an event names: by customer for invoices, else by the metadata (SPEC 6.1)."""
    if event.type in INVOICE_TYPES:
        return tenant_of_customer.get(event.customer_id or "")
    return event.org_id


class Settlement:
    """Collects what a batch changes; nothing is written here.

    ``histories`` are the events after the checkpoint of each account in ``reaches``;
    ``parked`` the parked events that wait for a customer, by customer.
    """

    def __init__(
        self,
        standing: Standing,
        policy: BillingPolicy,
        now: datetime,
        *,
        reaches: Mapping[str, tuple[Reach, int]],
        histories: Mapping[str, Sequence[BillingEvent]],
        parked: Mapping[str, Sequence[Arrival]],
    ) -> None:
        self._policy = policy
        self._now = now
        self._accounts = dict(standing.accounts)
        self._original = standing.accounts
        self._tenant_of_customer = dict(standing.tenant_of_customer)
        self._reaches = reaches
        self._histories = histories
        self._parked = parked
        self._timelines: dict[str, Timeline] = {}
        self._parked_failures: list[FailedPayment] = []
        self._failures: list[FailedPayment] = []
        self.entries: list[Entry] = []
        self.healed: list[Entry] = []
        self.links: list[Link] = []

    def receive(self, arrival: Arrival) -> None:
        """Take in a new event; events are given in the order of their arrival."""
        event = arrival.event
        if refusal := useless(event):
            self.entries.append(Entry(arrival, None, *refusal))
            return
        note = self._link(event) if may_link(event) else None
        tenant_id = tenant_of(event, self._tenant_of_customer)
        account = self._accounts.get(tenant_id) if tenant_id else None
        if account is None:
            who = f"customer {event.customer_id}" if event.type in INVOICE_TYPES else f"tenant {event.org_id}"
            self.entries.append(Entry(arrival, None, Outcome.PARKED, f"Waits: {who} is not known yet."))
        elif event.type == CHECKOUT_COMPLETED:
            outcome, reason = note or (Outcome.NO_CHANGE, "The customer was linked to this tenant before.")
            self.entries.append(Entry(arrival, account.tenant_id, outcome, reason, account.state, account.state))
        else:
            placement = self._place(account, event)
            self.entries.append(_entry(arrival, account.tenant_id, placement))
            if placement.notify:
                self._failures.append(_failure(account, event))

    def heal(self, account: Account, arrivals: Iterable[Arrival]) -> None:
        """Let parked events take their place, now that their tenant is known."""
        for arrival in arrivals:
            event = arrival.event
            note = self._link(event) if may_link(event) else None
            if event.type == CHECKOUT_COMPLETED:
                outcome, reason = note or (Outcome.NO_CHANGE, "The customer was linked to this tenant before.")
                self.healed.append(Entry(arrival, account.tenant_id, outcome, reason, account.state, account.state))
                continue
            placement = self._place(account, event)
            self.healed.append(_entry(arrival, account.tenant_id, placement))
            young = (
                self._now.timestamp() - event.created <= timedelta(hours=self._policy.parked_mail_hours).total_seconds()
            )
            if placement.notify and young:
                self._parked_failures.append(_failure(account, event))

    def changed_accounts(self) -> list[tuple[Account, bool]]:
        """The accounts to write back, and whether the tenant record itself changed."""
        changed = []
        for tenant_id, linked in sorted(self._accounts.items()):
            original = self._original[tenant_id]
            account = self._folded(linked)
            if account != original:
                visible = account.customer_id != original.customer_id or _record(account) != _record(original)
                changed.append((account, visible))
        return changed

    def _folded(self, account: Account) -> Account:
        timeline = self._timelines.get(account.tenant_id)
        if timeline is None:
            return account
        created, before = tip(timeline, self._policy)
        return msgspec.structs.replace(account, state=timeline.state, tip_created=created, tip_state=before)

    def failed_payments(self) -> list[FailedPayment]:
        """The failures that owners are told of; one that was parked only where the tenant ends past due."""
        still_due = [
            failure
            for failure in self._parked_failures
            if self._timelines[failure.tenant_id].state.subscription_status == PAST_DUE
        ]
        living = [failure for failure in self._failures if not self._accounts[failure.tenant_id].deleted]
        return living + [failure for failure in still_due if not self._accounts[failure.tenant_id].deleted]

    def _place(self, account: Account, event: BillingEvent) -> Placement:
        timeline = self._timelines.get(account.tenant_id)
        if timeline is None:
            far, _ = self._reaches.get(account.tenant_id, (Reach.TIP, 0))
            history = self._histories.get(account.tenant_id, ())
            timeline = begin(account.checkpoint(far), history, self._policy)
        placement = place(timeline, event, self._policy)
        self._timelines[account.tenant_id] = placement.timeline
        return placement

    def _link(self, event: BillingEvent) -> tuple[Outcome, str] | None:
        """Tie the event's customer to its tenant where the rules say so, and say what happened."""
        account = self._accounts.get(event.org_id or "")
        customer_id = event.customer_id
        if account is None or customer_id is None:
            return None
        holder = self._tenant_of_customer.get(customer_id)
        if holder == account.tenant_id:
            return None
        if holder is not None:
            return Outcome.NO_CHANGE, f"Customer {customer_id} belongs to another tenant already."
        if event.type == SUBSCRIPTION_UPDATED and account.customer_id is not None:
            return None
        self.links.append(Link(customer_id, account.tenant_id, event.id))
        self._tenant_of_customer[customer_id] = account.tenant_id
        self._accounts[account.tenant_id] = linked = msgspec.structs.replace(account, customer_id=customer_id)
        self.heal(linked, self._parked.get(customer_id, ()))
        return Outcome.APPLIED, f"Customer {customer_id} now belongs to this tenant."


def _record(account: Account) -> tuple[object, ...]:
    state = account.state
    return state.plan, state.subscription_status, state.current_period_end, state.cancel_at_period_end


def _entry(arrival: Arrival, tenant_id: str, placement: Placement) -> Entry:
    return Entry(arrival, tenant_id, placement.outcome, placement.reason, placement.before, placement.after)


def _failure(account: Account, event: BillingEvent) -> FailedPayment:
    return FailedPayment(account.tenant_id, account.owner_id, event.id, event.invoice_url)
