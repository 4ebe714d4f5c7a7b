"""The service as a database role that owns nothing."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenantry.cli.doctor.database_checks import check_database
from tenantry.common.clock import system_clock
from tenantry.db.connection import ACROSS_TENANTS, API, BATCH, TENANT, of_tenant
from tenantry.db.migrate import grant, migrate
from tenantry.db.outbox import Outbox
from tenantry.db.roles import ROLES, SERVICE_ROLES, RolesMissingError
from tenantry.installation.findings import Finding, Level
from tenantry.integrations.smtp import Mailer, parse_smtp_url
from tenantry.jobs.database_metrics import DatabaseMetrics
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tenantry.notifications.mail_delivery import MailService
from tenantry_devkit.embedded_postgres import EmbeddedServer
from tests.support.backup import run_script
from tests.support.cluster import copy_cluster
from tests.support.commands import SECRETS, run
from tests.support.findings import checked_settings
from tests.support.logs import watched
from tests.support.outbox import add_notification
from tests.support.patience import PATIENT, patient_database, patient_queue
from tests.support.postgres import PostgresServer, as_url
from tests.support.rows import ONE, add_rows
from tests.support.service import KEYS, PROJECTS, Service, running_service
from tests.support.smtp import LOOPBACK, MailServer
from tests.support.smtp import running as running_mail

WAITING_EVENT: Final = """
INSERT INTO outbound_events (epoch, version, type, org_id, at, recorded_at, data)
VALUES ((SELECT outbound_epoch()), 1, 'tenant.created', 'acme', now(), clock_timestamp() - interval '10 minutes', '{}')
"""


@contextmanager
def made_role(conninfo: str, name: str) -> Iterator[str]:
    """A role that may log in. After the block another may have its name; PostgreSQL drops no role
    that owns things.
    """
    role, former = sql.Identifier(name), sql.Identifier(f"{name}_{secrets.token_hex(4)}")
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
        yield name
        connection.execute(sql.SQL("ALTER ROLE {} RENAME TO {}").format(role, former))


@pytest.fixture(scope="module")
def role(postgres: PostgresServer) -> Iterator[str]:
    with made_role(postgres.conninfo, "tenantry_login") as role:
        yield role


@pytest.fixture(scope="module")
async def service(postgres: PostgresServer, role: str) -> AsyncIterator[Service]:
    with postgres.database() as conninfo:
        grant(conninfo, role)
        async with running_service(make_conninfo(conninfo, user=role)) as service:
            yield service


@pytest.fixture(scope="module")
def logged_in(postgres: PostgresServer, role: str) -> Iterator[str]:
    """A database with two tenants, by the login of the service; for tests that leave nothing
    behind.
    """
    with postgres.database() as conninfo:
        grant(conninfo, role)
        add_rows(conninfo)
        yield make_conninfo(conninfo, user=role)


@pytest.fixture
def plain(postgres: PostgresServer) -> Iterator[str]:
    """A database whose tables the service's login owns; it cannot take another role."""
    with (
        made_role(postgres.conninfo, "tenantry_plain") as role,
        postgres.database(migrated=False) as conninfo,
        psycopg.connect(conninfo, autocommit=True) as connection,
    ):
        connection.execute(sql.SQL("GRANT ALL ON SCHEMA public TO {}").format(sql.Identifier(role)))
        by_role = make_conninfo(conninfo, user=role)
        migrate(by_role)
        yield by_role
        connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))


async def roles_in(conninfo: str) -> list[str]:
    """The roles that a request's transaction and a batch are carried out in."""
    database = patient_database(conninfo, pool_size=1)
    await database.open()
    found = []
    async with database.transaction(of_tenant("acme")) as connection:
        found += await (await connection.execute("SELECT current_user")).fetchall()
    async with database.lane().use(autocommit=True) as connection:
        found += await (await connection.execute("SELECT current_user")).fetchall()
    await database.close()
    return [row[0] for row in found]


