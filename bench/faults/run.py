"""One set-up under load: faults one after the other, each at a random moment, the books after each and at the end."""

import asyncio
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psycopg

from bench.books import Books, read_books
from bench.faults.injuries import Fault
from bench.faults.load import REPEATED, REVOKED, SUCCESSES, UNAVAILABLE, Change, FaultLoad, Moment, Timeline
from bench.faults.site import OPERATOR, OWNERS, Database, Site, running_site
from bench.faults.trail import Trail, read_trail

PAUSE: Final = 0.25
"""Seconds between two requests of a client, on the average."""
MAIL: Final = "mail"
_QUIET: Final = (0.5, 3.0)
"""Seconds from a recovery to the next fault, at least and at most."""
_PATIENCE: Final = 120.0
"""Seconds that a recovery may take, and that the last events may take to be acknowledged."""
_MAIL_PATIENCE: Final = 1500.0
"""Seconds that the last mails may take; they are tried again ever more rarely."""
_LOOK: Final = 0.05
_LAG: Final = 3.0
"""Seconds that an asynchronous standby may be behind: what was acknowledged before them outlives the primary."""
_IN_FLIGHT: Final = 1.0
"""Seconds after the primary's end in which its last answers may come in."""
_AFTER_LOSS: Final = ("new key", "rotate key", "revoke key", REVOKED, "remove member")
"""Requests that may meet keys and members as they were before what was lost."""
_CONNECTIONS: Final = "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"
_GROUPS: Final = {
    "twin": "event", "event again": "event", "suspended list": "list", "suspended check": "check",
}  # fmt: skip
_UNSETTLED: Final = """
SELECT (SELECT count(*) FROM notifications WHERE status = 'queued')
     + (SELECT count(*) FROM procrastinate_jobs
         WHERE queue_name IN ('mail', 'provider') AND status IN ('todo', 'doing'))
"""


class Instance(NamedTuple):
    """A fault that was inflicted; times are on the monotonic clock."""

    fault: Fault
    began: float
    ended: float
    killed: int
    """Processes that it killed."""
    recovered: float
    """When each kind of request had been answered again, and every set of servers was ready."""
    recoveries: dict[str, float]
    """Seconds from the fault's end to the first success, for each kind of request that it had met, and for mails."""
    lost: int
    """Acknowledged events that were not in the ledger afterwards."""
    untold: Counter[Change]
    """What the audit trail had afterwards of which callers had not been told yet."""
    doubled: int = 0
    """Changes of keys and members that were carried out more often than callers were ever told."""


class Repeated(NamedTuple):
    """A mail that came more than once."""

    first: float
    """When its first copy came."""
    more: int
    """Copies after that."""


class Mails(NamedTuple):
    """What became of the notifications."""

    notifications: int
    never: int
    """Those whose mail never arrived."""
    repeated: list[Repeated]
    beyond: int
    """Mails that came more often than the faults that met them explain."""
    unsettled: int
    """Notifications and jobs that were left at the end."""


class Phase(NamedTuple):
    """What came of one set-up."""

    kind: Database
    instances: list[Instance]
    moments: list[Moment]
    acknowledged: int
    books: Books
    mails: Mails
    wrong: list[str]
    longest_connections: int
    workers: int


async def run_phase(
    kind: Database, faults: Sequence[Fault], chance: random.Random, options: Sequence[str], logs: Path | None
) -> Phase:
    """Inflict these faults, in this order."""
    async with running_site(kind, options, logs) as site:
        trial = Trial(site, chance)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(trial.watch_mail())
            loading = group.create_task(trial.load.run())
            await trial.until_all_succeed(time.monotonic())
            if kind is Database.CLOCK:
                # under faketime a process stands still for seconds in its beginning, with rows locked
                trial.steady = time.monotonic()
            for number, fault in enumerate(faults, start=1):
                print(f"  {kind.name.lower()} {number}/{len(faults)}: {fault.name}", flush=True)
                await trial.inflict(fault)
            trial.load.end()
            async with asyncio.timeout(_PATIENCE):
                await loading
            await trial.settle()
            watching.cancel()
        return await trial.result()


