"""What the erasure of a person may change, which columns it searches, and its repetition."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.errors import InsufficientPrivilege

from tenantry.accounts.erasure import PersonErasure, Progress
from tenantry.accounts.erasure_store import PLACES
from tenantry.cli.operator_services import operator_services
from tenantry.common.secret import Secret
from tenantry.db.connection import API, BATCH, PEOPLE, READ
from tenantry.db.migrate import grant
from tenantry.domain.erasure import Person, replacements_of
from tenantry.domain.errors import IdempotencyInFlightError, ScopeEscalationError
from tenantry.domain.members import User
from tests.support.app import PEPPER, make_settings
from tests.support.cases import cases
from tests.support.patience import patient_database
from tests.support.postgres import PostgresServer
from tests.support.rows import add_rows

ADA: Final = Person((User("https://id.example", "auth0|ada_1"),), ("ada.l@x.example",))
ENTRY: Final = """
INSERT INTO audit_events (id, org_id, at, action, actor_kind, actor_id, on_behalf_of, reason, address, request_id,
                          target_id, before, after)
VALUES (%(id)s, 'one', now(), 'tenant.updated', 'user', %(actor)s, %(actor)s, 'asked by ' || %(email)s, '10.0.0.1',
        'r:' || %(email)s, 'one', jsonb_build_object('email', %(email)s::text),
        jsonb_build_object('n', 1, 'by', %(actor)s::text))
"""
ERASE: Final = "SELECT count(*) FROM erase_from_audit_events('(0,0)', '(100,0)')"
COLUMNS: Final = """
SELECT table_name || '.' || column_name
  FROM information_schema.columns
 WHERE table_schema = 'public' AND data_type IN ('text', 'json', 'jsonb', 'bytea', 'ARRAY', 'character varying')
   AND table_name IN (SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace)
