"""Sequences of events as a provider sends them: short stories and long histories."""

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenantry.domain.billing.events import HANDLED_TYPES
from tenantry_devkit.local.samples import API_VERSIONS, Subject
from tenantry_devkit.simulator import Delivery, Event, Simulator, State, Subscription, render_event

FEWEST: Final = 10
"""The shortest life, in events."""
_CHARGED: Final = frozenset({"active", "past_due"})

Json = dict[str, Any]
_Act = Callable[[Subscription], None]


async def long_life(
    subject: Subject, prices: Mapping[str, int], *, events: int, start: int, seed: int, shape: str = "new"
) -> list[Json]:
    """So many events of the five types (10 at least), in the order in which they happened.

    Something happens in each second from ``start`` on, so it takes less than ``events`` seconds. ``prices`` are the
    amounts that the customer changes between; what happens depends on ``seed`` alone,
    but for the ids.
    """
    simulator = subject.simulator(start, prices=prices, fresh_ids=True)  # ids of before may be in the ledger
    life = _Life(simulator, subject, sorted(prices), random.Random(f"life {seed}"))  # noqa: S311  # to be repeated
    while (left := events - len(simulator.events(*HANDLED_TYPES))) > 0:
        life.goes_on(left)
        await simulator.advance(seconds=1)
    return [render_event(event, API_VERSIONS[shape]) for event in simulator.events(*HANDLED_TYPES)]


class _Life:
    """What a customer may do next; each act is of one second, and its events tell their order themselves."""

    def __init__(self, simulator: Simulator, subject: Subject, prices: list[str], chance: random.Random) -> None:
        self._simulator = simulator
        self._subject = subject
        self._prices = prices
        self._chance = chance

    def goes_on(self, left: int) -> None:
        """Do something that makes at most ``left`` events."""
        living = [each for each in self._simulator.subscriptions.values() if not each.has_ended]
        if not living:
            self._subscribes()
            return
        subscription = living[-1]
        if left < FEWEST:
            self._changes_plan(subscription)  # one event, and the subscription lives on
            return
        acts: list[_Act] = [*[self._changes_plan] * 3, *[self._hesitates] * 2, self._notes, self._cancels]
        if subscription.status in _CHARGED:
            acts += [self._is_charged] * 3
        if subscription.status == "trialing":
            acts += [self._ends_trial] * 3
        if subscription.status == "past_due":
            acts += [self._pays] * 4
        self._chance.choice(acts)(subscription)

    def _subscribes(self) -> None:
        self._simulator.card_works(self._subject.customer)
        session = self._simulator.checkout(
            self._chance.choice(self._prices),
            metadata=self._subject.metadata,
            customer=self._subject.customer,
            trial_days=self._chance.choice((0, 0, 14)),
        )
        self._simulator.complete(session)

    def _changes_plan(self, subscription: Subscription) -> None:
        others = [price for price in self._prices if price != subscription.price]
        interval = subscription.items[0].price.interval
        if not others:
            self._notes(subscription)
            return
        price = self._chance.choice(others)
        self._price(price, interval)
        self._simulator.change_plan(subscription, price)

    def _hesitates(self, subscription: Subscription) -> None:
        if subscription.cancel_at_period_end:
            self._simulator.resume(subscription)
        else:
            self._simulator.cancel(subscription, at_period_end=True)

    def _cancels(self, subscription: Subscription) -> None:
        self._simulator.cancel(subscription)

    def _notes(self, subscription: Subscription) -> None:
        self._simulator.set_metadata(subscription, {"note": str(self._chance.random())})

    def _is_charged(self, subscription: Subscription) -> None:
        """Goes over from months to years or back, which is charged at once."""
        self._takes_card()
        item = subscription.items[0]
        self._price(item.price.id, "year" if item.price.interval == "month" else "month")
        self._simulator.change_plan(subscription, item.price.id)

    def _ends_trial(self, subscription: Subscription) -> None:
        self._takes_card()
        self._simulator.end_trial(subscription)

    def _pays(self, subscription: Subscription) -> None:
        self._simulator.card_works(self._subject.customer)
        self._simulator.pay(subscription.latest_invoice or "")

    def _takes_card(self) -> None:
        if self._chance.random() < 1 / 2:
            self._simulator.card_works(self._subject.customer)
        else:
            self._simulator.card_declines(self._subject.customer)

    def _price(self, price_id: str, interval: str) -> None:
        """The price by that interval from now on."""
        self._simulator.price(price_id, self._simulator.prices[price_id].unit_amount, interval=interval)


