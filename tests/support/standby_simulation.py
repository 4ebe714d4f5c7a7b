"""The protocol of strict checks on standbys, simulated: servers, processes, and failures of both.

The rules are the product's, the world around them is simulated: logs are lists, clocks are numbers,
and each step takes a random time, short as a rule and sometimes very long. A `Protocol` can contain
a mistake, which some schedule must then show as a stale check.
"""

import heapq
import itertools
import math
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec.structs import replace

from tenantry.domain import standby_checks as rules
from tenantry.domain.standby_checks import (
    CheckSource,
    Position,
    Positions,
    ReplicatingStandby,
    StandbySession,
    StandbyState,
)

Steps = Iterator[float]
"""What an actor does. It yields how long its next step takes, in seconds."""
_CLOCK_RATES: Final = (0.98, 1.02)
_SHORT: Final = 0.02
_LONG: Final = 3.0
"""Of a process that is suspended, or a packet that is lost."""
_NOT_KNOWN: Final = sys.maxsize
"""The position of a change whose primary is gone: no standby ever reaches it."""


@dataclass(frozen=True)
class Protocol:
    """What processes follow: the product's rules, unless a mistake is put in."""

    position_to_reach: Callable[
        [Positions, StandbySession, str, float],
        Position | CheckSource,
    ] = rules.position_to_reach
    answer_counts: Callable[[Position, StandbySession, StandbyState], bool] = rules.answer_counts
    have_replayed: Callable[[Collection[str], Sequence[ReplicatingStandby], int], bool] = (
        rules.have_replayed
    )
    is_waited_out: Callable[[float, float], bool] = rules.is_waited_out
    asks_in_one_statement: bool = False
    """The snapshot of the lookup is then older than the state."""
    looks_at_age_early: bool = False
    """Before the last request has joined the batch."""
    reads_registrations_early: bool = False
    """Before the change is committed."""
    waits_for_expired: bool = True
    """A change waits also for a standby whose registration has expired by the primary's clock."""
    removes_after_a_wait: bool = True
    """When no position counts any more that shows the registration."""
    removes_by_version: bool = True
    """And not a registration that was written again since."""


class LogRecord(msgspec.Struct, frozen=True):
    """An entry of a server's log; one without fields is a change that no check reads."""

    change: int | None = None
    registration: "RegistrationRow | None" = None
    removed: str | None = None
    """The name of a standby whose registration was removed."""


class RegistrationRow(msgspec.Struct, frozen=True):
    """A row of the table of registered standbys; each write gives it another version."""

    name: str
    timeline: int
    expires_at: float | None
    """By the primary's clock; None: it was ended."""
    version: str

    def is_valid(self, now: float) -> bool:
        """Whether it has not expired, by the primary's clock."""
        return (
            self.expires_at is not None
            and now <= self.expires_at <= now + rules.REGISTRATION_SECONDS
        )


@dataclass
class Server:
    """A database server. The primary has replayed all that it has written."""

    name: str
    timeline: int = 1
    log: list[LogRecord] = field(default_factory=list)
    replayed: int = 0
    starts: int = 0
    is_up: bool = True
    is_primary: bool = False
    is_diverged: bool = False
    """Whether it has entries of the former primary that the present one lacks."""
    receives: bool = True
    replays: bool = True
    reported: int | None = None
    """What the primary shows of it; None while it is not connected."""

    def write(self, record: LogRecord) -> int:
        """Commit an entry on the primary, and return its position."""
        self.log.append(record)
        self.replayed = len(self.log)
        return self.replayed

    def registrations(self) -> dict[str, RegistrationRow]:
        """Return the table of registered standbys, as a query sees it now."""
        rows: dict[str, RegistrationRow] = {}
        for record in self.log[: self.replayed]:
            if record.removed is not None:
                rows.pop(record.removed, None)
            if record.registration is not None:
                rows[record.registration.name] = record.registration
        return rows

    def shown_with_position(self) -> dict[str, str]:
        """Return the versions of the registrations that a primary shows with its position."""
        return {
            row.name: row.version
            for row in self.registrations().values()
            if row.timeline == self.timeline and row.expires_at is not None
        }

    def crash(self, replayed: int) -> None:
        """Stop at once. It will start with less replayed."""
        self.starts += 1
        self.is_up = False
        self.reported = None
        self.replayed = replayed

    @property
    def is_streaming(self) -> bool:
        return self.receives and self.is_up and not self.is_primary and not self.is_diverged


