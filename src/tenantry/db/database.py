"""The database: the connection pool, transactions, and lanes for batches."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool

from tenantry.common.cancellation import cancel
from tenantry.common.clock import DEFAULT_TIMEOUTS, Timeouts
from tenantry.common.tracing import Tracing
from tenantry.db.batcher import NO_BATCH_METRICS, BatchMetrics
from tenantry.db.connection import (
    ACROSS_TENANTS,
    Connection,
    Rows,
    TransactionScope,
)
from tenantry.db.failover_detection import FailoverDetector, servers_of
from tenantry.db.roles import RLS_ENABLED, TAKE_BATCH
from tenantry.db.sessions import NO_SETTINGS, SessionSettings, for_transaction
from tenantry.db.standby_waits import PREPARE_CHANGE, StandbyWaits, commit_change
from tenantry.db.statements import BoundStatement, Statement
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.domain.telemetry import SILENT, Telemetry

_Result = TypeVar("_Result")
_RECONNECT_TIMEOUT: Final = 1.0  # after that the next request retries at once
CONFLICTS: Final = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
"""Errors by which the database ends one of several transactions: the same again can succeed at
once.
"""
UNAVAILABLE: Final = (
    psycopg.OperationalError,  # also a timeout of the pool
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,  # a standby, or a primary made read-only
    psycopg.errors.IdleInTransactionSessionTimeout,
)
_LOST: Final = (*UNAVAILABLE, TimeoutError)
_TRIES: Final = 4
_UNREACHABLE: Final = "The database is unreachable. Try again shortly."
_IN_CONFLICT: Final = "Another change was made to the same data at the same time. Try again."
OUTGROWN: Final = (psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.InsufficientPrivilege)
"""Errors after which a new connection may reach another server, or find roles that now exist."""
# The server's side of `_KEEPALIVE`.
_SERVER_KEEPALIVE: Final[SessionSettings] = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
_SNAPSHOT: Final = Statement("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
# Cached plans made while a table is small would still read all of it when it has grown. A bitmap
# scan would read a tenant's whole history to find the next event. Planning again, or compiling,
# costs more than it gains.
BY_INDEX: Final[SessionSettings] = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""The settings of a lane's session."""
# Detect a dead connection within half a minute instead of a quarter of an hour.
_KEEPALIVE: Final = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

logger = logging.getLogger(__name__)


