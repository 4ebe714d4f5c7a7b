"""What the operator's page of the installation reads, and what of it `doctor` reports too."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import psycopg
import pytest

from tenantry.api.webhooks import PATH
from tenantry.common.clock import Timeouts, system_clock
from tenantry.common.secret import Secret
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.installation.findings import CheckedDatabase, Level
from tenantry.installation.ledger_checks import check_ledger
from tenantry.installation.state import InstallationService
from tenantry.settings import Settings
from tests.support.app import PEPPER
from tests.support.billing import rows
from tests.support.findings import checked_settings, only

PATIENT = Timeouts(connect=30.0, statement=30.0)
WITHOUT_SERVICES = checked_settings(
    API_KEY_PEPPER=PEPPER, SMTP_URL="", MAIL_FROM="", PROVIDER_SECRET_KEY=""
)


@asynccontextmanager
async def on(
    conninfo: str, timeouts: Timeouts = PATIENT, settings: Settings | None = None
) -> AsyncIterator[InstallationService]:
    """The service on this database."""
    async with Database(conninfo, 1, timeouts=timeouts) as database:
        yield InstallationService(database, settings or checked_settings(), system_clock, PATH)


@pytest.fixture
async def installation(conninfo: str) -> AsyncIterator[InstallationService]:
    async with on(conninfo) as service:
        yield service


async def test_nothing_is_wrong_with_a_new_installation(
    installation: InstallationService,
) -> None:
    state = await installation.read_state()
    assert state.problems == []
    assert (state.unsent, state.mails.queued) == ([], 0)
    assert state.versions.schema == "0001"


async def test_services_that_are_not_set_up_are_named(conninfo: str) -> None:
    settings = checked_settings(SMTP_URL="", MAIL_FROM="", PROVIDER_SECRET_KEY="")
    async with on(conninfo, settings=settings) as service:
        state = await service.read_state()
    assert [each.name for each in state.problems] == ["mail.no_server", "payment provider.no_key"]


async def test_mails_that_wait_for_long_are_a_problem(
    installation: InstallationService, conninfo: str
) -> None:
    await rows(
        conninfo,
        "INSERT INTO tenants (id, name, owner_id, owner_email, plan, created_at, updated_at) "
        "VALUES ('acme', 'Acme', 'u', 'u@acme.example', 'free', now(), now())",
    )
    for minutes, found in ((10, []), (20, ["mail.waiting"])):
        await rows(
            conninfo,
            "INSERT INTO mails (id, type, tenant_id, cause, recipient, data, status, created_at, due_at) "
            "VALUES (gen_random_uuid(), 'billing.payment_failed', 'acme', %s, 'u@acme.example', '{}', 'queued', "
            "now(), now() - %s * interval '1 min')",
            str(minutes),
            minutes,
        )
        state = await installation.read_state()
        assert [each.name for each in state.problems] == found


async def test_jobs_that_no_worker_takes_are_a_problem(
    installation: InstallationService, conninfo: str
) -> None:
    await rows(
        conninfo,
        "INSERT INTO procrastinate_jobs (queue_name, task_name, status, scheduled_at) "
        "VALUES ('mail', 'deliver', 'todo', now() - interval '20 min')",
    )
    [found] = (await installation.read_state()).problems
    assert found.name == "jobs.waiting"
    assert "due for 20 min (mail)" in found.message


async def test_check_that_takes_too_long_is_skipped(conninfo: str) -> None:
    timeouts = msgspec.structs.replace(PATIENT, statement=0.2)
    async with (
        on(conninfo, timeouts) as service,
        await psycopg.AsyncConnection.connect(conninfo) as other,
    ):
        await other.execute("LOCK TABLE provider_refusals")
        state = await service.read_state()
    found = only(state.findings, Level.WARNING)
    assert found.subject == "payment provider"
    assert found.message == "skipped: a query took too long"


async def test_check_of_the_ledger_looks_at_the_latest_entries(conninfo: str) -> None:
    await rows(
        conninfo,
        "INSERT INTO billing_events (id, type, created, received_at, arrival, outcome, anomalies) "
        "VALUES ('evt_1', 'x', 1, now() - interval '2 min', 1, 'ignored', '{missing_org_id}'), "
        "('evt_2', 'x', 2, now() - interval '1 min', 2, 'invalid', '{unusable_object}')",
    )
    found = {}
    for entries in (None, 1):
        async with (
            Database(conninfo, 1, timeouts=PATIENT) as database,
            database.transaction(ACROSS_TENANTS) as connection,
        ):
            checked = CheckedDatabase(connection, checked_settings(), system_clock(), entries)
            found[entries] = [each.name for each in await check_ledger(checked)]
    assert found == {
        None: ["billing ledger.unusable_object", "billing ledger.missing_org_id"],
        1: ["billing ledger.unusable_object"],
    }


async def test_check_that_is_asked_for_meanwhile_is_made_once(conninfo: str) -> None:
    async with on(conninfo, settings=WITHOUT_SERVICES) as service:
        first, second = await asyncio.gather(service.check_all(), service.check_all())
        later = await service.check_all()
    assert first is second
    assert first is not later
    assert first == later


async def test_check_goes_on_for_others_when_one_who_asked_leaves(conninfo: str) -> None:
    async with on(conninfo, settings=WITHOUT_SERVICES) as service:
        asked = [asyncio.create_task(service.check_all()) for _ in range(2)]
        await asyncio.sleep(0)  # one turn of the loop: both have asked
        asked[0].cancel()
        found = await asked[1]
    assert asked[0].cancelled()
    assert "mail.no_server" in [each.name for each in found]


async def test_check_of_a_service_that_fails_itself_is_a_finding(conninfo: str) -> None:
    settings = WITHOUT_SERVICES.replace(provider_secret_key=Secret("sk_test_\u20ac"))
    async with on(conninfo, settings=settings) as service:
        found = await service.check_all()
    [failed] = [each for each in found if each.subject == "payment provider" and each.is_problem]
    assert (failed.level, failed.message) == (
        Level.ERROR,
        "the check failed with an internal error",
    )
    assert "mail.no_server" in [each.name for each in found]
