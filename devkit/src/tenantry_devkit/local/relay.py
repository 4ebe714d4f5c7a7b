"""Relay the provider's list of events to a webhook endpoint."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from tenantry.common.clock import system_clock
from tenantry.common.encoding import NOT_JSON
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry.integrations.stripe.client import MOST_EVENT_TYPES, ORG_ID, ProviderApi
from tenantry_devkit.local.endpoint import Endpoint, EndpointResponse, RetryPolicy, host_and_port

ALL_TYPES: Final = "*"
OVERLAP: Final = 60
"""Seconds to read again each time: an event may appear in the list a little later than newer
ones.
"""
_QUEUE_LENGTH: Final = 1000
_POLL_SECONDS: Final = 0.05


class ListedEvent(NamedTuple):
    """``body`` is the event as it was listed. ``created`` is in seconds since the Unix epoch."""

    id: str
    type: str
    created: int
    tenant: str | None
    customer: str | None
    body: bytes


class _Event(msgspec.Struct):
    id: str
    type: str
    created: int
    data: Any = None


def read_event(body: bytes) -> ListedEvent | None:
    """Decode an event; None if it has no id, type or date, and cannot be relayed."""
    try:
        event = msgspec.json.decode(body, type=_Event)
    except NOT_JSON:
        return None
    thing = _at(event.data, "object")
    parents = (
        thing,
        _at(thing, "parent", "subscription_details"),
        _at(thing, "subscription_details"),
    )
    tenants = (_at(parent, "metadata").get(ORG_ID) for parent in parents)
    tenant = next((text for text in tenants if isinstance(text, str)), None)
    return ListedEvent(event.id, event.type, event.created, tenant, _customer_of(thing), body)


def _customer_of(thing: Mapping[str, Any]) -> str | None:
    """Return the id of the customer that an object is, or belongs to."""
    customer = thing if thing.get("object") == "customer" else thing.get("customer")
    customer = customer.get("id") if isinstance(customer, dict) else customer
    return customer if isinstance(customer, str) else None


def _at(value: object, *path: str) -> Mapping[str, Any]:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


class ProviderEventFeed:
    """The new events of these types in the provider's list, each once. Types may hold ``*``, as in
    ``invoice.*``.

    It remembers the events of the last `OVERLAP` seconds. ``monotonic`` is a monotonic clock, in
    seconds. The methods raise the errors of `ProviderApi.events_since`; the next call then returns
    what the failed one missed.
    """

    def __init__(
        self,
        provider: ProviderApi,
        types: Collection[str],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider = provider
        self._types = frozenset(types)
        can_filter = len(self._types) <= MOST_EVENT_TYPES and "*" not in "".join(self._types)
        self._filter = self._types if can_filter else None
        self._monotonic = monotonic
        self._since = 0
        self._newest = 0
        self._found_at = monotonic()
        self._seen: dict[str, int] = {}

    async def begin(self, since: int | None = None) -> None:
        """Begin with the events created at or after this second, or by default with those from now
        on.
        """
        if since is not None:
            self._since = since
            return
        async with aclosing(self._provider.events_since(0, self._filter)) as listed:
            body = await anext(listed, None)
        if newest := read_event(body or b""):
            self._since = max(0, newest.created - OVERLAP)
            await self.fetch()

    async def _unseen_events(self) -> list[ListedEvent]:
        found: list[ListedEvent] = []
        async with aclosing(self._provider.events_since(self._since, self._filter)) as listed:
            async for body in listed:
                event = read_event(body)
                if event and event.id not in self._seen:
                    found.append(event)
        return found

    async def fetch(self) -> list[ListedEvent]:
        """Return the events that have appeared since the last call, oldest first."""
        found = await self._unseen_events()
        # after all pages: a failure on the way must not lose events
        self._seen |= {event.id: event.created for event in found}
        if found:
            self._found_at = self._monotonic()
            self._newest = max(found[0].created, self._newest)
        # after a quiet minute, no older events appear any more
        is_quiet = self._monotonic() - self._found_at > OVERLAP
        self._since = max(self._since, self._newest + 1 if is_quiet else self._newest - OVERLAP)
        self._seen = {
            event_id: created for event_id, created in self._seen.items() if created >= self._since
        }
        return [event for event in reversed(found) if self._wants(event)]

    def _wants(self, event: ListedEvent) -> bool:
        return any(fnmatchcase(event.type, each) for each in self._types)


class RelayOutcome(StrEnum):
    DELIVERED = "delivered"
    REFUSED = "refused"
    """The rejection is final: the event is skipped."""
    RETRYING = "retrying"
    GIVEN_UP = "given_up"


class RelayAttempt(NamedTuple):
    at: datetime
    event: ListedEvent
    outcome: RelayOutcome
    number: int
    response: EndpointResponse


class RelayObserver(Protocol):
    def attempted(self, attempt: RelayAttempt) -> None: ...
    def notice(self, text: str) -> None: ...


class Relay:
    """Reads events from ``feed`` and delivers them to ``endpoint``.

    With a ``concurrency`` of 1, it sends an event when the one before is finished, so events arrive
    in order; with more, in any order. While the endpoint accepts no connections, events wait in
    memory without a limit of time. An event answered with 408, 425, 429 or 5xx, or not at all, is
    sent again ``policy.retries`` times.
    """

    def __init__(
        self,
        feed: ProviderEventFeed,
        endpoint: Endpoint,
        observer: RelayObserver,
        *,
        policy: RetryPolicy = RetryPolicy(),  # noqa: B008  # immutable
        concurrency: int = 1,
    ) -> None:
        self.received = 0
        """How many events the provider's list had."""
        self.outcomes = Counter[RelayOutcome]()
        """How many events have each final outcome."""
        self._feed = feed
        self._endpoint = endpoint
        self._observer = observer
        self._policy = policy
        self._concurrency = concurrency
        self._queue: asyncio.Queue[ListedEvent] = asyncio.Queue(_QUEUE_LENGTH)
        self._is_connected = True

    async def run(self) -> None:
        """Relay until canceled; raises `ProviderRefusedError` when the provider rejects the key."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read())
                for _ in range(self._concurrency):
                    group.create_task(self._deliver_all())
        except* ProviderRefusedError as refused:
            raise refused.exceptions[0] from None

    async def _read(self) -> None:
        failures = 0
        while True:
            try:
                events = await self._feed.fetch()
            except ProviderUnavailableError as error:
                failures += 1
                if failures == 1:
                    self._observer.notice(
                        f"{error.detail} The relay fetches the events of that time afterwards."
                    )
                await asyncio.sleep(self._policy.interval + self._policy.delay(failures))
                continue
            if failures:
                self._observer.notice("The payment provider answers again.")
            failures = 0
            for event in events:
                self.received += 1
                await self._queue.put(event)
            await asyncio.sleep(self._policy.interval)

    async def _deliver_all(self) -> None:
        while True:
            self.outcomes[await self._deliver(await self._queue.get())] += 1

    async def _deliver(self, event: ListedEvent) -> RelayOutcome:
        """Send an event until its outcome is final; attempts without a connection do not count."""
        number = waits = 0
        while True:
            response = await self._endpoint.post(event.body)
            self._note_connection(is_connected=response.is_connected)
            if not response.is_connected:
                waits += 1
                await asyncio.sleep(self._policy.delay(waits))
                continue
            number, waits = number + 1, 0
            outcome = self._outcome(response, number)
            self._observer.attempted(RelayAttempt(system_clock(), event, outcome, number, response))
            if outcome is not RelayOutcome.RETRYING:
                return outcome
            await asyncio.sleep(
                max(self._policy.delay(number), min(response.retry_after, self._policy.ceiling))
            )

    def _outcome(self, response: EndpointResponse, number: int) -> RelayOutcome:
        """Return the outcome of the attempt with this number."""
        if response.is_good:
            return RelayOutcome.DELIVERED
        if response.is_final:
            return RelayOutcome.REFUSED
        if number <= self._policy.retries:
            return RelayOutcome.RETRYING
        return RelayOutcome.GIVEN_UP

    def _note_connection(self, *, is_connected: bool) -> None:
        if is_connected != self._is_connected:
            self._is_connected = is_connected
            host, port = host_and_port(self._endpoint.url)
            what = (
                "accepts connections again."
                if is_connected
                else "does not accept connections. Events wait."
            )
            self._observer.notice(f"{host}:{port} {what}")


async def wait_for_listener(address: str) -> None:
    """Return once a server accepts connections at this address."""
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(*host_and_port(address))
            writer.close()
            return
        await asyncio.sleep(_POLL_SECONDS)