def servers(conninfo: str, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> FailoverDetector:
    """Return the servers of a connection string, whose sessions have our time limits."""
    return FailoverDetector(
        _with_keepalives(for_writes(conninfo), timeouts),
        {**_SERVER_KEEPALIVE, **_time_limits(timeouts)},
    )


def _servers_behind(pooler: str, timeouts: Timeouts) -> FailoverDetector:
    return FailoverDetector(_with_keepalives(for_writes(pooler), timeouts))


def _time_limits(timeouts: Timeouts) -> SessionSettings:
    """Return the limit of a statement, and that of a client that hangs in a transaction with
    locks.
    """
    return {
        "statement_timeout": str(round(timeouts.statement * 1000)),
        "idle_in_transaction_session_timeout": "10000",
    }


def has_several_hosts(conninfo: str) -> bool:
    given = conninfo_to_dict(conninfo)
    return any("," in str(given.get(name, "")) for name in ("host", "hostaddr"))


def for_writes(conninfo: str) -> str:
    """Select the primary of several hosts in a connection string. A standby lags: it would accept
    revoked keys.
    """
    if not has_several_hosts(conninfo) or "target_session_attrs" in conninfo_to_dict(conninfo):
        return conninfo
    return make_conninfo(conninfo, target_session_attrs="read-write")


def standby_hosts(conninfo: str, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> list[str]:
    """Return the connection string of each standby that a connection string names."""
    given: dict[str, Any] = {"target_session_attrs": "standby", **conninfo_to_dict(conninfo)}
    hosts = [make_conninfo(**{**given, **server}) for server in servers_of(given)]
    return [_with_keepalives(host, timeouts) for host in hosts]


def _with_keepalives(conninfo: str, timeouts: Timeouts) -> str:
    given: dict[str, Any] = {**_KEEPALIVE, **conninfo_to_dict(conninfo)}
    return make_conninfo(**{**given, "connect_timeout": math.ceil(timeouts.connect)})


def _name_of(conninfo: str) -> str:
    return str(conninfo_to_dict(conninfo).get("dbname") or "")


def new_pool(
    failover: FailoverDetector,
    size: int,
    prepare: Callable[[Connection], Awaitable[None]],
    *,
    keeps_sessions: bool = True,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
) -> AsyncConnectionPool[Connection]:
    """Make a closed pool. ``prepare`` runs on each new connection, and commits. A pooler in
    transaction mode keeps no sessions: they get no settings and prepare no statements.
    """
    of_session: dict[str, Any] = (
        {"settings": failover.settings}
        if keeps_sessions
        else {"settings": None, "prepare_threshold": None}
    )

    async def configure(connection: Connection) -> None:
        await failover.accept(connection)
        await prepare(connection)

    async def check(connection: Connection) -> None:
        if is_lost(connection) or failover.is_over(connection):
            await connection.close()
            # The others are probably lost too, and the pool would pause after each that it tries.
            await pool.drain()
            raise psycopg.OperationalError("the connection is lost, or its server was replaced")

    pool = AsyncConnectionPool(
        failover.conninfo,
        kwargs=of_session,
        connection_class=Connection,
        min_size=1,
        max_size=size,
        open=False,
        timeout=timeouts.connect,
        reconnect_timeout=_RECONNECT_TIMEOUT,
        configure=configure,
        check=check,
    )
    return pool


async def _check_roles(connection: Connection) -> None:
    [[(connection.rls_enabled,)]] = await connection.run_batch(RLS_ENABLED(), commit=True)


async def take_role(connection: psycopg.AsyncConnection[Any]) -> None:
    """Take the role for many tenants, if the database has it and the login may take it, and
    commit.
    """
    await connection.execute(TAKE_BATCH)
    await connection.commit()


def is_lost(connection: Connection) -> bool:
    """Whether the server has closed an idle connection; checks the socket without a round trip."""
    try:
        connection.pgconn.consume_input()  # may read the server's last message
        connection.pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    return connection.closed


class Database:
    """The connections of one process to PostgreSQL: a pool for ordinary work, `Lane`s for batches
    of many tenants, and from the first change that waits for standbys on, one for such waits.

    ``pooler`` connects to the same database through a pooler in transaction mode, for ordinary work
    only. Such a pooler keeps neither settings nor prepared statements. ``metrics_of`` returns the
    metrics of the lane of a name; with ``tracing`` transactions are spans.
    """

    def __init__(
        self,
        conninfo: str,
        pool_size: int,
        pooler: str | None = None,
        *,
        metrics_of: Callable[[str], BatchMetrics] = BatchMetrics,
        tracing: Tracing | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        telemetry: Telemetry = SILENT,
    ) -> None:
        self.timeouts = timeouts
        self._metrics_of = metrics_of
        self._tracing = tracing
        self._name = _name_of(conninfo)
        # where a pooler keeps no settings
        self._first = [for_transaction(_time_limits(timeouts))] if pooler else []
        self.failover = servers(conninfo, timeouts)
        self._pool = new_pool(
            _servers_behind(pooler, timeouts) if pooler else self.failover,
            pool_size,
            _check_roles,
            keeps_sessions=pooler is None,
            timeouts=timeouts,
        )
        # Not over the pool: while all its connections are in use, changes would wait their full
        # time.
        self._waits_lane = Lane(self.failover, timeouts=timeouts)
        self.standby_waits = StandbyWaits(self._ask, telemetry)
        self._lanes: list[Lane] = []
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start to connect, without waiting for the database, and to watch its servers if there are
        several.
        """
        await self._pool.open()
        self._watching = asyncio.create_task(self.failover.watch())

    async def close(self) -> None:
        await cancel(self._watching)
        for lane in self._lanes:
            await lane.close()
        await self.standby_waits.close()
        await self._waits_lane.close()
        await self._pool.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def transaction(
        self, scope: TransactionScope, *, is_snapshot: bool = False
    ) -> AsyncIterator[Connection]:
        """Run the block in a transaction limited to ``scope``.

        Raises `DatabaseUnavailableError`, from one of `CONFLICTS` if another transaction was in the
        way.
        """
        async with self._connected() as connection:
            snapshot = [_SNAPSHOT()] if is_snapshot else []
            await connection.enter(scope, before=[*snapshot, *self._first])
            yield connection

    @asynccontextmanager
    async def change(
        self,
        scope: TransactionScope,
        *,
        turn: AbstractAsyncContextManager[object] | None = None,
    ) -> AsyncIterator[Connection]:
        """Run the block in a transaction that changes what checks read: API keys, memberships,
        projects, or a tenant's plan, state or owner.

        Return when no check is answered without the change, on a standby neither, which is up to
        `CHANGE_WAIT` after the commit. ``turn`` is held during the transaction, not during that
        wait. Else as `transaction`.
        """
        async with turn or nullcontext(), self._connected() as connection:
            await connection.enter(scope, before=self._first, then=[PREPARE_CHANGE()])
            yield connection
            change = await commit_change(connection, entering=[connection.entering(ACROSS_TENANTS)])
        await self.standby_waits.wait(change)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        """Use a connection of the pool; the block commits. Raises `DatabaseUnavailableError`."""
        announcements: list[Callable[[], None]] = []
        try:
            with _span(self._tracing, self._name):
                async with self._pool.connection() as connection:
                    connection.announcements = announcements
                    try:
                        yield connection
                    except OUTGROWN:
                        await connection.close()
                        raise
        except CONFLICTS as error:
            raise DatabaseUnavailableError(_IN_CONFLICT) from error
        except UNAVAILABLE as error:
            raise DatabaseUnavailableError(_UNREACHABLE) from error
        for announce in announcements:
            announce()

    async def _ask(self, calls: Sequence[BoundStatement]) -> list[Rows]:
        """Run statements for `StandbyWaits`. Raises `DatabaseUnavailableError`."""
        async with self._waits_lane.use() as connection:
            return await connection.run_batch(*calls, commit=True)

    def pool_stats(self) -> dict[str, int]:
        """Return the pool's statistics (`AsyncConnectionPool.pop_stats`), and reset its counts."""
        return self._pool.pop_stats()

    def lane(self, settings: SessionSettings = NO_SETTINGS, *, name: str = "") -> "Lane":
        """Make a lane; ``settings`` are further ones of its session, ``name`` is its label in the
        metrics.
        """
        lane = Lane(
            self.failover,
            settings,
            self._metrics_of(name),
            self.timeouts,
            self.standby_waits,
        )
        self._lanes.append(lane)
        return lane


def _span(tracing: Tracing | None, database: str) -> AbstractContextManager[object]:
    return nullcontext() if tracing is None else tracing.transaction(database)


def few_at_once() -> asyncio.Semaphore:
    """Return the turns of requests that need no credential: however many arrive, most connections
    stay free for others.
    """
    return asyncio.Semaphore(2)


async def retry_on_conflict(
    act: Callable[[], Awaitable[_Result]], *further: type[Exception]
) -> _Result:
    """Run ``act``, and again if a conflict with another transaction aborted it (`CONFLICTS`), or
    one of the ``further`` errors.

    Raises the error of the fourth conflict.
    """
    attempts = 1
    while True:
        try:
            return await act()
        except Exception as error:
            if not succeeds_again(error, attempts, *further):
                raise
        attempts += 1


def succeeds_again(error: Exception, attempts: int, *further: type[Exception]) -> bool:
    """Whether the same transaction can succeed at once after an error: a conflict with another one
    (`CONFLICTS`), or one of the ``further`` errors. Not after four attempts.
    """
    cause = error.__cause__ if isinstance(error, DatabaseUnavailableError) else error
    if attempts >= _TRIES or not isinstance(cause, (*CONFLICTS, *further)):
        return False
    logger.info("retrying after a conflict of transactions: %s", cause)
    return True


def _ignore_error(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled():
        task.exception()


@dataclass(eq=False)
class Lane:
    """A dedicated connection of one batcher, with prepared statements that use indexes. It
    reconnects when needed.

    Not for concurrent use. Connecting continues after its caller has timed out: with several hosts
    in the connection string it may take longer than any caller waits.
    """

    failover: FailoverDetector
    settings: SessionSettings = field(default_factory=dict)
    metrics: BatchMetrics = NO_BATCH_METRICS
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    standby_waits: StandbyWaits = field(default_factory=StandbyWaits)

    def __post_init__(self) -> None:
        self._name = _name_of(self.failover.conninfo())
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None

    @asynccontextmanager
    async def use(self, *, autocommit: bool = False) -> AsyncIterator[Connection]:
        """Use the connection; the block commits unless ``autocommit``. Raises
        `DatabaseUnavailableError`.
        """
        try:
            connection = await self._connected(autocommit=autocommit)
            with self.span():
                yield connection
        except BaseException as error:
            is_unavailable = isinstance(error, _LOST) and not isinstance(error, CONFLICTS)
            if is_unavailable or isinstance(error, OUTGROWN) or not isinstance(error, Exception):
                await self._drop()
            else:
                await self._recover()
            if is_unavailable:
                raise DatabaseUnavailableError(_UNREACHABLE) from error
            raise

    def span(self) -> AbstractContextManager[object]:
        """Return the span of a transaction, if there are traces."""
        return _span(self.metrics.tracing, self._name)

    async def look_up(self, calls: Sequence[BoundStatement], _checks: int, /) -> list[Rows]:
        """Run statements that only read, and return the rows of each. Raises
        `DatabaseUnavailableError`.
        """
        async with self.use(autocommit=True) as connection:
            return await connection.run_batch(*calls)

    async def _recover(self) -> None:
        try:
            if self._connection is not None:
                await self._connection.rollback()
        except psycopg.Error:
            await self._drop()

    async def _connected(self, *, autocommit: bool) -> Connection:
        if self._connection is not None:
            if not is_lost(self._connection) and not self.failover.is_over(self._connection):
                return self._connection
            await self._drop()
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(autocommit=autocommit))
            # its callers, if any still wait, get it
            self._connecting.add_done_callback(_ignore_error)
        async with asyncio.timeout(self.timeouts.connect):
            return await asyncio.shield(self._connecting)

    async def _connect(self, *, autocommit: bool) -> Connection:
        try:
            conninfo = self.failover.conninfo()
            connection = await Connection.connect(
                conninfo,
                settings={**self.failover.settings, **BY_INDEX, **self.settings},
                autocommit=autocommit,
                prepare_threshold=0,
            )
            try:
                await self.failover.accept(connection)
                await take_role(connection)
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
            return connection
        finally:
            self._connecting = None

    async def _drop(self) -> None:
        connection = self._connection
        self._connection = None
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        await cancel(self._connecting)
        await self._drop()
