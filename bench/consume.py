"""Measure how many requests a second consume a metered feature: ``python -m bench.consume``.

Of one counter, and of 10,000, with and without idempotency keys, beside a server that runs an
upsert for each request. Needs Debian's ``wrk``.
"""

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

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
_ROOT: Final = Path(__file__).parents[1]
_OURS: Final = "tenantry"
_UPSERT: Final = "an upsert a request"


class _Run(NamedTuple):
    """What is measured: the server, its counters, and whether requests have idempotency keys."""

    server: str
    counters: int
    with_keys: bool


_RUNS: Final = (
    _Run(_OURS, 1, with_keys=False),
    _Run(_OURS, 1, with_keys=True),
    _Run(_UPSERT, 1, with_keys=False),
    _Run(_OURS, 10_000, with_keys=False),
    _Run(_OURS, 10_000, with_keys=True),
    _Run(_UPSERT, 10_000, with_keys=False),
)


class _Place(NamedTuple):
    """Where a run takes place: the folder, the server's port, and its database."""

    folder: Path
    port: int
    conninfo: str


@contextlib.contextmanager
def _serving(run: _Run, place: _Place) -> Iterator[int]:
    """Start the server of a run in one process; yield its process id."""
    (place.folder / "plans.toml").write_text(_CATALOG)
    if run.server == _UPSERT:
        command = [sys.executable, "-m", "bench.upsert_server", str(place.port), place.conninfo]
        variables = {}
        folder = _ROOT
    else:
        command = [sys.executable, "-m", "tenantry", "serve"]
        variables = {
            "DATABASE_URL": place.conninfo,
            "PORT": str(place.port),
            "WORKERS": "1",
            "PROVIDER_WEBHOOK_SECRET": support.SECRET,
            "API_KEY_PEPPER": support.PEPPER,
            "SESSION_SECRET": support.PEPPER,
            "TENANTRY_PLANS": str(place.folder / "plans.toml"),
        }
        folder = place.folder
    url = f"http://127.0.0.1:{place.port}/"
    with serving(command, folder, variables, url=url, log=place.folder / "log") as pid:
        yield pid


def _write_counters(path: Path, secrets: Sequence[str], number: int) -> None:
    """Write a line for each counter: its path and a credential of its tenant."""
    lines = [
        f"/api/v1/entitlements/f{counter % _FEATURES}/consume Bearer {secrets[counter // _FEATURES]}"
        for counter in range(number)
    ]
    path.write_text("\n".join(lines) + "\n")


def _measure(
    run: _Run, number: int, postgres: Cluster, folder: Path, options: argparse.Namespace
) -> None:
    conninfo = postgres.create(f"consume_{number}")
    migrate(conninfo)
    secrets = support.load(conninfo)
    place = _Place(folder / str(number), support.free_port(), conninfo)
    place.folder.mkdir()
    counters = place.folder / "counters"
    _write_counters(counters, secrets, run.counters)
    variables = {"BENCH_COUNTERS": str(counters)}
    with _serving(run, place) as pid:
        server = Server(place.port, pid, "/", "Authorization", [], {})
        for name, seconds in (("warm", 1), ("measured", options.seconds)):
            if run.with_keys:
                variables["BENCH_KEYS"] = f"{name}-"
            postgres.checkpoint()
            figure = wrk.run(
                server,
                "consume.lua",
                variables,
                connections=options.connections,
                seconds=seconds,
                database=postgres.pid,
            )
            if name == "measured":
                _show(run, figure)
    postgres.drop(f"consume_{number}")


def _show(run: _Run, figure: wrk.Figure) -> None:
    what = f"{run.server}{', idempotency keys' if run.with_keys else ''}"
    failed = f"{figure.rejected:,.0f} rejected, {figure.failed:,.0f} failed"
    sys.stdout.write(
        f"{run.counters:>6,} counters  {what:<28} {figure.per_second:>8,.0f} a second  "
        f"p50 {figure.p50_ms:.1f} ms  p99 {figure.p99_ms:.1f} ms  "
        f"{figure.server_us:.0f} us server  {figure.database_us:.0f} us PostgreSQL  {failed}\n"
    )
    sys.stdout.flush()


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
        for number, run in enumerate(_RUNS):
            _measure(run, number, postgres, Path(name), options)


if __name__ == "__main__":
    main()
