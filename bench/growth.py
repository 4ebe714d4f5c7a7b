"""Whether the hot paths stay as fast when the data grows: a small world and a big one in one PostgreSQL, in turn.

Each event is of another tenant, in an order of chance over all there are, and each request of another of 50,000 keys
drawn from all, so that nothing that was used lately is used again soon: real traffic, which comes back to the same
tenants, is easier. What the hot paths touch has been read once before measuring, as by a service that has been running
for a while, and fits into the shared buffers.

What is written to PostgreSQL's log depends on how long ago the last checkpoint was: the first change of a page after it
writes the whole page. Both are measured: long after one, and right after one. The ledger's raw bodies have been let
go; then the newest events get theirs, and the events are measured again.

The big world takes 35 GB on disk and, on two cores, ten minutes to load;
``python -m bench.growth --tenants 50000 --keys 250000 --ledger 1000000 --bodies 50000`` is a small one to try.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import psycopg

from bench import events, growth_data, support, usage, wrk
from bench.contestant import Server, World
from bench.growth_data import BODIES, LEDGER, Size
from bench.growth_report import CONNECTIONS, Relation, Report, Round, Updates, show
from bench.ours import WITHOUT_LIMITS
from bench.support import PEPPER, PROJECTS, SECRET
from tenantry.api import projects, webhooks
from tenantry.db.migrate import migrate
from tenantry.domain import api_keys
from tenantry.jobs.retention_store import DELETE_BODIES, ROWS_PER_STATEMENT
from tenantry_devkit.embedded_postgres import EmbeddedServer

SMALL: Final = Size(tenants=1000, keys=2000, ledger=0, projects=20_000)
FAST_LOAD: Final = (
    "shared_buffers=2GB", "wal_level=minimal", "max_wal_senders=0", "fsync=off", "full_page_writes=off",
    "max_wal_size=8GB", "checkpoint_timeout=1h", "autovacuum=off",
)  # fmt: skip
SERVING: Final = ("shared_buffers=6GB", "max_wal_size=16GB", "checkpoint_timeout=30min")
"""Durable as ever; what a server of this size would be given."""
EVENTS_A_SECOND: Final = 100
"""Events of one second by the provider's clock; no tenant has two in one."""
FIRST_RATE: Final = 30_000
"""Events a second to have ready as long as it is not known how many are taken."""
WARM: Final = ("tenants", "customers", "memberships", "api_keys", "projects")
"""Tables that the hot paths read or change; of the ledger they touch the indexes alone."""
COUNTED: Final = ("tenants", "api_keys", "request_counts")
"""Tables whose rows the hot paths update."""
WEBHOOK: Final = "webhook"
LIST: Final = "list"
LIMITED: Final = "list, limited"
"""With the package's plans, whose requests are counted; the other jobs have plans without limits."""
LONG_AFTER: Final = "long after a checkpoint"
RIGHT_AFTER: Final = "right after a checkpoint"
WITH_BODIES: Final = "long after a checkpoint, with bodies"
ASKED: Final = 50_000
"""Keys that are used, drawn from all."""
CHECKED: Final = 1000
"""Events of each run that are looked for afterwards."""
_MARK: Final = re.compile(r"<(id|created|end|tenant)>")


class Loaded(msgspec.Struct, frozen=True):
    """A world that has been filled, and the seconds that each step took."""

    size: Size
    seconds: dict[str, float]


