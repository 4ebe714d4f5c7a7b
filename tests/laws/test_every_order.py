"""The law of billing: every order of delivery ends in the provider's state."""

import random
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.state import BillingPolicy
from tests.support import figures
from tests.support.events import MONTH, Shape
from tests.support.facts import ANY, EACH
from tests.support.histories import DAY, PLOTS, History, Plot, Record, Story, decoded, plot_history
from tests.support.ledger import recorded
from tests.support.orders import OURS, Endings, Run, check_every_order, in_batches, shuffled

CUSTOMER: Final = "cus_acme"
STATUSES: Final = ("trialing", "active", "past_due", "unpaid")
PRICES: Final = ("price_free", "price_pro", "price_business")

SAMPLE: Final = 2 * settings().max_examples
"""Random orders of each history."""
MOST_EVENTS: Final = 5
"""The length of the longest history that is delivered in every order here: 720 orders.

`tests/system` delivers the longer ones in every order, and all of them in the old shape."""
SHORT_PLOTS: Final = [
    plot for plot in PLOTS if len(plot_history(plot, Shape.NEW).events) <= MOST_EVENTS
]


@pytest.fixture(params=PLOTS, ids=lambda plot: plot.name)
def plot(request: pytest.FixtureRequest) -> Plot:
    chosen: Plot = request.param
    return chosen


@pytest.mark.parametrize("shape", Shape, ids=lambda shape: shape.name.lower())
def test_history_in_order_ends_in_the_provider_state(plot: Plot, shape: Shape) -> None:
    history = plot_history(plot, shape)
    run = Run(history)
    for event in history.facts:
        run.deliver([event])
    assert OURS not in run.wrong()


@pytest.mark.parametrize("plot", SHORT_PLOTS, ids=lambda plot: plot.name)
def test_every_order_of_a_history_ends_in_the_truth(
    plot: Plot, record_property: figures.RecordProperty
) -> None:
    check_every_order(plot, Shape.NEW, record_property)


def test_random_orders_with_duplicates_in_batches_from_two_endpoints_end_in_the_truth(
    plot: Plot, record_property: figures.RecordProperty
) -> None:
    history = plot_history(plot, Shape.NEW)
    rng = random.Random(plot.name)  # noqa: S311  # the same sample in every run
    endpoints = [plot_history(plot, shape).facts for shape in Shape]
    endings = Endings()
    for _ in range(SAMPLE):
        run, batches = Run(history), in_batches(rng, shuffled(rng, endpoints))
        for batch in batches:
            run.deliver(batch)
        endings.add(run, batches)
    figures.record(
        record_property, "Random orders with duplicates", {"orders": endings.orders}, endings.wrong
    )
    assert (endings.wrong[OURS], endings.examples) == (0, [])
    assert endings.wrong["last arrival wins"]


@st.composite
def story_lists(draw: st.DrawFn) -> list[Story]:
    """What happened to a subscriber, told in both shapes: what changes within one second has a
    proof of its order.
    """
    stories = [Story(shape) for shape in Shape]
    for story in stories:
        _subscribes(story)
    ended = 0
    for _ in range(draw(st.integers(1, 5))):
        move = draw(
            st.sampled_from(("changes", "changes", "changes", "fails", "pays", "ends", "elsewhere"))
        )
        invoice = draw(st.sampled_from(("first", "second")))
        for story in stories:
            story.later(DAY)
        for _ in range(draw(st.integers(1, 4)) if move == "changes" else 1):
            changed = draw(_changes(stories[0]))
            for story in stories:
                # an invoice is of one subscription
                _goes_on(story, move, changed, f"{invoice}_{ended}")
        ended += move == "ends"
    return stories


def _subscribes(story: Story) -> None:
    story.later(DAY)
    story.begins()
    story.changes(status="active")


def _goes_on(story: Story, move: str, changed: dict[str, Any], invoice: str) -> None:
    match move:
        case "changes":
            story.changes(**changed)
        case "fails":
            story.fails(invoice)
        case "pays":
            story.pays(invoice)
        case "ends":
            story.ends()
            _subscribes(story)
        case _:
            story.elsewhere("customer.subscription.trial_will_end")


def _changes(story: Story) -> st.SearchStrategy[dict[str, Any]]:
    """One or two attributes of the subscription, changed."""
    other = {
        "status": st.sampled_from(
            [status for status in STATUSES if status != story.facts["status"]]
        ),
        "price": st.sampled_from([price for price in PRICES if price != story.facts["price"]]),
        "period_end": st.just(story.period_end + MONTH),
        "cancel": st.just(not story.facts["cancel"]),
        "latest_invoice": st.just(f"in_{len(story.events)}"),
    }
    return st.sets(st.sampled_from(sorted(other)), min_size=1, max_size=2).flatmap(
        lambda names: st.fixed_dictionaries({name: other[name] for name in sorted(names)})
    )


@st.composite
def deliveries(
    draw: st.DrawFn, endpoints: Sequence[Sequence[BillingEvent]]
) -> list[list[BillingEvent]]:
    """Each event from one endpoint, the other or both, some once more, in any order, in batches of
    any size.
    """
    chosen = [
        draw(st.sampled_from([(old,), (new,), (old, new)]))
        for old, new in zip(*endpoints, strict=True)
    ]
    again = draw(
        st.lists(st.sampled_from([event for events in endpoints for event in events]), max_size=3)
    )
    stream = draw(st.permutations([*chain.from_iterable(chosen), *again]))
    cuts = sorted(draw(st.sets(st.integers(1, len(stream)), max_size=6)))
    return [
        list(stream[start:end]) for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    ]


@given(st.data(), story_lists(), st.sampled_from([ANY, EACH]))
def test_both_shapes_of_any_history_from_two_endpoints_end_as_the_history_in_order(
    data: st.DataObject, stories: list[Story], policy: BillingPolicy
) -> None:
    endpoints = [tuple(map(decoded, story.events)) for story in stories]
    truths = {Record.of(recorded(events, policy)) for events in endpoints}
    assert len(truths) == 1
    run = Run(History(tuple(stories[0].events), truths.pop(), CUSTOMER, (CUSTOMER,)), policy)
    for batch in data.draw(deliveries(endpoints)):
        run.deliver(batch)
    assert OURS not in run.wrong()
