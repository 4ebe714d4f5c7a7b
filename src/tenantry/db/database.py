"""How a pool of connections is used."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Final, NamedTuple

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from tenantry.common.clock import DEFAULT_TIMEOUTS, Timeouts
from tenantry.common.tracing import Tracing
from tenantry.db.batcher import NO_METRICS, LaneMetrics
from tenantry.db.connection import Connection, Scope
from tenantry.db.failover_detection import FailoverDetector
from tenantry.db.roles import ARE_UP, TAKE_BATCH
from tenantry.db.statements import TEXT, Statement
from tenantry.domain.errors import DatabaseUnavailableError


class PoolUsage(NamedTuple):
    """The connections of a pool at a moment, and what was counted since the moment before."""

    in_use: int
    idle: int
    most: int
    """How many it may open."""
    waiting: int
    """Requests that wait for a connection."""
    waits: int
    """Requests that had to wait, and, below, for how many seconds in all."""
    waited: float
    timeouts: int
    """Requests that were given none."""


def usage_of(pool: AsyncConnectionPool[Any]) -> PoolUsage:
    """How the pool is used; what is counted is counted since it was last asked."""
    stats = pool.pop_stats()
    size, idle = stats["pool_size"], stats["pool_available"]
    return PoolUsage(
        in_use=size - idle,
        idle=idle,
        most=stats["pool_max"],
        waiting=stats["requests_waiting"],
        waits=stats.get("requests_queued", 0),
        waited=stats.get("requests_wait_ms", 0) / 1000,
        timeouts=stats.get("requests_errors", 0),
    )


# Connections and transactions


_RECONNECT_TIMEOUT: Final = 1.0  # then the next request tries at once: nobody waits long once the database is back
_RETRYABLE: Final = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
_UNAVAILABLE: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    # A standby, or a primary that an operator or a full disk has closed.
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.IdleInTransactionSessionTimeout,
)
OUTGROWN: Final = (psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.InsufficientPrivilege)
"""What a connection is let go of for: a new one may lead to another server, or find roles that were not there yet."""
# Times come back in the session's zone, and are answered as they come.
_ZONE: Final = "-c TimeZone=UTC"
# Whoever stands still in the middle of a transaction, or is gone without a word, would hold up everybody who waits for
# its locks: until it goes on, or for the two hours after which the server notices by itself.
_BOUNDS: Final = "-c idle_in_transaction_session_timeout=10000"
# As `_KEEPALIVE`, for the server's end.
_SERVER_KEEPALIVE: Final = (
    "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c tcp_user_timeout=20000"
)
_SESSION: Final = f"{_ZONE} {_BOUNDS} {_SERVER_KEEPALIVE}"
_FOR_TRANSACTION: Final = Statement(
    "SELECT set_config('statement_timeout', $1, true), set_config('TimeZone', 'UTC', true), "
    "set_config('idle_in_transaction_session_timeout', '10000', true)",
    TEXT,
)
_SNAPSHOT: Final = Statement("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
# Plans are made once and kept, and one made while a table was small would go on to read all of it, by whatever way of
# joining, when it has grown. Making them anew, or compiling them, costs more than any of them gains.
_BY_INDEX: Final = " ".join(
    f"-c {setting}"
    for setting in (
        "enable_seqscan=off", "enable_hashjoin=off", "enable_mergejoin=off", "jit=off",
        "plan_cache_mode=force_generic_plan",
    )
)  # fmt: skip
# A connection that silently leads nowhere is noticed within half a minute instead of a quarter of an hour.
_KEEPALIVE: Final = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000}


def unavailable(error: BaseException) -> DatabaseUnavailableError:
    """The refusal for a database that is out of reach."""
    refusal = DatabaseUnavailableError("The database is out of reach. Try again shortly.")
    refusal.__cause__ = error
    return refusal


def with_statement_timeout(conninfo: str, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> str:
    """The connection string with a timeout for every statement, UTC and keepalives, beside the options it has."""
    bound = f"-c statement_timeout={_milliseconds(timeouts.statement)}"
    return _with_options(_with_keepalives(conninfo, timeouts), f"{_SESSION} {bound}")


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def for_writes(conninfo: str) -> str:
    """The connection string with which, of several hosts that it names, the one is meant that takes writes.

    A standby lags behind: whoever asked it would let in keys that have been revoked.
    """
    given = psycopg.conninfo.conninfo_to_dict(conninfo)
    is_of_several = any("," in str(given.get(name, "")) for name in ("host", "hostaddr"))
    if not is_of_several or "target_session_attrs" in given:
        return conninfo
    return psycopg.conninfo.make_conninfo(conninfo, target_session_attrs="read-write")


def _with_keepalives(conninfo: str, timeouts: Timeouts) -> str:
    given = psycopg.conninfo.conninfo_to_dict(for_writes(conninfo))
    with_keepalives = psycopg.conninfo.make_conninfo("", **{**_KEEPALIVE, **given})
    return psycopg.conninfo.make_conninfo(with_keepalives, connect_timeout=math.ceil(timeouts.connect))


def _with_options(conninfo: str, options: str) -> str:
    """The connection string with further settings of the session."""
    given = psycopg.conninfo.conninfo_to_dict(conninfo).get("options")
    return psycopg.conninfo.make_conninfo(conninfo, options=f"{given} {options}" if given else options)


def name_of(conninfo: str) -> str:
    """The database's name, as far as the connection string says it."""
    try:
        return str(psycopg.conninfo.conninfo_to_dict(conninfo).get("dbname") or "")
    except psycopg.ProgrammingError:  # whoever connects will say so
        return ""


