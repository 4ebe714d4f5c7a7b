"""What the service and its commands do on a database, with a login and in an environment that set
sessions otherwise than tenantry needs.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import pytest

from tenantry.cli.doctor.database_checks import check_database
from tenantry.common.clock import system_clock
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.sessions import CLIENT_ENCODING, UNIFORM, open_session
from tenantry.installation.findings import Level
from tests.support import events
from tests.support.app import PEPPER, WEBHOOK_SECRET
from tests.support.billing import Provider
from tests.support.command_runner import invoke, invoke_async
from tests.support.findings import checked_settings, only
from tests.support.hostile_settings import OF_ENVIRONMENT, HostileDatabase, hostile_database
from tests.support.patience import patient_database
from tests.support.postgres import PostgresServer, as_url
from tests.support.service import PROJECTS, Caller, Organization, Service, running_service
from tests.support.smtp import LOOPBACK, MailServer, running

NAME: Final = "Müller & Søn ☕"
EXPECTED: Final = {"client_encoding": CLIENT_ENCODING, **UNIFORM}
LIMITS_OF_SERVICE: Final = ("statement_timeout", "idle_in_transaction_session_timeout")
SHOWN: Final = f"""
SELECT name, current_setting(name, true)
  FROM unnest(string_to_array('{" ".join(EXPECTED)}', ' ')) AS setting (name)