class Stage:
    """Where a story is played: a provider with one customer; ``better`` is a price that costs more."""

    def __init__(self, simulator: Simulator, subject: Subject, better: str) -> None:
        self.simulator = simulator
        self.customer = subject.customer
        self.better = better
        self._subject = subject

    async def subscribes(self, trial_days: int = 0) -> Subscription:
        """The customer completes a checkout."""
        simulator, subject = self.simulator, self._subject
        session = simulator.checkout(
            subject.price, metadata=subject.metadata, customer=subject.customer, trial_days=trial_days
        )
        done = simulator.complete(session)
        await simulator.deliver()
        return simulator.subscriptions[done.subscription or ""]

    async def period_ends(self, subscription: Subscription) -> None:
        """Time passes until the present period of the subscription is over."""
        end = self.simulator.subscriptions[subscription.id].period_end
        await self.simulator.advance(seconds=end - self.simulator.now.timestamp())


Scenes = Callable[[Stage], AsyncIterator[str]]


class Story(NamedTuple):
    """A story: what it is about in one line, and how many days it takes at most.

    ``scenes`` lets things happen, and then says what has happened.
    """

    summary: str
    days: int
    scenes: Scenes


class Scene(NamedTuple):
    """A step of a story that has been played: when it was over, and the events that were sent meanwhile."""

    at: datetime
    text: str
    events: Sequence[tuple[Event, Delivery]]

    @property
    def failed(self) -> Delivery | None:
        """The first delivery that the service did not take."""
        return next((delivery for _, delivery in self.events if delivery.state is not State.DELIVERED), None)


async def play(story: Story, stage: Stage) -> AsyncIterator[Scene]:
    """Play a story, scene by scene."""
    told = 0
    async for text in story.scenes(stage):
        deliveries = stage.simulator.deliveries()[told:]
        told += len(deliveries)
        happened = {event.id: event for event in stage.simulator.events()}
        pairs = [(happened[delivery.event], delivery) for delivery in deliveries]
        yield Scene(stage.simulator.now, text, pairs)


async def _failed_renewal(stage: Stage) -> AsyncIterator[str]:
    subscription = await stage.subscribes()
    yield "The customer subscribes in a checkout and pays."
    stage.simulator.card_declines(stage.customer)
    await stage.period_ends(subscription)
    yield "A month later the card is declined: the renewal fails."
    await stage.simulator.advance(days=3)
    yield "Three days later the provider tries again, in vain."
    stage.simulator.card_works(stage.customer)
    await stage.simulator.advance(days=5)
    yield "The customer puts in another card. The next try, five days later, succeeds."


async def _lost_customer(stage: Stage) -> AsyncIterator[str]:
    subscription = await stage.subscribes()
    yield "The customer subscribes in a checkout and pays."
    stage.simulator.card_declines(stage.customer)
    await stage.period_ends(subscription)
    yield "A month later the card is declined: the renewal fails."
    await stage.simulator.advance(days=8)
    yield "Two more tries fail, after three days and after five more."
    await stage.simulator.advance(days=7)
    yield "The last try fails a week later, and the provider ends the subscription."


async def _cancellation(stage: Stage) -> AsyncIterator[str]:
    subscription = await stage.subscribes()
    yield "The customer subscribes in a checkout and pays."
    await stage.simulator.advance(days=10)
    stage.simulator.cancel(subscription, at_period_end=True)
    await stage.simulator.deliver()
    yield "Ten days later the customer cancels for the end of the period."
    await stage.simulator.advance(days=2)
    stage.simulator.resume(subscription)
    await stage.simulator.deliver()
    yield "Two days later the customer thinks again and stays."
    await stage.simulator.advance(days=5)
    stage.simulator.cancel(subscription, at_period_end=True)
    await stage.simulator.deliver()
    yield "And then cancels for good. What has been paid for can still be used."
    await stage.period_ends(subscription)
    yield "The period ends, and with it the subscription."


async def _trial(stage: Stage) -> AsyncIterator[str]:
    subscription = await stage.subscribes(trial_days=14)
    yield "The customer begins a trial of fourteen days."
    await stage.period_ends(subscription)
    yield "The trial ends, and the first payment succeeds."
    await stage.period_ends(subscription)
    yield "A month later the subscription is renewed."


async def _upgrade(stage: Stage) -> AsyncIterator[str]:
    subscription = await stage.subscribes()
    yield "The customer subscribes in a checkout and pays."
    before = subscription.price
    await stage.simulator.advance(days=10)
    stage.simulator.change_plan(subscription, stage.better)
    await stage.simulator.deliver()
    yield "Ten days later the customer goes over to the bigger plan."
    await stage.period_ends(subscription)
    yield "The period ends, and the next one is paid."
    stage.simulator.change_plan(subscription, before)
    await stage.simulator.deliver()
    yield "The customer goes back to the smaller plan in the same second."


STORIES: Final = {
    "failed-renewal": Story("a renewal fails, and another card saves it", 40, _failed_renewal),
    "lost-customer": Story("a renewal fails for good: the subscription ends", 47, _lost_customer),
    "cancellation": Story("a customer cancels, stays, and cancels for good", 32, _cancellation),
    "trial": Story("a trial becomes a paid subscription", 46, _trial),
    "upgrade": Story("a customer takes a bigger plan, and goes back", 32, _upgrade),
}
"""All stories by name."""
