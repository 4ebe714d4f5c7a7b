"""One run of wrk against a server, and what it took of the machine."""

import os
import resource
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from bench import usage
from bench.contestant import Server

_FOLDER: Final = Path(__file__).parent
_PATIENCE: Final = 60


class WrkError(RuntimeError):
    """wrk failed; the message has what it wrote."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What one run came to. Times on a processor are microseconds for each request."""

    connections: int
    requests: int
    """Answered, whatever the answer."""
    per_second: float
    p50_ms: float
    p99_ms: float
    refused: int
    """Answers with a status of 400 or more."""
    broken: int
    """Connections that failed, and requests without an answer within two seconds."""
    sent: int
    """Requests that were made; the last ones may have got no answer any more."""
    exhausted: bool
    """Whether the script had nothing left to send: then the run says nothing."""
    server_us: float
    database_us: float
    client_us: float
    others_share: float
    """Of all processors: what anybody else took, other guests of a shared machine included."""

    @property
    def accepted(self) -> int:
        """Requests that were answered with success."""
        return self.requests - self.refused


def run(
    server: Server, script: str, variables: Mapping[str, str], *, connections: int, seconds: float, database: int
) -> Figure:
    """Load a server; ``database`` is the process id of its PostgreSQL. Raises `WrkError`."""
    before, machine = _taken(server, database), usage.machine()
    counts = _load(server, script, variables, connections, seconds)
    after, machine_after = _taken(server, database), usage.machine()
    requests, micros, p50, p99, refused, broken, sent, exhausted = counts
    taken = [end - begin for begin, end in zip(before, after, strict=True)]
    server_us, database_us, client_us = (each * 1e6 / max(requests, 1) for each in taken)
    others = machine_after.busy - machine.busy - sum(taken)
    return Figure(
        connections=connections,
        requests=requests,
        per_second=(requests - refused) / (micros / 1e6),
        p50_ms=p50 / 1000,
        p99_ms=p99 / 1000,
        refused=refused,
        broken=broken,
        sent=sent,
        exhausted=bool(exhausted),
        server_us=server_us,
        database_us=database_us,
        client_us=client_us,
        others_share=max(others, 0) / max(machine_after.total - machine.total, 0.01),
    )


def _load(
    server: Server, script: str, variables: Mapping[str, str], connections: int, seconds: float
) -> tuple[int, ...]:
    done = subprocess.run(
        [
            "wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "2s", "-s", str(_FOLDER / script),
            f"http://127.0.0.1:{server.port}",
        ],
        env={**os.environ, "BENCH_PATH": server.path, "BENCH_HEADER": server.header, **variables},
        capture_output=True,
        text=True,
        timeout=seconds + _PATIENCE,
        check=False,
    )  # fmt: skip
    _, found, numbers = done.stdout.partition("RESULT ")
    if done.returncode or not found:
        raise WrkError(f"wrk ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return tuple(map(int, numbers.split()))


def _taken(server: Server, database: int) -> tuple[float, float, float]:
    """Seconds on a processor: of the server, of PostgreSQL, and of wrk."""
    # of the processes that this one has started and waited for: wrk alone, between two looks
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.cpu_seconds(server.pid), usage.cpu_seconds(database), ended.ru_utime + ended.ru_stime
