"""The service, which also writes the statements of its lanes to a file: ``python
bench/recording_server.py FILE``.

The file has a `RecordedSession` for each connection of a lane, and a `RecordedBatch` for each batch
of statements, in the order in which they are sent, one a line. `bench.statement_replay` reads it.
"""

import sys
from typing import IO, Any, Final

import msgspec
from psycopg import pq

from tenantry.cli import main as run_command
from tenantry.db.connection import Connection, Rows
from tenantry.db.database import Lane
from tenantry.db.statements import BoundStatement

_SETTINGS: Final = """
SELECT name, current_setting(name)
  FROM (SELECT name FROM pg_settings WHERE source = 'session' UNION ALL SELECT 'role') AS changed
"""


class RecordedSession(msgspec.Struct, tag=True):
    """A new connection, and the settings that its lane has changed."""

    connection: int
    settings: dict[str, str]


class RecordedStatement(msgspec.Struct):
    """A statement with its parameters in PostgreSQL's binary format."""

    sql: str
    types: list[int]
    """The object identifier of each parameter's type."""
    parameters: list[bytes | None]


class RecordedBatch(msgspec.Struct, tag=True):
    """Statements that a connection sent at once."""

    connection: int
    statements: list[RecordedStatement]
    begins: bool
    """Whether a transaction begins with it."""
    commits: bool


Record = RecordedSession | RecordedBatch


class _Recorder:
    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._encoder = msgspec.json.Encoder()
        self._numbers: dict[Connection, int] = {}
        self._connect = Lane._connect  # noqa: SLF001  # it replaces it
        self._run_batch = Connection.run_batch

    def install(self) -> None:
        """Record the lanes that connect from now on."""
        recorder = self

        async def connect(lane: Lane, *, autocommit: bool) -> Connection:
            return await recorder.connect(lane, autocommit=autocommit)

        async def run_batch(
            connection: Connection, *calls: BoundStatement, commit: bool = False
        ) -> list[Rows]:
            return await recorder.run_batch(connection, *calls, commit=commit)

        Lane._connect = connect  # type: ignore[assignment, method-assign]  # noqa: SLF001
        Connection.run_batch = run_batch  # type: ignore[assignment, method-assign]

    async def connect(self, lane: Lane, *, autocommit: bool) -> Connection:
        """Connect the lane, and record its session."""
        connection = await self._connect(lane, autocommit=autocommit)
        settings = dict[str, Any](await connection.fetch(_SETTINGS))
        await connection.commit()
        self._numbers[connection] = len(self._numbers)
        self._write(RecordedSession(self._numbers[connection], settings))
        return connection

    async def run_batch(
        self, connection: Connection, *calls: BoundStatement, commit: bool
    ) -> list[Rows]:
        """Record the batch, and run it."""
        number = self._numbers.get(connection)
        if number is not None:
            status = connection.pgconn.transaction_status
            begins = not connection.autocommit and status == pq.TransactionStatus.IDLE
            statements = [
                RecordedStatement(statement.sql.decode(), statement.types, parameters)
                for statement, parameters in calls
            ]
            self._write(RecordedBatch(number, statements, begins, commit))
        return await self._run_batch(connection, *calls, commit=commit)

    def _write(self, record: Record) -> None:
        self._out.write(self._encoder.encode(record) + b"\n")


def main(file: str) -> None:
    """Serve until stopped."""
    with open(file, "wb") as out:  # noqa: PTH123  # it is written while the service runs
        _Recorder(out).install()
        run_command(["serve"], prog_name="tenantry")


if __name__ == "__main__":
    main(sys.argv[1])
