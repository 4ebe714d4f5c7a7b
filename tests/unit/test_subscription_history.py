"""Which tenant a subscription named when, by all its events."""

import msgspec
import pytest

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.subscription_history import PlacedEvent, SubscriptionHistory
from tests.support.facts import deleted, failed, observed, succeeded, updated


def event_of(tenant: str, event: BillingEvent) -> PlacedEvent:
    return PlacedEvent(tenant, event)


def named(created: int, tenant: str, former: str | None = None, arrival: int = 0) -> PlacedEvent:
    previous = None if former is None else {"org_id": former}
    event_id = f"evt_{created}_{tenant}"
    return event_of(
        tenant, updated(created, event_id, org_id=tenant, previous=previous, arrival=arrival)
    )


MOVED_AND_RETURNED = SubscriptionHistory(
    [named(30, "a", "b"), named(10, "a"), named(20, "b", "a"), named(25, "b")]
)


@pytest.mark.parametrize(
    ("second", "tenant"),
    [(0, "a"), (10, "a"), (19, "a"), (20, "b"), (29, "b"), (30, "a"), (99, "a")],
)
def test_each_second_has_the_tenant_that_was_named_last(second: int, tenant: str) -> None:
    assert MOVED_AND_RETURNED.tenant_at(second) == tenant


def test_a_former_tenant_has_lost_the_subscription_at_the_first_event_of_another() -> None:
    history = SubscriptionHistory(
        [named(10, "a"), named(20, "b", "a"), named(25, "b"), named(30, "c", "b")]
    )
    assert [history.moved_at(tenant) for tenant in ("a", "b", "c")] == [20, 30, None]
    assert [MOVED_AND_RETURNED.moved_at(tenant) for tenant in ("a", "b")] == [None, 30]


def test_before_the_first_event_counts_the_tenant_that_it_replaced() -> None:
    history = SubscriptionHistory([named(20, "b", "a")])
    assert [history.tenant_at(second) for second in (19, 20)] == ["a", "b"]
    assert history.moved_at("a") == 20


def test_without_events_of_the_subscription_it_has_no_tenant() -> None:
    history = SubscriptionHistory([event_of("a", failed(10))])
    assert (history.tenant_at(10), history.moved_at("a"), list(history.misplaced())) == (
        None,
        None,
        [],
    )


@pytest.mark.parametrize("arrivals", [(0, 1), (1, 0)])
def test_two_moves_within_one_second_are_ordered_by_what_they_replaced(
    arrivals: tuple[int, int],
) -> None:
    """Back and forth too, because the tenant before them is known."""
    first, second = arrivals
    chain = SubscriptionHistory(
        [named(10, "c"), named(20, "b", "c", first), named(20, "a", "b", second)]
    )
    assert chain.tenant_at(20) == "a"
    back = SubscriptionHistory(
        [named(10, "a"), named(20, "b", "a", first), named(20, "a", "b", second)]
    )
    assert back.tenant_at(20) == "a"


def test_arrival_orders_moves_of_one_second_that_prove_nothing() -> None:
    assert (
        SubscriptionHistory([named(20, "b", arrival=0), named(20, "a", arrival=1)]).tenant_at(20)
        == "a"
    )
    assert (
        SubscriptionHistory([named(20, "b", arrival=1), named(20, "a", arrival=0)]).tenant_at(20)
        == "b"
    )


@pytest.mark.parametrize("former", [None, "b"])
def test_the_first_event_of_a_subscription_names_its_first_tenant(former: str | None) -> None:
    created = msgspec.structs.replace(named(20, "b", arrival=1).event, type=ev.SUBSCRIPTION_CREATED)
    moved = named(20, "a", former, arrival=0)
    history = SubscriptionHistory([moved, event_of("b", created)])
    assert (history.tenant_at(19), history.tenant_at(20), history.moved_at("b")) == ("b", "a", 20)
    assert history.undecided_with(moved.event) == ()


def test_the_end_of_a_subscription_names_its_last_tenant() -> None:
    ended = deleted(20, arrival=0)
    ended = msgspec.structs.replace(
        ended, details=msgspec.structs.replace(ended.details, ended_at=20)
    )
    assert (
        SubscriptionHistory([event_of("a", ended), named(20, "b", arrival=1)]).tenant_at(20) == "a"
    )


