"""The processor time of the primary and of standbys for a list, with any number of standbys."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import psycopg
from psycopg.conninfo import make_conninfo

from bench import support, wrk
from bench.baselines.serving import serving
from bench.contestant import Server
from bench.faults.deployment import LOGIN
from bench.ours import PLANS_WITHOUT_LIMITS
from bench.standbys.deployment import DATABASES, PYTHON
from bench.standbys.replicated_database import ReplicatedDatabase
from tenantry.api import projects
from tenantry.db.migrate import grant, migrate
from tests.support.database_server import server_folder
from tests.support.postgres import as_url

PROCESSES: Final = 2
STANDBYS: Final = (0, 1, 2)
CONNECTIONS: Final = 32
"""Of the clients, to each process."""
_OPTIONS: Final = ("shared_buffers=128MB", "max_connections=200")
_WARM_UP: Final = 2.0


class Capacity(NamedTuple):
    """What a list costs with a number of standbys; processor times are microseconds for each."""

    standbys: int
    per_second: float
    """Lists of all processes together, on this machine."""
    service: float
    primary: float
    of_standbys: float
    """Of all standbys together."""


def measure(seconds: float) -> list[Capacity]:
    """Measure with each number of standbys."""
    with server_folder() as folder:
        database = ReplicatedDatabase(folder, dict.fromkeys(DATABASES), _OPTIONS)
        database.start()
        try:
            credentials = _prepare(database, folder)
            return [
                _measure(database, folder, credentials, standbys, seconds) for standbys in STANDBYS
            ]
        finally:
            database.stop()


def _prepare(database: ReplicatedDatabase, folder: Path) -> Path:
    """Create the schema, tenants and keys; return a file with the values of ``Authorization``."""
    conninfo = database.primary.conninfo
    migrate(conninfo)
    with psycopg.connect(conninfo) as connection:
        connection.execute(f"CREATE ROLE {LOGIN} LOGIN")
        connection.execute(f"GRANT pg_read_all_stats TO {LOGIN}")
    grant(conninfo, LOGIN)
    keys = support.load(conninfo)
    credentials = folder / "credentials"
    credentials.write_text("".join(f"Bearer {key}\n" for key in keys))
    return credentials


def _measure(
    database: ReplicatedDatabase,
    folder: Path,
    credentials: Path,
    standbys: int,
    seconds: float,
) -> Capacity:
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(_serving(database, folder, standbys, number))
            for number in range(PROCESSES)
        ]
        _load(servers, credentials, _WARM_UP)
        before = _used(database, servers)
        figures = _load(servers, credentials, seconds)
        after = _used(database, servers)
    lists = sum(figure.requests for figure in figures)
    service, primary, of_standbys = (
        1e6 * (end - begin) / lists for begin, end in zip(before, after, strict=True)
    )
    per_second = sum(figure.per_second for figure in figures)
    return Capacity(standbys, per_second, service, primary, of_standbys)


@contextlib.contextmanager
def _serving(
    database: ReplicatedDatabase, folder: Path, standbys: int, number: int
) -> Iterator[Server]:
    """Run a process of the service, which checks at one of so many standbys."""
    port = support.free_port()
    catalog = folder / "plans.toml"
    catalog.write_text(PLANS_WITHOUT_LIMITS)
    variables = {
        "DATABASE_URL": as_url(make_conninfo(database.conninfo, user=LOGIN)),
        "TENANTRY_PLANS": str(catalog),
        "PORT": str(port),
        "WORKERS": "1",
        "PROVIDER_WEBHOOK_SECRET": support.SECRET,
        "API_KEY_PEPPER": support.PEPPER,
        "SESSION_SECRET": support.PEPPER,
        **_checks(database, standbys, number),
    }
    url = f"http://127.0.0.1:{port}{projects.PATH}"
    command = [PYTHON, "-m", "tenantry", "serve", "--no-jobs", "--no-migrate"]
    log = folder / f"serve-{number}.log"
    with serving(command, folder, variables, url=url, log=log) as pid:
        yield Server(port, pid, projects.PATH)


def _checks(database: ReplicatedDatabase, standbys: int, number: int) -> Mapping[str, str]:
    if not standbys:
        return {}
    name = database.standby_names[number % standbys]
    return {"DATABASE_CHECKS_URL": as_url(make_conninfo(database.hosts([name]), user=LOGIN))}


def _load(servers: Sequence[Server], credentials: Path, seconds: float) -> list[wrk.Figure]:
    """Load all processes at the same time."""
    variables = {"BENCH_CREDENTIALS": str(credentials)}

    def load(server: Server) -> wrk.Figure:
        return wrk.run(
            server,
            "list.lua",
            variables,
            connections=CONNECTIONS,
            seconds=seconds,
            database=server.pid,
        )

    with ThreadPoolExecutor(len(servers)) as pool:
        return list(pool.map(load, servers))


def _used(database: ReplicatedDatabase, servers: Sequence[Server]) -> tuple[float, float, float]:
    """Return the processor seconds of the service, the primary and the standbys."""
    pids = {
        name: server.process.pid
        for name, server in database.servers.items()
        if server.process is not None
    }
    standbys = [wrk.cpu_seconds(pids[name]) for name in database.standby_names]
    service = sum(wrk.cpu_seconds(server.pid) for server in servers)
    return service, wrk.cpu_seconds(pids[database.primary_name]), sum(standbys)


def table(measured: Sequence[Capacity]) -> Iterator[str]:
    """Return the results in Markdown."""
    yield "| standbys | lists/s here | service | primary | standbys together | lists/s for each core of the primary |"
    yield "|---:" * 6 + "|"
    for each in measured:
        times = (each.service, each.primary, each.of_standbys)
        shown = " | ".join(f"{micros:.1f} us" for micros in times)
        yield f"| {each.standbys} | {each.per_second:,.0f} | {shown} | {1e6 / each.primary:,.0f} |"