def new_pool(
    succession: FailoverDetector,
    size: int,
    make_ready: Callable[[Connection], Awaitable[None]],
    *,
    prepare_threshold: int | None = 5,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
) -> AsyncConnectionPool[Connection]:
    """A pool that is not open yet. Its connections prepare what they have run so often, or nothing at all."""

    async def configure(connection: Connection) -> None:
        await succession.accept(connection)
        await make_ready(connection)

    async def check(connection: Connection) -> None:
        if is_lost(connection) or succession.is_over(connection):
            await connection.close()
            raise psycopg.OperationalError("the connection leads nowhere any more")

    return AsyncConnectionPool(
        succession.conninfo,
        kwargs={"prepare_threshold": prepare_threshold},
        connection_class=Connection,
        min_size=1,
        max_size=size,
        open=False,
        timeout=timeouts.connect,
        reconnect_timeout=_RECONNECT_TIMEOUT,
        configure=configure,
        check=check,
    )


async def _look_for_walls(connection: Connection) -> None:
    [[(connection.rls_enabled,)]] = await connection.together(ARE_UP(), commit=True)


async def take_role(connection: psycopg.AsyncConnection[Any]) -> None:
    """Give a session that serves many tenants the role for it, if the database has the roles and lets it take them."""
    await connection.execute(TAKE_BATCH)
    await connection.commit()


def is_lost(connection: Connection) -> bool:
    """Whether the server has closed the connection while it was idle: a look at the socket, no round trip."""
    try:
        connection.pgconn.consume_input()  # may read the server's farewell
        connection.pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    return connection.closed