"""
OWN: Final = {
    "audit_events": ("address",),
    "memberships": ("issuer", "subject"),
    "user_profiles": ("issuer", "subject", "name", "email", "claimed_role"),
    "dashboard_sessions": (
        *("address", "agent", "claims", "digest", "issuer", "name", "subject", "tenant_id"),
    ),
    "erasures": ("aliases", "loose", "patterns", "person", "replacements", "subjects"),
}
"""What the erasure knows by the person: tables of people, and the addresses of their entries."""
OF_NOBODY: Final = {
    "api_keys": (
        *("access_level", "digest", "id", "import_algorithm", "import_digest", "last4", "mode"),
        *(
            "allowed_addresses",
            "last_used_address",
            "org_id",
            "pepper_id",
            "rotated_from",
            "scopes",
        ),
        *("start", "superseded_by"),
    ),
    "audit_events": ("action", "actor_kind", "id", "org_id"),
    "billing_events": (
        *("anomalies", "customer_id", "id", "org_id", "outcome", "payments", "subscription_id"),
        *("tenant_id", "type"),
    ),
    "billing_findings": ("name",),
    "check_standbys": ("name",),
    "consumption_keys": ("body_digest", "feature", "mode", "org_id"),
    "customers": ("gone_by", "id", "tenant_id"),
    "erasures": ("id",),
    "idempotency_keys": ("body_digest",),
    "invitations": ("closed_as", "id", "member_id", "org_id", "role"),
    "job_runs": ("task",),
    "ledger_runs": ("id", "kind", "tenant_id"),
    "mails": ("tenant_id", "type"),
    "memberships": ("id", "role", "tenant_id"),
    "operator_acts": ("action", "id", "issuer", "org_id"),
    "outbound_epochs": ("token",),
    "outbound_events": ("org_id", "type"),
    "procrastinate_jobs": ("queue_name", "task_name"),
    "procrastinate_periodic_defers": ("periodic_id", "task_name"),
    "projects": ("document", "id", "mode", "org_id"),
    "provider_refusals": ("code", "last_tenant", "operation"),
    "queue_migrations": ("name",),
    "rejections": ("code", "id", "kind", "mode", "needed", "org_id"),
    "subscription_tenants": ("customer_id", "subscription_id", "tenant_id"),
    "tenants": (
        *("access", "billing_periods", "folded_by", "id", "last_checkout", "plan"),
        *("stripe_customer_id", "subscription_status", "time_zone"),
    ),
    "tenantry_version": ("version_num",),
    "usage_counters": ("feature", "mode", "org_id"),
    "usage_days": ("key_id", "org_id", "outcome"),
    "usage_hours": ("key_id", "org_id", "outcome"),
    "usage_writers": ("id",),
    "user_profiles": ("org_id",),
    "webhook_deliveries": ("endpoint", "status"),
    "webhook_endpoints": ("name",),
}
"""Columns of ids, codes and names of ours and of the provider, and of keys' use."""


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[str]:
    with postgres.database() as conninfo:
        add_rows(conninfo)
        yield conninfo


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the owner of the tables, whose transaction is rolled back."""
    with psycopg.connect(database) as connection:
        yield connection
        connection.rollback()


def begin(connection: psycopg.Connection[Any]) -> None:
    """Two entries, the first of the person, whose erasure begins; of earlier cases nothing."""
    connection.rollback()
    for entry in (
        {"id": "aud_1", "actor": "auth0|ada_1", "email": "Ada.L@x.example"},
        {"id": "aud_2", "actor": "auth0|ada_12", "email": "nada.l@x.example"},
    ):
        connection.execute(ENTRY, entry)
    connection.execute(
        "INSERT INTO erasures (id, begun_at, person, patterns, loose, replacements, subjects, aliases) "
        "VALUES ('erased_1', now(), '{}', %s, %s, %s, %s, %s)",
        tuple(replacements_of(ADA, "erased_1")),
    )


def entries(connection: psycopg.Connection[Any]) -> dict[str, dict[str, Any]]:
    return dict(connection.execute("SELECT id, to_jsonb(a) FROM audit_events a").fetchall())


def test_every_column_of_text_is_searched_or_has_no_person(database: str) -> None:
    searched = {f"{place.table}.{column}" for place in PLACES for column in place.columns}
    known = {
        f"{table}.{column}"
        for columns_of in (OWN, OF_NOBODY)
        for table, columns in columns_of.items()
        for column in columns
    }
    with psycopg.connect(database) as connection:
        columns = {row[0] for row in connection.execute(COLUMNS).fetchall()}
    assert columns - searched - known == {"billing_bodies.body"}  # compressed
    assert searched & known == set()
    assert known - columns == set()


def test_the_erasure_changes_the_person_in_the_trail_and_nothing_else(
    connection: psycopg.Connection[Any],
) -> None:
    begin(connection)
    before = entries(connection)
    assert connection.execute(ERASE).fetchone() == (1,)
    after = entries(connection)
    changed = {
        "actor_id": "erased_1",
        "on_behalf_of": "erased_1",
        "reason": "asked by erased_1@erased.invalid",
        "address": None,
        "request_id": "r:erased_1@erased.invalid",
        "before": {"email": "erased_1@erased.invalid"},
        "after": {"n": 1, "by": "erased_1"},
    }
    assert after.pop("aud_1") == before.pop("aud_1") | changed
    assert after == before


@cases(
    "change",
    [
        "action = 'member.removed'",
        "at = at - interval '1 day'",
        "org_id = 'two'",
        "reason = NULL",
        "actor_id = 'erased_1'",
        "actor_id = actor_id",
        "after = '{}'",
    ],
)
def test_nobody_changes_an_entry_otherwise_while_an_erasure_is_under_way(
    connection: psycopg.Connection[Any], change: LiteralString
) -> None:
    begin(connection)
    statement = sql.SQL("UPDATE audit_events SET {} WHERE id = 'aud_1'")
    with pytest.raises(InsufficientPrivilege, match="append-only"):
        connection.execute(statement.format(sql.SQL(change)))


def test_no_entry_changes_without_an_erasure(connection: psycopg.Connection[Any]) -> None:
    begin(connection)
    connection.execute(
        "UPDATE erasures SET ended_at = now(), person = NULL, patterns = NULL, loose = NULL, "
        "replacements = NULL, subjects = NULL, aliases = NULL"
    )
    with pytest.raises(psycopg.errors.NoDataFound):
        connection.execute(ERASE)


def test_an_ended_erasure_keeps_nothing_of_the_person(connection: psycopg.Connection[Any]) -> None:
    begin(connection)
    with pytest.raises(psycopg.errors.CheckViolation):
        connection.execute("UPDATE erasures SET ended_at = now(), person = NULL")


@cases("role", [API, BATCH, PEOPLE, READ])
@cases(
    "statement",
    [
        ERASE,
        "INSERT INTO erasures (id, begun_at, person) VALUES ('erased_2', now(), '{}')",
        "SELECT person FROM erasures",
    ],
)
def test_no_role_of_the_service_erases(
    connection: psycopg.Connection[Any], role: str, statement: str
) -> None:
    begin(connection)
    connection.execute(f"SET ROLE {role}".encode())
    with pytest.raises(InsufficientPrivilege):
        connection.execute(statement.encode())


class StopAfter(Progress):
    """Stops an erasure after so many batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def advanced(self, _pages: int) -> None:
        self.left -= 1

    def is_stopped(self) -> bool:
        return self.left <= 0


