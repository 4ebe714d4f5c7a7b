"""One run of wrk against a server, with the processor time of the server, PostgreSQL and wrk."""

import os
import resource
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from bench.contestant import Server

_FOLDER: Final = Path(__file__).parent
_TIMEOUT: Final = 60


class WrkError(RuntimeError):
    """wrk failed; the message has its output."""


class Setup(NamedTuple):
    """How a server is loaded."""

    connections: int
    seconds: int
    database: int
    """The process id of PostgreSQL."""


class Figure(NamedTuple):
    """The results of one run. Processor times are microseconds for each request."""

    requests: float
    """Answered requests, with any status."""
    per_second: float
    """Successful requests a second."""
    p50_ms: float
    p99_ms: float
    rejected: float
    """Answers with a status of 400 or more."""
    failed: float
    """Failed connections, and requests without an answer within two seconds."""
    sent: float
    """Includes requests whose answers came after the end of the run."""
    exhausted: float
    """1 if the script ran out of events, which makes the run invalid; else 0."""
    server_us: float
    database_us: float
    client_us: float
    others_share: float
    """The share of all processors that other processes, and other guests of a shared machine,
    used.
    """

    @property
    def accepted(self) -> int:
        """The number of successful requests."""
        return int(self.requests - self.rejected)


def run(server: Server, script: str, variables: Mapping[str, str], setup: Setup) -> Figure:
    """Load a server. Raises `WrkError`."""
    before = _used(server, setup)
    requests, micros, p50, p99, rejected, failed, sent, exhausted = _load(
        server, script, variables, setup
    )
    used = [end - begin for begin, end in zip(before, _used(server, setup), strict=True)]
    *own, busy, everything = used
    server_us, database_us, client_us = (seconds * 1e6 / max(requests, 1) for seconds in own)
    return Figure(
        requests=requests,
        per_second=(requests - rejected) / (micros / 1e6),
        p50_ms=p50 / 1000,
        p99_ms=p99 / 1000,
        rejected=rejected,
        failed=failed,
        sent=sent,
        exhausted=exhausted,
        server_us=server_us,
        database_us=database_us,
        client_us=client_us,
        others_share=max(busy - sum(own), 0) / max(everything, 0.01),
    )


def _load(
    server: Server, script: str, variables: Mapping[str, str], setup: Setup
) -> tuple[int, ...]:
    options = [f"-c{setup.connections}", f"-d{setup.seconds}s", "--timeout", "2s"]
    done = subprocess.run(
        ["wrk", "-t1", *options, "-s", str(_FOLDER / script), server.url],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=setup.seconds + _TIMEOUT,
        check=False,
    )
    _, found, numbers = done.stdout.partition("RESULT ")
    if done.returncode or not found:
        raise WrkError(f"wrk ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return tuple(map(int, numbers.split()))


def _used(server: Server, setup: Setup) -> tuple[float, ...]:
    """Return processor seconds: of the server, PostgreSQL, wrk, all programs, and with idling."""
    # RUSAGE_CHILDREN counts children that this process has waited for: between two calls, only wrk
    wrk = resource.getrusage(resource.RUSAGE_CHILDREN)
    machine = psutil.cpu_times()
    busy = machine.user + machine.nice + machine.system + machine.steal
    everything = busy + machine.idle + machine.iowait + machine.irq + machine.softirq
    own = (_cpu_seconds(server.pid), _cpu_seconds(setup.database), wrk.ru_utime + wrk.ru_stime)
    return (*own, busy, everything)


def _cpu_seconds(pid: int) -> float:
    """Return the processor seconds of a process and its descendants, including ended ones."""
    process, seconds = psutil.Process(pid), 0.0
    for each in [process, *process.children(recursive=True)]:
        try:
            seconds += sum(each.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return seconds