class Database:
    """The connections of one process to its PostgreSQL.

    A pool for ordinary work, whose transactions say what they may meet, and `Lane`s: connections of their own for the
    batchers, which serve many tenants.

    ``pooler`` leads to the same database by way of a pooler that gives out its connections by the transaction, and is
    for the ordinary work alone. Such a pooler takes no options, and keeps neither settings nor prepared statements.
    ``watch_of`` gives who is told of the work of a lane of this name; with ``tracing`` transactions are spans.
    """

    def __init__(
        self,
        conninfo: str,
        pool_size: int,
        pooler: str | None = None,
        *,
        watch_of: Callable[[str], LaneMetrics] = LaneMetrics,
        tracing: Tracing | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self.timeouts = timeouts
        self._watch_of = watch_of
        self._tracing = tracing
        self._name = name_of(conninfo)
        self._is_by_pooler = pooler is not None
        self.succession = FailoverDetector(with_statement_timeout(conninfo, timeouts))
        self._pool = new_pool(
            FailoverDetector(_with_keepalives(pooler, timeouts)) if pooler else self.succession,
            pool_size,
            _look_for_walls,
            prepare_threshold=None if pooler else 5,
            timeouts=timeouts,
        )
        self._lanes: list[Lane] = []

    async def open(self) -> None:
        """Start connecting, without waiting for the database."""
        await self._pool.open()

    async def close(self) -> None:
        """Close every connection."""
        for lane in self._lanes:
            await lane.close()
        await self._pool.close()

    @asynccontextmanager
    async def transaction(self, scope: Scope, *, is_snapshot: bool = False) -> AsyncIterator[Connection]:
        """A connection in a transaction: committed at the end of the block, rolled back on an error.

        It meets what is in the ``scope`` and nothing else, where the database has the roles for it. With
        ``is_snapshot`` everything that it reads is of one moment, and nothing is written. Raises
        `DatabaseUnavailableError` when the database is out of reach or refuses to go on.
        """
        first = [_SNAPSHOT()] if is_snapshot else []
        if self._is_by_pooler:
            first.append(_FOR_TRANSACTION(str(_milliseconds(self.timeouts.statement))))
        try:
            with nullcontext() if self._tracing is None else self._tracing.transaction(self._name):
                async with self._pool.connection() as connection:
                    try:
                        await connection.enter(scope, *first)
                        yield connection
                    except OUTGROWN:
                        await connection.close()
                        raise
        except (*_UNAVAILABLE, PoolTimeout) as error:
            raise unavailable(error) from error

    def usage(self) -> PoolUsage:
        """How the pool for ordinary work is used; what is counted is counted since it was last asked."""
        return usage_of(self._pool)

    def lane(self, options: str = "", *, name: str = "") -> "Lane":
        """A new connection of its own, made when it is first used and again after it was lost.

        ``options`` are further settings of its session; ``name`` is what its work is counted under.
        """
        lane = Lane(self.succession, options, self._watch_of(name), self.timeouts)
        self._lanes.append(lane)
        return lane


class Lane:
    """One connection for one batcher: its statements stay prepared, and no pool is asked. They look up by index.

    Not for concurrent use. Connecting goes on where nobody waits for it any more: with several hosts in the connection
    string it may take longer to come to the one that answers than anybody waits.
    """

    def __init__(
        self,
        succession: FailoverDetector,
        options: str = "",
        watch: LaneMetrics = NO_METRICS,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._succession = succession
        self._options = f"{_BY_INDEX} {options}"
        self._name = name_of(succession.conninfo())
        self.watch = watch
        """Who is told of the batches that use it."""
        self.timeouts = timeouts
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None

    @asynccontextmanager
    async def use(self, *, autocommit: bool = False) -> AsyncIterator[Connection]:
        """The connection, made now if there is none; dropped when the block fails.

        Without ``autocommit`` the block commits for itself. Raises `DatabaseUnavailableError`.
        """
        try:
            connection = await self._connected(autocommit=autocommit)
            tracing = self.watch.tracing
            with nullcontext() if tracing is None else tracing.transaction(self._name):
                yield connection
        except _RETRYABLE:
            await self._recover()
            raise
        except (*_UNAVAILABLE, TimeoutError) as error:
            await self._drop()
            raise unavailable(error) from error
        except OUTGROWN:
            await self._drop()
            raise
        except Exception:
            await self._recover()
            raise
        except BaseException:
            await self._drop()
            raise

    async def _recover(self) -> None:
        try:
            if self._connection is not None:
                await self._connection.rollback()
        except psycopg.Error:
            await self._drop()

    async def _connected(self, *, autocommit: bool) -> Connection:
        if self._connecting is not None and self._connecting.done():  # long ago, maybe: who waited for it gave up
            made, self._connecting = self._connecting, None
            if not made.cancelled() and made.exception() is None:
                self._connection = made.result()
        if self._connection is not None and (is_lost(self._connection) or self._succession.is_over(self._connection)):
            await self._drop()
        if self._connection is None:
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._connect(autocommit=autocommit))
            _, late = await asyncio.wait([self._connecting], timeout=self.timeouts.connect)
            if late:
                raise TimeoutError
            connecting, self._connecting = self._connecting, None
            self._connection = await connecting
        return self._connection

    async def _connect(self, *, autocommit: bool) -> Connection:
        conninfo = _with_options(self._succession.conninfo(), self._options)
        connection = await Connection.connect(conninfo, autocommit=autocommit, prepare_threshold=0)
        try:
            await self._succession.accept(connection)
            await take_role(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        """Drop the connection; the next use makes a new one."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            for made in await asyncio.gather(connecting, return_exceptions=True):
                if isinstance(made, Connection):
                    await made.close()
        await self._drop()