class Trial:
    """A set-up under load."""

    def __init__(self, site: Site, chance: random.Random) -> None:
        self.timeline = Timeline()
        self.load = FaultLoad(
            site.ports, site.keys, site.owners, OPERATOR, timeline=self.timeline, seed=chance.randrange(1 << 30),
            pause=PAUSE, host=site.host,
        )  # fmt: skip
        self.steady = 0.0
        """Before this any request may be told to come again."""
        self.instances: list[Instance] = []
        self.site = site
        self._chance = chance
        self._mails: list[float] = []
        self._lost: set[str] = set()
        self._wrong: list[str] = []
        self._unsettled = 0
        self._connections = 0

    async def watch_mail(self) -> None:
        """Note when each mail came in."""
        while True:
            new = len(self.site.mail.received) - len(self._mails)
            self._mails += [time.monotonic()] * new
            await asyncio.sleep(_LOOK)

    async def inflict(self, fault: Fault) -> None:
        """One fault, and what it did."""
        await asyncio.sleep(self._chance.uniform(*_QUIET))
        began = time.monotonic()
        killed = await fault.inflict(self.site, self._chance) or 0
        ended = time.monotonic()
        first = await self.until_all_succeed(ended)
        await asyncio.to_thread(self.site.until_ready)
        back = time.monotonic()
        met = {
            _group(moment.kind)
            for moment in self._since(began)
            if moment.at <= ended + _PATIENCE and not moment.is_success
        }
        lost, untold = await asyncio.to_thread(self._look)
        self.instances.append(
            Instance(
                fault, began, ended, killed, back,
                {kind: at - ended for kind, at in first.items() if kind in met}, lost, untold,
            )
        )  # fmt: skip
        if fault.restore is not None:
            await fault.restore(self.site, self._chance)

    async def until_all_succeed(self, since: float) -> dict[str, float]:
        """When each kind of request first succeeded after a moment; waits for it."""
        wanted = {_group(kind) for kind in SUCCESSES}
        first: dict[str, float] = {}
        position = len(self.timeline.moments)
        while wanted - first.keys():
            if time.monotonic() > since + _PATIENCE:
                self._wrong.append(f"no success within {_PATIENCE:g} s: {', '.join(sorted(wanted - first.keys()))}")
                break
            for moment in self.timeline.moments[position:]:
                if moment.is_success and moment.at - moment.took >= since:
                    first.setdefault(_group(moment.kind), moment.at)
            position = len(self.timeline.moments)
            await asyncio.sleep(_LOOK)
        return first

    def _since(self, moment: float) -> Iterator[Moment]:
        for each in reversed(self.timeline.moments):
            if each.at < moment:
                return
            yield each

    def _look(self) -> tuple[int, Counter[Change]]:
        """How many acknowledged events have been lost lately, and the changes that no answer has told of so far."""
        acknowledged = set(self.timeline.acknowledged.copy())
        with psycopg.connect(self.site.conninfo) as connection:
            entries = {row[0] for row in connection.execute("SELECT id FROM billing_events")}
        lost = acknowledged - entries - self._lost
        self._lost |= lost
        self._connections = max(self._connections, self.count_connections() or 0)
        trail = read_trail(self.site.conninfo, OWNERS)  # first, as answers go on coming in
        return len(lost), trail.untold(self.load.told.copy())

    def count_connections(self) -> int | None:
        """How many connections the database has now, but for this one; None where it is down."""
        try:
            return int(self.site.database.rows(_CONNECTIONS)[0][0])
        except psycopg.OperationalError:
            return None

    async def settle(self) -> None:
        """Wait until every mail is sent and every question is asked."""
        deadline = time.monotonic() + _MAIL_PATIENCE
        while self._unsettled == 0 or time.monotonic() < deadline:
            self._unsettled = await asyncio.to_thread(self._count_unsettled)
            if not self._unsettled:
                return
            await asyncio.sleep(1)

    def _count_unsettled(self) -> int:
        return int(self.site.database.rows(_UNSETTLED)[0][0])

    async def result(self) -> Phase:
        """What came of it all."""
        books = await read_books(self.site.conninfo)
        trail = await asyncio.to_thread(read_trail, self.site.conninfo, OWNERS)
        return Phase(
            self.site.kind, list(self._completed(trail)), self.timeline.moments,
            len(self.timeline.acknowledged), books, await asyncio.to_thread(self._judge_mails),
            [*self._wrong, *self._faults(books, trail)], self._connections, self.site.workers,
        )  # fmt: skip

    def _completed(self, trail: Trail) -> Iterator[Instance]:
        """The faults, with what shows at the end alone: changes that came twice, and the first mail after each."""
        doubled = trail.untold(self.load.told)
        for each in self.instances:
            own = each.untold & doubled
            doubled -= own
            later = [at - each.ended for at in self._mails if at >= each.ended]
            recoveries = each.recoveries | ({MAIL: later[0]} if later else {})
            yield each._replace(doubled=own.total(), recoveries=recoveries)

    def _judge_mails(self) -> Mails:
        ids = {f"<{row[0]}@example.com>" for row in self.site.database.rows("SELECT id FROM notifications")}
        times: defaultdict[str, list[float]] = defaultdict(list)
        for at, mail in zip(self._mails, self.site.mail.received, strict=False):
            times[str(mail.message["Message-ID"])].append(at)
        repeated = [copies for copies in times.values() if len(copies) > 1]
        beyond = sum(
            len(copies) - 1 > sum(
                each.fault.mails > 0 and each.began - 1 <= copies[-1] and each.recovered + 1 >= copies[0] - 1
                for each in self.instances
            )
            for copies in repeated
        )  # fmt: skip
        again = [Repeated(copies[0], len(copies) - 1) for copies in repeated]
        return Mails(len(ids), len(ids - times.keys()), again, beyond, self._unsettled)

    def _faults(self, books: Books, trail: Trail) -> Iterator[str]:
        acknowledged = self.timeline.acknowledged
        if lost := [each for each in acknowledged.keys() - books.entries if not self._may_be_lost(acknowledged[each])]:
            yield f"{len(lost):,} events were acknowledged and are not in the ledger, such as {min(lost)}"
        if strange := books.entries - self.timeline.sent:
            yield f"{len(strange):,} entries of the ledger were never sent, such as {min(strange)}"
        if books.differing:
            yield f"{books.differing} tenants are not what their ledger says"
        yield from self._faults_of_changes(trail)
        odd = Counter(filter(None, map(self._oddity, self.timeline.moments)))
        for what, count in odd.most_common():
            yield f"{count} times {what}"

    def _faults_of_changes(self, trail: Trail) -> Iterator[str]:
        if doubled := trail.untold(self.load.told):
            yield f"{doubled.total()} changes were carried out more often than was answered, such as {min(doubled)}"
        absent = {change for change in self.load.told if change not in trail.entries}
        lost = {change for change in absent if self._may_be_lost(self.load.told[change])}
        if missing := absent - lost:
            yield f"{len(missing)} changes were answered and are not in the audit trail, such as {min(missing)}"
        if live := trail.live - {key for _, key in lost}:
            yield f"{len(live)} keys are not revoked at the end, such as {min(live)}"
        if misled := [what for at, what in self.load.misled if at < self._lost_from()]:
            yield f"{len(misled)} times a member was not what had been answered: {misled[0]}"

    def _may_be_lost(self, acknowledged: float) -> bool:
        """Whether a fault may have taken away what was acknowledged at a moment."""
        losing = [each.began for each in self.instances if each.fault.loses]
        return any(began - _LAG <= acknowledged <= began + _IN_FLIGHT for began in losing)

    def _lost_from(self) -> float:
        """When the first fault came that may take anything away."""
        return min((each.began for each in self.instances if each.fault.loses), default=math.inf)

    def _oddity(self, moment: Moment) -> str | None:
        """What is wrong with an answer."""
        if moment.is_success:
            return None
        met = [each for each in self.instances if each.began <= moment.at and moment.at - moment.took <= each.recovered]
        if moment.is_refusal and moment.at < self.steady:
            return None
        if moment.status in REPEATED.get(moment.kind, ()):
            return None
        if any(each.fault.explains(moment) for each in met):
            return None
        if moment.kind in _AFTER_LOSS and moment.at >= self._lost_from():
            return None
        status = str(moment.status or "no answer")
        if moment.status == UNAVAILABLE and not moment.is_told:
            status += " without Retry-After"
        return f"{moment.kind}: {status}, during: {', '.join({each.fault.name for each in met}) or 'no fault'}"


def _group(kind: str) -> str:
    return _GROUPS.get(kind, kind)
