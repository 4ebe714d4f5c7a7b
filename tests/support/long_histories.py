"""Long histories of one customer, as the provider would send them."""

import random
from collections.abc import Collection, Mapping
from typing import Final

from tenantry.domain.billing.events import KNOWN_TYPES
from tenantry_devkit.local.samples import EventSubject, Json, subscribe
from tenantry_devkit.simulator import (
    NEW_VERSION,
    ItemChange,
    PauseCollection,
    Simulator,
    Subscription,
    render_event,
)

SHORTEST_HISTORY: Final = 10
_ACTS: Final[tuple[str, ...]] = ("plan",) * 4 + ("cancellation",) * 2 + ("note", "cancel")
_ACTS_OF_STATUS: Final[dict[str, tuple[str, ...]]] = {
    "active": ("interval",) * 3,
    "trialing": ("end trial",) * 3,
    "past_due": ("interval",) * 3 + ("pay",) * 4,
}
_ACTS_OF_EACH: Final = ("seats",) * 2 + ("moment", "pause")
_MOST_AT_A_TIME: Final = 3
_DAY: Final = 86_400


async def long_history(
    subject: EventSubject,
    prices: Mapping[str, int],
    *,
    events: int,
    start: int,
    seed: int,
    api_version: str = NEW_VERSION,
    types: Collection[str] = KNOWN_TYPES,
    is_each: bool = False,
) -> list[Json]:
    """Return so many events of these types (10 at least) of one customer, in the order in which
    they happened.

    Each second from ``start`` on has an action. The customer changes between ``prices`` (amounts by
    id). With ``is_each``, the customer has up to three subscriptions at a time, with seats, pauses
    and moments of cancellation. The content depends on ``seed`` alone, except for the ids.
    """
    simulator = subject.simulator(start, prices=prices)
    chance = random.Random(f"life {seed}")  # noqa: S311  # repeatable
    while (left := events - len(simulator.events(*types))) > 0:
        _act_at_random(simulator, subject, chance, left, is_each=is_each)
        await simulator.advance(seconds=1)
    return [render_event(event, api_version) for event in simulator.events(*types)]


def _act_at_random(
    simulator: Simulator, subject: EventSubject, chance: random.Random, left: int, *, is_each: bool
) -> None:
    """Let the customer do something whose events prove their order, at most ``left`` of them."""
    prices = sorted(simulator.prices)
    works = chance.random() < 1 / 2
    card = simulator.card_works if works else simulator.card_declines
    living = [each for each in simulator.subscriptions.values() if not each.has_ended]
    begins_another = (
        is_each
        and len(living) < _MOST_AT_A_TIME
        and left >= SHORTEST_HISTORY
        and chance.random() < 1 / 5
    )
    if not living or begins_another:
        simulator.card_works(subject.customer)
        subscribe(simulator, subject, chance.choice(prices), trial_days=chance.choice((0, 0, 14)))
        return
    subscription = chance.choice(living) if is_each else living[-1]
    price, other = subscription.items[0].price, chance.choice(prices)
    acts = _ACTS + _ACTS_OF_STATUS.get(subscription.status, ()) + (_ACTS_OF_EACH if is_each else ())
    act = chance.choice(acts)
    match act if left >= SHORTEST_HISTORY else "note":
        case "seats" | "moment" | "pause":
            _change_details(simulator, subscription, act, chance)
        case "plan" if other != price.id:
            _change_price(simulator, subscription, other, price.interval)
        case "interval":  # which charges the customer at once
            card(subject.customer)
            _change_price(
                simulator, subscription, price.id, "year" if price.interval == "month" else "month"
            )
        case "end trial":
            card(subject.customer)
            simulator.end_trial(subscription)
        case "pay" if simulator.invoices[subscription.latest_invoice or ""].status == "open":
            simulator.card_works(subject.customer)
            simulator.pay(subscription.latest_invoice or "")
        case "cancellation" if subscription.cancel_at_period_end:
            simulator.resume(subscription)
        case "cancellation":
            simulator.cancel(subscription, at_period_end=True)
        case "cancel":
            simulator.cancel(subscription)
        case _:
            simulator.set_metadata(subscription, {"note": str(chance.random())})


def _change_details(
    simulator: Simulator, subscription: Subscription, act: str, chance: random.Random
) -> None:
    """Change what only the extended tenant record shows, each by a single event."""
    match act:
        case "seats":
            item = subscription.items[0]
            seats = ItemChange(item.id, quantity=chance.randint(1, 9))
            simulator.update_subscription(subscription, items=[seats])
        case "moment":
            moment = None if subscription.cancel_at else subscription.period_end - _DAY
            simulator.update_subscription(subscription, cancel_at=moment)
        case "pause":
            pause = None if subscription.pause_collection else PauseCollection("void")
            simulator.update_subscription(subscription, pause_collection=pause)


def _change_price(
    simulator: Simulator, subscription: Subscription, price_id: str, interval: str
) -> None:
    simulator.price(price_id, simulator.prices[price_id].unit_amount, interval=interval)
    simulator.change_plan(subscription, price_id)
