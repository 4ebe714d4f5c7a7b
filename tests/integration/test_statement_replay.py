"""Statements that the service sent, sent again by pgbench."""

from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from bench.recording_server import RecordedBatch, RecordedStatement
from bench.statement_replay import (
    ConflictError,
    Recording,
    ReplayError,
    run_scripts,
    write_scripts,
)
from tenantry.db.statements import (
    BIGINTS,
    BLOBS,
    BOOLEANS,
    JSONS,
    MOMENTS,
    TEXT,
    TEXTS,
    BoundStatement,
    Statement,
)

CREATE = """
CREATE TABLE sent (
    number bigint, name text, body bytea, flag boolean, at timestamptz, document json, note text, zone text)
"""
DEADLOCK = """
CREATE FUNCTION deadlock() RETURNS void LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION USING ERRCODE = 'deadlock_detected'; END $$"""
ADD = Statement(
    """
INSERT INTO sent
SELECT *, $7, current_setting('TimeZone') FROM unnest($1, $2, $3, $4, $5, $6)
""",
    BIGINTS,
    TEXTS,
    BLOBS,
    BOOLEANS,
    MOMENTS,
    JSONS,
    TEXT,
)
NOON = datetime(2026, 11, 27, 12, 30, 15, 250_000, tzinfo=UTC)
NAMES = ["O'Hara; \\; SELECT :name", 'a "quoted", {braced} \n\\set name', None]
BODIES = [b"\x00'\\;", b"", None]


def recorded(call: BoundStatement, *, commits: bool = True) -> RecordedBatch:
    statement, parameters = call
    sent = RecordedStatement(statement.sql.decode(), statement.types, parameters)
    return RecordedBatch(0, [sent], begins=True, commits=commits)


def added(*numbers: int) -> BoundStatement:
    flags, moments = [True, False, None], [NOON, None, NOON]
    return ADD(numbers, NAMES, BODIES, flags, moments, [b'{"a":true}', None, b"[1]"], "it's")


@pytest.fixture
def table(conninfo: str) -> str:
    """The address of a database with the table."""
    with psycopg.connect(conninfo) as connection:
        connection.execute(CREATE)
    return conninfo


def replay(conninfo: str, folder: Path, *batches: RecordedBatch) -> float:
    recording = Recording({"TimeZone": "Asia/Tokyo", "role": "none"}, batches)
    return run_scripts(write_scripts(conninfo, folder, [recording]), conninfo)


def test_pgbench_sends_what_the_service_sent(table: str, tmp_path: Path) -> None:
    assert replay(table, tmp_path, recorded(added(1, 2, 3)), recorded(added(4, 5, 6))) > 0
    with psycopg.connect(table) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.execute("SELECT * FROM sent ORDER BY number").fetchall()
    assert rows[:3] == [
        (1, NAMES[0], BODIES[0], True, NOON, {"a": True}, "it's", "Asia/Tokyo"),
        (2, NAMES[1], BODIES[1], False, None, None, "it's", "Asia/Tokyo"),
        (3, None, None, None, NOON, [1], "it's", "Asia/Tokyo"),
    ]
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5, 6]


def test_a_transaction_that_the_recording_cuts_off_is_rolled_back(
    table: str, tmp_path: Path
) -> None:
    replay(table, tmp_path, recorded(added(1, 2, 3), commits=False))
    with psycopg.connect(table) as connection:
        assert connection.execute("SELECT count(*) FROM sent").fetchone() == (0,)


def test_a_statement_that_fails_ends_the_replay(conninfo: str, tmp_path: Path) -> None:
    without_table = write_scripts(conninfo, tmp_path, [Recording({}, [recorded(added(1, 2, 3))])])
    with pytest.raises(ReplayError, match=r'relation "sent" does not exist'):
        run_scripts(without_table, conninfo)


def test_a_deadlock_is_told_from_other_failures(conninfo: str, tmp_path: Path) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute(DEADLOCK)
    with pytest.raises(ConflictError):
        replay(conninfo, tmp_path, recorded(Statement("SELECT deadlock()")()))
