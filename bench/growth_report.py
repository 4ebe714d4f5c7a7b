"""What the measurements of growth came to, and how it is shown."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from bench.growth_data import BODIES, LEDGER, Size

CONNECTIONS: Final = 64
COLUMNS: Final = {
    "requests/s": "per_second",
    "p50, ms": "p50_ms",
    "p99, ms": "p99_ms",
    "CPU of the service for a request, us": "server_us",
    "CPU of PostgreSQL for a request, us": "database_us",
    "log (WAL) for a request, bytes": "log_bytes",
    "blocks not in shared buffers, for a request": "reads",
    "CPU of wrk for a request, us": "client_us",
    "the machine's processors, taken by others": "others_share",
}
GROUPS: Final = {
    "tenants, customers, members": ("tenants", "customers", "memberships"),
    "API keys": ("api_keys",),
    "projects": ("projects",),
    "ledger rows": (LEDGER,),
    "raw bodies": (BODIES,),
}


class Round(msgspec.Struct, frozen=True):
    """One run of wrk against one world."""

    world: str
    job: str
    phase: str
    per_second: float
    p50_ms: float
    p99_ms: float
    server_us: float
    """CPU of the service for each request."""
    database_us: float
    """CPU of PostgreSQL for each request, with all its background processes."""
    log_bytes: float
    """Written to PostgreSQL's log (WAL) for each request."""
    reads: float
    """Blocks that were not in shared buffers, for each request."""
    client_us: float
    others_share: float
    """What other processes took of the machine's processors: they disturb."""


class Relation(msgspec.Struct, frozen=True):
    """A table or an index."""

    name: str
    table: str
    rows: int
    size: int
    """Bytes; of a table with what is stored beside it."""
    levels: int | None
    """Pages from an index's root to an entry; None for tables."""


class Updates(msgspec.Struct, frozen=True):
    """Rows of a table that were updated, and how many of them without new entries in its indexes (HOT)."""

    rows: int
    hot: int


class Report(msgspec.Struct):
    """What is written to ``--out``."""

    settings: Sequence[str]
    sizes: Mapping[str, Size]
    loading: dict[str, dict[str, float]]
    """Seconds by world and step."""
    rounds: list[Round] = []
    versions: str = ""
    relations: list[Relation] = []
    """Of the big world."""
    updates: dict[str, dict[str, Updates]] = {}
    """By world and table."""
    memory: dict[str, float] = {}
    """MiB of the service's memory after the first runs, by world."""
    vacuum: dict[str, float] = {}
    """Seconds for each table of the big world, after the run; of the bodies after all have been let go."""
    retention: float = 0.0
    """Seconds to let go of all bodies."""


def show(report: Report) -> None:
    """Print what was measured."""
    print(f"{report.versions}; {', '.join(report.settings)}; {CONNECTIONS} connections, one process")
    for name, size in report.sizes.items():
        print(f"{name:6} {size.tenants:>10,} tenants {size.keys:>10,} keys {size.ledger:>11,} ledger rows "
              f"{size.projects:>10,} projects")  # fmt: skip
    print()
    print(f"{'medians':44} {'small':>10} {'big':>10} {'big/small':>10}")
    for (phase, job), rounds in _grouped(report.rounds).items():
        print(f"{job}, {phase}")
        for label, name in COLUMNS.items():
            small, big = (
                statistics.median(getattr(one, name) for one in rounds if one.world == world)
                for world in ("small", "big")
            )
            ratio = f"{big / small:10.2f}" if small else ""
            print(f"  {label:42} {small:10,.2f} {big:10,.2f} {ratio}")
    print()
    for world, counted in report.updates.items():
        for table, updates in counted.items():
            share = f"{updates.hot / updates.rows:.3f}" if updates.rows else "none"
            print(f"{world:6} rows updated in {table:12} {updates.rows:>10,}, HOT {share}")
    print("service, memory, MiB: " + ", ".join(f"{name} {size:.0f}" for name, size in report.memory.items()))
    print()
    print(f"{'big world, for each million of':30} {'tables, MB':>11} {'indexes, MB':>12} {'levels':>7} "
          f"{'first vacuum, s':>16} {'vacuum after the run, s':>24}")  # fmt: skip
    for what, tables in GROUPS.items():
        _show_group(report, what, tables)
    if report.retention:
        print(f"letting go of all bodies: {report.retention:.0f} s")
    print("loading, s: " + ", ".join(f"{step} {seconds:.0f}" for step, seconds in report.loading["big"].items()))


def _show_group(report: Report, what: str, tables: Sequence[str]) -> None:
    found = [one for one in report.relations if one.table in tables]
    rows = max((one.rows for one in found if one.name == tables[0]), default=0)
    if not rows:
        return
    loading, millions = report.loading["big"], rows / 1e6
    held = sum(one.size for one in found if one.levels is None) / 1e6
    indexes = [one for one in found if one.levels is not None]
    levels = sorted({one.levels for one in found if one.levels is not None and one.rows > rows // 2})
    first, later = (sum(source.get(name, 0.0) for name in names) for source, names in (
        (loading, [f"vacuum {table}" for table in tables]), (report.vacuum, tables)
    ))  # fmt: skip
    print(f"{what:30} {held / millions:11,.0f} {sum(one.size for one in indexes) / 1e6 / millions:12,.0f} "
          f"{', '.join(map(str, levels)):>7} {first / millions:16,.2f} {later / millions:24,.2f}")  # fmt: skip


def _grouped(rounds: Sequence[Round]) -> dict[tuple[str, str], list[Round]]:
    grouped: dict[tuple[str, str], list[Round]] = {}
    for one in rounds:
        grouped.setdefault((one.phase, one.job), []).append(one)
    return grouped
