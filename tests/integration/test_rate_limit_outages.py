"""Rate limiting that fails or is slow: no request passes uncounted, each gets an answer in time,
and nothing leaks.
"""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import psycopg
import pytest
from psycopg import sql

from tenantry.auth.admission import Admission
from tenantry.auth.authentication import Authenticator, Rejected
from tenantry.auth.rate_limits import RateLimiter
from tenantry.auth.rate_limits_store import LOCK_SUBJECTS
from tenantry.db.connection import Connection
from tenantry.domain.api_keys import Pepper
from tenantry.domain.errors import AuthUnavailableError, RateLimitedError
from tenantry.domain.shares import Share
from tests.support.app import PEPPER
from tests.support.billing import until_blocked
from tests.support.catalogs import catalog_file
from tests.support.database_link import database_link
from tests.support.logs import watched
from tests.support.patience import patient_database
from tests.support.principals import ONLY_FREE, make_principal, on_plan
from tests.support.rate_limits import CATALOG, let_through, limiter_on, tenant_of
from tests.support.senders import bearer
from tests.support.service import ManualClock, running_service

CALLER: Final = make_principal()
KEYED: Final = on_plan(CALLER, "keyed")
READ_ONLY: Final = ("default_transaction_read_only", "on")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class AuthenticatedApp:
    """One tenant's key, and admissions that share a limiter: its limit is 5."""

    def __init__(self, authenticator: Authenticator, limiter: RateLimiter, credential: str) -> None:
        self.limiter = limiter
        self._authenticator = authenticator
        self._sender = bearer(credential)

    async def admit(
        self, deadline: float = 4.8, monotonic: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Let one request in. Raises the error of a rejection."""
        admission = Admission(
            self._authenticator, self.limiter, deadline=deadline, monotonic=monotonic
        )
        found = await admission.admit(self._sender)
        if isinstance(found, Rejected):
            raise found.error


@pytest.fixture
async def app(conninfo: str) -> AsyncIterator[AuthenticatedApp]:
    async with running_service(conninfo, TENANTRY_PLANS=catalog_file(CATALOG)) as service:
        org = await tenant_of(service)
        database = patient_database(conninfo, pool_size=1)
        authenticator = Authenticator(
            keys=database.lane(),
            users=database.lane(),
            peppers=[Pepper(PEPPER.encode())],
            tokens=None,
            catalog=ONLY_FREE,
            clock=service.clock,
        )
        async with limiter_on(conninfo, service.clock) as limiter:
            yield AuthenticatedApp(authenticator, limiter, str(org.owner.credential))
        await authenticator.close()
        await database.close()


@asynccontextmanager
async def counts_locked(conninfo: str) -> AsyncIterator[None]:
    """Nothing can be counted for the length of the block."""
    async with await Connection.connect(conninfo) as connection:
        await connection.execute("LOCK TABLE request_counts")
        yield


def set_for_all_sessions(conninfo: str, setting: tuple[str, str]) -> None:
    """What the administrator of a database may have set."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        statement = sql.SQL("ALTER DATABASE {} SET {} TO {}")
        name, value = setting
        connection.execute(
            statement.format(
                sql.Identifier(connection.info.dbname), sql.Identifier(name), sql.Literal(value)
            )
        )


async def shares_in_memory() -> int:
    await asyncio.sleep(0)  # what has just ended lets go
    gc.collect()
    return sum(type(thing) is Share for thing in gc.get_objects())


async def test_timed_out_request_is_rejected_and_does_not_count(
    conninfo: str, app: AuthenticatedApp
) -> None:
    async with counts_locked(conninfo):
        with pytest.raises(AuthUnavailableError):
            await app.admit(deadline=0.1)
    for _ in range(5):
        await app.admit()
    with pytest.raises(RateLimitedError):
        await app.admit()


async def test_authentication_uses_up_the_time_for_counting(app: AuthenticatedApp) -> None:
    with pytest.raises(AuthUnavailableError):
        await app.admit(monotonic=iter([1000.0, 1004.8]).__next__)
    await app.admit(monotonic=iter([1000.0, 1000.1]).__next__)


async def test_database_gets_the_remaining_time(conninfo: str, app: AuthenticatedApp) -> None:
    async with counts_locked(conninfo):
        waiting = asyncio.create_task(app.admit())
        await until_blocked(conninfo)
    await waiting


async def test_read_only_database_is_no_internal_error(conninfo: str, clock: ManualClock) -> None:
    set_for_all_sessions(conninfo, READ_ONLY)
    async with limiter_on(conninfo, clock) as limiter:
        with pytest.raises(AuthUnavailableError):
            await limiter.count(CALLER)


async def test_missing_privilege_to_count_is_no_internal_error(
    conninfo: str, clock: ManualClock
) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute("REVOKE ALL ON request_counts FROM tenantry_batch")
    async with limiter_on(conninfo, clock) as limiter:
        with pytest.raises(AuthUnavailableError):
            await limiter.count(CALLER)


async def test_counting_resumes_when_the_database_accepts_writes(
    conninfo: str, clock: ManualClock
) -> None:
    async with limiter_on(conninfo, clock) as limiter:
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
            await connection.execute("ALTER TABLE request_counts RENAME TO gone")
            with pytest.raises(AuthUnavailableError):
                await limiter.count(CALLER)
            await connection.execute("ALTER TABLE gone RENAME TO request_counts")
        assert await let_through(limiter, 10, CALLER) == 5


async def test_log_reports_failed_counting_once_a_minute(conninfo: str, clock: ManualClock) -> None:
    set_for_all_sessions(conninfo, READ_ONLY)
    async with limiter_on(conninfo, clock) as limiter:
        with watched("tenantry.auth.share_counting") as log:
            for _ in range(4):
                with pytest.raises(AuthUnavailableError):
                    await limiter.count(CALLER)
                clock.advance(seconds=20)
    assert log.count("read-only transaction") == 2


async def test_default_isolation_of_the_database_has_no_effect(
    conninfo: str, clock: ManualClock
) -> None:
    set_for_all_sessions(conninfo, ("default_transaction_isolation", "repeatable read"))
    async with (
        limiter_on(conninfo, clock) as limiter,
        await Connection.connect(conninfo) as connection,
    ):
        await connection.run_batch(LOCK_SUBJECTS(["tenant acme"]))
        waiting = asyncio.create_task(limiter.count(CALLER))
        await until_blocked(conninfo)
        earlier = int(clock().timestamp()) - 1
        await connection.execute(
            "INSERT INTO request_counts VALUES ('tenant acme', %s, 5)", (earlier,)
        )
        await connection.commit()
        with pytest.raises(RateLimitedError):
            await waiting


async def test_uncounted_callers_leave_no_memory(conninfo: str, clock: ManualClock) -> None:
    before = await shares_in_memory()
    async with database_link(conninfo) as link, limiter_on(link.conninfo, clock) as limiter:
        await link.cut()
        for number in range(20):
            caller = msgspec.structs.replace(KEYED, org_id=f"org-{number}")
            with pytest.raises(AuthUnavailableError):
                await limiter.count(caller)
        assert await shares_in_memory() == before


async def test_uncounted_caller_after_the_window_leaves_no_memory(
    conninfo: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    # records hold tracebacks, and those what they went through
    for name in ("psycopg", "tenantry"):
        caplog.set_level(logging.CRITICAL, name)
    before = await shares_in_memory()
    async with database_link(conninfo) as link, limiter_on(link.conninfo, clock) as limiter:
        assert await let_through(limiter, 1, CALLER) == 1
        await limiter.return_unused()
        clock.advance(seconds=61)
        async with counts_locked(conninfo):
            waiting = asyncio.create_task(limiter.count(CALLER))
            await until_blocked(conninfo)
            returning = asyncio.create_task(limiter.return_unused())
            await asyncio.sleep(0)  # it has begun
            await link.cut()
            with pytest.raises(AuthUnavailableError):
                await waiting
            await returning
        del waiting
        assert await shares_in_memory() == before


async def test_callers_beyond_the_tenants_limit_leave_no_memory(
    conninfo: str, clock: ManualClock
) -> None:
    before = await shares_in_memory()
    async with limiter_on(conninfo, clock) as limiter:
        callers = [msgspec.structs.replace(KEYED, id=f"key-{number}") for number in range(25)]
        assert sum([await let_through(limiter, 1, caller) for caller in callers]) == 5
        assert await shares_in_memory() - before <= 7


async def test_request_after_a_canceled_one_waits_for_the_same_share(
    conninfo: str, clock: ManualClock
) -> None:
    before = await shares_in_memory()
    async with limiter_on(conninfo, clock) as limiter:
        async with counts_locked(conninfo):
            first = asyncio.create_task(limiter.count(CALLER))
            await until_blocked(conninfo)
            first.cancel()
            await asyncio.wait({first})
            second = asyncio.create_task(limiter.count(CALLER))
            await asyncio.sleep(0)  # it has begun
            assert await shares_in_memory() == before + 1
        await second
        assert await let_through(limiter, 10, CALLER) == 4