@asynccontextmanager
async def erasing(conninfo: str) -> AsyncIterator[PersonErasure]:
    async with patient_database(conninfo, pool_size=2) as database:
        services = operator_services(make_settings(), database, peppers=[Secret(PEPPER)])
        yield services.erasure


ALL: Final = ("audit_events", "outbound_events", "memberships", "erasures")


def texts(conninfo: str, *tables: str) -> str:
    with psycopg.connect(conninfo) as connection:
        rows = [
            connection.execute(
                sql.SQL("SELECT string_agg(t::text, chr(10)) FROM {} t").format(
                    sql.Identifier(name)
                )
            ).fetchone()
            for name in tables or ALL
        ]
    return str(rows)


@pytest.fixture
def filled(conninfo: str) -> str:
    """A database with entries and events of the person among others."""
    add_rows(conninfo)
    with psycopg.connect(conninfo) as connection:
        for number in range(300):
            values = {"actor": "auth0|ada_1", "email": "ada.l@x.example", "id": f"aud_{number:03}"}
            connection.execute(ENTRY, values)
        connection.execute(
            "INSERT INTO outbound_events (epoch, type, org_id, at, recorded_at, data) "
            "SELECT 1, 'member.added', 'one', now(), now(), '{\"userId\":\"auth0|ada_1\"}' FROM generate_series(1, 99)"
        )
        connection.execute(
            "INSERT INTO memberships (issuer, subject, tenant_id, role) "
            "VALUES ('https://id.example', 'auth0|ada_1', 'one', 'member')"
        )
    return conninfo


@pytest.mark.parametrize("batches", [0, 2, 5])
async def test_an_interrupted_erasure_goes_on(filled: str, batches: int) -> None:
    async with erasing(filled) as erasure:
        report = await erasure.erase(ADA, StopAfter(batches))
        assert not report.is_complete
        left = await erasure.unfinished()
        assert left is not None
        again = await erasure.resume(left, StopAfter(batches + 1))
        assert not again.is_complete
        assert (await erasure.resume(left, Progress())).is_complete
        assert await erasure.unfinished() is None
    assert "auth0|ada_1" not in texts(filled)
    assert "ada.l@" not in texts(filled)
    assert texts(filled).count(",person.erased,") == 1


async def test_idempotency_keys_that_become_the_same_stay_apart(filled: str) -> None:
    """A client chooses them, and could stop every erasure."""
    with psycopg.connect(filled) as connection:
        for address in ("ada.l@x.example", "Ada.L@x.example", "ada.l%40x.example"):
            connection.execute(
                "INSERT INTO consumption_keys VALUES ('one', 'exports', 'live', %s, '', '{}', now(), 1, 0)",
                (f"of {address}",),
            )
            connection.execute(
                "INSERT INTO idempotency_keys VALUES ('key_1', 'POST /api/v1/projects', %s, '', '{}', now()), "
                "('key_1', %s, 'once', '', '{}', now())",
                (f"of {address}", f"PUT /api/v1/x/{address}"),
            )
    async with erasing(filled) as erasure:
        assert (await erasure.erase(ADA, Progress())).is_complete
    with psycopg.connect(filled) as connection:
        for table in ("consumption_keys", "idempotency_keys"):
            query = sql.SQL("SELECT count(*) FROM {} t WHERE t::text LIKE '%erased.invalid%'")
            number = connection.execute(query.format(sql.Identifier(table))).fetchone()
            assert number == ({"consumption_keys": 3, "idempotency_keys": 6}[table],)


