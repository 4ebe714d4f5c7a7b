"""The checks of settings and database: their findings, remedies, and secrets that they never
show.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from tenantry.cli.doctor.database_checks import check_database
from tenantry.cli.doctor.setup_checks import judge_catalog, judge_settings
from tenantry.db.connection import Connection
from tenantry.db.migrate import newest_revision
from tenantry.domain.plans import parse_catalog
from tenantry.installation.data_checks import judge_revision, judge_server
from tenantry.installation.findings import Finding, Level
from tenantry.settings import SettingsError, load
from tests.support import other_program
from tests.support.billing import rows
from tests.support.cases import cases
from tests.support.catalogs import CATALOG
from tests.support.findings import checked_settings, levels, only
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.tenants import add_acme

NOW = datetime(2026, 6, 1, tzinfo=UTC)
PEPPER = "pepper-of-the-doctors-0123456789abcdef"


# Settings


def test_each_faulty_setting_is_a_finding() -> None:
    with pytest.raises(SettingsError) as refused:
        load(
            {
                "PORT": "many",
                "SESSION_SECRET": "short-secret",
                "PROVIDER_WEBHOOK_SECRET": "whsec_0123456789abcdef",
            }
        )
    findings = judge_settings(refused.value.faults)
    assert {finding.subject for finding in findings} == {
        "DATABASE_URL",
        "PORT",
        "SESSION_SECRET",
        "API_KEY_PEPPER",
    }
    assert levels(findings) == {Level.ERROR}
    assert all(finding.remedy for finding in findings)
    assert "short-secret" not in repr(findings)


def test_settings_without_a_fault() -> None:
    assert levels(judge_settings([])) == {Level.OK}


def test_a_plan_without_a_price_cannot_be_bought() -> None:
    assert levels(judge_catalog(CATALOG)) == {Level.OK}
    priceless = parse_catalog('[[plans]]\nid = "free"\n[[plans]]\nid = "pro"\n')
    assert "pro" in only(judge_catalog(priceless), Level.WARNING).message


# The database


@pytest.fixture
async def connection(emptied: str) -> AsyncIterator[Connection]:
    """A separate connection to the file's database, which holds the tenant acme alone."""
    async with await Connection.connect(emptied, autocommit=True) as connection:
        await add_acme(connection, NOW)
        yield connection


async def check(conninfo: str, **values: Any) -> list[Finding]:
    return await check_database(conninfo, checked_settings(**values), NOW)


async def test_a_database_in_order(emptied: str) -> None:
    findings = await check(emptied)
    assert levels(findings) == {Level.OK}
    assert {finding.subject for finding in findings} == {
        "database",
        "schema",
        "connections",
        "database roles",
        "billing ledger",
        "tenants",
    }


async def test_active_imported_keys_are_counted_where_no_pattern_accepts_them(
    emptied: str, connection: Connection
) -> None:
    query = """
        INSERT INTO api_keys (id, org_id, name, scopes, access_level, mode, digest, start, last4, created_at,
                              created_by, revoked_at, last_used_at, import_algorithm, import_digest)
        SELECT 'key_' || n, 'acme', 'x', '{a:b}', 'SCOPED', 'live', sha256(n::text::bytea), '', '', %(now)s,
               'operator', revoked, used, 'sha256', sha256(n::text::bytea)
          FROM unnest(%(revoked)s::timestamptz[], %(used)s::timestamptz[]) WITH ORDINALITY AS k(revoked, used, n)
    """
    values = {"now": NOW, "revoked": [None, None, NOW], "used": [None, NOW, None]}
    await connection.execute(query, values)
    found = only(await check(emptied), Level.ERROR)
    assert found.subject == "IMPORTED_KEY_PATTERN"
    assert "2 active keys" in found.message
    assert levels(await check(emptied, IMPORTED_KEY_PATTERN="old_.*")) == {Level.OK}


async def test_active_keys_of_a_prefix_that_is_not_accepted_are_counted(
    emptied: str, connection: Connection
) -> None:
    query = """
        INSERT INTO api_keys (id, org_id, name, scopes, access_level, mode, digest, start, last4,
                              created_at, created_by, revoked_at, expires_at, import_algorithm)
        SELECT 'key_' || n, 'acme', 'x', '{a:b}', 'SCOPED', 'live', sha256(n::text::bytea), start,
               'wxyz', %(now)s, 'x', revoked, expires, imported
          FROM unnest(%(starts)s::text[], %(revoked)s::timestamptz[], %(expires)s::timestamptz[],
                      %(imported)s::text[]) WITH ORDINALITY AS k(start, revoked, expires, imported, n)
    """
    starts = ["svc_live_a", "old_live_a", "old_test_a", "acme_live_a", "gone_live_a", "gone_live_b"]
    values = {
        "now": NOW,
        "starts": [*starts, "theirs"],
        "revoked": [None] * 4 + [NOW] + [None] * 2,
        "expires": [None] * 5 + [NOW] + [None],
        "imported": [None] * 6 + ["sha256"],
    }
    await connection.execute(query, values)
    found = only(await check(emptied), Level.ERROR)
    assert (found.subject, "(acme: 1, old: 2)" in found.message) == ("KEY_PREFIX", True)
    assert "FORMER_KEY_PREFIXES" in (found.remedy or "")
    accepting = await check(emptied, KEY_PREFIX="acme", FORMER_KEY_PREFIXES="old")
    assert levels(accepting) == {Level.OK}


