"""Database connections: the scope of a transaction (role and tenant), and batches of statements."""

import asyncio
import select
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, LiteralString, NamedTuple, Self, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import Params, PQGen
from psycopg.adapt import Transformer
from psycopg.waiting import wait_async

from tenantry.db.sessions import (
    CLIENT_ENCODING,
    NO_SETTINGS,
    SessionSettings,
    check_encoding,
    for_session,
)
from tenantry.db.statements import TEXT, BoundStatement, Statement

API: Final = "tenantry_api"
PEOPLE: Final = "tenantry_people"
BATCH: Final = "tenantry_batch"
READ: Final = "tenantry_read"
# the transaction's setting that names the tenant for row-level security
TENANT: Final = "tenantry.tenant_id"


class TransactionScope(NamedTuple):
    """The role of a transaction, and for the API's role the tenant."""

    role: str
    tenant_id: str = ""


def of_tenant(tenant_id: str) -> TransactionScope:
    """Limit a transaction to one tenant's rows, by row-level security."""
    return TransactionScope(API, tenant_id)


# data of a person rather than of a tenant: sessions and memberships
OF_PEOPLE: Final = TransactionScope(PEOPLE)
# rows of many tenants: batches, jobs, and operator commands
ACROSS_TENANTS: Final = TransactionScope(BATCH)

Rows = list[tuple[Any, ...]]
# the statement of an expected result, and whether that is of its preparation
_Sent = tuple[Statement, bool]
Result = TypeVar("Result")

_BEGIN: Final = Statement("BEGIN ISOLATION LEVEL READ COMMITTED")  # behind a pooler too
_COMMIT: Final = Statement("COMMIT")
# The settings end with the transaction, so later users of the connection, or of a pooler's, do not
# inherit them.
_ENTER: Final = Statement(
    f"SELECT set_config('{TENANT}', $1, true), set_config('role', $2, true)", TEXT, TEXT
)
_NAME_TENANT: Final = Statement(f"SELECT set_config('{TENANT}', $1, true)", TEXT)
_DONE: Final = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})


class PrimaryEpoch(NamedTuple):
    """The time of one primary, until a standby replaces it."""

    cluster: int  # PostgreSQL's system identifier
    timeline: int  # increases with each promotion

    def replaces(self, other: "PrimaryEpoch | None") -> bool:
        """Whether this is a later time of the same cluster."""
        return (
            other is not None and self.cluster == other.cluster and self.timeline > other.timeline
        )


