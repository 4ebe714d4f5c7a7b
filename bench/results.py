"""The results of a comparison as values."""

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from bench.contestant import Job
from bench.pgbench import PgbenchFigure
from bench.wrk import Figure

OURS = "tenantry"


class Kind(StrEnum):
    """What a contestant is to us."""

    OURS = "ours"
    LIMIT = "limit"
    PEER = "peer"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of the rounds at one number of connections; times on a processor are microseconds for each request."""

    connections: int
    per_second: float
    p50_ms: float
    p99_ms: float
    server_us: float
    database_us: float
    client_us: float
    others_share: float
    """Of all processors."""
    errors: int
    """Of all rounds together."""
    rounds: list[Figure]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A contestant with so many processes at one job."""

    name: str
    title: str
    kind: Kind
    job: Job
    processes: int
    versions: str
    failure: str | None
    checked: list[str]
    revoked_after: float | None
    """Seconds that a revoked credential was let in."""
    start_seconds: float
    idle_share: float
    """Of one processor, while nobody asked for anything."""
    memory_mib: float
    measured: list[Measured]

    def at(self, connections: int) -> Measured | None:
        """What was measured at so many connections; None where it failed, or was not measured there."""
        if self.failure is not None:
            return None
        return next((found for found in self.measured if found.connections == connections), None)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was to be reached."""

    text: str
    wanted: str
    measured: str
    met: bool | None
    """None where it was not measured."""

    @property
    def verdict(self) -> str:
        """In words."""
        return "not measured" if self.met is None else "met" if self.met else "NOT MET"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything."""

    finished: str
    commit: str
    machine: str
    tools: dict[str, str]
    postgres: dict[str, str]
    rounds: int
    seconds: int
    took: float
    lines: list[Line]
    pgbench: list[PgbenchFigure]
    targets: list[Target]

    def blocks(self) -> Iterator[tuple[Job, int]]:
        """The jobs and numbers of connections that there are figures for."""
        for job in Job:
            for connections in sorted(
                {found.connections for line in self.lines if line.job is job for found in line.measured}
            ):
                yield job, connections

    def ours(self, job: str, connections: int) -> float | None:
        """Requests a second of the service with one process."""
        return rate(self.lines, OURS, job, 1, connections)


def rate(lines: list[Line], name: str, job: str, processes: int, connections: int) -> float | None:
    """Requests a second of one line; None where there are none."""
    for line in lines:
        if (line.name, line.job, line.processes) == (name, job, processes) and (found := line.at(connections)):
            return found.per_second
    return None
