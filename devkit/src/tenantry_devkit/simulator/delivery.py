"""What a delivery policy may do wrong on request, the same wrongs for the same seed."""

import asyncio
import heapq
import itertools
import random
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

import httpx2
import msgspec

from tenantry.common.clock import Clock
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.stripe.signature import sign
from tenantry_devkit.simulator.account import Account
from tenantry_devkit.simulator.objects import Event, WebhookEndpoint
from tenantry_devkit.simulator.shapes import render_event


@dataclass(frozen=True, kw_only=True)
class Misbehaviour:
    """What goes wrong with the deliveries of the events that it is for: all, unless it names some.

    ``drop`` is the share of deliveries that is lost for good, and never tried again. ``duplicates`` is how many more
    copies are sent. ``delay`` is simulated time; of two, each copy gets one between them. With ``reorder``, what is
    due together is sent in any order.
    """

    drop: float = 0.0
    duplicates: int = 0
    reorder: bool = False
    delay: timedelta | tuple[timedelta, timedelta] = timedelta(0)
    endpoint: str | None = None
    types: Collection[str] = ()
    events: Collection[str] = ()
    only: Callable[[Event], bool] | None = None

    def concerns(self, event: Event, endpoint: str) -> bool:
        """Whether it is for the delivery of this event to this endpoint."""
        return (
            self.endpoint in {None, endpoint}
            and (not self.types or event.type in self.types)
            and (not self.events or event.id in self.events)
            and (self.only is None or self.only(event))
        )

    def in_words(self) -> str:
        """What goes wrong, and with what."""
        least, most = (int(bound.total_seconds()) for bound in self._delays)
        late = f"{least} to {most}" if most > least else f"{least}"
        wrongs = [
            f"{self.drop:.0%} lost" if self.drop else "",
            f"{self.duplicates} more cop{'y' if self.duplicates == 1 else 'ies'} of each" if self.duplicates else "",
            f"{late} seconds late" if most else "",
            "in any order" if self.reorder else "",
        ]
        told = ", ".join(wrong for wrong in wrongs if wrong) or "nothing goes wrong"
        concerned = [*([self.endpoint] if self.endpoint else []), *self.types, *self.events]
        if self.only is not None:
            concerned.append("some events")
        return f"{told}: {', '.join(concerned)}" if concerned else told

    @property
    def _delays(self) -> tuple[timedelta, timedelta]:
        return (self.delay, self.delay) if isinstance(self.delay, timedelta) else self.delay

    def loses(self, chance: random.Random) -> bool:
        """Whether a delivery is lost."""
        return chance.random() < self.drop

    def seconds_late(self, chance: random.Random) -> int:
        """How long a copy is held back."""
        if isinstance(self.delay, timedelta):
            return int(self.delay.total_seconds())
        least, most = (int(bound.total_seconds()) for bound in self.delay)
        return chance.randint(least, most)


_MINUTE: Final = 60
_HOUR: Final = 3600
RETRY_SECONDS: Final = (5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR, 5 * _HOUR, 10 * _HOUR, *[12 * _HOUR] * 4)
"""How long after each failed attempt the next one is made: for about three days, as the provider does."""
_TIMEOUT: Final = 20.0
_GOOD: Final = range(200, 300)


