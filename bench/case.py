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
from bench.support import Cluster
from bench.wrk import Figure, Setup

HISTORY: Final = 7 * 24 * 3600
"""The first event is so many seconds old, so that the last events are not in the future."""
_FIRST_RATE: Final = 12_000
_MARGIN: Final = 1.7
_MIN_EVENTS: Final = 2000


class BenchCase:
    """A failure is kept in ``failure`` and ends this case only."""

    def __init__(
        self, contestant: Contestant, job: Job, processes: int, prices: Sequence[str]
    ) -> None:
        """``prices`` are those that a tenant's events name in turn."""
        self.contestant = contestant
        self.job = job
        self.processes = processes
        self.versions = ""
        self.checked: list[str] = []
        """The results of the checks, a line each."""
        self.failure: str | None = None
        self.figures: dict[int, list[Figure]] = {}
        """By number of connections."""
        self._prices = prices
        self._acknowledged = 0
        self._sent = 0
        self._stored_before = 0
        self._second = int(time.time()) - HISTORY
        self._rate = float(_FIRST_RATE)
        """The most events in a second until now."""
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
        data = Dataset(cluster.create(database), folder, self.processes)
        self._started = data, self._opened.enter_context(self.contestant.running(self.job, data))

    def stop(self) -> None:
        """Stop the server and drop the database; keep the figures even if that fails."""
        with self.attempt("stop"):
            self._opened.close()

    def check(self) -> None:
        """Check that the server does the work. Raises `checks.CheckError`."""
        contestant, (data, server) = self.contestant, self.started
        if not contestant.does_work:
            return
        if self.job is Job.WEBHOOK:
            self.checked.append(checks.check_events(contestant, data, server, self._second))
            self._stored_before = contestant.events_stored(data)
            self._second += 2
        elif self.job is not Job.CONSUME:
            self.checked.append(checks.check_credentials(self.job, server))
            self.checked.append(checks.check_revocation(contestant, data, server))

    def measure(self, cluster: Cluster, connections: int, seconds: int) -> Figure:
        """Run once. Raises `checks.CheckError` if no request succeeds."""
        setup = Setup(connections, seconds, cluster.pid)
        if self.contestant.does_work:
            cluster.checkpoint()
        figure = self._send_events(setup) if self.job is Job.WEBHOOK else self._send_requests(setup)
        if not figure.accepted:
            raise checks.CheckError(f"none of {figure.requests:g} requests succeeded")
        return figure

    def check_afterwards(self) -> None:
        """Check that the database holds every acknowledged event. Raises `checks.CheckError`."""
        contestant, (data, _) = self.contestant, self.started
        if self.job is not Job.WEBHOOK or not (contestant.does_work and contestant.keeps_events):
            return
        found = contestant.events_stored(data) - self._stored_before
        text = f"{self._acknowledged} events acknowledged, {found} stored, {self._sent} sent"
        if not self._acknowledged <= found <= self._sent:
            raise checks.CheckError(text)
        in_flight = self._sent - self._acknowledged
        self.checked.append(f"{text} ({in_flight} in flight at the ends of runs)")

    def _send_requests(self, setup: Setup) -> Figure:
        data, server = self.started
        path = data.folder / "requests"
        path.write_text("\0".join(self.contestant.requests(self.job, server)))
        return wrk.run(server, "requests.lua", {"BENCH_REQUESTS": str(path)}, setup)

    def _send_events(self, setup: Setup) -> Figure:
        """Send more events than the server takes, each once."""
        data, server = self.started
        fields = "".join(f"{name}: {value}\r\n" for name, value in server.more_headers.items())
        variables = {
            "BENCH_FOLDER": str(data.folder),
            "BENCH_PATH": server.path,
            "BENCH_HEADERS": fields + server.header,
        }
        count = max(_MIN_EVENTS, int(self._rate * _MARGIN * setup.seconds))
        while True:
            self._runs += 1
            events.write_events(data.folder, count, f"r{self._runs}", self._second, self._prices)
            self._second += events.seconds_of(count)
            figure = wrk.run(server, "webhook.lua", variables, setup)
            self._acknowledged += figure.accepted
            self._sent += int(figure.sent)
            if not figure.exhausted:
                self._rate = (
                    figure.per_second if self._runs == 1 else max(self._rate, figure.per_second)
                )
                return figure
            count *= 2

    @property
    def started(self) -> tuple[Dataset, Server]:
        """The data, and the running server. Raises `RuntimeError`."""
        if self._started is None:
            raise RuntimeError("the server was not started")
        return self._started
