"""A long and eventful life of one customer, made on the simulator."""

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from tenantry.domain.billing.events import HANDLED_TYPES
from tenantry_devkit.local.samples import API_VERSIONS, Subject
from tenantry_devkit.simulator import Simulator, Subscription, render_event

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