async def test_service_works_and_its_changes_are_in_the_trail(service: Service) -> None:
    organization = await service.organization()
    key = await service.key(organization.owner, organization.id, "projects:*")
    assert (await key.caller.post(PROJECTS, {"name": "one"})).status_code == 201
    assert (await organization.owner.get(KEYS)).status_code == 200
    assert (await organization.owner.delete(key.path)).status_code == 204
    trail = (await organization.owner.get("/api/v1/audit-events", targetId=key.id)).json()["data"]
    assert [entry["action"] for entry in trail] == ["api_key.revoked", "api_key.created"]


async def test_service_works_in_the_roles(logged_in: str) -> None:
    assert await roles_in(logged_in) == [API, BATCH]


@pytest.mark.parametrize(
    "table", ["tenants", "api_keys", "billing_events", "dashboard_sessions", "procrastinate_jobs"]
)
def test_login_has_no_privileges_before_it_takes_a_role(logged_in: str, table: str) -> None:
    with (
        psycopg.connect(logged_in) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(sql.SQL("SELECT FROM {}").format(sql.Identifier(table)))


@pytest.mark.parametrize("way", ["pool", "lane"])
async def test_running_service_takes_the_roles_once_they_are_granted(
    postgres: PostgresServer, way: str
) -> None:
    with made_role(postgres.conninfo, "tenantry_early") as role, postgres.database() as conninfo:
        database = patient_database(make_conninfo(conninfo, user=role), pool_size=1)
        lane = database.lane()

        async def look() -> None:
            async with (
                database.transaction(of_tenant(ONE)) if way == "pool" else lane.use() as connection
            ):
                await connection.execute("SELECT FROM tenants")

        await database.open()
        try:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await look()
            grant(conninfo, role)
            # by a connection that was made before
            with suppress(psycopg.errors.InsufficientPrivilege):
                await look()
            await look()
        finally:
            await database.close()


async def test_running_worker_continues_once_the_roles_are_granted(
    postgres: PostgresServer,
) -> None:
    with (
        made_role(postgres.conninfo, "tenantry_early_worker") as role,
        postgres.database() as conninfo,
    ):
        by_role = make_conninfo(conninfo, user=role)
        database, queue = patient_database(conninfo, pool_size=1), patient_queue(by_role)
        await database.open()
        await queue.open()
        async with running_mail(MailServer()) as server:
            mailer = Mailer(parse_smtp_url(f"smtp://{LOOPBACK}:{server.port}", "a@example.com"))
            mail = MailService(database, mailer, system_clock)
            work = Work(mail, RetentionService(database, timedelta(days=90), system_clock))
            with watched("tenantry.jobs") as log:
                task = asyncio.create_task(queue.run_worker(work, polling_interval=0.02))
                await log.until("the job worker was interrupted")
            grant(conninfo, role)
            async with database.transaction(ACROSS_TENANTS) as connection:
                await Outbox().defer_mail(connection, [await add_notification(connection)])
            await server.wait_for(lambda server: len(server.received) == 1)
            task.cancel()
            await asyncio.wait({task})
        await queue.close()
        await database.close()


async def test_service_without_granted_roles_names_the_remedy(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with made_role(postgres.conninfo, "tenantry_shut_out") as role, postgres.database() as conninfo:
        address = as_url(make_conninfo(conninfo, user=role))
        done = await run("serve", "--no-migrate", folder=tmp_path, DATABASE_URL=address, **SECRETS)
    assert (done.code, "`tenantry migrate --grant-to`" in done.err, "Traceback" in done.err) == (
        1,
        True,
        False,
    )


def test_login_starts_the_service_on_a_schema_that_is_up_to_date(logged_in: str) -> None:
    before, after = migrate(logged_in)
    assert before == after


TAMPERING: Final = (
    "UPDATE audit_events SET actor_id = 'another user'",
    "DELETE FROM audit_events",
    "TRUNCATE audit_events",
    "ALTER TABLE audit_events DISABLE TRIGGER ALL",
    "ALTER TABLE projects DISABLE ROW LEVEL SECURITY",
    "DROP POLICY one_tenant ON projects",
    "DROP TRIGGER audit_events_are_kept ON audit_events",
    "CREATE OR REPLACE FUNCTION keep_audit_events() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'",
    "SET session_replication_role = replica",
    "UPDATE tenantry_version SET version_num = '0001'",
    "DELETE FROM tenants",
    "UPDATE tenants SET id = 'another'",
)
ESCALATIONS: Final = (
    "SET ROLE {owner}",
    "SET SESSION AUTHORIZATION {owner}",
    "SET ROLE tenantry_read",
    "SET ROLE pg_read_all_data",
    "GRANT tenantry_read TO tenantry_login",
    "GRANT tenantry_api TO tenantry_read",
    "GRANT {owner} TO tenantry_login",
    "ALTER ROLE tenantry_login BYPASSRLS",
    "ALTER ROLE tenantry_api SUPERUSER",
    "CREATE ROLE another",
    "ALTER TABLE projects OWNER TO tenantry_login",
    "CREATE TABLE another ()",
)


@pytest.mark.parametrize("taken", ["NONE", *SERVICE_ROLES])
async def test_no_role_alters_the_trail_nor_what_guards_it(logged_in: str, taken: str) -> None:
    assert await carried_out(logged_in, taken, TAMPERING) == []


@pytest.mark.parametrize("taken", ["NONE", *SERVICE_ROLES])
async def test_no_role_can_gain_privileges(
    postgres: PostgresServer, logged_in: str, taken: str
) -> None:
    owner = sql.Identifier(str(conninfo_to_dict(postgres.conninfo)["user"])).as_string()
    statements = [statement.format(owner=owner) for statement in ESCALATIONS]
    assert await carried_out(logged_in, taken, statements) == []


async def carried_out(conninfo: str, taken: str, statements: Sequence[str]) -> list[str]:
    """Return the statements that are not rejected for a missing privilege; each runs in a
    transaction that is rolled back.
    """
    done = []
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        for statement in statements:
            await take(connection, taken, ONE)
            try:
                await connection.execute(statement.encode())
            except psycopg.errors.InsufficientPrivilege:
                pass
            else:
                done.append(statement)
            await connection.rollback()
    return done


@pytest.mark.parametrize("away", [timedelta(days=-31), timedelta(days=31)])
async def test_no_role_can_backdate_the_end_of_a_tenant(logged_in: str, away: timedelta) -> None:
    async with await psycopg.AsyncConnection.connect(logged_in) as connection:
        await take(connection, API, ONE)
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="a tenant ends now"):
            await connection.execute("UPDATE tenants SET deleted_at = now() + %s", (away,))


async def test_retention_removes_an_ended_tenant_with_its_trail(
    postgres: PostgresServer, service: Service
) -> None:
    organization = await service.organization()
    await ended(postgres, service, organization.id, timedelta(days=31))
    database = patient_database(service.conninfo, pool_size=1)
    await database.open()
    retention = RetentionService(database, timedelta(days=90), system_clock)
    # A run leaves a tenant to the next one while the service notes who has used it.
    async with asyncio.timeout(PATIENT.statement):
        while (await retention.run())["deleted tenants"] == 0:
            pass
    await database.close()
    assert await entries_of(postgres, service, organization.id) == 0


@pytest.mark.parametrize("ended_since", [None, timedelta(days=29)])
async def test_role_purges_no_tenant_before_its_time(
    postgres: PostgresServer, service: Service, ended_since: timedelta | None
) -> None:
    organization = await service.organization()
    if ended_since is not None:
        await ended(postgres, service, organization.id, ended_since)
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await take(connection, BATCH, "")
        await connection.execute("CREATE TEMP TABLE tenants (id text, deleted_at timestamptz)")
        await connection.execute(
            "SELECT purge_audit_events(%s, 1000), purge_tenant(%s)", (organization.id,) * 2
        )
    assert await entries_of(postgres, service, organization.id)


async def test_role_that_owns_everything_runs_the_service_as_itself(plain: str) -> None:
    assert await roles_in(plain) == ["tenantry_plain", "tenantry_plain"]
    async with running_service(plain) as service:
        organization = await service.organization()
        assert (await organization.owner.post(PROJECTS, {"name": "one"})).status_code == 201
        assert (await organization.owner.get(PROJECTS)).json()["data"][0]["name"] == "one"


async def found_of_roles(conninfo: str) -> Finding:
    """Return doctor's finding about the login."""
    findings = await check_database(conninfo, checked_settings(), system_clock())
    [finding] = [one for one in findings if one.subject == "database roles"]
    return finding


async def test_doctor_says_where_the_database_keeps_tenants_apart_too(logged_in: str) -> None:
    finding = await found_of_roles(logged_in)
    assert (finding.level, finding.message.partition("; ")[2]) == (
        Level.OK,
        "tenantry_login takes the service's roles",
    )


async def test_doctor_counts_the_limit_of_the_login(
    postgres: PostgresServer, logged_in: str, role: str
) -> None:
    limited = sql.SQL("ALTER ROLE {} CONNECTION LIMIT {}")
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        connection.execute(limited.format(sql.Identifier(role), 12))
        findings = await check_database(logged_in, checked_settings(), system_clock())
        connection.execute(limited.format(sql.Identifier(role), -1))
    [found] = [finding.message for finding in findings if finding.subject == "connections"]
    assert found.endswith("12 available (the limit of the user)")


async def test_doctor_names_the_command_that_grants_the_roles(plain: str) -> None:
    finding = await found_of_roles(plain)
    assert finding.level is Level.WARNING
    assert "tenantry migrate --grant-to" in (finding.remedy or "")


def test_roles_are_created_by_a_login_that_may(empty_cluster: Path, tmp_path: Path) -> None:
    server = EmbeddedServer(copy_cluster(empty_cluster, tmp_path), durable=False)
    server.start()
    try:
        with (
            psycopg.connect(server.conninfo, autocommit=True) as superuser,
            made_role(server.conninfo, "owner") as owner,
        ):
            for role in ROLES:
                superuser.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
            superuser.execute(
                sql.SQL("GRANT ALL ON SCHEMA public TO {}").format(sql.Identifier(owner))
            )
            superuser.execute("CREATE ROLE runs_it LOGIN")
            by_owner = make_conninfo(server.conninfo, user=owner)
            migrate(by_owner)
            with pytest.raises(RolesMissingError) as missing:
                grant(by_owner, "runs_it")
            for statement in missing.value.statements:
                superuser.execute(statement)
            grant(by_owner, "runs_it")
            with psycopg.connect(make_conninfo(server.conninfo, user="runs_it")) as connection:
                connection.execute("SET ROLE tenantry_api")
                assert connection.execute("SELECT count(*) FROM projects").fetchall() == [(0,)]
            superuser.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(owner)))
    finally:
        server.stop()


