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


def run(
    server: Server,
    script: str,
    variables: Mapping[str, str],
    *,
    connections: int,
    seconds: float,
    database: int | None = None,
) -> Figure:
    """Load a server; ``database`` is the process id of its PostgreSQL. Raises `WrkError`."""
    before, machine_before = _used(server, database), psutil.cpu_times()
    requests, micros, p50, p99, rejected, failed, sent, exhausted = _load(
        server, script, variables, connections, seconds
    )
    after, machine_after = _used(server, database), psutil.cpu_times()
    used = [end - begin for begin, end in zip(before, after, strict=True)]
    server_us, database_us, client_us = (each * 1e6 / max(requests, 1) for each in used)
    # user, nice, system, idle, iowait, irq, softirq, steal
    machine = [
        end - begin for begin, end in zip(machine_before[:8], machine_after[:8], strict=True)
    ]
    others = machine[0] + machine[1] + machine[2] + machine[7] - sum(used)
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
        others_share=max(others, 0) / max(sum(machine), 0.01),
    )


def _load(
    server: Server, script: str, variables: Mapping[str, str], connections: int, seconds: float
) -> tuple[int, ...]:
    more_headers = "".join(f"{name}: {value}\r\n" for name, value in server.more_headers.items())
    own = {
        "BENCH_PATH": server.path,
        "BENCH_HEADER": server.header,
        "BENCH_MORE_HEADERS": more_headers,
    }
    done = subprocess.run(
        [
            "wrk",
            "-t1",
            f"-c{connections}",
            f"-d{seconds:g}s",
            "--timeout",
            "2s",
            "-s",
            str(_FOLDER / script),
            f"http://127.0.0.1:{server.port}",
        ],
        env={**os.environ, **own, **variables},
        capture_output=True,
        text=True,
        timeout=seconds + _TIMEOUT,
        check=False,
    )
    _, found, numbers = done.stdout.partition("RESULT ")
    if done.returncode or not found:
        raise WrkError(f"wrk ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return tuple(map(int, numbers.split()))


def _used(server: Server, database: int | None) -> tuple[float, float, float]:
    """Return the processor seconds of the server, of PostgreSQL, and of wrk."""
    # RUSAGE_CHILDREN counts children that this process has waited for: between two calls, only wrk
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    of_database = 0.0 if database is None else _cpu_seconds(database)
    return _cpu_seconds(server.pid), of_database, ended.ru_utime + ended.ru_stime


def _cpu_seconds(pid: int) -> float:
    """Return the processor seconds of a process and its descendants, including ended ones."""
    process, seconds = psutil.Process(pid), 0.0
    for each in [process, *process.children(recursive=True)]:
        try:
            seconds += sum(each.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return seconds
