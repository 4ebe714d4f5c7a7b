"""The links of customers, and the mails that a history must cause, in the billing oracle.

Both depend on the order of arrival.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from tests.support.billing_oracle_events import (
    DELETED_TYPE,
    FAILED_TYPE,
    INVOICE_TYPES,
    LINKING_TYPES,
    PAID_TYPES,
    SUBSCRIPTION_TYPES,
    customer_of,
    invoice_id_of,
    object_of,
    org_named_by,
    subscription_id_of,
)
from tests.support.billing_oracle_placement import Placement, place
from tests.support.billing_oracle_records import (
    ExpectedTenant,
    expected_of,
    tenant_of,
)
from tests.support.provider_world import DAY, HOUR, Event, History
from tests.support.subscription_oracle import ExpectedSubscription

PARKED_MAIL_HOURS = 72
ENDS_BY_TIME_DAYS = 3


@dataclass(frozen=True)
class ExpectedMail:
    """A mail that must have been queued: its kind, the tenant, and what it is about."""

    kind: str
    tenant: str
    about: str


@dataclass
class Arrivals:
    """What has arrived so far."""

    history: History
    now: int
    links: dict[str, str] = field(default_factory=dict)
    arrived: set[int] = field(default_factory=set)
    failure_mails: dict[int, str] = field(default_factory=dict)  # position -> tenant
    notices: set[ExpectedMail] = field(default_factory=set)
    ends: set[ExpectedMail] = field(default_factory=set)  # of the access, about the second
    mailed_ends: dict[str, set[int]] = field(default_factory=dict)  # tenant -> ends by time too
    optional: set[ExpectedMail] = field(default_factory=set)

    def __post_init__(self) -> None:
        for tenant in self.history.tenants:
            if tenant.customer is not None:
                self.links[tenant.customer] = tenant.id
        self.view = self._view()

    def take(self, position: int) -> None:
        """Let an event arrive; a duplicate changes nothing."""
        if position in self.arrived:
            return
        before = self.view
        self.arrived.add(position)
        self._link(self.history.events[position])
        after = self.view = self._view()
        self._mail_failures(position, before, after)
        self._mail_recoveries(position, before, after)
        for tenant in self.history.tenants:
            self._mail_ends(position, tenant.id, before, after)
        self._mail_trial_end(position, after)

    def _link(self, event: Event) -> None:
        """Link a customer. The first claim on a customer stands."""
        customer = customer_of(event)
        org = org_named_by(event)
        if (
            customer is None
            or org not in {tenant.id for tenant in self.history.tenants}
            or customer in self.links
        ):
            return
        by_checkout = event["type"] == "checkout.session.completed"
        neither_is_linked = event["type"] in LINKING_TYPES and org not in self.links.values()
        if by_checkout or neither_is_linked:
            self.links[customer] = str(org)

    def _view(self) -> "TenantsView":
        placement = place(self.history, self.arrived, self.links)
        expected = {
            tenant.id: expected_of(self.history, placement, tenant)
            for tenant in self.history.tenants
        }
        return TenantsView(
            placement,
            {id_: tenant_of(each, self.now) for id_, each in expected.items()},
            {id_: each.named for id_, each in expected.items()},
        )

    def _is_young(self, position: int) -> bool:
        created: int = self.history.events[position]["created"]
        return self.now - created < PARKED_MAIL_HOURS * HOUR

    def _mail_failures(self, arriving: int, before: "TenantsView", after: "TenantsView") -> None:
        """One mail for each failed payment, none if a newer success of the same invoice had come in
        before.
        """
        for position, tenant in after.placement.tenant_of.items():
            event = self.history.events[position]
            if event["type"] != FAILED_TYPE or before.placement.tenant_of.get(position) == tenant:
                continue
            ends_past_due = after.tenants[tenant].record.subscription_status == "past_due"
            mails = not self._is_paid(position)
            if position != arriving:
                if mails and not ends_past_due and after.status_for(event, tenant) == "past_due":
                    # its subscription is past due, but another one counts
                    self.optional.add(ExpectedMail("payment_failed", tenant, event["id"]))
                mails = mails and self._is_young(position) and ends_past_due
            if mails:
                self.failure_mails[position] = tenant
            else:
                self.failure_mails.pop(position, None)

    def _optional_failures(self, tenant: str) -> set[str | None]:
        """Return the invoices of failed payments of which it is not documented whether they are
        mailed.
        """
        about = {
            mail.about
            for mail in self.optional
            if (mail.kind, mail.tenant) == ("payment_failed", tenant)
        }
        return {invoice_id_of(event) for event in self.history.events if event["id"] in about}

    def _is_paid(self, failure: int) -> bool:
        """Whether a success of the failed invoice that is not older has arrived."""
        failed = self.history.events[failure]
        return any(
            self.history.events[position]["type"] in PAID_TYPES
            and invoice_id_of(self.history.events[position]) == invoice_id_of(failed)
            and self.history.events[position]["created"] >= failed["created"]
            for position in self.arrived
        )

    def _mail_recoveries(self, arriving: int, before: "TenantsView", after: "TenantsView") -> None:
        """An invoice is paid of which the owner was mailed, and the subscription is not past due or
        unpaid now.
        """
        event = self.history.events[arriving]
        mailed = {
            invoice_id_of(self.history.events[one]): tenant
            for one, tenant in self.failure_mails.items()
        }
        for position, tenant in after.placement.tenant_of.items():
            paid = self.history.events[position]
            invoice = invoice_id_of(paid)
            may_be_mailed = invoice in self._optional_failures(tenant)
            if paid["type"] not in PAID_TYPES or (
                mailed.get(invoice) != tenant and not may_be_mailed
            ):
                continue
            if may_be_mailed or (self.history.mode == "each" and subscription_id_of(paid) is None):
                # which subscription is meant is not documented
                self.optional.add(ExpectedMail("payment_recovered", tenant, str(invoice)))
                continue
            status = after.status_for(paid, tenant)
            newly_paid = position == arriving or position not in before.placement.tenant_of
            ends_unpaid = (
                event["type"] in SUBSCRIPTION_TYPES and before.status_for(paid, tenant) == "unpaid"
            )
            if (newly_paid or ends_unpaid) and status not in {"past_due", "unpaid"}:
                self.notices.add(ExpectedMail("payment_recovered", tenant, str(invoice)))

    def _mail_ends(
        self, arriving: int, tenant: str, before: "TenantsView", after: "TenantsView"
    ) -> None:
        """An event ends a subscription, or the access: one mail."""
        if after.tenants[tenant].access.state != "none":
            return
        known = set(self.notices | self.ends)
        self._mail_ends_by_event(arriving, tenant, before, after)
        ended = before.tenants[tenant].access_ended
        if set(self.notices | self.ends) == known and ended != after.tenants[tenant].access_ended:
            self._mail_end_by_time(tenant, ended)

    def _mail_end_by_time(self, tenant: str, ended: int | None) -> None:
        """Access ended by time, which a change now hides: within three days its mail was or is
        queued.
        """
        if ended is not None and 0 <= self.now - ended < ENDS_BY_TIME_DAYS * DAY:
            self.mailed_ends.setdefault(tenant, set()).add(ended)

    def _mail_ends_by_event(
        self, arriving: int, tenant: str, before: "TenantsView", after: "TenantsView"
    ) -> None:
        event = self.history.events[arriving]
        timely = self._timely(arriving, tenant, before, after)
        if not timely:
            return
        had_access = before.tenants[tenant].access.state != "none" and before.has_given(tenant)
        ended = self._ended_subscriptions(event, tenant, before, after) & timely
        for subscription in sorted(ended):
            self._mail_end(event, subscription, tenant, after)
        if self.history.mode == "any" and before.subscriptions[tenant][""].id not in {
            "",
            subscription_id_of(event),
        }:
            # "an event of another subscription than the one that the state is from is not mailed as
            # an end"
            return
        # a failed payment has its own mail alone
        by_payment = (
            event["type"] == FAILED_TYPE
            or after.tenants[tenant].record.subscription_status == "past_due"
        )
        if not had_access or ended or by_payment:
            return
        mail = ExpectedMail("access_ended", tenant, str(event["created"]))
        if event["type"] in INVOICE_TYPES or self._is_paid_since(arriving):
            # such as a payment while payments are paused: the grace ends, and the paid period is
            # over already
            self.optional.add(mail)
        elif not self._has_mailed_end(tenant, event["created"]):
            self.ends.add(mail)
            self.mailed_ends.setdefault(tenant, set()).add(event["created"])

    def _has_mailed_end(self, tenant: str, second: int) -> bool:
        """Whether this end of the tenant's access or a later one was mailed: one end of access is
        mailed once.
        """
        return any(mailed >= second for mailed in self.mailed_ends.get(tenant, ()))

    def _is_paid_since(self, arriving: int) -> bool:
        """Whether a late `unpaid` is followed by a payment, so that the access comes back by a
        further event.
        """
        event = self.history.events[arriving]
        return object_of(event).get("status") == "unpaid" and any(
            self.history.events[position]["type"] in PAID_TYPES
            and subscription_id_of(self.history.events[position]) == subscription_id_of(event)
            for position in self.arrived
            if position > arriving
        )

    def _mail_end(self, event: Event, subscription: str, tenant: str, after: "TenantsView") -> None:
        mail = ExpectedMail("subscription_ended", tenant, subscription)
        others = [
            id_ for id_, status in self._last_statuses(tenant, after).items() if id_ != subscription
        ]
        if after.is_moved(tenant, subscription) and not self._is_young(
            self.history.events.index(event)
        ):
            self.optional.add(mail)  # whether a move is too old to be mailed is not documented
        elif after.is_moved(tenant, subscription) and org_named_by(event) == tenant:
            # whether a tenant that learns late of a move is mailed is not documented
            self.optional.add(mail)
        elif self.history.mode == "any" and others:
            # whether it is an end while another subscription waits is not documented
            self.optional.add(mail)
        elif not self._has_mailed_end(tenant, self._ended_at(subscription, tenant, after)):
            self.notices.add(mail)

    def _ended_at(self, subscription: str, tenant: str, after: "TenantsView") -> int:
        """Return when a subscription ended for a tenant: with its last event there, or with one
        that names another.
        """
        moved = after.placement.moved_away.get(tenant, {}).get(subscription)
        named = [
            self.history.events[position]["created"]
            for position, owner in after.placement.tenant_of.items()
            if owner == tenant
            and self.history.events[position]["type"] in SUBSCRIPTION_TYPES
            and subscription_id_of(self.history.events[position]) == subscription
        ]
        return moved if moved is not None else max(named)

    def _last_statuses(self, tenant: str, after: "TenantsView") -> dict[str, str]:
        """Return the status that each living subscription of a tenant was last said to have."""
        said = {}
        for position in sorted(after.placement.tenant_of):
            event = self.history.events[position]
            if (
                after.placement.tenant_of[position] == tenant
                and event["type"] in SUBSCRIPTION_TYPES
            ):
                deleted = event["type"] == DELETED_TYPE
                said[str(subscription_id_of(event))] = (
                    "canceled" if deleted else object_of(event)["status"]
                )
        return {
            id_: status
            for id_, status in said.items()
            if status not in {"canceled", "incomplete_expired"}
        }

    def _timely(
        self, arriving: int, tenant: str, before: "TenantsView", after: "TenantsView"
    ) -> set[str]:
        """Return the subscriptions of the arriving event, and of parked ones that are applied now
        and young.
        """
        placed_now = {
            position
            for position, owner in after.placement.tenant_of.items()
            if owner == tenant and before.placement.tenant_of.get(position) != tenant
        }
        timely = {
            position for position in placed_now if position == arriving or self._is_young(position)
        }
        return {
            str(subscription_id_of(self.history.events[position]))
            for position in timely | {arriving}
        }

    def _ended_subscriptions(
        self, event: Event, tenant: str, before: "TenantsView", after: "TenantsView"
    ) -> set[str]:
        if self.history.mode == "each":
            was = before.subscriptions[tenant]
            over = {
                id_
                for id_, state in after.subscriptions[tenant].items()
                if state.status == "canceled"
            }
            moved = {id_: after.is_moved(tenant, id_) for id_ in over}
            for id_ in over:
                if before.is_moved(tenant, id_) and not moved[id_]:
                    # it came back by its end: whether it becomes canceled then is not documented
                    self.optional.add(ExpectedMail("subscription_ended", tenant, id_))
            # a tenant that knows only invoices of a subscription never had it
            known = {id_ for id_ in was if was[id_].reported_status is not None}
            ended = {
                id_
                for id_ in over
                if (was[id_].status != "canceled" if id_ in known else not moved[id_])
            }
            return {id_ for id_ in ended if not moved[id_] or self._has_lost(tenant, after)}
        was_any, now_any = before.subscriptions[tenant][""], after.subscriptions[tenant][""]
        became = now_any.status == "canceled" and was_any.status != "canceled"
        mine = was_any.id in {"", subscription_id_of(event)} and event["type"] in SUBSCRIPTION_TYPES
        return {str(subscription_id_of(event))} if became and mine else set()

    def _has_lost(self, tenant: str, after: "TenantsView") -> bool:
        """Whether a tenant would have access if no subscription had moved away from it."""
        [known] = [each for each in self.history.tenants if each.id == tenant]
        stayed = replace(after.placement, moved_away={})
        expected = expected_of(self.history, stayed, known)
        return tenant_of(expected, self.now).access.state != "none"

    def _mail_trial_end(self, arriving: int, after: "TenantsView") -> None:
        """The trial has not ended, and no newer event has ended or extended it."""
        event = self.history.events[arriving]
        if event["type"] != "customer.subscription.trial_will_end":
            return
        tenant = org_named_by(event) or self.links.get(customer_of(event) or "")
        end = object_of(event).get("trial_end")
        if tenant not in after.subscriptions or end is None or end <= self.now:
            return
        newer = [
            object_of(self.history.events[position])
            for position, owner in after.placement.tenant_of.items()
            if position > arriving
            and subscription_id_of(self.history.events[position]) == object_of(event)["id"]
            and self.history.events[position]["type"] in SUBSCRIPTION_TYPES
        ]
        if all(one["status"] == "trialing" and one.get("trial_end") == end for one in newer):
            mail = ExpectedMail("trial_ending", str(tenant), f"{object_of(event)['id']} {end}")
            if after.status_of(str(tenant), object_of(event)["id"]) in {"trialing", "none"}:
                self.notices.add(mail)
            else:
                self.optional.add(mail)  # whether a failed payment ends a trial is not documented


@dataclass(frozen=True)
class TenantsView:
    """All tenants after some arrivals."""

    placement: Placement
    tenants: dict[str, ExpectedTenant]
    subscriptions: dict[str, dict[str, ExpectedSubscription]]

    def has_given(self, tenant: str) -> bool:
        """Whether a subscription of a tenant gave it access: one of which only invoices are known
        has given nothing.
        """
        return any(
            each.reported_status is not None and each.access_by_status[0] in {"full", "grace"}
            for each in self.subscriptions[tenant].values()
        )

    def is_moved(self, tenant: str, subscription: str) -> bool:
        """Whether a subscription of a tenant has moved to another one."""
        known = self.subscriptions[tenant].get(subscription)
        is_named = subscription in self.placement.moved_away.get(tenant, {})
        return is_named and known is not None and known.is_known

    def status_of(self, tenant: str, subscription: str) -> str:
        """Return the status of a subscription; in `any` the tenant's."""
        states = self.subscriptions[tenant]
        state = states.get(subscription) or states.get("")
        return state.status if state else "none"

    def status_for(self, invoice_event: Event, tenant: str) -> str:
        """Return the status of an invoice's subscription; in `any`, and without one, the
        tenant's.
        """
        states = self.subscriptions[tenant]
        state = states.get(subscription_id_of(invoice_event) or "")
        return state.status if state else self.tenants[tenant].record.subscription_status


def misleading_moves(history: History) -> set[str]:
    """Return the subscriptions with two moves in a second, before which an older event arrived too
    late.

    Without that event, the other payloads may prove another order: what is mailed until it arrives
    is not documented.
    """
    found = set()
    arrived = list(dict.fromkeys(history.arrivals))
    events = [history.events[position] for position in arrived]
    named = [
        (str(subscription_id_of(one)), one["created"], org_named_by(one))
        for one in events
        if org_named_by(one) and one["type"] in SUBSCRIPTION_TYPES
    ]
    seconds = Counter((subscription, created) for subscription, created, _ in set(named))
    for number, (subscription, created, _) in enumerate(named):
        earlier = [second for other, second, _ in named[:number] if other == subscription]
        if any(seconds[subscription, second] > 1 for second in earlier if second > created):
            found.add(subscription)
    return found