"""  # noqa: S608  # our own names


class Shell(NamedTuple):
    """Runs commands on the database, as its owner or as the login of the service."""

    hostile: HostileDatabase
    folder: Path

    async def run(self, *arguments: str, as_owner: bool = False) -> str:
        """Run a command that must succeed; return its stdout."""
        conninfo = self.hostile.owner if as_owner else self.hostile.service
        values = {
            **OF_ENVIRONMENT,
            "DATABASE_URL": as_url(conninfo),
            "API_KEY_PEPPER": PEPPER,
            "PROVIDER_WEBHOOK_SECRET": WEBHOOK_SECRET,
        }
        done = await invoke_async(*arguments, folder=self.folder, **values)
        assert done.code == 0, done
        return done.out


@pytest.fixture
def hostile(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileDatabase]:
    with hostile_database(postgres) as database:
        for name, value in OF_ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        yield database


async def test_every_kind_of_session_has_the_settings_of_the_code(hostile: HostileDatabase) -> None:
    shown: dict[str, list[tuple[str, str | None]]] = {}
    async with (
        patient_database(hostile.service, pool_size=1) as database,
        database.transaction(ACROSS_TENANTS) as of_pool,
        database.lane().use() as of_lane,
        await Connection.connect(hostile.service) as other,
    ):
        for kind, connection in {"pool": of_pool, "lane": of_lane, "other": other}.items():
            shown[kind] = await connection.fetch(SHOWN)
    with open_session(hostile.service) as session:
        shown["command"] = session.execute(SHOWN).fetchall()
    for kind, rows in shown.items():
        for name, value in rows:
            assert value in (None, EXPECTED[name]) or name in LIMITS_OF_SERVICE, (kind, name, value)


async def use_api(org: Organization) -> None:
    """Write texts and times, and read them again."""
    made = await org.owner.post(PROJECTS, {"name": NAME, "description": "back\\slash 'quoted'"})
    assert made.status_code == 201, made.text
    project = f"{PROJECTS}/{made.json()['id']}"
    assert (await org.owner.patch(project, {"description": None})).status_code == 200
    assert (await data(org.owner, PROJECTS))[0]["name"] == NAME
    assert (await org.owner.patch(org.key.path, {"name": NAME})).status_code == 200
    assert (await data(org.owner, "/api/v1/api-keys"))[0]["name"] == NAME
    assert NAME in json.dumps(await data(org.owner, "/api/v1/audit-events"), ensure_ascii=False)
    for path in (
        "/api/v1/tenants",
        "/api/v1/billing/events",
        "/api/v1/usage",
    ):
        await data(org.owner, path)


async def read_as_operator(service: Service, org_id: str) -> None:
    """Read the export of a tenant, and the feed up to its last change."""
    answer = await service.operator.get(f"/api/v1/tenants/{org_id}/export")
    assert NAME in json.dumps(answer.json()["auditEvents"], ensure_ascii=False)
    suspended = {"name": NAME, "ownerEmail": "owner@x.example", "suspended": True}
    assert (await service.operator.put(f"/api/v1/tenants/{org_id}", suspended)).status_code == 200
    feed: list[str] = []
    cursor: dict[str, str] = {}
    while "tenant.suspended" not in feed:
        page = (await service.operator.get("/api/v1/operator/events", wait=20, **cursor)).json()
        feed += [event["type"] for event in page["data"]]
        cursor = {"after": page["nextCursor"]}
    assert {"tenant.created", "tenant.access_changed"} <= set(feed)


async def data(caller: Caller, path: str) -> list[dict[str, Any]]:
    """The items of a list."""
    answer = await caller.get(path)
    assert answer.status_code == 200, (path, answer.text)
    listed: list[dict[str, Any]] = answer.json()["data"]
    return listed


async def test_the_whole_service_works_whatever_sessions_are_set_to(
    hostile: HostileDatabase, tmp_path: Path
) -> None:
    async with running(MailServer()) as mails:
        smtp = {"SMTP_URL": f"smtp://{LOOPBACK}:{mails.port}", "MAIL_FROM": "billing@x.example"}
        shell = Shell(hostile, tmp_path)
        await shell.run("migrate", "--grant-to", hostile.login, as_owner=True)
        async with running_service(hostile.service, RUN_JOBS="true", **smtp) as service:
            provider = Provider(service)
            paying = await provider.subscriber()
            await provider.send(
                events.subscription_created(**paying.names), events.failed(customer=paying.customer)
            )
            assert (await provider.state(paying))[0] == "pro"
            assert paying.organization is not None
            await use_api(paying.organization)
            await read_as_operator(service, paying.id)
            await mails.wait_for(lambda server: bool(server.received))
        options = ("--id", "o2", "--name", NAME, "--owner-email", "owner@o2.example")
        created = json.loads(await shell.run("admin", "create-tenant", *options))
        assert created["name"] == NAME
        listed = await shell.run("admin", "list-tenants", "--json")
        assert [json.loads(line)["name"] for line in listed.splitlines()] == [NAME, NAME]
    findings = await check_database(hostile.service, checked_settings(), system_clock())
    levels = {(found.subject, found.level) for found in findings}
    assert {("database", Level.OK), ("schema", Level.OK), ("connections", Level.OK)} <= levels


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_in_another_encoding_is_refused(
    postgres: PostgresServer, tmp_path: Path, encoding: str
) -> None:
    name = f"tenantry_test_in_{encoding}".lower()
    conninfo = postgres.conninfo_of(name)
    values = {
        "DATABASE_URL": as_url(conninfo),
        "API_KEY_PEPPER": PEPPER,
        "PROVIDER_WEBHOOK_SECRET": WEBHOOK_SECRET,
        "SESSION_SECRET": "session-secret-of-the-tests-0123456789",
    }
    refusal = f"DATABASE_URL: the encoding of the database is {encoding}, and tenantry needs UTF8: create another"
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        create = f"CREATE DATABASE {name} ENCODING {encoding} LOCALE 'C' TEMPLATE template0"
        connection.execute(create.encode())
        try:
            for command in (("migrate",), ("serve",), ("serve", "--no-migrate")):
                done = invoke(*command, folder=tmp_path, **values)
                assert (done.code, refusal in done.err) == (1, True), done
            findings = asyncio.run(check_database(conninfo, checked_settings(), system_clock()))
            assert encoding in only(findings, Level.ERROR).message
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