KEPT_APART: Final = {
    "user_profiles": 1,
    "memberships": 2,
    "rejections": 2,
    "idempotency_keys": 2,
    "request_counts": 2,
}
"""How often each table has a person who came back once."""


class ComesBack(Progress):
    """Makes the person a user and a member of the tenant again, whose requests are as before."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        self.passes = 0

    def began(self, pages: int) -> None:  # noqa: ARG002
        self.passes += 1
        if self.passes > 2:
            return
        with psycopg.connect(self.conninfo) as connection:
            connection.execute(
                "INSERT INTO user_profiles (org_id, issuer, subject, email, seen_at) "
                "VALUES ('one', 'https://id.example', 'auth0|ada_1', 'ada.l@x.example', now()) ON CONFLICT DO NOTHING"
            )
            connection.execute(
                "INSERT INTO memberships (issuer, subject, tenant_id, role) "
                "VALUES ('https://id.example', 'auth0|ada_1', 'one', 'member') ON CONFLICT DO NOTHING"
            )
            connection.execute(
                "INSERT INTO rejections (id, org_id, kind, principal, mode, minute, code, needed, route, status, at, "
                "                        request_id, counted) "
                "VALUES (gen_random_uuid(), 'one', 'user', 'auth0|ada_1', 'live', '2026-01-01', 'rate_limited', "
                "        '', '', 429, now(), '1', 1) ON CONFLICT DO NOTHING"
            )
            connection.execute(
                "INSERT INTO idempotency_keys VALUES "
                "('user:one:https://id.example:auth0|ada_1', 'POST /x', 'once', '', '{}', now()) ON CONFLICT DO NOTHING"
            )
            connection.execute(
                "INSERT INTO request_counts VALUES ('user one auth0|ada_1', 1, 1) ON CONFLICT DO NOTHING"
            )


async def test_a_person_who_comes_back_during_the_erasure_is_erased_too(filled: str) -> None:
    ComesBack(filled).began(0)
    async with erasing(filled) as erasure:
        assert (await erasure.erase(ADA, ComesBack(filled))).is_complete
    assert "auth0|ada_1" not in texts(filled)
    assert {table: texts(filled, table).count("erased_") for table in KEPT_APART} == KEPT_APART


async def test_security_notices_go_to_no_alias(filled: str) -> None:
    """They went to the person as the former owner, until the owner of now confirms an address."""
    with psycopg.connect(filled) as connection:
        connection.execute(
            "UPDATE tenants SET owner_email = 'new@x.example', verified_email = 'Ada.L@x.example' WHERE id = 'one'"
        )
    async with erasing(filled) as erasure:
        assert (await erasure.erase(ADA, Progress())).is_complete
    with psycopg.connect(filled) as connection:
        addresses = connection.execute(
            "SELECT owner_email, verified_email FROM tenants WHERE id = 'one'"
        )
        assert addresses.fetchall() == [("new@x.example", "")]


async def test_two_erasures_at_once_are_one(filled: str) -> None:
    async with erasing(filled) as one, erasing(filled) as other:
        await one.erase(ADA, StopAfter(0))
        with pytest.raises(IdempotencyInFlightError):
            await other.erase(Person((), ("someone@x.example",)), Progress())
        left = await one.unfinished()
        assert left is not None
        await asyncio.gather(one.resume(left, Progress()), other.resume(left, Progress()))
    assert "auth0|ada_1" not in texts(filled)


async def test_a_login_that_does_not_own_the_tables_erases_nobody(filled: str) -> None:
    with psycopg.connect(filled, autocommit=True) as connection:
        connection.execute("CREATE ROLE erasing_service LOGIN")
        try:
            grant(filled, "erasing_service")
            async with erasing(make_conninfo(filled, user="erasing_service")) as erasure:
                with pytest.raises(ScopeEscalationError, match="owner of the tables"):
                    await erasure.erase(ADA, Progress())
        finally:
            connection.execute("DROP OWNED BY erasing_service; DROP ROLE erasing_service")