def test_other_facts_prove_which_tenant_was_named_last() -> None:
    """The metadata of neither event says which tenant it replaced."""
    known = updated(10, "evt_1", org_id="a", status="trialing")
    first = updated(
        20,
        "evt_2",
        org_id="b",
        status="active",
        arrival=1,
        previous={"org_id": None, "status": "trialing"},
    )
    last = updated(
        20,
        "evt_3",
        org_id="c",
        status="past_due",
        arrival=0,
        previous={"org_id": None, "status": "active"},
    )
    history = SubscriptionHistory([event_of("a", known), event_of("b", first), event_of("c", last)])
    assert (history.tenant_at(20), history.undecided_with(last)) == ("c", ())


def test_events_that_prove_nothing_are_undecided_and_so_is_what_they_follow() -> None:
    before, one, other = named(10, "c"), named(20, "a", arrival=0), named(20, "b", arrival=1)
    history = SubscriptionHistory([before, one, other, named(30, "b", "a")])
    found = [history.undecided_with(each.event) for each in (before, one, other)]
    assert [[*each] for each in found] == [[one, other]] * 3
    assert history.undecided_with(named(30, "b", "a").event) == ()
    assert history.undecided_with(failed(20)) == ()


def test_of_very_many_events_of_one_second_arrival_decides_after_the_first() -> None:
    several = [named(20, "ab"[arrival % 2], "ba"[arrival % 2], arrival) for arrival in range(7)]
    created = msgspec.structs.replace(named(20, "b", arrival=9).event, type=ev.SUBSCRIPTION_CREATED)
    history = SubscriptionHistory([*several, event_of("b", created)])
    assert history.tenant_at(20) == "a"
    assert len(history.undecided_with(created)) == len(several) + 1


def test_a_kept_tenant_proves_the_order_too() -> None:
    kept = updated(20, "evt_kept", org_id="a", previous={}, arrival=1)
    history = SubscriptionHistory(
        [named(10, "a"), named(20, "b", "a", arrival=0), event_of("a", kept)]
    )
    assert history.tenant_at(20) == "b"
    assert history.undecided_with(kept) == ()


@pytest.mark.parametrize(("arrivals", "last"), [((0, 1), "b"), ((1, 0), "a")])
def test_a_missing_event_of_the_second_leaves_the_tenant_undecided(
    arrivals: tuple[int, int], last: str
) -> None:
    """In each order an event is missing between the two: one that moves the subscription back, or
    one that makes it incomplete again.
    """
    moved = updated(
        20,
        "evt_1",
        org_id="a",
        status="incomplete",
        previous={"org_id": "b"},
        arrival=arrivals[0],
    )
    paid = updated(
        20,
        "evt_3",
        org_id="b",
        status="active",
        previous={"status": "incomplete"},
        arrival=arrivals[1],
    )
    history = SubscriptionHistory([event_of("a", moved), event_of("b", paid)])
    assert history.tenant_at(20) == last
    assert {each.event.id for each in history.undecided_with(paid)} == {"evt_1", "evt_3"}


def test_an_end_names_its_tenant_and_the_answer_that_it_has_moved_none() -> None:
    moved = observed(
        30, org_id="a", details=msgspec.structs.replace(updated().details, has_moved=True)
    )
    history = SubscriptionHistory([named(10, "a"), named(20, "b"), event_of("a", moved)])
    assert history.tenant_at(40) == "b"
    assert SubscriptionHistory([named(10, "a"), event_of("b", deleted(20))]).tenant_at(20) == "b"


def test_invoices_of_another_time_are_misplaced_and_paid_ones_settled_across_tenants() -> None:
    history = SubscriptionHistory(
        [
            named(10, "a"),
            event_of("b", failed(12)),
            named(20, "b", "a"),
            event_of("b", succeeded(25)),
        ]
    )
    assert list(history.misplaced()) == [event_of("a", failed(12))]
    assert history.settled_failures() == {"evt_f"}
