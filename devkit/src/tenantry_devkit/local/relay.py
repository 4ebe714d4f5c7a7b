"""Passing the provider's events on to an endpoint: in order, tried again, and none forgotten."""

import asyncio
import random
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

import httpx2
import msgspec

from tenantry.common.clock import Clock, exponential, system_clock
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry_devkit.local.addresses import host_and_port
from tenantry_devkit.local.endpoint import Answer, Endpoint
from tenantry_devkit.local.provider_events import ProviderEvent, Subscription

_MOST_WAITING: Final = 1000
_TRIED_AGAIN: Final = frozenset({408, 425, 429, *range(500, 600)})


class Outcome(StrEnum):
    """What became of an attempt to deliver an event."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    """The answer is final, and not a good one: the event is passed over."""
    RETRYING = "retrying"
    GIVEN_UP = "given_up"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One request with an event; ``status`` is None where there was no answer, and ``answer`` then says why."""

    at: datetime
    event: ProviderEvent
    outcome: Outcome
    number: int
    status: int | None
    milliseconds: int | None
    answer: str


class Tally(msgspec.Struct):
    """How many events were taken in so far, and what became of them."""

    received: int = 0
    delivered: int = 0
    refused: int = 0
    given_up: int = 0

    @property
    def waiting(self) -> int:
        """How many are still to be delivered."""
        return self.received - self.delivered - self.refused - self.given_up

    @property
    def is_clean(self) -> bool:
        """Whether every event was taken."""
        return self.delivered == self.received

    def count(self, outcome: Outcome) -> None:
        """Count what became of an event in the end."""
        setattr(self, outcome, getattr(self, outcome) + 1)


class Pace(NamedTuple):
    """How often the list is read, and how long to wait after failures, in seconds.

    ``retries`` is how often an event is sent again that the endpoint could not take.
    """

    interval: float = 1.0
    first: float = 0.5
    ceiling: float = 15.0
    retries: int = 6

    def after(self, failures: int) -> float:
        """How long to wait after so many failures in a row: longer each time, and not at once with others."""
        longest = exponential(failures, first=self.first, factor=2, ceiling=self.ceiling)
        return random.uniform(longest / 2, longest)  # noqa: S311  # to spread, not to be secret


class Hearing:
    """Who is told of what happens: every attempt, and what people should know besides."""

    def __init__(self, attempt: Callable[[Attempt], None], notice: Callable[[str], None]) -> None:
        self.attempt = attempt
        self.notice = notice


class Relay:
    """Reads events from ``source`` and delivers them to ``endpoint``.

    With a ``concurrency`` of 1 an event is sent when the one before it is done with, so they arrive in their order;
    with more, so many are under way at once, in any order. While nobody takes connections at the endpoint, events wait
    for as long as it takes, in memory: all that one reading of the list brought. A request that came through and was
    answered with 408, 425, 429 or 5xx, or not at all, is made again ``pace.retries`` times.
    """

    def __init__(
        self,
        source: Subscription,
        endpoint: Endpoint,
        hearing: Hearing,
        *,
        pace: Pace | None = None,
        concurrency: int = 1,
        clock: Clock = system_clock,
    ) -> None:
        self.tally = Tally()
        self._source = source
        self._endpoint = endpoint
        self._hearing = hearing
        self._pace = pace or Pace()
        self._concurrency = concurrency
        self._clock = clock
        self._waiting: asyncio.Queue[ProviderEvent] = asyncio.Queue(_MOST_WAITING)
        self._is_away = False

    async def run(self) -> None:
        """Relay until cancelled; raises `ProviderRefusedError` when the provider does not accept the key any more."""
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
                events = await self._source.fresh()
            except ProviderUnavailableError as error:
                failures += 1
                if failures == 1:
                    self._hearing.notice(f"{error.detail} Events that happen meanwhile are fetched afterwards.")
                await asyncio.sleep(self._pace.interval + self._pace.after(failures))
                continue
            if failures:
                self._hearing.notice("The payment provider answers again.")
            failures = 0
            if self._source.began_anew:
                self._hearing.notice("The payment provider's list has begun anew, and is relayed from its beginning.")
            for event in events:
                self.tally.received += 1
                await self._waiting.put(event)
            await asyncio.sleep(self._pace.interval)

    async def _deliver_all(self) -> None:
        while True:
            event = await self._waiting.get()
            self.tally.count(await self._deliver(event))

    async def _deliver(self, event: ProviderEvent) -> Outcome:
        number = 0
        while True:
            answer = await self._sent(event)
            number += 1
            outcome = self._judge(answer, number)
            self._hearing.attempt(
                Attempt(
                    at=self._clock(),
                    event=event,
                    outcome=outcome,
                    number=number,
                    status=answer.status if isinstance(answer, Answer) else None,
                    milliseconds=answer.milliseconds if isinstance(answer, Answer) else None,
                    answer=answer.text if isinstance(answer, Answer) else answer,
                )
            )
            if outcome is not Outcome.RETRYING:
                return outcome
            wanted = answer.retry_after if isinstance(answer, Answer) else 0.0
            await asyncio.sleep(max(self._pace.after(number), min(wanted, self._pace.ceiling)))

    async def _sent(self, event: ProviderEvent) -> Answer | str:
        """The answer, or why there was none; an endpoint that takes no connections is waited for."""
        failures = 0
        while True:
            answer: Answer | str
            try:
                answer = await self._endpoint.post(event.body)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                if _is_about_trust(error):
                    return _why(error)
                failures += 1
                if not self._is_away:
                    self._is_away = True
                    self._hearing.notice(f"{_where(self._endpoint.url)} takes no connections. Events wait for it.")
                await asyncio.sleep(self._pace.after(failures))
                continue
            except httpx2.HTTPError as error:
                answer = _why(error)
            if self._is_away:
                self._is_away = False
                self._hearing.notice(f"{_where(self._endpoint.url)} takes connections again.")
            return answer

    def _judge(self, answer: Answer | str, number: int) -> Outcome:
        if isinstance(answer, Answer) and answer.is_good:
            return Outcome.DELIVERED
        if isinstance(answer, Answer) and answer.status not in _TRIED_AGAIN:
            return Outcome.REFUSED
        return Outcome.RETRYING if number <= self._pace.retries else Outcome.GIVEN_UP


async def taking_connections(host: str, port: int, pace: float = 0.05) -> None:
    """Return once somebody takes connections there; asks every ``pace`` seconds."""
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            return
        await asyncio.sleep(pace)


def _where(url: str) -> str:
    host, port = host_and_port(url)
    return f"{host}:{port}"


def _is_about_trust(error: BaseException | None) -> bool:
    """Whether it is the certificate or the protocol of TLS that keeps us away: waiting does not help."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _why(error: httpx2.HTTPError) -> str:
    """What went wrong, in a few words that hold nothing of the request."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