class Place:
    """A PostgreSQL with a database for each world."""

    def __init__(self, folder: Path, settings: Sequence[str]) -> None:
        self._server = EmbeddedServer(folder, options=settings)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def conninfo(self, world: str) -> str:
        """The connection string of a world's database."""
        return psycopg.conninfo.make_conninfo(self._server.conninfo, dbname=world)

    def ask(self, statement: str, values: Sequence[Any] = (), world: str = "postgres") -> list[tuple[Any, ...]]:
        """The rows that a statement gives."""
        with psycopg.connect(self.conninfo(world), autocommit=True) as connection:
            return connection.execute(statement, values or None).fetchall()

    def run(self, statement: str, world: str = "postgres") -> float:
        """Run a statement outside a transaction; returns the seconds that it took."""
        with psycopg.connect(self.conninfo(world), autocommit=True) as connection:
            begun = time.perf_counter()
            connection.execute(statement)
            return round(time.perf_counter() - begun, 2)

    def folder(self) -> Path:
        """Where its files are."""
        return Path(self.ask("SHOW data_directory")[0][0])

    def process_id(self) -> int:
        """Of the process that all others are children of."""
        return int((self.folder() / "postmaster.pid").read_text().split()[0])


class Bench:
    """The services on a world, and what is sent to them."""

    def __init__(self, place: Place, name: str, size: Size, folder: Path) -> None:
        self.name = name
        self._place = place
        self._size = size
        self._folder = folder
        self._servers: dict[str, Server] = {}
        self._run_id = f"{name} {time.time_ns()}"
        self._sent = 0
        self._most = 0.0
        ((newest,),) = place.ask("SELECT max(tip_created) FROM tenants", (), name)
        self._next_second = (newest or int(time.time()) - 2 * 24 * 3600) + 1
        self._turns = list(range(size.tenants))
        random.Random(2).shuffle(self._turns)  # noqa: S311  # the same order each time
        self._keys = [growth_data.secret_of(number) for number in growth_data.known_keys(size)[:ASKED]]
        folder.mkdir()
        (folder / "keys").write_text("".join(f"Bearer {key}\n" for key in self._keys))
        (folder / "plans.toml").write_text(WITHOUT_LIMITS)

    @contextlib.contextmanager
    def serving(self, *, limited: bool) -> Iterator[None]:
        """The services run, and what they touch is in memory."""
        _read_files(self._place, self.name)
        self._look_up_all()
        with contextlib.ExitStack() as stack:
            free = self._serve(stack, TENANTRY_PLANS=str(self._folder / "plans.toml"))
            self._servers[WEBHOOK] = Server(*free, webhooks.PATH, "Stripe-Signature")
            self._servers[LIST] = Server(*free, projects.PATH)
            if limited:
                self._servers[LIMITED] = Server(*self._serve(stack), projects.PATH)
            self._check()
            yield

    def _serve(self, stack: contextlib.ExitStack, **variables: str) -> tuple[int, int]:
        port, variables["LOG_LEVEL"] = support.free_port(), "ERROR"
        return port, stack.enter_context(support.service(port, self._place.conninfo(self.name), **variables))

    def _look_up_all(self) -> None:
        """Look up every key that will be used, with its tenant's projects."""
        digests = [api_keys.digest(key.encode(), PEPPER.encode()) for key in self._keys]
        with psycopg.connect(self._place.conninfo(self.name)) as connection:
            connection.execute("SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off")
            for start in range(0, len(digests), CHECKED):
                connection.execute(
                    "SELECT count(p.document) FROM api_keys k JOIN tenants t ON t.id = k.org_id "
                    "JOIN projects p ON p.org_id = t.id WHERE k.digest = ANY(%b)", (digests[start : start + CHECKED],),
                )  # fmt: skip

    def memory(self) -> float:
        """What the service holds of the memory, in MiB."""
        return usage.memory_mib(self._servers[WEBHOOK].pid)

    def run(self, job: str, phase: str, seconds: int) -> Round:
        """Send requests for so many seconds. Ends the program unless each was answered by a 200, and its work done."""
        variables, ids = {"BENCH_CREDENTIALS": str(self._folder / "keys")}, list[str]()
        if job == WEBHOOK:
            variables, ids = self._write_events(int(seconds * (self._most or FIRST_RATE) * 2))
        before = self._read_log()
        done = wrk.run(
            self._servers[job], "growth.lua" if ids else "growth_list.lua", variables,
            connections=CONNECTIONS, seconds=seconds, database=self._place.process_id(),
        )  # fmt: skip
        after = self._read_log()
        if done.refused or done.broken or done.exhausted:
            sys.exit(f"bench: not every answer was 200: {done}")
        self._most = max(self._most, done.per_second if ids else 0.0)
        self._check_stored(ids[: done.requests - CONNECTIONS])
        log, reads = ((b - a) / done.requests for a, b in zip(before, after, strict=True))
        return Round(
            self.name, job, phase, done.per_second, done.p50_ms, done.p99_ms, done.server_us, done.database_us,
            log, reads, done.client_us, done.others_share,
        )  # fmt: skip

    def _write_events(self, count: int) -> tuple[dict[str, str], list[str]]:
        """Write distinct events for growth.lua, each of another tenant as long as there are some.

        Returns the variables that tell where they are, and their ids.
        """
        world = World(conninfo="", folder=self._folder, tenants=self._size.tenants, secret=SECRET)
        variables = events.write_events(self._folder, 0, world, "", 0)
        pieces = _MARK.split(Path(variables["BENCH_TEMPLATE"]).read_text())
        stamp, ids = int(variables["BENCH_STAMP"]), []
        with Path(variables["BENCH_EVENTS"]).open("w") as out:
            for number in range(self._sent, self._sent + count):
                tenant, second = self._turns[number % len(self._turns)], self._next_second + number // EVENTS_A_SECOND
                name = growth_data.event_id(f"{self._run_id} {number}", second, scattered=self._size.scattered_ids)
                marks = {"tenant": str(tenant), "id": name, "created": str(second), "end": str(second + events.MONTH)}
                body = "".join(marks[piece] if odd % 2 else piece for odd, piece in enumerate(pieces)).encode()
                out.write(f"{tenant} {name} {second} {events.sign(body, SECRET, stamp).rpartition('=')[2]}\n")
                ids.append(name)
        self._sent += count
        return variables, ids

    def _check(self) -> None:
        """A tenant's projects are listed; a forged event is refused."""
        address = f"http://127.0.0.1:{self._servers[LIST].port}"
        asked = urllib.request.Request(address + projects.PATH, headers={"Authorization": f"Bearer {self._keys[0]}"})
        with urllib.request.urlopen(asked) as answer:
            assert len(json.load(answer)["data"]) == PROJECTS
        header = {"Stripe-Signature": events.sign(b"{}", "another")}
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(urllib.request.Request(address + webhooks.PATH, b"{}", header)).close()
            sys.exit("bench: a forged event was accepted")

    def _check_stored(self, ids: Sequence[str]) -> None:
        """Some of these events, spread over all, are in the ledger, and their tenants have heard of them."""
        some = list(ids[:: max(1, len(ids) // CHECKED)])
        ((stored,),) = self._place.ask(
            "SELECT count(*) FROM billing_events e JOIN tenants t ON t.id = e.tenant_id "
            "WHERE e.id = ANY(%s) AND e.outcome = 'applied' AND t.tip_created >= e.created", (some,), self.name,
        )  # fmt: skip
        assert stored == len(some), (stored, len(some))

    def _read_log(self) -> tuple[float, float]:
        """Bytes that were written to PostgreSQL's log so far, and blocks that were not in its shared buffers."""
        ((log, reads),) = self._place.ask(
            "SELECT pg_current_wal_insert_lsn() - '0/0', sum(blks_read) FROM pg_stat_database"
        )
        return float(log), float(reads)


def main() -> None:
    """Load both worlds, measure in turn, print tables."""
    options = _options()
    support.require_wrk()
    big = Size(options.tenants, options.keys, options.ledger, options.projects, options.scattered_ids)
    sizes = {"small": SMALL, "big": big}
    settings = [*SERVING, *options.postgres]
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenantry-bench-")))
        loading = load(folder, sizes)
        if options.load_only:
            return
        report = Report(settings, sizes, loading)
        if options.part != "bodies":
            with Place(folder, settings) as place:
                measure_rows(place, report, options)
        if options.part != "rows":
            with Place(folder, FAST_LOAD) as place:
                report.loading["big"] |= growth_data.fill_bodies(place.conninfo("big"), big, options.bodies)
            with Place(folder, settings) as place:
                measure_bodies(place, report, options)
    show(report)
    if options.out:
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description="Measure what growth costs.")
    parser.add_argument("--tenants", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--ledger", type=int, default=20_000_000, help="events of the year before")
    parser.add_argument("--bodies", type=int, default=1_000_000, help="raw bodies of the newest of them")
    parser.add_argument("--projects", type=int, default=5_000_000)
    parser.add_argument("--part", choices=("rows", "bodies"), help="measure this part alone")
    parser.add_argument("--scattered-ids", action="store_true", help="event ids that do not sort by time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10, help="of each run")
    parser.add_argument("--warm-up", type=int, default=10, help="seconds of each job in each world beforehand")
    parser.add_argument("--postgres", action="append", default=[], metavar="NAME=VALUE", help="a setting (repeatable)")
    parser.add_argument("--folder", type=Path, help="keep the data here; what is there already is used")
    parser.add_argument("--load-only", action="store_true", help="load the data into --folder, and end")
    parser.add_argument("--out", type=Path, help="write everything as JSON")
    return parser.parse_args()


def load(folder: Path, sizes: Mapping[str, Size]) -> dict[str, dict[str, float]]:
    """Fill the worlds that are not there yet; returns the seconds that each step took, by world."""
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / "growth.json"
    loaded: dict[str, Loaded] = {}
    if note.exists():
        loaded = msgspec.json.decode(note.read_bytes(), type=dict[str, Loaded])
    missing = [name for name, size in sizes.items() if name not in loaded or loaded[name].size != size]
    if missing:
        with Place(folder, FAST_LOAD) as place:
            for name in missing:
                print(f"loading {name}: {sizes[name]}", file=sys.stderr, flush=True)
                place.run(f"DROP DATABASE IF EXISTS {name}")
                place.run(f"CREATE DATABASE {name}")
                migrate(place.conninfo(name))
                loaded[name] = Loaded(sizes[name], growth_data.fill(place.conninfo(name), sizes[name]))
        os.sync()
        note.write_bytes(msgspec.json.encode(loaded))
    return {name: loaded[name].seconds for name in sizes}


def measure(place: Place, report: Report, phases: Mapping[str, Sequence[str]], options: argparse.Namespace) -> None:
    """Start a service on each world and measure both in turn; ``phases`` says which jobs belong to each."""
    jobs = list(dict.fromkeys(itertools.chain.from_iterable(phases.values())))
    place.run("CHECKPOINT")
    report.versions = place.ask("SELECT version()")[0][0].partition(",")[0]
    for name, size in report.sizes.items():
        growth_data.go_on(place.conninfo(name), size)
    before = {name: _updates(place, name) for name in report.sizes}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenantry-bench-")))
        benches = [Bench(place, name, size, folder / name) for name, size in report.sizes.items()]
        for bench in benches:
            stack.enter_context(bench.serving(limited=LIMITED in jobs))
        for job, bench in itertools.product(jobs, benches):
            bench.run(job, "", 2)
            bench.run(job, "", options.warm_up)
        for phase, measured in phases.items():
            for _, job, bench in itertools.product(range(options.rounds), measured, benches):
                if phase == RIGHT_AFTER:
                    place.run("CHECKPOINT")
                report.rounds.append(bench.run(job, phase, options.seconds))
                print(report.rounds[-1], file=sys.stderr, flush=True)
        for bench in benches:
            report.memory.setdefault(bench.name, bench.memory())
    for name in report.sizes:
        report.updates.setdefault(name, _since(before[name], _updates(place, name)))


def measure_rows(place: Place, report: Report, options: argparse.Namespace) -> None:
    """Measure both paths with all rows but no bodies; then what there is, and how long cleaning up takes."""
    for name in report.sizes:
        migrate(place.conninfo(name))  # kept data may be of an earlier release
        place.run(f"TRUNCATE {BODIES}", name)
    measure(place, report, {LONG_AFTER: (WEBHOOK, LIST, LIMITED), RIGHT_AFTER: (WEBHOOK,)}, options)
    place.run("ANALYZE", "big")
    report.relations = [one for one in _relations(place, "big") if one.table != BODIES]
    report.vacuum |= {table: place.run(f"VACUUM {table}", "big") for table in (*WARM, LEDGER)}


def measure_bodies(place: Place, report: Report, options: argparse.Namespace) -> None:
    """Measure the events with the bodies there; then how long it takes to let go of them."""
    measure(place, report, {WITH_BODIES: (WEBHOOK,)}, options)
    place.run("ANALYZE", "big")
    report.relations += [one for one in _relations(place, "big") if one.table == BODIES]
    report.retention = _let_go_of_bodies(place)
    report.vacuum[BODIES] = place.run(f"VACUUM {BODIES}", "big")
    place.run(f"TRUNCATE {BODIES}", "big")


def _let_go_of_bodies(place: Place) -> float:
    """Let go of all bodies of the big world, as retention does; returns the seconds that it took."""
    begun, now = time.perf_counter(), datetime.now(UTC)
    with psycopg.connect(place.conninfo("big"), autocommit=True) as connection:
        while connection.execute(DELETE_BODIES, {"most": ROWS_PER_STATEMENT, "until": now}).rowcount:
            pass
    return time.perf_counter() - begun


def _read_files(place: Place, world: str) -> None:
    """Read what the hot paths touch into the operating system's memory."""
    paths = place.ask(
        "SELECT pg_relation_filepath(c.oid) FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid "
        "WHERE c.oid = ANY(%s::regclass[]) OR i.indrelid = ANY(%s::regclass[])",
        (list(WARM), [*WARM, LEDGER]),
        world,
    )
    for (path,) in paths:
        first = place.folder() / path
        for segment in (first, *first.parent.glob(f"{first.name}.*")):
            with segment.open("rb") as file:
                while file.read(1 << 20):
                    pass


def _updates(place: Place, world: str) -> dict[str, Updates]:
    rows = place.ask(
        "SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = ANY(%s)",
        (list(COUNTED),),
        world,
    )
    return {table: Updates(updated, hot) for table, updated, hot in rows}


def _since(before: Mapping[str, Updates], after: Mapping[str, Updates]) -> dict[str, Updates]:
    return {table: Updates(now.rows - before[table].rows, now.hot - before[table].hot) for table, now in after.items()}


def _relations(place: Place, world: str) -> list[Relation]:
    """The tables and indexes that hold rows, the biggest first."""
    rows = place.ask(
        """
        SELECT c.relname, coalesce(t.relname, c.relname), greatest(c.reltuples, 0)::bigint,
               CASE WHEN i.indexrelid IS NULL THEN pg_table_size(c.oid) ELSE pg_relation_size(c.oid) END,
               CASE WHEN a.amname = 'btree' THEN pg_read_binary_file(pg_relation_filepath(c.oid), 0, 64) END
          FROM pg_class c
          LEFT JOIN pg_index i ON i.indexrelid = c.oid
          LEFT JOIN pg_class t ON t.oid = i.indrelid
          LEFT JOIN pg_am a ON a.oid = c.relam
         WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'i') AND c.reltuples > 0
         ORDER BY 4 DESC
        """,
        (),
        world,
    )
    return [
        Relation(name, table, count, size, None if head is None else int.from_bytes(head[36:40], "little") + 1)
        for name, table, count, size, head in rows
    ]


if __name__ == "__main__":
    main()
