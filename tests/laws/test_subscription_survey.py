"""Law of the survey: a tenant whose fetched subscriptions would change it, or be trouble, is never
overlooked.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.ledger import BillingAccount
from tenantry.domain.billing.snapshot import (
    ProviderSubscription,
    drift_between,
    expected,
    may_differ,
    snapshots,
)
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.plans import OVER
from tests.support.facts import ANY, EACH, deleted, failed, updated
from tests.support.ledger import CUSTOMER, TENANT, Ledger

STATUSES: Final = (
    "active",
    "trialing",
    "past_due",
    "unpaid",
    "incomplete",
    "incomplete_expired",
    "canceled",
)
PRICES: Final = ("price_pro", "price_business", "price_unknown")
NAMES: Final = ("sub_1", "sub_2", "sub_3")
UNLINKED: Final = "cus_unlinked"


@st.composite
def accounts(draw: st.DrawFn) -> tuple[BillingAccount, Ledger, BillingPolicy]:
    """A tenant after some events of up to three subscriptions."""
    policy = draw(st.sampled_from((ANY, EACH)))
    ledger = Ledger(policy)
    for created in range(1000, 1000 + draw(st.integers(0, 6))):
        ledger.deliver([draw(_events(created))])
    return ledger.account, ledger, policy


@st.composite
def _events(draw: st.DrawFn, created: int) -> BillingEvent:
    facts: dict[str, Any] = {
        "subscription_id": draw(st.sampled_from(NAMES)),
        "customer_id": CUSTOMER,
    }
    kind: Callable[..., BillingEvent] = draw(
        st.sampled_from((updated, updated, updated, deleted, failed))
    )
    if kind is updated:
        facts |= {
            "status": draw(st.sampled_from(STATUSES[:6])),
            "price_id": draw(st.sampled_from(PRICES)),
        }
    return kind(created, f"evt_{created}", **facts)


@st.composite
def lists(draw: st.DrawFn) -> list[ProviderSubscription]:
    """What the provider lists of the tenant's customers, and of one that is not linked."""
    return [
        ProviderSubscription(
            id=name,
            customer_id=draw(st.sampled_from((CUSTOMER, CUSTOMER, UNLINKED))),
            created=number,
            status=draw(st.sampled_from(STATUSES)),
            org_id=draw(st.sampled_from((TENANT, TENANT, None, "other"))),
            price_id=draw(st.sampled_from(PRICES)),
            current_period_end=draw(st.sampled_from((5000, 6000))),
        )
        for number, name in enumerate(draw(st.lists(st.sampled_from(NAMES), unique=True)))
    ]


def _is_own(subscription: ProviderSubscription) -> bool:
    by_customer = subscription.org_id is None and subscription.customer_id == CUSTOMER
    return subscription.org_id == TENANT or by_customer


def _is_found(
    account: BillingAccount, listed: list[ProviderSubscription], policy: BillingPolicy
) -> bool:
    own = [each for each in listed if _is_own(each)]
    if any(
        may_differ(each, account, policy, is_linked=each.customer_id == CUSTOMER) for each in own
    ):
        return True
    return not {each.id for each in own}.issuperset(expected(account, policy))


def _changes(
    account: BillingAccount,
    ledger: Ledger,
    listed: list[ProviderSubscription],
    policy: BillingPolicy,
) -> bool:
    """Whether the whole list changes the tenant, folded as the reconciler does, or leaves its state
    unexplained.
    """
    newest = (account.tip_created or 0) + 1
    ids = iter(NAMES)
    events = snapshots(
        listed,
        account,
        policy,
        new_id=lambda: f"snapshot_{next(ids)}",
        as_of=newest,
        arrival=100,
        unlinked=[UNLINKED],
    )
    if not policy.is_each and account.state.provider_status not in (None, *OVER) and not events:
        return True
    numbered = [msgspec.structs.replace(event, arrival=0) for event in events]
    return bool(drift_between(account, ledger.applied(numbered).accounts[TENANT], policy)[0])


def _only_an_invoice_then_another_tenant() -> tuple[
    tuple[BillingAccount, Ledger, BillingPolicy], list[ProviderSubscription]
]:
    ledger = Ledger(EACH)
    ledger.deliver([failed(1000, "evt_1", subscription_id="sub_1", customer_id=CUSTOMER)])
    listed = ProviderSubscription(
        id="sub_1", customer_id=CUSTOMER, created=1, status="active", org_id="other"
    )
    return (ledger.account, ledger, EACH), [listed]


@example(*_only_an_invoice_then_another_tenant())
@given(accounts(), lists())
def test_no_tenant_that_the_provider_would_change_is_overlooked(
    tenant: tuple[BillingAccount, Ledger, BillingPolicy], listed: list[ProviderSubscription]
) -> None:
    account, ledger, policy = tenant
    if _changes(account, ledger, listed, policy):
        assert _is_found(account, listed, policy)


@given(accounts())
def test_a_tenant_as_the_provider_lists_it_is_not_asked_about(
    tenant: tuple[BillingAccount, Ledger, BillingPolicy],
) -> None:
    """With one subscription; of several, `any` cannot tell by one of them alone."""
    account, _, policy = tenant
    states = [each for each in account.states() if each.plan != "free" and not each.others]
    if len(states) != 1 or states != account.states():
        return
    [state] = states
    listed = ProviderSubscription(
        id=f"{state.subscription_id}",
        customer_id=CUSTOMER,
        created=1,
        status="past_due"
        if state.subscription_status == "past_due"
        else f"{state.provider_status}",
        org_id=TENANT,
        price_id={"pro": "price_pro", "business": "price_business"}[state.plan],
        current_period_end=state.current_period_end,
    )
    assert not _is_found(account, [listed], policy)