class Connection(psycopg.AsyncConnection[Any]):
    """psycopg's connection, with `run_batch` for batches.

    Statements sent one by one, even in psycopg's pipeline, give the event loop turns in between,
    which a burst of new requests would fill. Sent together they cost one write, one wait and one
    read.
    """

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        super().__init__(pgconn)
        self.rls_enabled = False
        """Whether the database has the roles of `tenantry.db.roles` and the login may take them."""
        self._scope = ACROSS_TENANTS
        self._names: dict[Statement, bytes] = {}
        self._prepared_count = 0
        self._reader = Transformer(self)
        self.announcements: list[Callable[[], None]] = []
        """What `Database` calls once the transaction is committed; see `after_commit`."""
        # the server's epoch when the connection was made, if it is known
        self.primary: PrimaryEpoch | None = None

    @classmethod
    async def connect(  # type: ignore[override]  # the other options are psycopg's
        cls,
        conninfo: str = "",
        *,
        settings: SessionSettings | None = NO_SETTINGS,
        **options: Any,  # noqa: ANN401
    ) -> Self:
        """Connect as psycopg does, and set the session to `UNIFORM` and ``settings``.

        Set nothing if ``settings`` is None: a pooler in transaction mode keeps no settings, so each
        transaction sets its own. Raises `UnusableEncodingError`.
        """
        connection = await super().connect(
            conninfo, **{**options, "client_encoding": CLIENT_ENCODING}
        )
        try:
            check_encoding(connection.info)
            if settings is not None:
                # PgBouncer rejects a connection with startup options, or drops them.
                await connection.run_batch(for_session(settings), commit=not connection.autocommit)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def run_batch(self, *calls: BoundStatement, commit: bool = False) -> list[Rows]:
        """Send these statements at once, with a commit if ``commit``; return the rows of each.

        They begin a transaction if there is none, unless the connection is in autocommit mode. If
        one fails, its error is raised and later ones do not run. Not for concurrent use. A canceled
        call closes the connection.
        """
        begins = not self.autocommit and self._is_idle
        first = [_BEGIN()] if begins else []
        last = [_COMMIT()] if commit else []
        answers = self._check(*await self._exchange((*first, *calls, *last)))
        return [self._rows(result) for result in answers[begins : len(answers) - commit]]

    async def commit_and_run(
        self, calls: Sequence[BoundStatement], after: Sequence[BoundStatement]
    ) -> list[Rows] | None:
        """Run ``calls``, commit, and run the statements ``after`` the commit, all sent at once.

        Return the rows of those ``after``; None if one of them failed, which leaves the commit as
        it is. Raises the error of a call or of the commit. Else as `run_batch`.
        """
        first = [_BEGIN()] if self._is_idle else []
        sent, results = await self._exchange((*first, *calls, _COMMIT(), *after))
        committed = sent.index((_COMMIT, False)) + 1
        try:
            self._check(sent[:committed], results[:committed])
        except psycopg.Error:
            self._forget_unprepared(sent[committed:])
            raise
        try:
            answers = self._check(sent[committed:], results[committed:])
        except psycopg.Error:
            return None
        return [self._rows(result) for result in answers]

    @property
    def _is_idle(self) -> bool:
        return self.pgconn.transaction_status == pq.TransactionStatus.IDLE

    async def _exchange(
        self, calls: Iterable[BoundStatement]
    ) -> tuple[list[_Sent], list[pq.abc.PGresult]]:
        """Send statements at once, and return what was sent, with preparations, and the results."""
        sent: list[_Sent] = []
        self.pgconn.enter_pipeline_mode()
        try:
            for call in calls:
                self._send(call, sent)
            self.pgconn.pipeline_sync()
            results = await _Exchange(self.pgconn).run()
            self.pgconn.exit_pipeline_mode()
        except BaseException:
            self.pgconn.finish()
            raise
        return sent, results

    async def fetch(
        self, query: LiteralString, values: Params | None = None
    ) -> list[tuple[Any, ...]]:
        """Execute a query and return all its rows."""
        return await (await self.execute(query, values)).fetchall()

    async def fetch_column(self, query: LiteralString, values: Params | None = None) -> list[Any]:
        """Execute a query and return the first column of all its rows."""
        return [row[0] for row in await self.fetch(query, values)]

    async def fetch_row(
        self, query: LiteralString, values: Params | None = None
    ) -> tuple[Any, ...] | None:
        """Execute a query and return its first row."""
        return await (await self.execute(query, values)).fetchone()

    async def fetch_value(self, query: LiteralString, values: Params | None = None) -> Any:  # noqa: ANN401
        """Execute a query and return the first column of its first row; None without a row."""
        row = await self.fetch_row(query, values)
        return row[0] if row else None

    async def fetch_count(self, query: LiteralString, values: Params | None = None) -> int:
        """Execute a query that returns one number."""
        return int(await self.fetch_value(query, values))

    async def lock_name(self, name: str) -> None:
        """Wait for the lock of this name, and hold it until the transaction ends."""
        await self.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))

    async def enter(
        self,
        scope: TransactionScope,
        *,
        before: Sequence[BoundStatement] = (),
        then: Sequence[BoundStatement] = (),
    ) -> None:
        """Run the rest of the transaction, after ``before`` and beginning with ``then``, in this
        scope: one round trip, also to begin it.
        """
        await self.run_batch(*before, self.entering(scope), *then)
        self._scope = scope

    def after_commit(self, announce: Callable[[], None]) -> None:
        """Call this once the transaction is committed, in the order of these calls; never if it is
        rolled back. For transactions of `Database`, such as for a log line that says what was done.
        """
        self.announcements.append(announce)

    def entering(self, scope: TransactionScope) -> BoundStatement:
        """Return the statement by which a transaction takes the role of a scope."""
        if self.rls_enabled:
            return _ENTER(scope.tenant_id, scope.role)
        return _NAME_TENANT(scope.tenant_id)

    @asynccontextmanager
    async def within(self, scope: TransactionScope) -> AsyncIterator[None]:
        """Run the block in another scope, in the same transaction."""
        outer = self._scope
        if outer == scope:
            yield
            return
        await self.enter(scope)
        try:
            yield
        finally:
            # a failed one cannot continue
            if self.pgconn.transaction_status == pq.TransactionStatus.INTRANS:
                await self.enter(outer)

    async def wait(
        self,
        gen: PQGen[Result],
        interval: float = 0.1,
        timeout: float | None = None,  # noqa: ASYNC109  # the driver's
    ) -> Result:
        """Wait as psycopg does, but close the connection if the wait is canceled.

        psycopg would ask the server to cancel the statement. That would also end a commit's wait
        for the standby, and later requests would see data that the standby lacks. It would also
        wait for a server that does not answer.
        """
        try:
            return await wait_async(
                gen,
                self.pgconn.socket,
                interval=interval,
                timeout=timeout,
            )
        except asyncio.CancelledError:
            self.pgconn.finish()
            raise

    async def rollback(self) -> None:
        """Roll back. psycopg deallocates all prepared statements with it."""
        await super().rollback()
        self._names.clear()

    def _send(self, call: BoundStatement, sent: list[_Sent]) -> None:
        statement, parameters = call
        if self.prepare_threshold is None:  # a pooler may switch server sessions
            self.pgconn.send_query_params(
                statement.sql, parameters, statement.types, statement.formats, pq.Format.BINARY
            )
        else:
            name = self._names.get(statement)
            if name is None:
                self._prepared_count += 1
                name = self._names[statement] = b"batch_%d" % self._prepared_count
                self.pgconn.send_prepare(name, statement.sql, statement.types)
                sent.append((statement, True))
            self.pgconn.send_query_prepared(
                name,
                parameters,
                statement.formats,
                pq.Format.BINARY,
            )
        sent.append((statement, False))

    def _check(
        self, sent: Sequence[_Sent], results: Sequence[pq.abc.PGresult]
    ) -> list[pq.abc.PGresult]:
        """Return the results of the statements without those of preparations. Raises the first
        error.
        """
        for position, result in enumerate(results):
            if result.status not in _DONE:
                self._forget_unprepared(sent[position:])
                raise psycopg.errors.error_from_result(result, encoding=self.info.encoding)
        return [result for (_, prepares), result in zip(sent, results, strict=True) if not prepares]

    def _forget_unprepared(self, failed: Sequence[_Sent]) -> None:
        for statement, prepares in failed:
            if prepares:
                del self._names[statement]

    def _rows(self, result: pq.abc.PGresult) -> Rows:
        self._reader.set_pgresult(result)
        return self._reader.load_rows(0, result.ntuples, tuple)


class _Exchange:
    """Sends libpq's output buffer, and collects the results up to the pipeline sync."""

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
        """Return the results. Raises `psycopg.Error` if the connection is lost."""
        self._loop.add_reader(self._socket, self._guarded, self._read)
        self._is_waiting = True
        try:
            if self._pgconn.flush():
                self._loop.add_writer(self._socket, self._guarded, self._write)
            await self._done
        finally:
            self._detach()
        return self._results

    def _detach(self) -> None:
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
                # libpq reads a few KB at a time; the event loop's turns are long under load
                if not self._incoming.poll(0):
                    return
                self._pgconn.consume_input()
                continue
            result = self._pgconn.get_result()
            if result is None:
                continue  # end of one statement's results
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                self._done.set_result(None)
            else:
                self._results.append(result)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except psycopg.Error as error:
            # libpq has closed the socket: detach before another one gets its file descriptor
            self._detach()
            if not self._done.done():
                self._done.set_exception(error)
