"""Laws of replay: a history that is folded as it is read comes to what was stored, event by
event.
"""

from typing import Final

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tenantry.domain.billing.events import FOLDED_TYPES, BillingEvent
from tenantry.domain.billing.ledger_fold import LedgerFold
from tenantry.domain.billing.state import BillingPolicy, BillingState
from tenantry.domain.billing.timeline import Fold, begin
from tests.support.facts import ANY, EACH, account
from tests.support.ledger import CUSTOMER, TENANT, Ledger, refolded

STATUSES: Final = ("trialing", "active", "past_due", "canceled")
PRICES: Final = ("price_free", "price_pro", "price_unknown")

policies = st.sampled_from([ANY, EACH])
histories = st.lists(
    st.builds(
        BillingEvent,
        id=st.uuids().map(str),
        type=st.sampled_from(sorted(FOLDED_TYPES)),
        created=st.integers(0, 5),
        org_id=st.just(TENANT),
        customer_id=st.just(CUSTOMER),
        subscription_id=st.sampled_from(["sub_1", "sub_2", None]),
        subscription_created=st.sampled_from([1, 2, None]),
        status=st.sampled_from(STATUSES),
        price_id=st.sampled_from([*PRICES, None]),
        current_period_end=st.sampled_from([None, 1, 2]),
        cancel_at_period_end=st.booleans(),
        previous=st.none()
        | st.fixed_dictionaries(
            {}, optional={"status": st.sampled_from(STATUSES), "price_id": st.sampled_from(PRICES)}
        ),
    ),
    min_size=1,
    max_size=12,
)


def in_the_ledger(events: list[BillingEvent]) -> list[BillingEvent]:
    """The events as the ledger gives them: numbered as they arrived, sorted by its index."""
    numbered = [
        msgspec.structs.replace(event, arrival=number) for number, event in enumerate(events)
    ]
    return sorted(numbered, key=lambda event: (event.created, event.arrival))


@given(histories, policies, st.sampled_from(["free", "business"]))
def test_a_fold_as_it_is_read_is_the_fold_of_the_whole(
    history: list[BillingEvent], policy: BillingPolicy, base_plan: str
) -> None:
    beginning, events = BillingState(plan=base_plan), in_the_ledger(history)
    whole, read = begin(beginning, events, policy), refolded(beginning, events, policy)
    assert read == whole.folded()


@given(histories, policies)
def test_events_come_out_in_the_order_of_the_fold(
    history: list[BillingEvent], policy: BillingPolicy
) -> None:
    fold, events = Fold(BillingState(), policy), in_the_ledger(history)
    ordered = [event for each in events for event, _ in fold.add(each)]
    ordered += [event for event, _ in fold.end()[1]]
    assert tuple(ordered) == begin(BillingState(), events, policy).events


@given(histories, policies, st.integers(1, 5))
def test_stored_state_equals_a_replay(
    history: list[BillingEvent], policy: BillingPolicy, batch: int
) -> None:
    ledger = Ledger(policy)
    for start in range(0, len(history), batch):
        ledger.deliver(history[start : start + batch])
    in_order = sorted(ledger._events.values(), key=lambda event: (event.created, event.arrival))
    whole = LedgerFold(account(customer_id=CUSTOMER), policy)
    for event in in_order:
        whole.add(event)
    assert whole.end()[0].account == ledger.account
