"""Which month a quota counts in, by walking from day to day, and random histories of billing days.

Written from docs/explanation/subscriptions.md alone: nothing is folded, and no month is computed
from another one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from random import Random
from typing import Any, Final

from tenantry.domain.billing.events import BillingEvent, SubscriptionDetails
from tenantry.domain.entitlements import UsagePeriod
from tests.support import facts
from tests.support.ledger import CUSTOMER

DAY: Final = timedelta(days=1)
HOUR: Final = 3600
_ACTS: Final = (
    *["renews"] * 4,
    "changes the price",
    "changes the interval",
    "changes the interval",
    "moves its trial",
    "pauses",
    "continues",
    "begins anew",
)
FUTURE_MONTHS: Final = 14


def calendar_month(second: int) -> UsagePeriod:
    """The month of the calendar, in UTC."""
    first = _midnight(second)
    while first.day > 1:
        first -= DAY
    following = first + DAY
    while following.day > 1:
        following += DAY
    return UsagePeriod(int(first.timestamp()), int(following.timestamp()))


def billing_day_after(anchor: int, second: int) -> int:
    """The first billing day after a second."""
    return next(each for each in _billing_days(anchor, second - 2 * 86_400, 1) if each > second)


def billing_day_until(anchor: int, second: int) -> int:
    """The last billing day that is not after a second."""
    return next(each for each in _billing_days(anchor, second + 2 * 86_400, -1) if each <= second)


def billing_month(anchors: Sequence[tuple[int, int]], second: int) -> UsagePeriod:
    """The month that runs, by each anchor with the second since which it is the subscription's."""
    since, anchor = anchors[0]
    start, end = billing_day_until(anchor, since), billing_day_after(anchor, since)
    while end <= second:
        newest = [anchor for since, anchor in anchors if since < end][-1]
        start, end = end, billing_day_after(newest, end)
    return UsagePeriod(start, end)


def _billing_days(anchor: int, second: int, step: int) -> Iterator[int]:
    """Yield billing days, forth or back from a second on."""
    wanted = datetime.fromtimestamp(anchor, UTC)
    day = datetime.fromtimestamp(second, UTC).date()
    while True:
        if day.day == wanted.day or (day.day < wanted.day and (day + DAY).day == 1):
            yield _second(day, wanted.timetz())
        day += step * DAY


def _second(day: date, at: time) -> int:
    return int(datetime.combine(day, at).timestamp())


def _midnight(second: int) -> datetime:
    moment = datetime.fromtimestamp(second, UTC)
    return datetime(moment.year, moment.month, moment.day, tzinfo=UTC)


@dataclass
class Subscription:
    """What happened to a subscription: its anchors, each since a second, and whether it gives
    access.
    """

    id: str
    anchors: list[tuple[int, int]]
    status: str = "active"
    price: str = "price_pro"
    events: list[BillingEvent] = field(default_factory=list)