class Simulation:
    """One primary, two standbys and two processes. ``stale`` is a check that missed a change which
    was acknowledged before its last request arrived.
    """

    def __init__(self, seed: int, protocol: Protocol) -> None:
        self.random = random.Random(seed)  # noqa: S311  # the same for the same seed
        self.protocol = protocol
        self.now = 0.0
        self.clock_ahead = 0.0
        """By how many seconds the clock of the primary was stepped."""
        self.primary = Server("a", is_primary=True)
        self.standbys = [Server("b"), Server("c")]
        self.confirmed = 0
        """How much of the primary's log was confirmed to a client: a failover keeps it."""
        self.numbers = itertools.count(1)
        """Of changes. One that was lost in a failover keeps its own."""
        self.versions = itertools.count(1)
        """Of registrations."""
        self.acknowledged: list[int] = []
        self.sources: Counter[CheckSource] = Counter()
        self.stale: str | None = None
        self.journal: deque[str] = deque(maxlen=80)
        self._actors: list[tuple[float, int, Steps]] = []
        self._end = 0.0
        self._seldom = self.random.choice((0.002, 0.01, 0.05))
        for standby in self.standbys:
            self._add(self._stream(standby), self._replay(standby), self._report(standby))
        for number in range(2):
            process = Process(self, number, self.standbys[self.random.randrange(2)])
            self._add(*process.actors())
        self._add(self._write(), self._fail())

    def run(self, seconds: float) -> None:
        """Go on until a check is stale, for ``seconds`` of simulated time at most. Standstills do
        not count.
        """
        self._end = self.now + seconds
        while self.stale is None and self.now < self._end:
            self.now, number, actor = heapq.heappop(self._actors)
            heapq.heappush(self._actors, (self.now + next(actor), number, actor))

    def primary_clock(self) -> float:
        """Return the time of day of the primary."""
        return self.now + self.clock_ahead

    def new_version(self) -> str:
        """Return the version of a registration that is written now."""
        return str(next(self.versions))

    def note(self, text: str) -> None:
        """Keep what happened, for whoever reads a stale check."""
        self.journal.append(f"{self.now:8.3f} {text}")

    def moment(self) -> float:
        """Return how long a step takes: some milliseconds, seldom seconds."""
        if self.random.random() < self._seldom:
            return self.random.uniform(0, _LONG)
        return self.random.uniform(0, _SHORT)

    def _add(self, *actors: Steps) -> None:
        for actor in actors:
            heapq.heappush(self._actors, (self.now + self.moment(), len(self._actors), actor))

    # Servers

    def _write(self) -> Steps:
        while True:
            yield self.random.uniform(0, 0.2)
            self.primary.write(LogRecord())

    def _stream(self, standby: Server) -> Steps:
        while True:
            yield self.moment()
            if standby.is_streaming:
                standby.log += self.primary.log[len(standby.log) :]
                standby.timeline = self.primary.timeline

    def _replay(self, standby: Server) -> Steps:
        while True:
            yield self.moment()
            has_more = standby.replayed < len(standby.log)
            if standby.is_up and standby.replays and has_more:
                standby.replayed = self.random.randint(standby.replayed + 1, len(standby.log))

    def _report(self, standby: Server) -> Steps:
        while True:
            yield self.moment()
            if standby.is_streaming:
                standby.reported = standby.replayed

    # Faults

    def _fail(self) -> Steps:
        failures = (
            self._cut_off,
            self._pause_replay,
            self._kill,
            self._promote,
            self._step_clock,
            self._stand_still,
        )
        weights = [self.random.choice((0.1, 1, 5)) for _ in failures]
        pause = self.random.choice((0.2, 1, 3))
        while True:
            yield self.random.uniform(0, pause)
            [failure] = self.random.choices(failures, weights)
            standby = self.random.choice(self.standbys)
            self.note(f"{failure.__name__} {standby.name}")
            yield from failure(standby)

    def _cut_off(self, standby: Server) -> Steps:
        standby.receives = False
        yield self.random.uniform(0, _LONG)
        if self.random.random() < 0.5:  # the primary notices it
            standby.reported = None
        yield self.random.uniform(0, _LONG)
        standby.receives = True

    def _pause_replay(self, standby: Server) -> Steps:
        standby.replays = False
        yield self.random.uniform(0, _LONG)
        standby.replays = True

    def _kill(self, standby: Server) -> Steps:
        standby.crash(self.random.randint(0, standby.replayed))
        standby.replays = False
        yield self.random.uniform(0, 0.5)
        standby.is_up = True
        yield self.random.uniform(0, 0.5)
        standby.replays = True

    def _promote(self, standby: Server) -> Steps:
        """Promote a standby that has all that was confirmed. The former primary has been fenced;
        its last entries may have reached the other standby only.
        """
        confirmed = self.primary.log[: self.confirmed]
        is_fit = standby.is_up and standby.log[: self.confirmed] == confirmed
        if len(self.standbys) == 1 or not is_fit:
            return
        self.primary.is_primary = self.primary.is_up = False
        self.standbys.remove(standby)
        [other] = self.standbys
        other.reported = None
        if other.is_streaming:
            unconfirmed = [LogRecord()] * self.random.randint(0, 40)
            other.log += self.primary.log[len(other.log) :] + unconfirmed
        other.is_diverged = other.log != standby.log[: len(other.log)]
        standby.timeline = self.primary.timeline + 1
        standby.is_primary = True
        standby.write(LogRecord())
        self.primary = standby
        yield 0.0

    def _step_clock(self, _: Server) -> Steps:
        """Step the clock of the primary, forwards or backwards."""
        self.clock_ahead += self.random.uniform(-1, 1) * self.random.choice((60, 300, 86_400))
        yield 0.0

    def _stand_still(self, _: Server) -> Steps:
        """Let nothing happen until all registrations have expired."""
        pause = rules.REGISTRATION_SECONDS + 1.0
        self._actors = [(due + pause, number, actor) for due, number, actor in self._actors]
        self._end += pause
        yield pause


