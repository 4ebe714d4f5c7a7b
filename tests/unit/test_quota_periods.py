"""Which billing period a tenant's quotas follow: of which subscription, and of which item."""

from collections.abc import Iterator
from itertools import permutations, product
from typing import Any, Final

from tenantry.domain.billing.events import BillingEvent, SubscriptionDetails, SubscriptionItem
from tenantry.domain.billing.state import BillingPolicy, SubscriptionRule
from tenantry.domain.entitlements import UsagePeriod, billing_phase_at
from tenantry.domain.plans import parse_catalog
from tests.support import facts
from tests.support.catalogs import EXTRA_PROJECTS, PLANS
from tests.support.ledger import ledger_of

DAY: Final = 86_400
STORAGE: Final = """
[[features]]
id = "storage"
type = "metered"
period = "billing"
"""
POLICIES: Final = [
    BillingPolicy(parse_catalog(STORAGE + PLANS + EXTRA_PROJECTS), mode)
    for mode in SubscriptionRule
]
WITHOUT_ADDONS: Final = [
    BillingPolicy(parse_catalog(STORAGE + PLANS), mode) for mode in SubscriptionRule
]
GIVING: Final = ("active", "trialing", "past_due")
NOT_GIVING: Final = (
    "incomplete",
    "incomplete_expired",
    "unpaid",
    "canceled",
    "paused",
    "a_status_of_2030",
)
GRANTS: Final[dict[str, dict[str, Any]]] = {
    "none": {},
    "a feature": {"features": (("storage", 50),)},
    "a lower plan": {"plan": "pro"},
    "a higher plan": {"plan": "business"},
}
MONTH: Final = UsagePeriod(100, 100 + 30 * DAY)
YEAR: Final = UsagePeriod(50, 50 + 365 * DAY)
LATER: Final = UsagePeriod(5_000, 5_000 + 30 * DAY)


def item(plan: str, period: UsagePeriod, quantity: int = 1) -> SubscriptionItem:
    return SubscriptionItem(f"price_{plan}", quantity, period.end, period.start)


def subscribed(
    second: int, status: str, *items: SubscriptionItem, name: str = "sub_1", **more: Any
) -> BillingEvent:
    """An event of a subscription, whose fields are those of its first item, as decoded."""
    return facts.updated(
        second,
        f"evt_{second}_{name}",
        status=status,
        subscription_id=name,
        customer_id="cus_1",
        price_id=items[0].price_id,
        current_period_end=items[0].period_end,
        details=SubscriptionDetails(items, items[0].period_start),
        **more,
    )


def period(policy: BillingPolicy, events: list[BillingEvent], now: int = 200) -> UsagePeriod | None:
    """The billing period at a second; None for the calendar month."""
    phases = ledger_of(policy, events).account.billing_periods
    return billing_phase_at(phases, now).period


def situations() -> Iterator[tuple[BillingPolicy, str, int, str]]:
    yield from product(POLICIES, (*GIVING, *NOT_GIVING), (1, 0), GRANTS)


def test_quotas_follow_a_subscription_only_while_it_gives_the_access() -> None:
    for policy, status, quantity, grant in situations():
        events = [subscribed(10, status, item("pro", MONTH, quantity))]
        if grant != "none":
            events.append(facts.granted(5, **GRANTS[grant]))
        gives = status in GIVING and quantity > 0
        is_outranked = grant == "a higher plan" or (
            grant == "a lower plan" and status == "past_due"  # a grant is full access
        )
        expected = MONTH if gives and not is_outranked else None
        found = period(policy, events)
        assert found == expected, (policy.subscriptions, status, quantity, grant)


def test_a_subscription_without_access_changes_no_period() -> None:
    """As one does that a buyer abandons: a tenant can make any number of them."""
    for policy, status, grant in product(POLICIES, NOT_GIVING, GRANTS):
        granted = [facts.granted(5, **GRANTS[grant])] if grant != "none" else []
        abandoned = [
            subscribed(20 + number, status, item("pro", LATER), name=f"sub_{number}")
            for number in range(2, 6)
        ]
        assert {period(policy, [*granted, *abandoned[:number]]) for number in range(5)} == {None}
        if policy.is_each:
            paid = [*granted, subscribed(10, "active", item("business", MONTH))]
            found = {period(policy, [*paid, *abandoned[:number]]) for number in range(5)}
            assert found == {MONTH}, (status, grant)


