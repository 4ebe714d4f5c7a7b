"""Relaying the provider's events to the webhook endpoint."""

import asyncio
import contextlib
import os
import random
import shlex
import signal
import ssl
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import IO, Any, Final, NamedTuple, Self

import httpx2
import msgspec

from tenantry.common.clock import Clock, exponential, system_clock
from tenantry.common.encoding import NOT_JSON
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry.integrations.stripe.api import MOST_EVENT_TYPES, ORG_ID, ProviderApi
from tenantry_devkit.local.endpoint import Answer, Endpoint, host_and_port

ALL_TYPES: Final = "*"
OVERLAP: Final = 60
"""Seconds that are read again each time: an event may appear in the list a little later than newer ones."""

Json = Mapping[str, Any]


class ProviderEvent(msgspec.Struct, frozen=True):
    """An event: its ``body`` as it was listed, and of it what people recognize it by.

    ``created`` is in seconds since the Unix epoch; ``tenant`` is what its metadata say.
    """

    id: str
    type: str
    created: int
    tenant: str | None
    customer: str | None
    body: bytes


def read_event(body: bytes) -> ProviderEvent | None:
    """What an event says of itself; None for what has no id, type or date, which cannot be relayed."""
    try:
        event = msgspec.json.decode(body)
    except NOT_JSON:
        return None
    if not isinstance(event, dict):
        return None
    event_id, event_type, created = event.get("id"), event.get("type"), event.get("created")
    if not isinstance(event_id, str) or not isinstance(event_type, str) or type(created) is not int:
        return None
    thing = _within(event, "data", "object")
    return ProviderEvent(event_id, event_type, created, _tenant(thing), _customer(thing), body)


class Subscription:
    """The events of these types that appear in the provider's list, each of them once.

    Types may hold ``*``, as in ``invoice.*``. What is remembered are the events of the last `OVERLAP` seconds.
    ``monotonic`` returns seconds that never go back. The methods raise what `ProviderApi.events_since` does, and
    nothing is lost by that.
    """

    def __init__(
        self, provider: ProviderApi, types: Collection[str], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.began_anew = False
        """Whether the last call of `fresh` found another list than the one before, such as that of a new simulator."""
        self._provider = provider
        self._types = frozenset(types)
        is_plain = len(self._types) <= MOST_EVENT_TYPES and not any("*" in each for each in self._types)
        self._asked_for = self._types if is_plain else None
        self._monotonic = monotonic
        self._since = 0
        self._newest: ProviderEvent | None = None
        self._found_at = monotonic()
        self._seen: dict[str, int] = {}

    async def begin(self, since: int | None = None) -> None:
        """Begin with the events created at or after this second or, by default, with what happens from now on."""
        if since is not None:
            self._since = since
            return
        newest = await self._newest_listed()
        if newest:
            self._since = max(0, newest.created - OVERLAP)
            await self.fresh()

    async def fresh(self) -> list[ProviderEvent]:
        """The events that have appeared since the last call, oldest first."""
        found, is_empty = await self._listed()
        self.began_anew = is_empty and await self._is_another_list()
        if self.began_anew:
            self._since, self._seen, self._newest = 0, {}, None
            found, _ = await self._listed()
        # only now, when all pages have been read, for a failure on the way must not lose any
        self._seen |= {event.id: event.created for event in found}
        if found:
            self._found_at = self._monotonic()
            self._newest = max((found[0], self._newest or found[0]), key=lambda event: event.created)
        if self._newest is not None:
            # once it has been quiet for so long, nothing older appears any more: it need not be read again each time
            is_quiet = self._monotonic() - self._found_at > OVERLAP
            self._since = max(self._since, self._newest.created + 1 if is_quiet else self._newest.created - OVERLAP)
        self._seen = {event_id: created for event_id, created in self._seen.items() if created >= self._since}
        return [event for event in reversed(found) if self._is_wanted(event.type)]

    async def _listed(self) -> tuple[list[ProviderEvent], bool]:
        """What is new in the list, newest first, and whether it was empty from `_since` on."""
        found, is_empty = [], True
        async with aclosing(self._provider.events_since(self._since, self._asked_for)) as listed:
            async for body in listed:
                is_empty = False
                event = read_event(body)
                if event and event.id not in self._seen:
                    found.append(event)
        return found, is_empty

    async def _is_another_list(self) -> bool:
        """Whether the list's newest event is one that was never seen, and older than what was."""
        if self._newest is None:
            return False
        newest = await self._newest_listed()
        return newest is not None and newest.created < self._since and newest.id != self._newest.id

    async def _newest_listed(self) -> ProviderEvent | None:
        async with aclosing(self._provider.events_since(0, self._asked_for)) as listed:
            body = await anext(listed, None)
        return read_event(body) if body is not None else None

    def _is_wanted(self, event_type: str) -> bool:
        return any(fnmatchcase(event_type, pattern) for pattern in self._types)


def _tenant(thing: Json) -> str | None:
    places = (
        _within(thing, "metadata"),
        _within(thing, "parent", "subscription_details", "metadata"),
        _within(thing, "subscription_details", "metadata"),
    )
    return next((place[ORG_ID] for place in places if isinstance(place.get(ORG_ID), str)), None)


def _customer(thing: Json) -> str | None:
    customer = thing if thing.get("object") == "customer" else thing.get("customer")
    customer = customer.get("id") if isinstance(customer, dict) else customer
    return customer if isinstance(customer, str) else None


def _within(thing: object, *path: str) -> Json:
    for name in path:
        thing = thing.get(name) if isinstance(thing, dict) else None
    return thing if isinstance(thing, dict) else {}


_OURS = "tenantry"
_PATIENCE = 3
"""How many signals a program may leave unheeded before it is killed."""


def command_line(text: str) -> list[str]:
    """The words of a command; ``tenantry`` itself is the one that is running. Raises `ValueError`."""
    words = shlex.split(text)
    if not words:
        raise ValueError("names no program")
    # -P: the folder that this is run in is not one to import from
    return [sys.executable, "-P", "-m", _OURS, *words[1:]] if words[0] == _OURS else words


class Child:
    """A program in a process group of its own, so that a signal from the terminal reaches it once, through us."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._signals = 0

    @classmethod
    async def start(cls, words: Sequence[str], environment: Mapping[str, str], out: IO[str] | None = None) -> Self:
        """Start it, with its output where ours goes, or what it prints to ``out``; raises `OSError`."""
        return cls(
            await asyncio.create_subprocess_exec(
                *words, env=dict(environment), stdin=asyncio.subprocess.DEVNULL, stdout=out, start_new_session=True
            )
        )

    @property
    def is_running(self) -> bool:
        """Whether the program itself has not ended."""
        return self._process.returncode is None

    def send(self, number: int) -> None:
        """Pass a signal on to the program and what it has started; the fourth one kills them."""
        self._signals += 1
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number if self._signals <= _PATIENCE else signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit code; 128 and the signal's number where a signal ended it, as shells say."""
        code = await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)  # what it has started and left behind
        return code if code >= 0 else 128 - code


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
