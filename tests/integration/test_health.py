"""Liveness, readiness and metrics."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
import pytest

from tenantry.billing.stale_tenants import count_stale_tenants
from tests.support import events
from tests.support.billing import Provider, rows
from tests.support.emptying import SharedDatabase
from tests.support.patience import patient_database
from tests.support.postgres import PostgresServer
from tests.support.service import PROJECTS, Service, running_service

TEST_KEY: Final = "sk_test_OnlyForTests"


async def test_service_is_alive_and_ready(service: Service) -> None:
    for path in ("/healthz", "/readyz"):
        answer = await service.anonymous.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok", "waitingFor": []})


async def test_parameters_that_a_public_route_does_not_have_are_ignored(service: Service) -> None:
    for path in ("/healthz", "/metrics", "/docs"):
        assert (await service.anonymous.get(f"{path}?probe=%00")).status_code == 200


async def test_without_its_schema_it_is_alive_but_not_ready(postgres: PostgresServer) -> None:
    with postgres.database(migrated=False) as conninfo:
        async with running_service(conninfo) as service:
            answer = await service.anonymous.get("/readyz")
            assert (answer.status_code, answer.json()) == (
                503,
                {"status": "not ready", "waitingFor": ["schema"]},
            )
            assert answer.headers["retry-after"] == "1"
            assert (await service.anonymous.get("/healthz")).status_code == 200


async def test_schema_of_an_older_release_is_not_ready(conninfo: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute("UPDATE tenantry_version SET version_num = '0000'")
    async with running_service(conninfo) as service:
        assert (await service.anonymous.get("/readyz")).json()["waitingFor"] == ["schema"]


async def test_schema_that_it_may_not_read_is_not_ready(conninfo: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute(
            "REVOKE SELECT ON tenantry_version FROM tenantry_batch, tenantry_read"
        )
    async with running_service(conninfo) as service:
        answer = await service.anonymous.get("/readyz")
        assert (answer.status_code, answer.json()["waitingFor"]) == (503, ["schema"])


async def test_schema_of_a_newer_release_is_ready(conninfo: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute("UPDATE tenantry_version SET version_num = '9999'")
    async with running_service(conninfo) as service:
        assert (await service.anonymous.get("/readyz")).status_code == 200


async def test_metrics_count_requests_by_route_method_and_status(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        org = await service.organization()
        for _ in range(3):
            await org.owner.get(PROJECTS)
        await org.owner.get(f"{PROJECTS}/proj_1")
        await org.owner.get(f"{PROJECTS}/proj_2")
        await service.anonymous.get("/nowhere")
        answer = await service.anonymous.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    counted = {
        (found["route"], found["method"], found["status"]): float(found["count"])
        for found in re.finditer(
            r'^tenantry_http_requests_total\{method="(?P<method>\w+)",route="(?P<route>[^"]+)",'
            r'status="(?P<status>\d+)"\} '
            r"(?P<count>\S+)$",
            answer.text,
            re.MULTILINE,
        )
    }
    assert counted["/api/v1/projects", "GET", "200"] == 3
    assert counted["/api/v1/projects/{project_id}", "GET", "404"] == 2
    assert counted["unknown", "GET", "404"] == 1
    assert "\ntenantry_database_up 1.0\n" in answer.text
    assert "\ntenantry_notifications_queued 0.0\n" in answer.text
    assert str(org.owner.credential) not in answer.text


async def test_unknown_methods_and_paths_create_no_series(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        for number in range(5):
            await service.anonymous.call(f"MADE{number}", f"/made/up/{number}")
        text = (await service.anonymous.get("/metrics")).text
    assert 'method="other",route="unknown"' in text
    assert "MADE" not in text
    assert "/made/up" not in text


# Billing


@pytest.fixture(scope="module")
async def billing_service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    """A service with a test-mode key."""
    async with running_service(shared_database.conninfo, PROVIDER_SECRET_KEY=TEST_KEY) as service:
        yield service


@pytest.fixture
def provider(billing_service: Service, emptied: str) -> Provider:
    """The provider of a service without rows, now: the database's own clock counts for the last
    day.
    """
    billing_service.clock.now = datetime.now(UTC)
    return Provider(billing_service)


async def metric(provider: Provider, name: str) -> float:
    """The value of a metric, given with its labels."""
    text = (await provider.service.anonymous.get("/metrics")).text
    [value] = [
        line.removeprefix(f"{name} ") for line in text.splitlines() if line.startswith(f"{name} ")
    ]
    return float(value)


BILLING_GAUGES: Final = (
    "tenantry_stale_tenants",
    "tenantry_tenants_drifted",
    "tenantry_ambiguous_events",
)


@pytest.mark.parametrize("name", BILLING_GAUGES)
async def test_a_gauge_of_billing_is_there_from_the_start(provider: Provider, name: str) -> None:
    assert await metric(provider, name) == 0
    assert f"# TYPE {name} gauge\n" in (await provider.service.anonymous.get("/metrics")).text


async def test_stale_tenants_are_those_of_the_last_check(provider: Provider, emptied: str) -> None:
    clock = provider.service.clock
    ended = int(clock.now.timestamp())
    silent, left = await provider.subscriber(), await provider.subscriber()
    for subscriber in (silent, left):
        await provider.send(events.updated(**subscriber.names, period_end=ended))
    database = patient_database(emptied, pool_size=1)
    await database.open()
    clock.advance(hours=25)
    assert await metric(provider, "tenantry_stale_tenants") == 0
    await count_stale_tenants(database, timedelta(hours=24), clock)
    assert await metric(provider, "tenantry_stale_tenants") == 2
    await provider.send(events.deleted(**left.names, created=ended + 1))
    await count_stale_tenants(database, timedelta(hours=24), clock)
    assert await metric(provider, "tenantry_stale_tenants") == 1
    await database.close()


async def test_ties_of_the_last_day_are_counted(provider: Provider) -> None:
    clock = provider.service.clock
    for hours in (-25, 24):
        clock.advance(hours=hours)
        subscriber = await provider.subscriber()
        await provider.send(
            events.updated(**subscriber.names, status="active"),
            events.updated(**subscriber.names, status="past_due"),
        )
    assert await metric(provider, "tenantry_ambiguous_events") == 1


async def test_tenants_that_drifted_in_the_last_day_are_counted(
    provider: Provider, emptied: str
) -> None:
    statement = (
        "INSERT INTO billing_events (id, arrival, type, created, received_at, tenant_id, outcome, anomalies) "
        "VALUES (%s, 1, 'tenantry.subscription.snapshot', 1, now() - %s, %s, 'applied', %s)"
    )
    for event_id, age, tenant, anomaly in (
        ("a", 23, "acme", "drift"),
        ("b", 1, "acme", "drift"),
        ("c", 23, "beta", "drift"),
        ("d", 25, "gamma", "drift"),
        ("e", 1, "delta", "unknown_price"),
    ):
        await rows(emptied, statement, event_id, timedelta(hours=age), tenant, [anomaly])
    assert await metric(provider, "tenantry_tenants_drifted") == 2


async def test_event_of_the_other_mode_is_counted_and_handled(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(events.updated(**subscriber.names))
    live = {
        **events.updated(**subscriber.names, created=events.NOW + 1, price="price_business"),
        "livemode": True,
    }
    counter = 'tenantry_webhook_anomalies_total{kind="wrong_livemode"}'
    before = await metric(provider, counter)
    await provider.send(live)
    assert await metric(provider, counter) == before + 1
    assert await provider.state(subscriber) == ("business", "active")
    entry = await provider.stored(live["id"])
    assert entry is not None
    assert (entry["outcome"], entry["livemode"], entry["anomalies"]) == (
        "applied",
        True,
        ["wrong_livemode"],
    )
