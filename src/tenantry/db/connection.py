"""Whose rows a transaction is about, and the database role that it is carried out in.

The roles themselves, and what each may, are in `tenantry.db.roles`.
"""

import asyncio
import select
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.waiting import wait_async

from tenantry.db.statements import TEXT, Call, Statement

API: Final = "tenantry_api"
PEOPLE: Final = "tenantry_people"
BATCH: Final = "tenantry_batch"
READ: Final = "tenantry_read"
TENANT: Final = "tenantry.tenant_id"
"""The setting of a transaction that names the tenant whose rows it meets."""


class Scope(NamedTuple):
    """What a transaction may meet: a role, and for the role of the API the tenant."""

    role: str
    tenant_id: str = ""


def of_tenant(tenant_id: str) -> Scope:
    """One tenant's rows: the database shows no others, and takes none in."""
    return Scope(API, tenant_id)


OF_PEOPLE: Final = Scope(PEOPLE)
"""What belongs to a person rather than to a tenant: sessions, and which tenants the person belongs to."""
ACROSS_TENANTS: Final = Scope(BATCH)
"""Many tenants' rows in one statement: batches, jobs, and the operator's commands."""


# A connection that takes several statements in one go


Rows = list[tuple[Any, ...]]
Result = TypeVar("Result")

_BEGIN: Final = Statement("BEGIN")
_COMMIT: Final = Statement("COMMIT")
# Until the transaction ends, whichever way: what comes next on the connection, or on a pooler's, has none of it.
_ENTER: Final = Statement(f"SELECT set_config('{TENANT}', $1, true), set_config('role', $2, true)", TEXT, TEXT)
_NAME_TENANT: Final = Statement(f"SELECT set_config('{TENANT}', $1, true)", TEXT)
_DONE: Final = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})


class PrimaryEpoch(NamedTuple):
    """A primary, until a standby takes its place."""

    cluster: int
    """What PostgreSQL calls the system identifier."""
    timeline: int
    """Each promotion begins a new one, with a greater number."""


