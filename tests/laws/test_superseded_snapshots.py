"""Laws of snapshots: one that confirms the one before replaces it, and the state is the same."""

from typing import Any, Final

import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tenantry.domain.billing.events import SNAPSHOT, BillingEvent
from tenantry.domain.billing.ledger_fold import LedgerFold
from tenantry.domain.billing.state import BillingPolicy
from tests.support.facts import ANY, EACH, account, deleted, failed, observed, succeeded, updated
from tests.support.ledger import Ledger

MOMENTS: Final = 12
LIVE_STATUSES: Final = ("active", "past_due")
CHANGES: Final = ("updated", "deleted", "failed", "succeeded")


class Remembering(Ledger):
    """A ledger that also remembers what it does without."""

    def __init__(self, policy: BillingPolicy) -> None:
        super().__init__(policy)
        self.ever: list[BillingEvent] = []

    def take(self, arrived: BillingEvent) -> None:
        """Settle an event."""
        self.ever.append(msgspec.structs.replace(arrived, arrival=len(self.ever)))
        self.deliver([arrived])

    @property
    def retained(self) -> list[BillingEvent]:
        """What is in the ledger."""
        return list(self._events.values())


@st.composite
def facts(draw: st.DrawFn, *statuses: str) -> dict[str, Any]:
    """Statements about one of two subscriptions; few values, so that many repeat."""
    number = draw(st.sampled_from([1, 2]))
    return {
        "subscription_id": f"sub_{number}",
        "subscription_created": number,
        "status": draw(st.sampled_from(statuses)),
        "price_id": draw(st.sampled_from(["price_pro", "price_business"])),
        "cancel_at_period_end": draw(st.booleans()),
    }


@st.composite
def histories(draw: st.DrawFn) -> list[BillingEvent]:
    """Events and answers in the order of arrival: answers in that of their moments, events at any
    time.
    """
    said = draw(st.lists(facts(*LIVE_STATUSES, "canceled"), min_size=1, max_size=2))
    arrivals: list[BillingEvent] = []
    asked = 0
    for number in range(draw(st.integers(2, 9))):
        if draw(st.sampled_from([True, True, False])):
            asked = min(asked + draw(st.integers(0, 3)), MOMENTS)
            arrivals.append(observed(asked, f"snapshot_{number}", **draw(st.sampled_from(said))))
        else:
            arrivals.append(draw(changes(f"evt_{number}")))
    return arrivals


@st.composite
def changes(draw: st.DrawFn, event_id: str) -> BillingEvent:
    """An event of the provider's, at any moment."""
    moment = draw(st.integers(0, MOMENTS))
    match draw(st.sampled_from(CHANGES)):
        case "updated":
            return updated(moment, event_id, **draw(facts(*LIVE_STATUSES)))
        case "deleted":
            return deleted(moment, event_id, **draw(facts("canceled")))
        case "failed":
            return failed(moment, event_id)
        case _:
            return succeeded(moment, event_id)


def in_order(events: list[BillingEvent]) -> list[BillingEvent]:
    return sorted(events, key=lambda each: (each.created, each.arrival))


@pytest.mark.parametrize("policy", [ANY, EACH], ids=["any", "each"])
@given(arrivals=histories())
def test_the_state_is_the_same_with_and_without_superseded_snapshots(
    policy: BillingPolicy, arrivals: list[BillingEvent]
) -> None:
    ledger = Remembering(policy)
    for arrived in arrivals:
        ledger.take(arrived)
        everything = LedgerFold(account(), policy)
        for each in in_order(ledger.ever):
            everything.add(each)
        assert ledger.account.record == everything.end()[0].account.record
    event(f"{len(ledger.ever) - len(ledger.retained)} replaced")


@given(st.lists(st.integers(1, 3), min_size=2, max_size=20))
def test_of_snapshots_without_a_change_one_is_kept(pauses: list[int]) -> None:
    ledger = Remembering(ANY)
    ledger.take(updated(0))
    moment = 0
    for number, pause in enumerate(pauses):
        moment += pause
        ledger.take(observed(moment, f"snapshot_{number}"))
    assert [each.type for each in ledger.retained].count(SNAPSHOT) == 1