class Process:
    """A service process, which checks on one standby and makes changes on the primary."""

    def __init__(self, simulation: Simulation, number: int, standby: Server) -> None:
        self._simulation = simulation
        self._protocol = simulation.protocol
        self._moment = simulation.moment
        self._name = f"process {number}"
        self._standby = standby
        self._clock_starts = simulation.random.uniform(0, 1_000_000)
        self._clock_rate = simulation.random.uniform(*_CLOCK_RATES)
        self._positions: Positions = ()
        self._extended_at = -math.inf
        self._session: StandbySession | None = None
        self._start_seen = 0

    def actors(self) -> Sequence[Steps]:
        """Return what the process does at the same time."""
        return (
            self._renew(),
            self._register(),
            self._connect(),
            self._check(),
            self._change(),
            self._change(),
            self._remove_expired(),
        )

    def _clock(self) -> float:
        return self._clock_starts + self._simulation.now * self._clock_rate

    def _renew(self) -> Steps:
        while True:
            taken_at = self._clock()
            yield self._moment()
            primary = self._simulation.primary
            shown = primary.shown_with_position()
            yield self._moment()
            if primary is not self._simulation.primary:
                continue
            newest = Position(taken_at, primary.timeline, len(primary.log), shown)
            yield self._moment()
            self._positions = rules.with_position(self._positions, newest)
            yield rules.RENEWAL_INTERVAL

    def _register(self) -> Steps:
        while True:
            yield 30 * self._moment()
            primary = self._simulation.primary
            asked_at = self._clock()
            is_registered = self._positions and (
                self._standby.name in self._positions[-1].registrations
            )
            if is_registered and not rules.needs_extension(self._extended_at, asked_at):
                continue
            yield self._moment()
            if primary is not self._simulation.primary:
                continue
            row = RegistrationRow(
                self._standby.name,
                primary.timeline,
                self._simulation.primary_clock() + rules.REGISTRATION_SECONDS,
                self._simulation.new_version(),
            )
            position = primary.write(LogRecord(registration=row))
            yield self._moment()
            if primary is not self._simulation.primary:
                continue
            self._simulation.confirmed = max(self._simulation.confirmed, position)
            self._extended_at = asked_at
            self._simulation.note(f"{self._name} registered {self._standby.name}")

    def _remove_expired(self) -> Steps:
        """End the registrations that have expired, and remove those that have been ended."""
        simulation = self._simulation
        while True:
            yield 5 * self._moment()
            primary = simulation.primary
            for row in primary.registrations().values():
                if row.expires_at is not None and not row.is_valid(simulation.primary_clock()):
                    ended = replace(row, expires_at=None, version=simulation.new_version())
                    primary.write(LogRecord(registration=ended))
            rows = [row for row in primary.registrations().values() if row.expires_at is None]
            yield self._moment()
            ended_at = self._clock()
            waits = self._protocol.removes_after_a_wait
            while waits and not self._protocol.is_waited_out(ended_at, self._clock()):
                yield self._moment()
            if primary is simulation.primary:
                self._remove(rows)

    def _remove(self, rows: Sequence[RegistrationRow]) -> None:
        primary = self._simulation.primary
        present = primary.registrations()
        for row in rows:
            now = present.get(row.name)
            is_same = now is not None and now.version == row.version
            if is_same or (now is not None and not self._protocol.removes_by_version):
                primary.write(LogRecord(removed=row.name))
                self._simulation.note(f"{self._name} removed {row.name}")

    def _connect(self) -> Steps:
        """Keep a connection to the standby, and read its registration there."""
        while True:
            yield self._moment()
            if not self._is_connected():
                self._session = None
            if not self._standby.is_up:
                continue
            if self._session is None:
                self._start_seen = self._standby.starts
                self._session = StandbySession(self._clock())
                self._simulation.note(f"{self._name} connected to {self._standby.name}")
            shown = self._standby.registrations().get(self._standby.name)
            timeline = shown and rules.timeline_of(
                self._positions, self._standby.name, shown.version
            )
            if timeline is not None:
                self._session = replace(self._session, proven_timeline=timeline)

    def _is_connected(self) -> bool:
        return self._standby.is_up and self._standby.starts == self._start_seen

    def _check(self) -> Steps:
        while True:
            yield self._moment()
            session, start = self._session, self._start_seen
            if session is None:
                continue
            position = self._position_to_reach(session)
            yield self._moment()
            acknowledged = len(self._simulation.acknowledged)
            if not self._protocol.looks_at_age_early:
                position = self._position_to_reach(session)
            if isinstance(position, CheckSource):
                self._simulation.sources[position] += 1
                continue
            if self._protocol.asks_in_one_statement:
                state, seen = yield from self._ask_in_one_statement()
            else:
                state, seen = yield from self._ask()
            if not self._is_connected() or self._start_seen != start:
                self._simulation.sources[CheckSource.ERROR] += 1
            elif not self._protocol.answer_counts(position, session, state):
                self._simulation.sources[CheckSource.BEHIND] += 1
            else:
                self._count(seen, acknowledged)

    def _ask(self) -> Generator[float, None, tuple[StandbyState, int]]:
        """Return what the standby says of itself, and how many entries a lookup after that saw."""
        yield self._moment()
        state = StandbyState(not self._standby.is_primary, self._standby.replayed)
        yield self._moment()
        return state, self._standby.replayed

    def _ask_in_one_statement(self) -> Generator[float, None, tuple[StandbyState, int]]:
        """Return the same for a statement that takes its snapshot, and then asks for the state."""
        yield self._moment()
        seen = self._standby.replayed
        yield self._moment()
        return StandbyState(not self._standby.is_primary, self._standby.replayed), seen

    def _position_to_reach(self, session: StandbySession) -> Position | CheckSource:
        return self._protocol.position_to_reach(
            self._positions, session, self._standby.name, self._clock()
        )

    def _count(self, seen: int, acknowledged: int) -> None:
        """Judge an answer of the standby: it has seen so many entries, and must have seen the first
        changes that were acknowledged.
        """
        simulation = self._simulation
        simulation.sources[CheckSource.STANDBY] += 1
        changes = {entry.change for entry in self._standby.log[:seen]}
        missed = set(simulation.acknowledged[:acknowledged]) - changes
        if missed:
            simulation.note(f"{self._name} missed {sorted(missed)} on {self._standby.name}")
            simulation.stale = "\n".join(simulation.journal)

    def _change(self) -> Steps:
        simulation = self._simulation
        while True:
            yield 5 * self._moment()
            primary = simulation.primary
            early_names = self._registered_names(primary)
            yield self._moment()
            if primary is not simulation.primary:
                continue
            number = next(simulation.numbers)
            position = primary.write(LogRecord(change=number))
            yield self._moment()
            if primary is not simulation.primary:  # the caller does not learn of the commit
                continue
            simulation.confirmed = max(simulation.confirmed, position)
            names = yield from self._wait(primary, early_names)
            simulation.acknowledged.append(number)
            simulation.note(f"{self._name} acknowledged {number}, waited for {sorted(names)}")

    def _wait(
        self, primary: Server, early_names: Collection[str]
    ) -> Generator[float, None, Collection[str]]:
        """Wait after a commit, and return for which standbys."""
        committed_at = self._clock()
        yield self._moment()
        is_early = self._protocol.reads_registrations_early
        names = early_names if is_early else self._registered_names(primary)
        is_known = primary is self._simulation.primary
        position = len(primary.log) if is_known else _NOT_KNOWN
        while not self._is_over(names, position, committed_at):
            yield self._moment()
        return names

    def _is_over(self, names: Collection[str], position: int, committed_at: float) -> bool:
        if self._protocol.is_waited_out(committed_at, self._clock()):
            return True
        replicating = [
            ReplicatingStandby(standby.name, standby.reported)
            for standby in self._simulation.standbys
            if standby.reported is not None
        ]
        return self._protocol.have_replayed(names, replicating, position)

    def _registered_names(self, primary: Server) -> Collection[str]:
        """Return the standbys that a change waits for."""
        rows = primary.registrations().values()
        now = self._simulation.primary_clock()
        return [row.name for row in rows if self._protocol.waits_for_expired or row.is_valid(now)]
