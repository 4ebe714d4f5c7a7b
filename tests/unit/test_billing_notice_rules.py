"""Billing notices to owners: what causes one, and what does not."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pytest

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.batch import Work
from tenantry.domain.billing.batch_application import BatchApplication
from tenantry.domain.billing.events import BillingEvent, SubscriptionDetails
from tenantry.domain.billing.ledger import BatchContext, BillingAccount, KnownTenants, ReceivedEvent
from tenantry.domain.billing.notices import BillingNotice
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.owner_mails import (
    AccessEndedData,
    OwnerNotice,
    PaymentRecoveredData,
    SubscriptionEndedData,
    TrialEndingData,
)
from tenantry.domain.plans import Catalog
from tests.support import facts
from tests.support.catalogs import CATALOG
from tests.support.facts import deleted, failed, observed, succeeded, updated

ALL: Final = frozenset(OwnerNotice)
EACH: Final = msgspec.structs.replace(facts.EACH, notices=ALL)
ANY: Final = msgspec.structs.replace(facts.ANY, notices=ALL)
BOTH: Final = pytest.mark.parametrize("policy", [ANY, EACH], ids=["any", "each"])
GRACE: Final = 65 * 86_400
HOUR: Final = 3600


class Tenant:
    """A tenant that gets batches of events; time is in seconds."""

    def __init__(self, policy: BillingPolicy = EACH, **fields: Any) -> None:
        self.policy = policy
        self.account: BillingAccount = facts.account(**{"customer_id": "cus_1", **fields})
        self._of_subscription: dict[str, str] = {}

    def receives(
        self, *events: BillingEvent, now: float | None = None, fetched: bool = False
    ) -> list[BillingNotice]:
        """Apply a batch of newer events; return its notices."""
        customer = self.account.customer_id
        known = KnownTenants({} if customer is None else {customer: "acme"}, self._of_subscription)
        context = BatchContext({"acme": self.account}, known, frozenset(), 1)
        moment = datetime.fromtimestamp(
            max(event.created for event in events) if now is None else now, UTC
        )
        numbered = [
            msgspec.structs.replace(event, arrival=number)
            for number, event in enumerate(events, start=1)
        ]
        work = Work(new=[ReceivedEvent(event, moment, fetched=fetched) for event in numbered])
        changes = BatchApplication(context, self.policy, moment, work).changes()
        self.account = changes.accounts["acme"]
        self._of_subscription |= {key: "acme" for key in self.account.folds if key}
        return list(changes.notices)


def types(notices: Sequence[BillingNotice]) -> list[str]:
    return [notice.type.removeprefix("billing.") for notice in notices]


def will_end(trial_end: int | None = 5000, created: int = 200, **fields: Any) -> BillingEvent:
    details = SubscriptionDetails(trial_end=trial_end)
    event = updated(created, "evt_w", details=details, **{"status": "trialing", **fields})
    return msgspec.structs.replace(event, type=ev.TRIAL_WILL_END)


def trialing(created: int = 100, trial_end: int = 5000) -> BillingEvent:
    return updated(created, status="trialing", details=SubscriptionDetails(trial_end=trial_end))


@BOTH
def test_without_the_setting_there_are_no_notices(policy: BillingPolicy) -> None:
    tenant = Tenant(msgspec.structs.replace(policy, notices=frozenset()))
    assert (
        tenant.receives(trialing()) + tenant.receives(will_end()) + tenant.receives(deleted(300))
        == []
    )


@BOTH
def test_a_trial_that_ends_is_announced_with_plan_and_time(policy: BillingPolicy) -> None:
    tenant = Tenant(policy)
    tenant.receives(trialing())
    [notice] = tenant.receives(will_end())
    assert (notice.type, notice.tenant_id) == ("billing.trial_ending", "acme")
    assert notice.data == TrialEndingData("pro", datetime.fromtimestamp(5000, UTC))
    assert notice.cause == "billing.trial_ending acme sub_1 5000"


@BOTH
def test_a_trial_is_announced_before_its_first_event_is_known(policy: BillingPolicy) -> None:
    assert types(Tenant(policy).receives(will_end())) == ["trial_ending"]


@BOTH
@pytest.mark.parametrize("event", [will_end(None), will_end(200), will_end(status="active")])
def test_a_trial_that_has_ended_is_not_announced(
    policy: BillingPolicy, event: BillingEvent
) -> None:
    tenant = Tenant(policy)
    tenant.receives(trialing())
    assert tenant.receives(event, now=200) == []


@BOTH
@pytest.mark.parametrize("newer", [updated(300), deleted(300), trialing(300, 9000)])
def test_a_trial_that_newer_events_have_ended_or_extended_is_not_announced(
    policy: BillingPolicy, newer: BillingEvent
) -> None:
    tenant = Tenant(policy)
    tenant.receives(trialing())
    tenant.receives(newer)
    assert tenant.receives(will_end(), now=400) == []


@BOTH
@pytest.mark.parametrize(
    "ended", [deleted(200), updated(200, status="paused"), updated(200), trialing(200, 9000)]
)
def test_a_trial_that_has_ended_or_was_extended_in_the_same_second_is_not_announced(
    policy: BillingPolicy, ended: BillingEvent
) -> None:
    tenant = Tenant(policy)
    tenant.receives(trialing())
    assert types(tenant.receives(ended)) in ([], ["subscription_ended"], ["access_ended"])
    assert tenant.receives(will_end(), now=200) == []


@BOTH
@pytest.mark.parametrize(
    "other", [succeeded(200, subscription_id="sub_1"), updated(200, status="incomplete")]
)
def test_what_precedes_a_trial_in_its_second_does_not_hide_its_end(
    policy: BillingPolicy, other: BillingEvent
) -> None:
    tenant = Tenant(policy)
    tenant.receives(other)
    assert types(tenant.receives(will_end(), now=200)) == ["trial_ending"]


@BOTH
def test_a_payment_after_a_failed_one_is_a_recovery(policy: BillingPolicy) -> None:
    tenant = Tenant(policy)
    tenant.receives(updated())
    tenant.receives(failed(200, subscription_id="sub_1"))
    paid = succeeded(300, subscription_id="sub_1", invoice_url="https://pay.example/in_1")
    [notice] = tenant.receives(paid)
    assert notice.data == PaymentRecoveredData("https://pay.example/in_1")
    assert (notice.cause, notice.paid_invoice) == ("billing.payment_recovered acme in_1", "in_1")


@BOTH
def test_both_events_of_a_payment_have_one_cause(policy: BillingPolicy) -> None:
    tenant = Tenant(policy)
    tenant.receives(failed(200, subscription_id="sub_1"))
    paid = succeeded(300, subscription_id="sub_1")
    [first] = tenant.receives(paid)
    [second] = tenant.receives(
        msgspec.structs.replace(paid, id="evt_p", type=ev.INVOICE_PAID, created=301)
    )
    assert first.cause == second.cause


@BOTH
def test_a_recovery_that_the_subscription_reports_first_is_mailed(policy: BillingPolicy) -> None:
    tenant = Tenant(policy)
    tenant.receives(updated(status="past_due"))
    assert tenant.receives(updated(200)) == []
    assert types(tenant.receives(succeeded(201, subscription_id="sub_1"))) == ["payment_recovered"]


@BOTH
def test_a_payment_is_no_recovery_while_the_subscription_stays_unpaid(
    policy: BillingPolicy,
) -> None:
    tenant = Tenant(policy)
    tenant.receives(updated(status="unpaid"))
    assert tenant.receives(succeeded(200, subscription_id="sub_1")) == []


@BOTH
def test_the_end_of_a_subscription_is_mailed_once_with_its_plan(policy: BillingPolicy) -> None:
    tenant = Tenant(policy)
    tenant.receives(updated())
    [notice] = tenant.receives(deleted(200))
    assert notice.type == "billing.subscription_ended"
    assert notice.data == SubscriptionEndedData("pro")
    assert notice.cause == "billing.subscription_ended acme sub_1"
    assert tenant.receives(deleted(300, "evt_2")) == []


@BOTH
def test_a_canceled_snapshot_ends_the_subscription(policy: BillingPolicy) -> None:
    tenant = Tenant(policy)
    tenant.receives(updated())
    assert types(tenant.receives(observed(200, status="canceled"))) == ["subscription_ended"]


@BOTH
def test_an_expired_first_payment_ends_no_subscription(policy: BillingPolicy) -> None:
    tenant = Tenant(policy)
    tenant.receives(updated(status="incomplete"))
    assert tenant.receives(updated(200, status="incomplete_expired")) == []


@BOTH
def test_the_end_of_an_old_subscription_is_not_mailed_beside_a_newer_one(
    policy: BillingPolicy,
) -> None:
    tenant = Tenant(policy)
    tenant.receives(updated(subscription_id="sub_1"))
    tenant.receives(updated(200, subscription_id="sub_2", subscription_created=20))
    assert tenant.receives(deleted(300, subscription_id="sub_1")) == []


def test_an_end_that_the_same_batch_makes_up_for_is_not_mailed() -> None:
    tenant = Tenant()
    tenant.receives(updated())
    assert tenant.receives(deleted(200), updated(201, "evt_2", subscription_id="sub_2")) == []


@BOTH
@pytest.mark.parametrize("status", ["unpaid", "paused"])
def test_an_event_that_ends_the_access_is_mailed(policy: BillingPolicy, status: str) -> None:
    tenant = Tenant(policy)
    tenant.receives(updated())
    [notice] = tenant.receives(updated(200, "evt_2", status=status))
    assert notice.data == AccessEndedData(f"The subscription is {status}.")
    assert notice.cause == "billing.access_ended acme 200"
    assert tenant.receives(updated(300, "evt_3", status=status)) == []


def test_a_subscription_that_ends_without_access_is_mailed_as_an_end_alone() -> None:
    tenant = Tenant()
    tenant.receives(updated())
    assert types(tenant.receives(updated(200, "evt_2", status="unpaid"), deleted(201))) == [
        "subscription_ended"
    ]


def test_where_only_ended_access_is_mailed_the_end_of_a_subscription_is() -> None:
    tenant = Tenant(msgspec.structs.replace(EACH, notices=frozenset({OwnerNotice.ACCESS_ENDED})))
    tenant.receives(updated())
    assert types(tenant.receives(deleted(200))) == ["access_ended"]


@pytest.mark.parametrize(
    "event", [updated(200, status="past_due"), failed(200, subscription_id="sub_1")]
)
def test_access_that_a_failed_payment_ends_is_reported_by_its_own_mail(event: BillingEvent) -> None:
    strict = Catalog(CATALOG.plans, access={"past_due": "none"})
    tenant = Tenant(msgspec.structs.replace(EACH, catalog=strict))
    tenant.receives(updated())
    assert tenant.receives(event) == []


def test_access_that_has_ended_by_time_is_mailed_by_the_event_that_hides_it() -> None:
    tenant = Tenant()
    tenant.receives(updated(1000, status="past_due"))
    end = 1000 + GRACE
    # the job finds it
    assert tenant.receives(updated(end - 1, "evt_2", status="past_due"), now=end + 60) == []
    [notice] = tenant.receives(updated(end + 60, "evt_3", status="unpaid"))
    assert notice.cause == f"billing.access_ended acme {end}"
    assert notice.data == AccessEndedData(
        "The subscription is past due. The grace period has ended."
    )


def test_access_that_ended_by_time_long_ago_is_not_mailed() -> None:
    tenant = Tenant()
    tenant.receives(updated(1000, status="past_due"))
    assert tenant.receives(updated(1000 + GRACE + 3 * 86_400, "evt_2", status="unpaid")) == []


def test_renewed_access_is_no_end() -> None:
    tenant = Tenant()
    tenant.receives(updated(details=SubscriptionDetails(pause="void")))
    paused = updated(
        5010, "evt_2", details=SubscriptionDetails(pause="void"), current_period_end=9000
    )
    assert tenant.receives(paused) == []


@BOTH
@pytest.mark.parametrize(
    ("age", "expected"), [(72 * HOUR - 1, ["subscription_ended"]), (72 * HOUR, [])]
)
def test_a_fetched_event_is_mailed_only_while_recent(
    policy: BillingPolicy, age: int, expected: list[str]
) -> None:
    tenant = Tenant(policy)
    tenant.receives(updated())
    assert types(tenant.receives(deleted(200), now=200 + age, fetched=True)) == expected


@BOTH
def test_a_fetched_end_that_is_not_true_any_more_is_not_mailed(policy: BillingPolicy) -> None:
    tenant = Tenant(policy)
    tenant.receives(updated())
    assert (
        tenant.receives(updated(200, "evt_2", status="paused"), updated(300, "evt_3"), fetched=True)
        == []
    )


@BOTH
def test_access_that_waiting_events_gave_in_passing_has_not_ended(policy: BillingPolicy) -> None:
    tenant = Tenant(policy, customer_id=None)
    waiting = [
        failed(200, org_id=None, subscription_id="sub_1"),
        succeeded(300, org_id=None, subscription_id="sub_1"),
    ]
    first = updated(100, status="incomplete", customer_id="cus_1")
    assert "access_ended" not in types(tenant.receives(*waiting, first))


@BOTH
def test_a_snapshot_of_a_subscription_that_names_another_tenant_is_mailed_as_its_end(
    policy: BillingPolicy,
) -> None:
    tenant = Tenant(policy)
    tenant.receives(updated())
    moved = observed(
        200, status="canceled", details=SubscriptionDetails(ended_at=200, has_moved=True)
    )
    assert types(tenant.receives(moved)) == ["subscription_ended"]


def test_a_subscription_whose_invoices_came_first_had_no_access_that_its_first_event_ends() -> None:
    tenant = Tenant()
    tenant.receives(failed(100, subscription_id="sub_1"))
    tenant.receives(succeeded(101, subscription_id="sub_1"))
    assert types(tenant.receives(updated(102, status="incomplete"))) == []


@BOTH
def test_an_ended_tenant_gets_no_notice(policy: BillingPolicy) -> None:
    tenant = Tenant(policy, deleted=True)
    tenant.receives(trialing())
    assert tenant.receives(will_end(), succeeded(201), deleted(300)) == []
