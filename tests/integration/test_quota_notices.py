"""Notices of used quotas in the outbox: one for each mark, feature and period."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import psycopg
import pytest
from psycopg.rows import dict_row

from tenantry.integrations.smtp import Mailer, parse_smtp_url
from tenantry.notifications.mail_delivery import MailService
from tests.support.app import running_app
from tests.support.catalogs import catalog_file
from tests.support.patience import patient_database
from tests.support.postgres import PostgresServer
from tests.support.rate_limits import set_plan
from tests.support.service import Caller, Organization, Service, running_service
from tests.support.smtp import MailServer, running

CATALOG: Final = """
[[features]]
id = "exports"
type = "metered"
[[features]]
id = "calls"
type = "metered"
counts = "requests"
[[plans]]
id = "free"
[plans.features]
exports = 10
calls = true
[[plans]]
id = "pro"
[plans.features]
exports = 100
calls = true
[[plans]]
id = "boundless"
[plans.features]
exports = true
calls = true
[[plans]]
id = "narrow"
[plans.features]
calls = 10
"""


@pytest.fixture(scope="module")
async def service(postgres: PostgresServer) -> AsyncIterator[Service]:
    with postgres.database() as conninfo:
        async with running_service(
            conninfo, TENANTRY_PLANS=catalog_file(CATALOG), OWNER_NOTICES="quota_used"
        ) as service:
            yield service


@pytest.fixture
async def org(service: Service) -> Organization:
    return await service.organization()


async def consume(caller: Caller, amount: int, key: str | None = None) -> int:
    path = "/api/v1/entitlements/exports/consume"
    return (await caller.post(path, {"amount": amount}, key)).status_code


async def rows_of(service: Service, org: Organization, query: str) -> list[dict[str, Any]]:
    async with await psycopg.AsyncConnection.connect(
        service.conninfo, row_factory=dict_row
    ) as connection:
        found = await connection.execute(query, {"org": org.id})
        rows: list[dict[str, Any]] = await found.fetchall()
    return rows


async def notices_of(service: Service, org: Organization) -> list[dict[str, Any]]:
    """What the owner was told, the oldest first."""
    query = (
        "SELECT n.type, m.recipient, n.channels, n.data FROM notifications n JOIN mails m USING (id)"
        " WHERE n.tenant_id = %(org)s ORDER BY (n.data->>'resetsAt'), (n.data->>'percent')::int"
    )
    return await rows_of(service, org, query)


async def percents(service: Service, org: Organization) -> list[int]:
    return [notice["data"]["percent"] for notice in await notices_of(service, org)]


async def test_owner_is_told_at_80_and_at_100_percent(service: Service, org: Organization) -> None:
    assert await consume(org.owner, 7) == 200
    assert await percents(service, org) == []
    assert await consume(org.owner, 1) == 200
    [notice] = await notices_of(service, org)
    resets_at = notice["data"].pop("resetsAt")
    assert resets_at.endswith("-01T00:00:00Z")
    [owner] = await rows_of(service, org, "SELECT owner_email FROM tenants WHERE id = %(org)s")
    assert notice == {
        "type": "billing.quota_used",
        "recipient": owner["owner_email"],
        "channels": ["email"],
        "data": {"feature": "exports", "percent": 80, "used": 8, "limit": 10},
    }
    assert await consume(org.owner, 1) == 200
    assert await percents(service, org) == [80]
    assert await consume(org.owner, 1) == 200
    assert await percents(service, org) == [80, 100]
    assert await consume(org.owner, 1) == 403
    assert await percents(service, org) == [80, 100]


async def test_each_notice_has_a_job_that_mails_it(service: Service, org: Organization) -> None:
    await consume(org.owner, 10)
    query = (
        "SELECT j.task_name FROM notifications n JOIN procrastinate_jobs j"
        " ON j.args->>'mail_id' = n.id::text WHERE n.tenant_id = %(org)s"
    )
    assert await rows_of(service, org, query) == [{"task_name": "deliver_mail"}]


async def test_mail_names_the_feature_and_its_use(service: Service, org: Organization) -> None:
    await consume(org.owner, 8)
    [found] = await rows_of(service, org, "SELECT id FROM notifications WHERE tenant_id = %(org)s")
    database = patient_database(service.conninfo, 1)
    await database.open()
    async with running(MailServer()) as server:
        config = parse_smtp_url(f"smtp://127.0.0.1:{server.port}", "billing@example.com")
        mail = MailService(database, Mailer(config), service.clock, base_url="https://x.example")
        await mail.deliver(found["id"])
    await database.close()
    [received] = server.received
    assert received.message["Subject"] == "Quota of your plan"
    plain = received.message.get_body(("plain",))
    assert plain is not None
    text = plain.get_content().replace("\r\n", "\n")
    assert "Your organization has used 80% of a quota of its plan." in text
    assert 'Feature: "exports"\nUsed: 8 of 10\nResets: ' in text
    assert f"https://x.example/orgs/{org.id}/billing" in text


async def test_both_marks_at_once_are_one_mail(service: Service, org: Organization) -> None:
    assert await consume(org.owner, 10) == 200
    assert await percents(service, org) == [100]


async def test_mark_is_told_once_in_a_period(service: Service, org: Organization) -> None:
    await consume(org.owner, 8, "job-1")
    await consume(org.owner, 8, "job-1")
    await set_plan(service, org, "pro")
    await consume(org.owner, 80)
    assert await percents(service, org) == [80]


async def test_next_period_is_told_again(postgres: PostgresServer) -> None:
    with postgres.database() as conninfo:
        async with running_service(
            conninfo, TENANTRY_PLANS=catalog_file(CATALOG), OWNER_NOTICES="quota_used"
        ) as service:
            org = await service.organization()
            await consume(org.owner, 8)
            service.clock.advance(days=31)
            await consume(org.owner, 8)
            assert await percents(service, org) == [80, 80]


async def test_neither_test_mode_nor_a_quota_without_limit_is_told(
    service: Service, org: Organization
) -> None:
    test = (await service.key(org.owner, org.id, "a:b", mode="test")).caller
    assert await consume(test, 10) == 200
    await set_plan(service, org, "boundless")
    assert await consume(org.owner, 1_000_000) == 200
    assert await percents(service, org) == []


async def test_processes_tell_each_mark_once(service: Service, org: Organization) -> None:
    values = {"TENANTRY_PLANS": catalog_file(CATALOG), "OWNER_NOTICES": "quota_used"}
    async with running_app(service.conninfo, clock=service.clock, **values) as client:
        callers = [org.owner, Caller(client, org.owner.credential)]
        statuses = await asyncio.gather(*(consume(callers[i % 2], 1) for i in range(12)))
    assert sorted(statuses) == [200] * 10 + [403] * 2
    told = await percents(service, org)
    assert told[-1] == 100
    assert len(told) == len(set(told))


async def test_counted_requests_are_told_too(service: Service, org: Organization) -> None:
    await set_plan(service, org, "narrow")
    for _ in range(12):
        await org.owner.get("/api/v1/projects")
    notices = await notices_of(service, org)
    assert [notice["data"]["feature"] for notice in notices] == ["calls"] * len(notices)
    assert notices[-1]["data"]["percent"] == 100


REFUSE: Final = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON usage_counters EXECUTE FUNCTION refuse();
"""


async def test_use_that_is_not_committed_is_not_told(postgres: PostgresServer) -> None:
    with postgres.database() as conninfo:
        async with running_service(
            conninfo, TENANTRY_PLANS=catalog_file(CATALOG), OWNER_NOTICES="quota_used"
        ) as service:
            org = await service.organization()
            async with await psycopg.AsyncConnection.connect(conninfo) as connection:
                await connection.execute(REFUSE)
            assert await consume(org.owner, 8) >= 500
            assert await percents(service, org) == []
            async with await psycopg.AsyncConnection.connect(conninfo) as connection:
                await connection.execute("DROP TRIGGER refuse ON usage_counters")
            assert await consume(org.owner, 8) == 200
            assert await percents(service, org) == [80]


async def test_nothing_is_told_unless_the_setting_says_so(postgres: PostgresServer) -> None:
    with postgres.database() as conninfo:
        async with running_service(
            conninfo, TENANTRY_PLANS=catalog_file(CATALOG), OWNER_NOTICES="access_ended"
        ) as service:
            org = await service.organization()
            assert await consume(org.owner, 10) == 200
            assert await percents(service, org) == []
