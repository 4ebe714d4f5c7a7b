"""Stories: what happens to a customer over weeks, played on the simulator's clock and told step by step."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from tenantry_devkit.local.samples import Subject
from tenantry_devkit.simulator import Delivery, Event, Simulator, State, Subscription


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