class BillingDays:
    """A random history of a tenant's subscriptions, one after another, and its events.

    With fewer ``acts`` it is the beginning of the same history.
    """

    def __init__(self, rng: Random, acts: int = 12) -> None:
        self._rng = rng
        self._subscriptions: list[Subscription] = []
        self.now = _random_start(rng)
        self._begin()
        for _ in range(acts):
            self.now += rng.choice((1, HOUR, 3 * 86_400, 12 * 86_400, 20 * 86_400, 31 * 86_400))
            self.now += rng.randint(0, 86_400)
            self._go_on(rng.choice(_ACTS))

    @property
    def events(self) -> list[BillingEvent]:
        """All events, as they happened."""
        every = [event for each in self._subscriptions for event in each.events]
        return sorted(every, key=lambda event: event.created)

    @property
    def last(self) -> Subscription:
        """The subscription that counts."""
        return self._subscriptions[-1]

    def delivered(self) -> list[BillingEvent]:
        """The events as they may arrive: in any order, some twice, and without some of those that
        only repeat what a later one reports.
        """
        kept = [event for event in self.events if not self._may_be_lost(event)]
        again = self._rng.sample(kept, k=self._rng.randint(0, len(kept)))
        arriving = [*kept, *again]
        self._rng.shuffle(arriving)
        return arriving

    def month(self, second: int) -> UsagePeriod:
        """The month in which use counts at a second, which is not before the last event."""
        if self.last.status not in ("active", "trialing"):
            return calendar_month(second)
        return billing_month(self.last.anchors, second)

    def seconds(self) -> list[int]:
        """Seconds to look at: at random, and those around the ends of months."""
        until = self.now + FUTURE_MONTHS * 31 * 86_400
        seconds = [self.now, *(self._rng.randint(self.now, until) for _ in range(5))]
        ends = [self.month(second).end for second in seconds]
        return [*seconds, *(end + around for end in ends for around in (-1, 0))]

    def _may_be_lost(self, event: BillingEvent) -> bool:
        anchor = event.details.anchor
        of_subscription = [
            each
            for subscription in self._subscriptions
            if subscription.id == event.subscription_id
            for each in subscription.events
        ]
        position = of_subscription.index(event)
        repeats = position + 1 < len(of_subscription) and (
            of_subscription[position + 1].details.anchor == anchor
        )
        # of an anchor to come it is its first event that says since when it is known
        is_past = anchor is not None and anchor <= event.created
        return repeats and is_past and self._rng.random() < 0.5

    def _begin(self) -> None:
        is_trial = self._rng.random() < 0.3
        anchor = self.now + 14 * 86_400 if is_trial else self.now
        name = f"sub_{len(self._subscriptions)}"
        self._subscriptions.append(
            Subscription(name, [(self.now, anchor)], "trialing" if is_trial else "active")
        )
        self._tell()

    def _go_on(self, act: str) -> None:
        last = self.last
        match act:
            case "changes the price":
                last.price = self._rng.choice(("price_pro", "price_business"))
            case "changes the interval":
                last.price = "price_pro_yearly" if last.price == "price_pro" else "price_pro"
                last.status = "active"
                self._move_anchor(self.now)
            case "moves its trial" if last.status == "trialing":
                later = self.now + self._rng.randint(1, 40) * 86_400
                self._move_anchor(later)
            case "pauses":
                last.status = "paused"
            case "continues":
                last.status = "active"
            case "begins anew":
                self._end()
                self.now += self._rng.randint(1, 20 * 86_400)
                self._begin()
                return
        self._tell()

    def _move_anchor(self, anchor: int) -> None:
        self.last.anchors.append((self.now, anchor))

    def _tell(self) -> None:
        """Report the subscription, a little after it changed if its anchor is not to come."""
        anchor = self.last.anchors[-1][1]
        if anchor <= self.now:
            self.now += self._rng.choice((0, 0, 1, 5, HOUR))
        self.last.events.append(self._event(facts.updated))

    def _end(self) -> None:
        self.last.status = "canceled"
        self.last.events.append(self._event(facts.deleted))

    def _event(self, make: Any) -> BillingEvent:
        last, number = self.last, sum(len(each.events) for each in self._subscriptions)
        is_over = last.status == "canceled"
        event: BillingEvent = make(
            self.now,
            f"evt_{number}",
            status=last.status,
            subscription_id=last.id,
            subscription_created=last.anchors[0][0],
            customer_id=CUSTOMER,
            price_id=last.price,
            current_period_end=self.now + 30 * 86_400,
            details=SubscriptionDetails(
                period_start=self.now - 1,
                ended_at=self.now if is_over else None,
                anchor=last.anchors[-1][1],
            ),
        )
        return event


def _random_start(rng: Random) -> int:
    """A second of some year, mostly of a day that not every month has."""
    day = rng.choice((1, 15, 28, 29, 30, 30, 31, 31, 31))
    month = rng.choice([1, 3, 5, 7, 8, 10, 12] if day > 28 else range(1, 13))
    moment = datetime(rng.randint(2023, 2029), month, day, tzinfo=UTC)
    return int(moment.timestamp()) + rng.randint(0, 86_399)
