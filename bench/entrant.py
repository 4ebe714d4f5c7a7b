"""One line of the comparison: a contestant with so many processes at one job, from its start to its last figure."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench import checks, events, usage, wrk
from bench.cluster import Cluster
from bench.contestant import Contestant, Job, Server, World
from bench.limits import Limit
from bench.wrk import Figure

HISTORY: Final = 7 * 24 * 3600
"""The events begin so many seconds ago, so that the last ones are not in the future."""
_FIRST_RATE: Final = 12_000
_SPARE: Final = 1.7
_LEAST_EVENTS: Final = 2000
_MOST_DELIVERED: Final = 2000
_OTHER_PRICE: Final = "price_free"
"""Takes a tenant back to the plan that it began with."""
_MOST_TENANTS_ASKED: Final = 200


class Entrant:
    """What fails is kept as its `failure`; from then on nothing is done any more."""

    def __init__(self, contestant: Contestant | Limit, job: Job, processes: int) -> None:
        self.contestant = contestant
        self.job = job
        self.processes = processes
        self.versions = ""
        self.start_seconds = 0.0
        self.memory_mib = 0.0
        self.idle_share = 0.0
        """Of one processor, while nobody asked for anything."""
        self.checked: list[str] = []
        """What the checks found, a line each."""
        self.revocation: checks.Lateness | None = None
        self.failure: str | None = None
        self.figures: dict[int, list[Figure]] = {}
        """By the number of connections."""
        self.acknowledged = 0
        self.stored = 0
        self._taken: checks.Taken | None = None
        self._sent = 0
        self._stored_before = 0
        self._second = int(time.time()) - HISTORY
        self._rates: dict[int, float] = {}
        self._runs = 0
        self._opened = contextlib.ExitStack()
        self._world: World | None = None
        self._server: Server | None = None

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.contestant.name} ({self.processes})"

    @property
    def failure_in_short(self) -> str:
        """The failure's first line; a log may follow it."""
        return (self.failure or "").partition("\n")[0]

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Whatever goes wrong in the block ends this entrant's part alone."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # a peer may fail in any way there is
            self.failure = f"{what}: {str(error) or type(error).__name__}"
            print(f"  {self.name} is out: {self.failure_in_short}", flush=True)

    def start(self, cluster: Cluster, database: str, folder: Path) -> None:
        """Give it a database and start it; all ends with `stop`."""
        self._opened.callback(cluster.drop, database)
        self._world = World(cluster.create(database), folder, processes=self.processes)
        self._server = self._opened.enter_context(self.contestant.running(self.job, self._world))
        self.start_seconds = usage.age(self._server.pid)

    def stop(self) -> None:
        """Stop its server and drop its database."""
        self._opened.close()

    def check(self) -> None:
        """See that it does the work. Raises `checks.CheckError`."""
        contestant, server, world = self.contestant, self._running(), self._given()
        if self.job is not Job.WEBHOOK:
            (world.folder / "credentials").write_text("\n".join(server.credentials[:-1]))
            if isinstance(contestant, Limit):
                return
            self.checked.append(checks.check_list(self.job, server))
        elif isinstance(contestant, Limit):
            self.checked.append(checks.check_forged(server, world, self._second))
        else:
            self._taken = checks.check_events(contestant, world, server, self._second)
            self.checked.append(self._taken.said)
            self._stored_before = contestant.events_stored(world)
            self._second += 3

    def check_revocation(self) -> None:
        """See when a revoked credential is refused; the last one, which is not used otherwise."""
        if self.job is not Job.WEBHOOK and not isinstance(self.contestant, Limit):
            self.revocation = checks.check_revocation(self.contestant, self._given(), self._running())
            seconds, status = self.revocation
            refused = f"refused with {status}" if status else "not refused within the bound"
            late = f"let in for {seconds:.1f} s more" if seconds else "let in no more"
            self.checked.append(f"revoked credential {late}, {refused}")

    def watch_idle(self, seconds: float) -> None:
        """See what it does while nobody asks."""
        before = usage.cpu_seconds(self._running().pid)
        time.sleep(seconds)
        self.idle_share = (usage.cpu_seconds(self._running().pid) - before) / seconds

    def warm_up(self, cluster: Cluster, connections: int, seconds: int) -> None:
        """A run that does not count."""
        figure = self._run(cluster, connections, seconds)
        if not figure.accepted:
            raise checks.CheckError(f"not one of {figure.requests} requests succeeded in the warm-up")

    def measure(self, cluster: Cluster, connections: int, seconds: int) -> Figure:
        """One run that counts."""
        figure = self._run(cluster, connections, seconds)
        self.figures.setdefault(connections, []).append(figure)
        self.memory_mib = usage.memory_mib(self._running().pid)
        return figure

    def check_afterwards(self) -> None:
        """See that what was answered with success is there. Raises `checks.CheckError`."""
        contestant, server, world = self.contestant, self._running(), self._given()
        if self._taken is None or isinstance(contestant, Limit):
            return
        count = min(_MOST_DELIVERED, int(max(self._rates.values())) + 1)
        if not self._taken.keeps:
            count = min(count, _MOST_TENANTS_ASKED)
            statuses = checks.deliver_all(server, world, "last", self._second, count, _OTHER_PRICE)
            changed = sum(contestant.plan_of(world, tenant) == self._taken.plan_before for tenant in range(count))
            self._expect_all(count, statuses[200], changed, "seen in the database")
            return
        stored = contestant.events_stored(world)
        self.stored = stored - self._stored_before
        if not self.acknowledged <= self.stored <= self._sent:
            raise checks.CheckError(f"{self.acknowledged} events acknowledged, {self.stored} stored, {self._sent} sent")
        self.checked.append(
            f"{self.acknowledged} events acknowledged, {self.stored} stored, {self._sent} sent "
            f"({self._sent - self.acknowledged} under way at the ends of runs)"
        )
        statuses = checks.deliver_all(server, world, "last", self._second, count)
        self._expect_all(count, statuses[200], contestant.events_stored(world) - stored, "stored")

    def _expect_all(self, count: int, acknowledged: int, found: int, where: str) -> None:
        said = f"of {count} events, each waited for, {acknowledged} acknowledged and {found} {where}"
        if found != acknowledged:
            raise checks.CheckError(said)
        self.checked.append(said)

    def _run(self, cluster: Cluster, connections: int, seconds: int) -> Figure:
        if self.job is not Job.WEBHOOK:
            variables = {"BENCH_CREDENTIALS": str(self._given().folder / "credentials")}
            return self._load(cluster, "list.lua", variables, connections, seconds)
        expected = self._rates.get(connections, max(self._rates.values(), default=_FIRST_RATE)) * _SPARE
        while True:
            count = max(_LEAST_EVENTS, int(expected * seconds))
            self._runs += 1
            variables = events.write_events(self._given().folder, count, self._given(), f"r{self._runs}", self._second)
            self._second += events.seconds_of(count, self._given())
            if not isinstance(self.contestant, Limit):
                cluster.checkpoint()
            figure = self._load(cluster, "webhook.lua", variables, connections, seconds)
            self.acknowledged += figure.accepted
            self._sent += figure.sent
            if not figure.exhausted:
                self._rates[connections] = max(figure.per_second, self._rates.get(connections, 0))
                return figure
            expected *= 2

    def _load(self, cluster: Cluster, script: str, variables: dict[str, str], connections: int, seconds: int) -> Figure:
        return wrk.run(
            self._running(), script, variables, connections=connections, seconds=seconds, database=cluster.pid
        )

    def _given(self) -> World:
        if self._world is None:
            raise RuntimeError("it was not started")
        return self._world

    def _running(self) -> Server:
        if self._server is None:
            raise RuntimeError("it was not started")
        return self._server