@pytest.fixture(scope="module")
def backup(postgres: PostgresServer, role: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a copy of a database that has a login for the service, and two tenants."""
    with postgres.database() as conninfo:
        grant(conninfo, role)
        add_rows(conninfo)
        return run_script(
            "backup.sh", tmp_path_factory.mktemp("backup"), conninfo=conninfo
        ).stdout.strip()


async def test_the_migration_restores_row_level_security_in_a_restored_copy(
    postgres: PostgresServer, role: str, backup: str
) -> None:
    with postgres.database(migrated=False) as conninfo:
        restored = run_script("restore.sh", backup, conninfo=conninfo)
        assert restored.returncode == 0, restored.stderr
        grant(conninfo, role)
        by_role = make_conninfo(conninfo, user=role)
        assert await roles_in(by_role) == [API, BATCH]
        with psycopg.connect(
            make_conninfo(by_role, options=f"-c role={API} -c {TENANT}={ONE}")
        ) as connection:
            assert connection.execute("SELECT org_id FROM projects").fetchall() == [(ONE,)]


def test_copy_restored_without_the_roles_is_private(
    backup: str, empty_cluster: Path, tmp_path: Path
) -> None:
    server = EmbeddedServer(copy_cluster(empty_cluster, tmp_path), durable=False)
    server.start()
    try:
        with psycopg.connect(server.conninfo, autocommit=True) as superuser:
            superuser.execute(
                "DROP ROLE tenantry_api, tenantry_people, tenantry_batch, tenantry_read"
            )
            restored = run_script("restore.sh", backup, conninfo=server.conninfo)
            assert restored.returncode == 0, restored.stderr
            before, after = migrate(server.conninfo)
            assert before == after
            superuser.execute("CREATE ROLE somebody_else")
            superuser.execute("SET ROLE somebody_else")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                superuser.execute("SELECT event_body('evt_one')")
    finally:
        server.stop()


def test_owner_of_the_tables_restores_a_copy_without_a_superuser(
    postgres: PostgresServer, backup: str
) -> None:
    with (
        made_role(postgres.conninfo, "owns_it") as owner,
        postgres.database(migrated=False) as conninfo,
    ):
        with psycopg.connect(conninfo, autocommit=True) as superuser:
            name = sql.Identifier(superuser.info.dbname)
            superuser.execute(
                sql.SQL("ALTER DATABASE {} OWNER TO {}").format(name, sql.Identifier(owner))
            )
        by_owner = make_conninfo(conninfo, user=owner)
        restored = run_script("restore.sh", backup, conninfo=by_owner)
        assert restored.returncode == 0, restored.stderr
        assert "WARNING" not in restored.stderr
        before, after = migrate(by_owner)
        assert before == after


def test_missing_login_is_not_granted_the_roles(conninfo: str) -> None:
    with pytest.raises(psycopg.errors.UndefinedObject):
        grant(conninfo, "nobody_there")


async def take(connection: psycopg.AsyncConnection, role: str, tenant_id: str) -> None:
    """Take a role, and set the tenant, for the rest of the session."""
    await connection.execute(sql.SQL("SET ROLE {}").format(sql.SQL(role)))
    await connection.execute("SELECT set_config('tenantry.tenant_id', %s, false)", (tenant_id,))


async def as_owner(postgres: PostgresServer, service: Service) -> psycopg.AsyncConnection:
    owner = conninfo_to_dict(postgres.conninfo)["user"]
    return await psycopg.AsyncConnection.connect(make_conninfo(service.conninfo, user=owner))


async def entries_of(postgres: PostgresServer, service: Service, tenant_id: str) -> int:
    """How many entries the trail has of a tenant."""
    async with await as_owner(postgres, service) as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM audit_events WHERE org_id = %s", (tenant_id,)
        )
        [(found,)] = await cursor.fetchall()
    return int(found)


async def ended(
    postgres: PostgresServer, service: Service, tenant_id: str, since: timedelta
) -> None:
    """Pretend that the tenant ended this long ago."""
    async with await as_owner(postgres, service) as connection:
        await connection.execute(
            "UPDATE tenants SET deleted_at = now() - %s WHERE id = %s", (since, tenant_id)
        )


async def test_the_login_finds_the_transaction_of_another_that_delays_events(
    conninfo: str, role: str, postgres: PostgresServer
) -> None:
    """It is shown who writes, but not since when."""
    grant(conninfo, role)
    login = make_conninfo(conninfo, user=role)
    named = make_conninfo(postgres.conninfo, application_name="nightly import")
    with psycopg.connect(named) as slow, psycopg.connect(conninfo) as recording:
        slow.execute("SELECT pg_current_xact_id()")
        process = f"process {slow.info.backend_pid}"
        recording.execute(WAITING_EVENT)
        recording.commit()
        findings = await check_database(login, checked_settings(), system_clock())
        async with patient_database(login, pool_size=1) as database:
            metrics = await DatabaseMetrics(database).read()
    [found] = [each for each in findings if each.subject == "events"]
    expected = f"at least 10 min: {process}, database postgres, application nightly import"
    assert found.message == f"the oldest transaction that writes has been open for {expected}"
    [gauge] = [each for each in metrics or () if each.name.startswith("tenantry_oldest_writing")]
    [sample] = gauge.samples
    assert tuple(sample.labels.values()) == (process, "postgres", "nightly import")
    assert 600 <= sample.value < 660