def test_start_and_end_are_those_of_the_plan_item() -> None:
    """The provider lists items in any order, and each has its own period."""
    plan, lower = item("business", YEAR), item("pro", LATER)
    for addon in (item("projects", MONTH), item("projects", LATER)):
        for items in permutations((plan, addon, SubscriptionItem("price_unknown", 1, 9, 8))):
            for policy in POLICIES:
                events = [subscribed(10, "active", *items)]
                assert period(policy, events, 6_000) == YEAR
                account = ledger_of(policy, events).account
                is_first = policy.is_each or items[0] == plan  # SPEC 3: the first item
                assert (account.record.plan == "business") == is_first
                if policy.is_each:
                    [fold] = account.folds.values()
                    assert fold.state.details.period_start == YEAR.start
                else:
                    assert account.record.current_period_end == items[0].period_end
    for policy in POLICIES:
        events = [subscribed(10, "active", lower, plan)]
        assert period(policy, events, 6_000) == (YEAR if policy.is_each else LATER)
        empty = [subscribed(10, "active", item("business", LATER, 0), item("pro", YEAR))]
        assert period(policy, empty, 6_000) == YEAR


def test_period_of_the_subscription_counts_where_its_items_have_none() -> None:
    for policy, items in product(
        (*POLICIES, *WITHOUT_ADDONS),
        ((), (SubscriptionItem("price_projects", 2), SubscriptionItem("price_pro", 3))),
    ):
        event = facts.updated(
            10,
            customer_id="cus_1",
            current_period_end=MONTH.end,
            details=SubscriptionDetails(items, MONTH.start),
        )
        assert period(policy, [event]) == MONTH


def test_no_plan_item_or_an_unknown_start_means_the_calendar_month() -> None:
    without_plan = [item("projects", MONTH)], [item("unknown", MONTH)]
    unknown = [SubscriptionItem("price_pro", 1, MONTH.end), item("projects", MONTH)]
    reverse = [item("pro", UsagePeriod(MONTH.end, MONTH.start)), item("projects", MONTH)]
    for policy, items in product(POLICIES, (*without_plan, unknown, reverse)):
        assert period(policy, [subscribed(10, "active", *items)]) is None


def test_period_ends_with_the_access_and_another_subscription_takes_over() -> None:
    end = MONTH.end + 3 * DAY  # the time that the event of the end may take
    leaving = [subscribed(10, "active", item("business", MONTH), cancel_at_period_end=True)]
    for policy in POLICIES:
        assert [period(policy, leaving, now) for now in (end - 1, end)] == [MONTH, None]
    each = POLICIES[list(SubscriptionRule).index(SubscriptionRule.EACH)]
    other = subscribed(20, "active", item("pro", YEAR), name="sub_2")
    assert [period(each, [*leaving, other], now) for now in (end - 1, end)] == [MONTH, YEAR]
    ended = facts.deleted(30, subscription_id="sub_1", customer_id="cus_1")
    assert period(each, [*leaving, other, ended], 200) == YEAR


def test_announced_end_and_paid_time_are_those_of_the_plan_item() -> None:
    for policy in POLICIES:
        given = item("projects", MONTH), item("business", YEAR)
        ending = subscribed(10, "active", *given, cancel_at_period_end=True)
        record = ledger_of(policy, [ending]).account.record
        assert (record.ends_at, record.access[0].until) == (YEAR.end, YEAR.end + 3 * DAY)
        details = SubscriptionDetails(given, pause="void")
        paused = facts.updated(10, customer_id="cus_1", price_id="price_projects", details=details)
        assert ledger_of(policy, [paused]).account.record.access[0].until == YEAR.end


def test_without_a_quota_that_follows_a_billing_period_none_is_kept() -> None:
    ledger = ledger_of(facts.ANY, [subscribed(10, "active", item("pro", MONTH))])
    assert ledger.account.billing_periods == ()