class State(StrEnum):
    """What became of a delivery so far."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    LOST = "lost"


class Attempt(msgspec.Struct, frozen=True):
    """One request to an endpoint, at a simulated moment: the status of the answer, or why there was none."""

    at: int
    status: int | None
    error: str | None = None


class Delivery(msgspec.Struct, kw_only=True):
    """An event on its way to an endpoint; ``copy`` is 0, and counts on for duplicates and what is sent again."""

    event: str
    type: str
    endpoint: str
    copy: int
    due: int
    state: State = State.PENDING
    attempts: list[Attempt] = msgspec.field(default_factory=list)
    is_planned: bool = False
    may_be_shuffled: bool = False


class Courier:
    """Delivers the account's events. ``log`` has every delivery, in the order in which they were asked for.

    ``concurrency`` is how many requests are under way at once; with 1 they arrive just in the order in which they are
    sent. Signatures carry the time of ``wall_clock``, for that is what receivers compare it with.
    """

    def __init__(
        self, account: Account, *, wall_clock: Clock, seed: int, concurrency: int, client: httpx2.AsyncClient | None
    ) -> None:
        self._account = account
        self._wall_clock = wall_clock
        self._seed = seed
        self._shuffling = random.Random(f"order {seed}")  # noqa: S311  # to be the same again, not to be secret
        self._concurrency = concurrency
        self._client = client
        self._own_client: httpx2.AsyncClient | None = None
        self._queue: list[tuple[int, int, Delivery]] = []
        self._numbers = itertools.count()
        self._lock = asyncio.Lock()
        self.rules: list[Misbehaviour] = []
        self.log: list[Delivery] = []

    @property
    def is_busy(self) -> bool:
        """Whether deliveries are being made; that run also takes what becomes due meanwhile."""
        return self._lock.locked()

    def enqueue(self, event: Event) -> None:
        """Have an event delivered to every endpoint that wants it."""
        for endpoint in self._account.endpoints.values():
            if endpoint.wants(event.type):
                self._add(event, endpoint.id, 0, due=self._account.now)

    def again(self, event: Event, endpoint: str | None = None) -> list[Delivery]:
        """Have an event delivered once more, as it should be, to one endpoint or to all that want it."""
        return [
            self._add(event, wanting.id, self._copies(event.id, wanting.id), due=self._account.now, is_planned=True)
            for wanting in self._account.endpoints.values()
            if wanting.id == endpoint or (endpoint is None and wanting.wants(event.type))
        ]

    def restore(self, deliveries: Sequence[Delivery]) -> None:
        """Continue the ``log`` of another courier. What failed is due now: the receiver may have been stopped, too."""
        self.log.extend(deliveries)
        for delivery in deliveries:
            if delivery.state is State.PENDING:
                delivery.due = min(delivery.due, self._account.now) if delivery.attempts else delivery.due
                self._push(delivery)

    def undelivered(self) -> set[str]:
        """The ids of the events that not every endpoint has taken that wants them."""
        return {delivery.event for delivery in self.log if delivery.state is not State.DELIVERED}

    def next_moment(self) -> int | None:
        """When the next delivery is due."""
        return self._queue[0][0] if self._queue else None

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Within the block `deliver_due` may be called, by nobody else."""
        async with self._lock:
            try:
                yield
            finally:
                if self._own_client is not None:
                    await self._own_client.aclose()
                    self._own_client = None

    async def deliver_due(self) -> int:
        """Attempt whatever is due, also what becomes due by that; returns the number of requests."""
        count = 0
        while due := self._take_due():
            batch = self._shuffled([delivery for delivery in due if delivery.state is State.PENDING])
            await self._send_all(batch)
            count += len(batch)
        return count

    def _add(self, event: Event, endpoint: str, copy: int, *, due: int, is_planned: bool = False) -> Delivery:
        delivery = Delivery(
            event=event.id, type=event.type, endpoint=endpoint, copy=copy, due=due, is_planned=is_planned
        )  # fmt: skip
        self.log.append(delivery)
        self._push(delivery)
        return delivery

    def _push(self, delivery: Delivery) -> None:
        heapq.heappush(self._queue, (delivery.due, next(self._numbers), delivery))

    def _copies(self, event: str, endpoint: str) -> int:
        return sum(delivery.event == event and delivery.endpoint == endpoint for delivery in self.log)

    def _take_due(self) -> list[Delivery]:
        due: list[Delivery] = []
        while self._queue and self._queue[0][0] <= self._account.now:
            delivery = heapq.heappop(self._queue)[2]
            if delivery.is_planned:
                due.append(delivery)
            else:
                self._plan(delivery)
        return due

    def _plan(self, delivery: Delivery) -> None:
        """Decide, by the newest rule that concerns it, what goes wrong with a delivery; then it is on its way."""
        event = self._account.events[delivery.event]
        rule = next((rule for rule in reversed(self.rules) if rule.concerns(event, delivery.endpoint)), Misbehaviour())
        # Of its own for each delivery, so that what happens to one does not depend on the others.
        chance = random.Random(f"{self._seed} {delivery.event} {delivery.endpoint}")  # noqa: S311
        delivery.is_planned = True
        if rule.loses(chance):
            delivery.state = State.LOST
            return
        copies = [delivery]
        copies += [
            msgspec.structs.replace(delivery, copy=number, attempts=[]) for number in range(1, rule.duplicates + 1)
        ]
        self.log.extend(copies[1:])
        for copy in copies:
            copy.may_be_shuffled = rule.reorder
            copy.due += rule.seconds_late(chance)
            self._push(copy)

    def _shuffled(self, batch: list[Delivery]) -> list[Delivery]:
        """The batch with those that may be shuffled in other places among themselves."""
        places = [place for place, delivery in enumerate(batch) if delivery.may_be_shuffled]
        moved = [batch[place] for place in places]
        self._shuffling.shuffle(moved)
        for place, delivery in zip(places, moved, strict=True):
            batch[place] = delivery
        return batch

    async def _send_all(self, batch: Sequence[Delivery]) -> None:
        waiting = iter(batch)

        async def work() -> None:
            for delivery in waiting:
                await self._attempt(delivery)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._concurrency, len(batch))):
                group.create_task(work())

    async def _attempt(self, delivery: Delivery) -> None:
        now = self._account.now
        endpoint = self._account.endpoints.get(delivery.endpoint)
        if endpoint is None or endpoint.status != "enabled":
            delivery.state = State.FAILED
            return
        status, error = await self._post(endpoint, self._account.events[delivery.event])
        delivery.attempts.append(Attempt(now, status, error))
        if status in _GOOD:
            delivery.state = State.DELIVERED
        elif len(delivery.attempts) <= len(RETRY_SECONDS):
            delivery.due = now + RETRY_SECONDS[len(delivery.attempts) - 1]
            self._push(delivery)
        else:
            delivery.state = State.FAILED

    async def _post(self, endpoint: WebhookEndpoint, event: Event) -> tuple[int | None, str | None]:
        client = self._client or self._own_client
        if client is None:
            # Made no sooner than needed: that takes long.
            client = self._own_client = new_http_client(_TIMEOUT)
        body = event_body(event, endpoint.api_version or self._account.api_version)
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "Stripe-Signature": sign(body, endpoint.secret, int(self._wall_clock().timestamp())),
            "User-Agent": "tenantry-simulator",
        }
        try:
            response = await client.post(endpoint.url, content=body, headers=headers)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return None, f"{type(error).__name__}: {error}"
        return response.status_code, None


def event_body(event: Event, api_version: str) -> bytes:
    """An event as it is sent: indented JSON, the same bytes each time."""
    return msgspec.json.format(msgspec.json.encode(render_event(event, api_version)), indent=2)
