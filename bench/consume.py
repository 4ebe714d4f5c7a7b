"""Measure how many requests a second consume a metered feature: ``python -m bench.consume``.

Of one counter, and of 10,000, with and without idempotency keys. Needs Debian's ``wrk``.
"""

import argparse
import contextlib
import itertools
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench import support, wrk
from bench.baselines.serving import serving
from bench.contestant import Server
from bench.support import Cluster, cluster
from tenantry.db.migrate import migrate

_FEATURES: Final = 10
_LIMIT: Final = 1_000_000_000
_CATALOG: Final = (
    "".join(f'[[features]]\nid = "f{number}"\ntype = "metered"\n' for number in range(_FEATURES))
    + '[[plans]]\nid = "free"\n[plans.features]\n'
    + "".join(f"f{number} = {_LIMIT}\n" for number in range(_FEATURES))
)
_RUNS: Final = tuple(itertools.product((1, 10_000), (False, True)))
"""The number of counters, and whether requests have idempotency keys."""


@contextlib.contextmanager
def _serving(folder: Path, conninfo: str) -> Iterator[Server]:
    """Start the service in one process."""
    catalog = folder / "plans.toml"
    catalog.write_text(_CATALOG)
    port = support.free_port()
    variables = {
        "DATABASE_URL": conninfo,
        "PORT": str(port),
        "WORKERS": "1",
        "PROVIDER_WEBHOOK_SECRET": support.SECRET,
        "API_KEY_PEPPER": support.PEPPER,
        "SESSION_SECRET": support.PEPPER,
        "TENANTRY_PLANS": str(catalog),
    }
    command = [sys.executable, "-m", "tenantry", "serve"]
    url = f"http://127.0.0.1:{port}/"
    with serving(command, folder, variables, url=url, log=folder / "log") as pid:
        yield Server(port, pid, "/")


def _write_counters(path: Path, secrets: Sequence[str], number: int) -> None:
    """Write a line for each counter: its path and a credential of its tenant."""
    lines = [
        f"/api/v1/entitlements/f{counter % _FEATURES}/consume Bearer {secrets[counter // _FEATURES]}"
        for counter in range(number)
    ]
    path.write_text("\n".join(lines) + "\n")


def _measure(
    counters: int,
    postgres: Cluster,
    folder: Path,
    options: argparse.Namespace,
    *,
    with_keys: bool,
) -> wrk.Figure:
    """Measure after a second to warm up."""
    database = f"consume_{folder.name}"
    conninfo = postgres.create(database)
    migrate(conninfo)
    secrets = support.load(conninfo)
    path = folder / "counters"
    _write_counters(path, secrets, counters)

    def run(server: Server, name: str, seconds: int) -> wrk.Figure:
        postgres.checkpoint()
        variables = {"BENCH_COUNTERS": str(path)}
        if with_keys:
            variables["BENCH_KEYS"] = f"{name}-"
        return wrk.run(
            server,
            "consume.lua",
            variables,
            connections=options.connections,
            seconds=seconds,
            database=postgres.pid,
        )

    with _serving(folder, conninfo) as server:
        run(server, "warm", 1)
        figure = run(server, "measured", options.seconds)
    postgres.drop(database)
    return figure


def _show(counters: int, figure: wrk.Figure, *, with_keys: bool) -> None:
    what = "with idempotency keys" if with_keys else ""
    failed = f"{figure.rejected:,.0f} rejected, {figure.failed:,.0f} failed"
    print(
        f"{counters:>6,} counters {what:<21} {figure.per_second:>8,.0f} a second  "
        f"p50 {figure.p50_ms:.1f} ms  p99 {figure.p99_ms:.1f} ms  "
        f"{figure.server_us:.0f} us server  {figure.database_us:.0f} us PostgreSQL  {failed}",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurement, and print a line for each run."""
    parser = argparse.ArgumentParser(prog="python -m bench.consume", description=__doc__)
    parser.add_argument("--connections", type=int, default=64, metavar="N")
    parser.add_argument("--seconds", type=int, default=5, help="length of each run")
    options = parser.parse_args(arguments)
    if shutil.which("wrk") is None:
        sys.exit("bench: wrk is missing; install it with: apt-get install wrk")
    with (
        tempfile.TemporaryDirectory(prefix="tenantry-bench-") as name,
        cluster(Path(name) / "database") as postgres,
    ):
        for number, (counters, with_keys) in enumerate(_RUNS):
            folder = Path(name) / str(number)
            folder.mkdir()
            figure = _measure(counters, postgres, folder, options, with_keys=with_keys)
            _show(counters, figure, with_keys=with_keys)


if __name__ == "__main__":
    main()
