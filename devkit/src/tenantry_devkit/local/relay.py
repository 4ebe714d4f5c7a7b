"""Relay the provider's list of events to a webhook endpoint."""

import asyncio
from collections import Counter
from collections.abc import Collection
from contextlib import aclosing
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.errors import ProviderUnavailableError
from tenantry.integrations.stripe.client import MOST_EVENT_TYPES, ProviderApi
from tenantry.integrations.stripe.decode import NotAnEventError, decode_event
from tenantry_devkit.local.endpoint import Endpoint, EndpointResponse, RetryPolicy, origin_of

OVERLAP: Final = 60
"""Seconds to read again each time: an event may appear in the list a little later than newer
ones.
"""


class ListedEvent(NamedTuple):
    """``body`` is the event as it was listed."""

    facts: BillingEvent
    body: bytes


def read_event(body: bytes) -> ListedEvent | None:
    """Decode an event; None for what is none, and cannot be relayed."""
    try:
        return ListedEvent(decode_event(body, arrived=0, make_up_id=str), body)
    except NotAnEventError:
        return None


class ProviderEventFeed:
    """The new events of these types in the provider's list, each once.

    It remembers the events of the last `OVERLAP` seconds. The methods raise the errors of
    `ProviderApi.events_since`; the next call then returns what the failed one missed.
    """

    def __init__(self, provider: ProviderApi, types: Collection[str]) -> None:
        self._provider = provider
        self._types = types
        self._listed = types if len(types) <= MOST_EVENT_TYPES else None  # then it lists all
        self._since = 0
        self._seen: dict[str, int] = {}

    async def begin(self) -> None:
        """Begin with the events from now on."""
        async with aclosing(self._provider.events_since(0, self._listed)) as listed:
            newest = read_event(await anext(listed, b""))
        if newest is not None:
            self._since = max(0, newest.facts.created - OVERLAP)
            await self.fetch()

    async def fetch(self) -> list[ListedEvent]:
        """Return the events that have appeared since the last call, oldest first."""
        found: list[ListedEvent] = []
        async with aclosing(self._provider.events_since(self._since, self._listed)) as listed:
            async for body in listed:
                event = read_event(body)
                if event is None or event.facts.type not in self._types:
                    continue
                if event.facts.id not in self._seen:
                    found.append(event)
        # after all pages: a failure on the way must not lose events
        if found:
            self._since = max(self._since, found[0].facts.created - OVERLAP)
        self._seen |= {event.facts.id: event.facts.created for event in found}
        self._seen = {
            event_id: created for event_id, created in self._seen.items() if created >= self._since
        }
        return found[::-1]


class RelayOutcome(StrEnum):
    DELIVERED = "delivered"
    REFUSED = "refused"
    """The rejection is final: the event is skipped."""
    RETRYING = "retrying"
    GIVEN_UP = "given_up"


class RelayAttempt(NamedTuple):
    event: ListedEvent
    outcome: RelayOutcome
    number: int
    response: EndpointResponse


class RelayObserver(Protocol):
    def attempted(self, attempt: RelayAttempt) -> None: ...
    def notice(self, text: str) -> None: ...


class Relay:
    """Reads events from ``feed`` and delivers them to ``endpoint``, one after the other.

    While the endpoint accepts no connections, events wait without a limit of time. An event
    answered with 408, 425, 429 or 5xx, or not at all, is sent again ``policy.retries`` times.
    """

    def __init__(
        self,
        feed: ProviderEventFeed,
        endpoint: Endpoint,
        observer: RelayObserver,
        *,
        policy: RetryPolicy = RetryPolicy(),  # noqa: B008  # immutable
    ) -> None:
        self.received = 0
        """How many events the provider's list had."""
        self.outcomes = Counter[RelayOutcome]()
        """How many events have each final outcome."""
        self._feed = feed
        self._endpoint = endpoint
        self._observer = observer
        self._policy = policy

    async def run(self) -> None:
        """Relay until canceled. Raises `ProviderRefusedError` if the provider rejects the key."""
        while True:
            events = await self._fetch()
            self.received += len(events)
            for event in events:
                self.outcomes[await self._deliver(event)] += 1
            await asyncio.sleep(self._policy.interval)

    async def _fetch(self) -> list[ListedEvent]:
        """Return the new events, as soon as the provider answers."""
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
            return events

    async def _deliver(self, event: ListedEvent) -> RelayOutcome:
        """Send an event until its outcome is final."""
        number = 0
        while True:
            number += 1
            response = await self._post(event)
            outcome = self._outcome(response, number)
            self._observer.attempted(RelayAttempt(event, outcome, number, response))
            if outcome is not RelayOutcome.RETRYING:
                return outcome
            await asyncio.sleep(self._policy.delay(number))

    async def _post(self, event: ListedEvent) -> EndpointResponse:
        """Send an event, as soon as the endpoint accepts connections."""
        waits, origin = 0, origin_of(self._endpoint.url)
        while not (response := await self._endpoint.post(event.body)).is_connected:
            waits += 1
            if waits == 1:
                self._observer.notice(
                    f"{origin} does not accept connections ({response.text}). Events wait."
                )
            await asyncio.sleep(self._policy.delay(waits))
        if waits:
            self._observer.notice(f"{origin} accepts connections again.")
        return response

    def _outcome(self, response: EndpointResponse, number: int) -> RelayOutcome:
        """Return the outcome of the attempt with this number."""
        if response.is_good:
            return RelayOutcome.DELIVERED
        if response.is_final:
            return RelayOutcome.REFUSED
        if number <= self._policy.retries:
            return RelayOutcome.RETRYING
        return RelayOutcome.GIVEN_UP
