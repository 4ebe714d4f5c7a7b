"""One line of the comparison: a contestant, a job and a number of processes, from its start to its
last figure.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench import checks, events, wrk
from bench.contestant import Contestant, Dataset, Job, Server
from bench.processor_time import Profile, TimeShares
from bench.support import Cluster
from bench.upper_bounds import UpperBound
from bench.wrk import Figure

HISTORY: Final = 7 * 24 * 3600
"""The first event is so many seconds old, so that the last events are not in the future."""
_FIRST_RATE: Final = 12_000
_MARGIN: Final = 1.7
_MIN_EVENTS: Final = 2000
_MAX_DELIVERED: Final = 2000
_MAX_TENANTS: Final = 200
_FREE_PRICE: Final = "price_free"


class BenchCase:
    """A failure is kept in ``failure`` and ends this case only."""

    def __init__(
        self,
        contestant: Contestant | UpperBound,
        job: Job,
        processes: int,
        prices: Sequence[str] = events.RENEWALS,
    ) -> None:
        """``prices`` are those that a tenant's events name in turn."""
        self.contestant = contestant
        self._prices = prices
        self.job = job
        self.processes = processes
        self.versions = ""
        self.checked: list[str] = []
        """The results of the checks, a line each."""
        self.failure: str | None = None
        self.figures: dict[int, list[Figure]] = {}
        """By number of connections."""
        self.time_shares: TimeShares | None = None
        """What runs in the server's process; None if that was not sampled."""
        self._acknowledged = 0
        self._ingest: checks.IngestCheck | None = None
        self._sent = 0
        self._stored_before = 0
        self._second = int(time.time()) - HISTORY
        self._rates: dict[int, float] = {}
        self._runs = 0
        self._opened = contextlib.ExitStack()
        self._started: tuple[Dataset, Server] | None = None

    @property
    def name(self) -> str:
        """A name for messages."""
        return f"{self.job} {self.contestant.name} ({self.processes})"

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Record any exception of the block as this case's failure."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # a peer may fail in any way
            self.failure = f"{what}: {str(error) or type(error).__name__}"
            print(f"  {self.name} failed: {self.failure.partition(chr(10))[0]}", flush=True)

    def start(self, cluster: Cluster, database: str, folder: Path) -> None:
        """Create the database and start the server; `stop` ends both."""
        self._opened.callback(cluster.drop, database)
        data = Dataset(cluster.create(database), folder, processes=self.processes)
        self._started = data, self._opened.enter_context(self.contestant.running(self.job, data))

    def stop(self) -> None:
        """Stop the server and drop the database; keep the figures even if that fails."""
        with self.attempt("stop"):
            self._opened.close()

    def check(self) -> None:
        """Check that the server does the work. Raises `checks.CheckError`."""
        contestant, (data, server) = self.contestant, self.started
        if self.job is not Job.WEBHOOK:
            (data.folder / "credentials").write_text("\n".join(server.credentials[:-1]))
            if not isinstance(contestant, UpperBound):
                self.checked.append(checks.check_list(self.job, server))
        elif isinstance(contestant, UpperBound):
            self.checked.append(checks.check_forged(server, data, self._second))
        else:
            self._ingest = checks.check_events(contestant, data, server, self._second)
            self.checked.append(self._ingest.summary)
            self._stored_before = contestant.events_stored(data)
            self._second += 3

    def check_revocation(self) -> None:
        """Measure when the last credential is rejected after its revocation; nothing else uses that
        credential.
        """
        if self.job is not Job.WEBHOOK and not isinstance(self.contestant, UpperBound):
            self.checked.append(checks.check_revocation(self.contestant, *self.started))

    def warm_up(self, cluster: Cluster, connections: int, seconds: int) -> None:
        """Run once without counting. Raises `checks.CheckError` if no request succeeds."""
        figure = self._run(cluster, connections, seconds)
        if not figure.accepted:
            raise checks.CheckError(
                f"none of {figure.requests:g} requests succeeded in the warm-up"
            )

    def measure(self, cluster: Cluster, connections: int, seconds: int) -> Figure:
        """Run once and keep the figure."""
        figure = self._run(cluster, connections, seconds)
        self.figures.setdefault(connections, []).append(figure)
        return figure

    def sample(self, cluster: Cluster, connections: int, seconds: int) -> None:
        """Run once more, and keep what runs in the server's process. Raises
        `processor_time.ProfileError`.
        """
        data, server = self.started
        with Profile(server.pid, data.folder) as profile:
            self._run(cluster, connections, seconds)
        self.time_shares = profile.shares()

    def check_afterwards(self) -> None:
        """Check that the database holds every acknowledged event. Raises `checks.CheckError`."""
        contestant, (data, server) = self.contestant, self.started
        if self._ingest is None or isinstance(contestant, UpperBound):
            return
        count = min(_MAX_DELIVERED, int(max(self._rates.values())) + 1)
        if not self._ingest.keeps_events:
            count = min(count, _MAX_TENANTS)
            statuses = checks.deliver_all(server, data, "last", self._second, count, _FREE_PRICE)
            changed = sum(
                contestant.plan_of(data, tenant) == self._ingest.plan_before
                for tenant in range(count)
            )
            self._require_all(count, statuses[200], changed, "visible in the database")
            return
        stored = contestant.events_stored(data)
        found = stored - self._stored_before
        text = f"{self._acknowledged} events acknowledged, {found} stored, {self._sent} sent"
        if not self._acknowledged <= found <= self._sent:
            raise checks.CheckError(text)
        self.checked.append(
            f"{text} ({self._sent - self._acknowledged} in flight at the ends of runs)"
        )
        statuses = checks.deliver_all(server, data, "last", self._second, count)
        self._require_all(count, statuses[200], contestant.events_stored(data) - stored, "stored")

    def _require_all(self, count: int, acknowledged: int, found: int, where: str) -> None:
        text = f"of {count} events, each awaited, {acknowledged} acknowledged and {found} {where}"
        if found != acknowledged:
            raise checks.CheckError(text)
        self.checked.append(text)

    def _run(self, cluster: Cluster, connections: int, seconds: int) -> Figure:
        data, server = self.started
        if self.job is not Job.WEBHOOK:
            variables = {"BENCH_CREDENTIALS": str(data.folder / "credentials")}
            return wrk.run(
                server,
                "list.lua",
                variables,
                connections=connections,
                seconds=seconds,
                database=cluster.pid,
            )
        expected = (
            self._rates.get(connections, max(self._rates.values(), default=_FIRST_RATE)) * _MARGIN
        )
        while True:
            count = max(_MIN_EVENTS, int(expected * seconds))
            self._runs += 1
            variables = events.write_events(
                data.folder, count, data, f"r{self._runs}", self._second, self._prices
            )
            self._second += events.seconds_of(count, data)
            if not isinstance(self.contestant, UpperBound):
                cluster.checkpoint()
            figure = wrk.run(
                server,
                "webhook.lua",
                variables,
                connections=connections,
                seconds=seconds,
                database=cluster.pid,
            )
            self._acknowledged += figure.accepted
            self._sent += int(figure.sent)
            if not figure.exhausted:
                self._rates[connections] = max(figure.per_second, self._rates.get(connections, 0))
                return figure
            expected *= 2

    @property
    def started(self) -> tuple[Dataset, Server]:
        """The data, and the running server. Raises `RuntimeError`."""
        if self._started is None:
            raise RuntimeError("the server was not started")
        return self._started
