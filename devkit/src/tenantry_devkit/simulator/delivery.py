"""Webhook deliveries, retries, and repeatable faults."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

import httpx2
import msgspec

from tenantry.common.clock import Clock
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.stripe.signature import sign
from tenantry_devkit.simulator.account import Account, Schedule
from tenantry_devkit.simulator.objects import (
    ProviderEvent,
    WebhookEndpoint,
    indented_json,
    render_event,
)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DeliveryRule:
    """Faults in the delivery of matching events: all events, unless it names some.

    ``drop`` is the share of deliveries lost for good. ``duplicates`` is the number of additional
    copies. ``delay`` is in simulated time, or between two such times for each copy. ``reorder``
    sends what is due together in any order.
    """

    drop: float = 0.0
    duplicates: int = 0
    reorder: bool = False
    delay: timedelta | tuple[timedelta, timedelta] = timedelta(0)
    types: Collection[str] = ()
    only: Callable[[ProviderEvent], bool] | None = None

    def matches(self, event: ProviderEvent) -> bool:
        is_of_type = not self.types or event.type in self.types
        return is_of_type and (self.only is None or self.only(event))

    @property
    def delay_seconds(self) -> tuple[int, int]:
        least, most = (self.delay, self.delay) if isinstance(self.delay, timedelta) else self.delay
        return int(least.total_seconds()), int(most.total_seconds())


_MINUTE: Final = 60
_HOUR: Final = 3600
RETRY_SECONDS: Final = (
    5 * _MINUTE,
    30 * _MINUTE,
    2 * _HOUR,
    5 * _HOUR,
    10 * _HOUR,
    *[12 * _HOUR] * 4,
)
"""The delays after failed attempts: about three days, as at the provider."""
_TIMEOUT: Final = 20.0


class State(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    LOST = "lost"


class Attempt(msgspec.Struct, frozen=True):
    """One request to an endpoint, at a simulated moment: its status or error."""

    at: int
    status: int | None
    error: str | None = None


class Delivery(msgspec.Struct, kw_only=True):
    """The delivery of an event to an endpoint; ``copy`` counts duplicates and resent events from
    1.
    """

    event: str
    type: str
    endpoint: str
    copy: int
    due: int
    state: State = State.PENDING
    attempts: list[Attempt] = msgspec.field(default_factory=list)
    may_be_shuffled: bool = False


class Courier:
    """Delivers the account's events. ``log`` has every delivery in order.

    ``concurrency`` is the number of concurrent requests; with 1 they arrive in order. Signatures
    have the time of ``wall_clock``, since receivers compare it with their own.
    """

    def __init__(
        self,
        account: Account,
        *,
        wall_clock: Clock,
        seed: int,
        concurrency: int,
        client: httpx2.AsyncClient | None,
    ) -> None:
        self._account = account
        self._wall_clock = wall_clock
        self._seed = seed
        self._shuffling = random.Random(f"order {seed}")  # noqa: S311  # repeatable, no secret
        self._concurrency = concurrency
        self._client = client
        self._own_client: httpx2.AsyncClient | None = None
        self.lock = asyncio.Lock()
        self.queue = Schedule[Delivery]()
        self.rules: list[DeliveryRule] = []
        self.log: list[Delivery] = []

    def enqueue(self, event: ProviderEvent) -> None:
        """Schedule the deliveries of an event, with the faults of the newest matching rule."""
        rule = next((rule for rule in reversed(self.rules) if rule.matches(event)), DeliveryRule())
        for endpoint in self._wanting(event):
            self._schedule(event, endpoint, rule)

    def _schedule(self, event: ProviderEvent, endpoint: str, rule: DeliveryRule) -> None:
        # one generator for each delivery: its faults do not depend on other deliveries
        chance = random.Random(f"{self._seed} {event.id} {endpoint}")  # noqa: S311
        if chance.random() < rule.drop:
            self._add(event, endpoint, state=State.LOST)
            return
        least, most = rule.delay_seconds
        for copy in range(1 + rule.duplicates):
            delay = least if least == most else chance.randint(least, most)
            self._add(event, endpoint, copy, delay=delay, may_be_shuffled=rule.reorder)

    def again(self, event: ProviderEvent) -> list[Delivery]:
        """Schedule an event once more, without faults, for all endpoints that want it."""
        sent = Counter(delivery.endpoint for delivery in self.log if delivery.event == event.id)
        return [self._add(event, each, sent[each]) for each in self._wanting(event)]

    def _wanting(self, event: ProviderEvent) -> list[str]:
        """Return the ids of the endpoints that want an event."""
        endpoints = self._account.table(WebhookEndpoint).values()
        return [endpoint.id for endpoint in endpoints if endpoint.wants(event.type)]

    def restore(self, deliveries: Sequence[Delivery]) -> None:
        """Continue the ``log`` of another courier. Retries are due now: the receiver may have been
        stopped, too.
        """
        self.log.extend(deliveries)
        for delivery in deliveries:
            if delivery.state is State.PENDING:
                if delivery.attempts:
                    delivery.due = min(delivery.due, self._account.now)
                self.queue.add(delivery.due, delivery)

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Allow only this task to call `deliver_due` within the block."""
        async with self.lock:
            try:
                yield
            finally:
                if self._own_client is not None:
                    await self._own_client.aclose()
                    self._own_client = None

    async def deliver_due(self) -> int:
        """Attempt all due deliveries, including those that become due meanwhile; return the number
        of requests.
        """
        count = 0
        while batch := self._shuffled(list(self.queue.take_due(self._account.now))):
            await in_parallel(batch, self._attempt, tasks=self._concurrency)
            count += len(batch)
        return count

    def _add(
        self,
        event: ProviderEvent,
        endpoint: str,
        copy: int = 0,
        *,
        delay: int = 0,
        **more: Any,  # noqa: ANN401  # those of a delivery
    ) -> Delivery:
        due = self._account.now + delay
        delivery = Delivery(
            event=event.id, type=event.type, endpoint=endpoint, copy=copy, due=due, **more
        )
        self.log.append(delivery)
        if delivery.state is State.PENDING:
            self.queue.add(due, delivery)
        return delivery

    def _shuffled(self, batch: list[Delivery]) -> list[Delivery]:
        """Shuffle the deliveries that rules allow to be reordered."""
        places = [place for place, delivery in enumerate(batch) if delivery.may_be_shuffled]
        moved = [batch[place] for place in places]
        self._shuffling.shuffle(moved)
        for place, delivery in zip(places, moved, strict=True):
            batch[place] = delivery
        return batch

    async def _attempt(self, delivery: Delivery) -> None:
        now = self._account.now
        endpoint = self._account.table(WebhookEndpoint).get(delivery.endpoint)
        if endpoint is None:
            delivery.state = State.FAILED
            return
        status, error = await self._post(
            endpoint, self._account.table(ProviderEvent)[delivery.event]
        )
        delivery.attempts.append(Attempt(now, status, error))
        if httpx2.codes.is_success(status or 0):
            delivery.state = State.DELIVERED
        elif len(delivery.attempts) <= len(RETRY_SECONDS):
            delivery.due = now + RETRY_SECONDS[len(delivery.attempts) - 1]
            self.queue.add(delivery.due, delivery)
        else:
            delivery.state = State.FAILED

    async def _post(
        self, endpoint: WebhookEndpoint, event: ProviderEvent
    ) -> tuple[int | None, str | None]:
        client = self._client or self._own_client
        if client is None:
            # lazily: creating a client is slow
            client = self._own_client = new_http_client(_TIMEOUT)
        body = event_body(event, endpoint.api_version or self._account.api_version)
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "Stripe-Signature": sign(
                body,
                endpoint.secret,
                int(self._wall_clock().timestamp()),
            ),
            "User-Agent": "tenantry-simulator",
        }
        try:
            response = await client.post(
                endpoint.url,
                content=body,
                headers=headers,
            )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return None, f"{type(error).__name__}: {error}"
        return response.status_code, None


async def in_parallel(
    items: Iterable[T], action: Callable[[T], Awaitable[None]], *, tasks: int
) -> None:
    """Do something with each item, in this order, with so many at once."""
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await action(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(work())


def event_body(event: ProviderEvent, api_version: str) -> bytes:
    """Return an event's body: indented JSON, the same bytes each time."""
    return indented_json(render_event(event, api_version))