async def test_roles_of_members_that_left_the_catalog_are_counted(
    emptied: str, connection: Connection
) -> None:
    await connection.execute(
        "INSERT INTO memberships (issuer, subject, tenant_id, role, removed_at) "
        "SELECT 'https://id.example', role || n, 'acme', role, removed "
        "FROM unnest(%(roles)s::text[], %(removed)s::timestamptz[]) WITH ORDINALITY AS m(role, removed, n)",
        {
            "roles": ["lead", "lead", "support", "member", "gone"],
            "removed": [None, None, None, None, NOW],
        },
    )
    found = only(await check(emptied), Level.WARNING)
    assert found.subject == "tenants"
    assert "2 (lead: 2, support: 1)" in found.message


async def test_a_database_that_was_never_migrated(postgres: PostgresServer) -> None:
    with postgres.database(migrated=False) as conninfo:
        finding = only(await check(conninfo), Level.ERROR)
    assert (finding.subject, finding.remedy) == ("schema", "Run `tenantry migrate`.")


async def test_tables_of_others_are_named(postgres: PostgresServer) -> None:
    with postgres.database(migrated=False) as conninfo:
        other_program.fill(conninfo)
        message = only(await check(conninfo), Level.ERROR).message
        assert (
            message
            == "does not exist, and the database has tables of others: alembic_version, orders, tenants"
        )
    with postgres.database() as conninfo:
        await rows(conninfo, "CREATE TABLE orders (id int)")
        finding = only(await check(conninfo), Level.WARNING)
        assert finding.message == "there are tables of others beside tenantry's: orders"


async def test_check_that_takes_too_long_is_skipped_and_the_others_run(
    emptied: str, connection: Connection
) -> None:
    async with connection.transaction():
        await connection.execute("LOCK TABLE api_keys")
        findings = await check_database(
            emptied, checked_settings(API_KEY_PEPPER=PEPPER), NOW, statement_timeout=0.2
        )
    found = {finding.subject: finding.level for finding in findings}
    found.pop("events", None)  # once this transaction has been open for a second
    skipped = ("API_KEY_PEPPER", "KEY_PREFIX", "IMPORTED_KEY_PATTERN")
    assert {found.pop(subject) for subject in skipped} == {Level.WARNING}
    assert found == dict.fromkeys(
        (
            "database",
            "schema",
            "connections",
            "database roles",
            "billing ledger",
            "tenants",
        ),
        Level.OK,
    )


@pytest.mark.parametrize(("revision", "level"), [("0000", Level.ERROR), ("9999", Level.WARNING)])
async def test_a_schema_of_another_release(
    emptied: str, connection: Connection, revision: str, level: Level
) -> None:
    await connection.execute("UPDATE tenantry_version SET version_num = %s", (revision,))
    findings = await check(emptied)
    await connection.execute("UPDATE tenantry_version SET version_num = %s", (newest_revision(),))
    finding = only(findings, level)
    assert finding.subject == "schema"
    assert revision in finding.message
    assert newest_revision() in finding.message


def test_a_schema_after_going_back_needs_nothing_to_be_done() -> None:
    assert "If you went back by one release, do nothing." in (
        judge_revision("0008", "0007").remedy or ""
    )


async def test_a_check_that_needs_a_faulty_setting_is_left_out(emptied: str) -> None:
    findings = await check(emptied, SMTP_URL="smtp://", API_KEY_PEPPER="short")
    assert {finding.subject for finding in findings} == {
        "database",
        "schema",
        "connections",
        "database roles",
        "billing ledger",
        "tenants",
    }


def test_a_schema_is_current_at_the_newest_revision() -> None:
    assert judge_revision("0007", "0007").level is Level.OK


@cases(("number", "level"), [(140_019, Level.ERROR), (150_000, Level.OK), (180_001, Level.OK)])
def test_postgresql_15_is_the_oldest(number: int, level: Level) -> None:
    assert judge_server({"server_version_num": str(number), "server_version": "x"}).level is level


async def test_a_database_that_does_not_answer(emptied: str) -> None:
    away = make_conninfo(emptied, host="127.0.0.1", port=free_port())
    assert "no server listens" in only(await check(away), Level.ERROR).message


async def test_a_user_that_does_not_exist(emptied: str) -> None:
    finding = only(await check(make_conninfo(emptied, user="missing-here")), Level.ERROR)
    assert "the user does not exist" in finding.message


async def test_a_user_who_may_not_read(emptied: str, connection: Connection) -> None:
    role = f"reader_{connection.info.dbname}"
    await connection.execute(f'CREATE ROLE "{role}" LOGIN')
    finding = only(await check(make_conninfo(emptied, user=role)), Level.ERROR)
    await connection.execute(f'DROP ROLE "{role}"')
    assert "42501" in finding.message


@cases(
    "url",
    [
        "postgresql://app:hunter2/x@127.0.0.1/app",
        "postgresql://app:hunter2%@127.0.0.1/app",
        "postgres//app:hunter2@127.0.0.1/app",
        "password=hunter2 host=127.0.0.1 port=none",
    ],
)
async def test_a_password_is_not_shown_however_the_address_is_mistyped(url: str) -> None:
    finding = only(await check(url), Level.ERROR)
    assert finding.subject == "database"
    assert "hunter2" not in repr(finding)
