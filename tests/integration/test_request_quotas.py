"""Quotas of requests: what is counted and rejected, and the shares of several processes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import msgspec
import psycopg
import pytest

from tenantry.auth.request_quotas import RequestQuotas
from tenantry.common.clock import Clock
from tenantry.db.batcher import BatchMetrics, BatchObserver
from tenantry.domain.errors import AuthUnavailableError, QuotaExceededError
from tenantry.domain.feature_access import feature_access_of
from tenantry.domain.permissions import Mode, RequestPrincipal
from tenantry.domain.plans import parse_catalog
from tenantry.domain.shares import IDLE_SECONDS
from tests.support.billing import until_blocked
from tests.support.catalogs import catalog_file
from tests.support.database_link import database_link
from tests.support.in_process import MIDDLEWARE, WSGI, running_app
from tests.support.patience import patient_database
from tests.support.postgres import PostgresServer
from tests.support.principals import make_principal, on_plan
from tests.support.published_events import events_of
from tests.support.rate_limits import set_plan
from tests.support.service import (
    KEYS,
    PROJECTS,
    VERIFY,
    WHOAMI,
    Organization,
    Service,
    refusal,
    running_service,
)

TEXT: Final = """
[[features]]
id = "calls"
type = "metered"
counts = "requests"
[[plans]]
id = "free"
[plans.features]
calls = 5
[[plans]]
id = "wide"
[plans.features]
calls = 1000
[[plans]]
id = "vast"
[plans.features]
calls = 1000000
[[plans]]
id = "boundless"
[plans.features]
calls = true
"""
CATALOG: Final = parse_catalog(TEXT)
ANYTHING: Final = f"{VERIFY}-"
EXCEEDED: Final = (403, "quota_exceeded")


@pytest.fixture(scope="module")
async def service(postgres: PostgresServer) -> AsyncIterator[Service]:
    """Shared: each test makes its own tenants, and puts the clock back."""
    with postgres.database() as conninfo:
        async with running_service(conninfo, TENANTRY_PLANS=catalog_file(TEXT)) as service:
            yield service


@pytest.fixture
async def org(service: Service) -> Organization:
    """A tenant; making its key was the first of its five requests."""
    return await service.organization()


async def test_requests_are_counted_until_the_quota(org: Organization) -> None:
    answers = [await org.owner.get(ANYTHING) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 403]
    assert refusal(answers[4]) == EXCEEDED
    assert "retry-after" not in answers[4].headers
    assert refusal(await org.owner.get(PROJECTS)) == EXCEEDED


async def test_list_and_other_routes_are_counted_too(service: Service, org: Organization) -> None:
    await org.owner.get(PROJECTS)
    await org.owner.get(f"{PROJECTS}/")
    await org.owner.get(KEYS)
    entitlement = await org.owner.get("/api/v1/entitlements/calls")
    assert (entitlement.json()["used"], entitlement.json()["remaining"]) == (4, 1)


async def test_a_caller_without_quota_sees_it_and_may_change_the_plan(org: Organization) -> None:
    for _ in range(5):
        await org.owner.get(ANYTHING)
    for path in ("/api/v1/entitlements", "/api/v1/entitlements/calls", "/api/v1/plans", WHOAMI):
        assert (await org.owner.get(path)).status_code == 200, path
    checkout = await org.owner.post("/api/v1/billing/checkout-sessions", {"plan": "wide"})
    assert refusal(checkout) != EXCEEDED


async def test_requests_without_a_tenant_are_not_counted(
    service: Service, org: Organization
) -> None:
    for _ in range(5):
        await org.owner.get(ANYTHING)
    assert (await service.operator.get(f"{org.path}/export")).status_code == 200
    assert (await service.user("first").get("/api/v1/me/memberships")).status_code == 200
    assert (await service.client.get("/healthz")).status_code == 200


async def test_larger_plan_counts_at_once_and_keeps_the_count(
    service: Service, org: Organization
) -> None:
    for _ in range(5):
        await org.owner.get(ANYTHING)
    await set_plan(service, org, "wide")
    assert (await org.owner.get(ANYTHING)).status_code == 200
    calls = (await org.owner.get("/api/v1/entitlements/calls")).json()
    assert 6 <= calls["used"] <= 16  # with the process's share
    assert calls["remaining"] == 1000 - calls["used"]


async def test_test_mode_has_its_own_quota(service: Service, org: Organization) -> None:
    testing = await service.key(org.owner, org.id, "projects:read", mode="test")
    for _ in range(5):
        await org.owner.get(ANYTHING)
    answers = [await testing.caller.get(PROJECTS) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [403]


async def test_next_month_counts_anew(service: Service, org: Organization) -> None:
    for _ in range(5):
        await org.owner.get(ANYTHING)
    before = service.clock.now
    service.clock.now = datetime(2026, 2, 1, tzinfo=UTC)
    try:
        assert (await org.owner.get(ANYTHING)).status_code == 200
    finally:
        service.clock.now = before


async def test_requests_above_the_quota_are_a_metric(service: Service, org: Organization) -> None:
    for _ in range(5):
        await org.owner.get(ANYTHING)
    metrics = (await service.client.get("/metrics")).text
    assert 'tenantry_quota_exceeded_total{feature="calls"} ' in metrics


@pytest.mark.parametrize("kind", [MIDDLEWARE, WSGI])
async def test_applications_count_with_the_service(
    service: Service, org: Organization, kind: str
) -> None:
    async with running_app(kind, service, TENANTRY_PLANS=catalog_file(TEXT)) as app:
        caller = app.caller(org.owner.credential)
        for _ in range(2):
            assert (await caller.get(app.path(None))).status_code == 200
            assert (await org.owner.get(ANYTHING)).status_code == 200
        assert refusal(await caller.get(app.path(None))) == EXCEEDED
        assert refusal(await org.owner.get(ANYTHING)) == EXCEEDED


@pytest.mark.parametrize("kind", [MIDDLEWARE, WSGI])
async def test_application_that_reaches_the_limit_publishes_it(
    service: Service, org: Organization, kind: str
) -> None:
    async with running_app(kind, service, TENANTRY_PLANS=catalog_file(TEXT)) as app:
        caller = app.caller(org.owner.credential)
        for _ in range(4):
            assert (await caller.get(app.path(None))).status_code == 200
        assert refusal(await caller.get(app.path(None))) == EXCEEDED
    assert len(await events_of(service, org, "entitlement.quota_reached")) == 1


class Second:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 10, tzinfo=UTC).timestamp()

    def __call__(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)


@pytest.fixture
def clock() -> Second:
    return Second()


def principal_on(plan: str) -> RequestPrincipal:
    principal = on_plan(msgspec.structs.replace(make_principal(), org_id="acme"), plan)
    access = feature_access_of(principal.access_phase, CATALOG)
    return msgspec.structs.replace(principal, feature_access=access)


WIDE = principal_on("wide")
VAST = principal_on("vast")


@asynccontextmanager
async def quotas_on(
    conninfo: str,
    clock: Clock,
    observe: BatchObserver = lambda _items, _waited, _took: None,
) -> AsyncIterator[RequestQuotas]:
    """What counts requests, as one process has it; ``observe`` is called after each turn to the
    database.
    """
    assert CATALOG.counts_requests is not None
    database = patient_database(
        conninfo, pool_size=1, metrics_of=lambda name: BatchMetrics(name, observe)
    )
    quotas = RequestQuotas(database.lane(), CATALOG.counts_requests, clock)
    yield quotas
    await quotas.close()
    await database.close()


@pytest.fixture
async def connection(conninfo: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """A connection to a database with the tenant of `WIDE`."""
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        await connection.execute(
            "INSERT INTO tenants (id, name, owner_id, owner_email) VALUES ('acme', 'Acme', 'u', 'a@x.example')"
        )
        yield connection


async def used(connection: psycopg.AsyncConnection) -> int:
    cursor = await connection.execute("SELECT coalesce(sum(used), 0) FROM usage_counters")
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def accepted(quotas: RequestQuotas, most: int, principal: RequestPrincipal = WIDE) -> int:
    """How many of so many requests are accepted, one after the other."""
    for number in range(most):
        try:
            if not quotas.count_locally(principal):
                await quotas.count(principal)
        except QuotaExceededError:
            return number
    return most


async def test_processes_together_accept_exactly_the_quota(
    conninfo: str, connection: psycopg.AsyncConnection, clock: Second
) -> None:
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(quotas_on(conninfo, clock)) for _ in range(4)]
        numbers = await asyncio.gather(*(accepted(each, 2000) for each in processes * 2))
    assert sum(numbers) == 1000
    assert await used(connection) == 1000


async def test_turns_that_a_thousand_requests_take(
    conninfo: str, connection: psycopg.AsyncConnection, clock: Second
) -> None:
    turns: list[int] = []

    def observe(items: int, _waited: float, _took: float) -> None:
        turns.append(items)

    async with quotas_on(conninfo, clock, observe) as quotas:
        assert await accepted(quotas, 1000, VAST) == 1000
        assert len(turns) == 5


async def test_unused_share_is_at_most_a_hundredth_and_is_returned_when_idle(
    conninfo: str, connection: psycopg.AsyncConnection, clock: Second
) -> None:
    async with quotas_on(conninfo, clock) as quotas:
        assert await accepted(quotas, 100) == 100
        assert 100 <= await used(connection) <= 110
        clock.now += IDLE_SECONDS
        await quotas.return_unused()
        assert await used(connection) == 100


async def test_share_is_returned_at_the_end(
    conninfo: str, connection: psycopg.AsyncConnection, clock: Second
) -> None:
    async with quotas_on(conninfo, clock) as quotas:
        await accepted(quotas, 100)
    assert await used(connection) == 100


async def test_share_of_a_larger_plan_ends_with_it(
    conninfo: str, connection: psycopg.AsyncConnection, clock: Second
) -> None:
    async with quotas_on(conninfo, clock) as quotas:
        await accepted(quotas, 100)
        assert await accepted(quotas, 1, principal_on("free")) == 0
    assert await used(connection) == 100


async def test_requests_without_a_limit_are_counted(
    conninfo: str, connection: psycopg.AsyncConnection, clock: Second
) -> None:
    async with quotas_on(conninfo, clock) as quotas:
        assert await accepted(quotas, 500, principal_on("boundless")) == 500
    assert await used(connection) == 500


async def test_modes_are_counted_apart(
    conninfo: str, connection: psycopg.AsyncConnection, clock: Second
) -> None:
    async with quotas_on(conninfo, clock) as quotas:
        await accepted(quotas, 3)
        await accepted(quotas, 4, msgspec.structs.replace(WIDE, mode=Mode.TEST))
    cursor = await connection.execute("SELECT mode, used FROM usage_counters ORDER BY mode")
    assert await cursor.fetchall() == [("live", 3), ("test", 4)]


async def test_requests_that_wait_share_a_query(
    conninfo: str, connection: psycopg.AsyncConnection, clock: Second
) -> None:
    free = principal_on("free")
    async with quotas_on(conninfo, clock) as quotas:
        results = await asyncio.gather(
            *(quotas.count(free) for _ in range(8)), return_exceptions=True
        )
    assert Counter(map(type, results)) == {type(None): 5, QuotaExceededError: 3}


async def test_plan_that_changes_while_a_share_is_reserved_ends_the_share(
    conninfo: str, connection: psycopg.AsyncConnection, clock: Second
) -> None:
    lock = "SELECT pg_advisory_xact_lock(hashtextextended('usage of acme live calls', 0))"
    async with quotas_on(conninfo, clock) as quotas:
        await accepted(quotas, 18)  # of 1 + 8 + 9
        async with await psycopg.AsyncConnection.connect(conninfo) as other:
            await other.execute(lock)
            waiting = asyncio.create_task(quotas.count(WIDE))
            await until_blocked(conninfo)
            assert quotas.count_locally(principal_on("free")) is False
        await waiting
        assert quotas.count_locally(principal_on("free")) is False


async def test_lost_database_rejects_requests_and_loses_no_more_than_the_share(
    conninfo: str, connection: psycopg.AsyncConnection, clock: Second
) -> None:
    async with database_link(conninfo) as link, quotas_on(link.conninfo, clock) as quotas:
        assert await accepted(quotas, 50) == 50
        held = await used(connection) - 50
        await link.cut()
        assert [quotas.count_locally(WIDE) for _ in range(held)] == [True] * held
        with pytest.raises(AuthUnavailableError):
            await quotas.count(WIDE)
    assert await used(connection) == 50 + held