class Connection(psycopg.AsyncConnection[Any]):
    """The driver's connection, with a short way for batches.

    A batch that sends its statements one by one, even in the driver's pipeline, lets the event loop turn between them,
    which a burst of new requests then has to itself. Sent together they cost one write, one wait and one read.
    """

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        super().__init__(pgconn)
        self.rls_enabled = False
        """Whether its database has the roles of `tenantry.db.roles` and lets it take them."""
        self._scope = ACROSS_TENANTS
        self._names: dict[Statement, bytes] = {}
        self._prepared_count = 0
        self._reader = Transformer(self)
        self.reign: PrimaryEpoch | None = None
        """Whose its server was when it was made, where that is asked."""

    async def together(self, *calls: Call, commit: bool = False) -> list[Rows]:
        """Send these statements, and wait for the rows of each; with ``commit`` the transaction ends with them.

        They begin a transaction if there is none, unless the connection is in autocommit mode. When one fails, those
        after it are not run, and its error is raised. Not to be called while anything else uses the connection; when
        the wait is cancelled, the connection is closed.
        """
        pgconn = self.pgconn
        begins = not self.autocommit and pgconn.transaction_status == pq.TransactionStatus.IDLE
        sent: list[_Sent] = []
        pgconn.enter_pipeline_mode()
        try:
            if begins:
                self._send(_BEGIN(), sent)
            for call in calls:
                self._send(call, sent)
            if commit:
                self._send(_COMMIT(), sent)
            pgconn.pipeline_sync()
            results = await _Exchange(pgconn).run()
            pgconn.exit_pipeline_mode()
        except BaseException:
            pgconn.finish()
            raise
        answers = self._check(sent, results)
        return [self._rows(result) for result in answers[begins : len(answers) - commit]]

    async def enter(self, scope: Scope, *before: Call) -> None:
        """Carry out the rest of the transaction in this scope; it is begun if there is none, in the same round trip.

        ``before`` are statements that go ahead. Where `rls_enabled` is false the role stays what it is.
        """
        enter = _ENTER(scope.tenant_id, scope.role) if self.rls_enabled else _NAME_TENANT(scope.tenant_id)
        await self.together(*before, enter)
        self._scope = scope

    @asynccontextmanager
    async def within(self, scope: Scope) -> AsyncIterator[None]:
        """Another scope for the length of the block, in the transaction that is under way."""
        outer = self._scope
        await self.enter(scope)
        try:
            yield
        finally:
            if self.pgconn.transaction_status == pq.TransactionStatus.INTRANS:  # a failed one has nothing to go on with
                await self.enter(outer)

    async def wait(
        self,
        gen: PQGen[Result],
        interval: float = 0.1,
        timeout: float | None = None,  # noqa: ASYNC109  # the driver's
    ) -> Result:
        """Wait as the driver does; but when the wait is cancelled, the connection is closed, and nothing else.

        The driver would ask the server to cancel the statement. That also ends a commit's wait for the standby, and
        what the standby has not received would be there for the next request to find, and to acknowledge. And of a
        server that does not answer it would wait for that too.
        """
        try:
            return await wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)
        except asyncio.CancelledError:
            self.pgconn.finish()
            raise

    async def rollback(self) -> None:
        """Roll back what is open; the driver lets go of every prepared statement with it."""
        await super().rollback()
        self._names.clear()

    def _send(self, call: Call, sent: list["_Sent"]) -> None:
        """Send a statement; ``sent`` gets an entry for each result to expect."""
        statement, parameters = call
        if self.prepare_threshold is None:  # between us and the server somebody swaps its sessions
            self.pgconn.send_query_params(
                statement.sql, parameters, statement.types, statement.formats, pq.Format.BINARY
            )
        else:
            name = self._names.get(statement)
            if name is None:
                self._prepared_count += 1
                name = self._names[statement] = b"batch_%d" % self._prepared_count
                self.pgconn.send_prepare(name, statement.sql, statement.types)
                sent.append(_Sent(statement, prepares=True))
            self.pgconn.send_query_prepared(name, parameters, statement.formats, pq.Format.BINARY)
        sent.append(_Sent(statement, prepares=False))

    def _check(self, sent: Sequence["_Sent"], results: Sequence[pq.abc.PGresult]) -> list[pq.abc.PGresult]:
        """The results of the statements themselves. Raises the first error."""
        for position, result in enumerate(results):
            if result.status not in _DONE:
                for statement, prepares in sent[position:]:
                    if prepares:
                        del self._names[statement]
                raise psycopg.errors.error_from_result(result, encoding=self.info.encoding)
        return [result for (_, prepares), result in zip(sent, results, strict=True) if not prepares]

    def _rows(self, result: pq.abc.PGresult) -> Rows:
        self._reader.set_pgresult(result)
        return self._reader.load_rows(0, result.ntuples, tuple)


class _Sent(NamedTuple):
    """What a result is expected of: a statement, or only its preparation."""

    statement: Statement
    prepares: bool


class _Exchange:
    """Sends what libpq has been given, and collects the results up to the synchronisation."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._socket = pgconn.socket
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._results: list[pq.abc.PGresult] = []
        self._is_waiting = False
        self._incoming = select.poll()
        self._incoming.register(self._socket, select.POLLIN)

    async def run(self) -> list[pq.abc.PGresult]:
        """The results. Raises the driver's error when the connection is lost."""
        self._loop.add_reader(self._socket, self._guarded, self._read)
        self._is_waiting = True
        try:
            if self._pgconn.flush():
                self._loop.add_writer(self._socket, self._guarded, self._write)
            await self._done
        finally:
            self._let_go()
        return self._results

    def _let_go(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)

    def _write(self) -> None:
        if not self._pgconn.flush():
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        self._pgconn.consume_input()
        while not self._done.done():
            if self._pgconn.is_busy():
                # libpq takes a few KB at a time, and the event loop's turns are long where there is much to do
                if not self._incoming.poll(0):
                    return
                self._pgconn.consume_input()
                continue
            result = self._pgconn.get_result()
            if result is None:
                continue  # the end of one statement's results
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                self._done.set_result(None)
            else:
                self._results.append(result)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except psycopg.Error as error:
            # libpq has closed the socket of a lost connection: before the next turn another may have its number
            self._let_go()
            if not self._done.done():
                self._done.set_exception(error)
