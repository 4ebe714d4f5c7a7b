"""The privileges of each database role, completely."""

import hashlib
from collections.abc import Iterator
from typing import Final

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.errors import InsufficientPrivilege

from tenantry.db.connection import API, BATCH, PEOPLE, READ
from tenantry.db.migrate import migrate
from tenantry.db.roles import EDITION, RLS_POLICIES, ROLES, privileges
from tests.support.cases import cases
from tests.support.postgres import PostgresServer
from tests.support.rows import ONE, add_rows

OWN_TABLES: Final = """
SELECT relname FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT relispartition
"""
ACT: Final = "INSERT INTO operator_acts (id, at, action, org_id, target_id, issuer, subject) VALUES"
DIGESTS: Final = {1: "e4db364cbad6d82d49acdce185acff5cfc6fa5fafbb63b9591f119dc01f4f0b6"}
"""The digest of each edition's lists: lists that change after a release need a new edition."""


@pytest.fixture(scope="module")
def filled(postgres: PostgresServer) -> Iterator[str]:
    """A database with two tenants, for tests that leave nothing behind."""
    with postgres.database() as conninfo:
        add_rows(conninfo)
        yield conninfo


def as_role(conninfo: str, role: str) -> psycopg.Connection:
    return psycopg.connect(
        make_conninfo(conninfo, options=f"-c role={role} -c tenantry.tenant_id={ONE}")
    )


def read(connection: psycopg.Connection, table: str, column: str) -> None:
    connection.execute(
        sql.SQL("SELECT {} FROM {}").format(sql.Identifier(column), sql.Identifier(table))
    )


def test_every_table_declares_its_privileges(filled: str) -> None:
    with psycopg.connect(filled) as connection:
        tables = {row[0] for row in connection.execute(OWN_TABLES).fetchall()}
    assert tables == set(privileges().tables)


def test_no_role_has_undeclared_privileges(filled: str) -> None:
    with psycopg.connect(filled) as connection:
        found = connection.execute(
            "SELECT DISTINCT table_name, grantee FROM information_schema.column_privileges WHERE grantee = ANY(%s)",
            (list(ROLES),),
        ).fetchall()
    assert {*found} == {
        (table, role) for table, grants in privileges().tables.items() for role in grants
    }


def test_security_definer_functions_are_executable_by_the_named_roles_only(filled: str) -> None:
    with psycopg.connect(filled) as connection:
        functions = connection.execute(
            "SELECT oid::regprocedure::text, has_function_privilege('public', oid, 'EXECUTE'), "
            "ARRAY(SELECT rolname FROM pg_roles WHERE rolname = ANY(%s) "
            "      AND has_function_privilege(rolname, p.oid, 'EXECUTE')) "
            "FROM pg_proc p WHERE prosecdef AND pronamespace = 'public'::regnamespace",
            (list(ROLES),),
        ).fetchall()
    assert {name: (public, tuple(roles)) for name, public, roles in functions} == {
        name.replace(", ", ","): (False, callers)
        for name, callers in privileges().functions.items()
    }


def test_security_definer_functions_ignore_the_caller_s_search_path(filled: str) -> None:
    with psycopg.connect(filled) as connection:
        settings = connection.execute(
            "SELECT DISTINCT proconfig FROM pg_proc WHERE prosecdef AND pronamespace = 'public'::regnamespace"
        ).fetchall()
    assert settings == [(["search_path=public, pg_temp"],)]


def test_public_has_no_privileges(filled: str) -> None:
    with psycopg.connect(filled) as connection:
        found = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind <> 'i' "
            "AND EXISTS (SELECT FROM aclexplode(relacl) WHERE grantee = 0) "
            "UNION SELECT attname FROM pg_attribute WHERE EXISTS (SELECT FROM aclexplode(attacl) WHERE grantee = 0) "
            "AND attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)"
        ).fetchall()
    assert found == []


def test_roles_are_members_of_nothing(filled: str) -> None:
    with psycopg.connect(filled) as connection:
        found = connection.execute(
            "SELECT m.roleid::regrole FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.member "
            "WHERE r.rolname = ANY(%s)",
            (list(ROLES),),
        ).fetchall()
    assert found == []


@cases(
    ("table", "column"),
    [
        ("api_keys", "created_by"),
        ("api_keys", "rotated_from"),
        ("projects", "name"),
        ("projects", "description"),
        ("memberships", "id"),
        ("memberships", "created_at"),
        ("user_profiles", "name"),
        ("dashboard_sessions", "name"),
        ("dashboard_sessions", "claims"),
        ("dashboard_sessions", "address"),
        ("idempotency_keys", "answer"),
        ("idempotency_keys", "body_digest"),
        ("billing_bodies", "body"),
        ("audit_events", "actor_id"),
        ("audit_events", "before"),
        ("audit_events", "address"),
    ],
)
def test_batches_do_not_read_what_they_do_not_need(filled: str, table: str, column: str) -> None:
    with as_role(filled, BATCH) as connection, pytest.raises(InsufficientPrivilege):
        read(connection, table, column)


@cases(
    "statement",
    [
        "INSERT INTO tenants (id, name, owner_id, owner_email) VALUES ('three', '', '', '')",
        "UPDATE tenants SET owner_id = 'another'",
        "UPDATE tenants SET suspended_at = NULL",
        "UPDATE tenants SET deleted_at = NULL",
        "DELETE FROM tenants",
        "UPDATE memberships SET role = 'owner'",
        "INSERT INTO memberships (issuer, subject, tenant_id, role) VALUES ('', '', 'one', 'owner')",
        "UPDATE api_keys SET scopes = '{*:*}'",
        "UPDATE api_keys SET revoked_at = NULL",
        "UPDATE api_keys SET expires_at = NULL",
        "INSERT INTO api_keys (id) VALUES ('key_three')",
        "UPDATE customers SET id = 'cus_three'",
        "UPDATE audit_events SET actor_id = 'another'",
        "UPDATE operator_acts SET name = 'another'",
        "UPDATE billing_events SET created = 1",
        "INSERT INTO dashboard_sessions (digest) VALUES ('')",
        "UPDATE dashboard_sessions SET subject = 'another'",
    ],
)
def test_batches_do_not_write_the_api_s_columns(filled: str, statement: str) -> None:
    with as_role(filled, BATCH) as connection, pytest.raises(InsufficientPrivilege):
        connection.execute(statement)


@cases(
    "statement",
    [
        "UPDATE tenants SET plan = 'business'",
        "UPDATE tenants SET subscription_status = 'active'",
        "UPDATE tenants SET id = 'three'",
        "DELETE FROM tenants",
        "SELECT digest FROM api_keys",
        "SELECT pepper_id FROM api_keys",
        "UPDATE api_keys SET digest = ''",
        "DELETE FROM api_keys",
        "DELETE FROM memberships",
        "UPDATE billing_events SET outcome = 'applied'",
        "INSERT INTO billing_events (id) VALUES ('evt_three')",
        "SELECT body FROM billing_bodies",
        "SELECT event_body('evt_one')",
        "SELECT claims FROM dashboard_sessions",
        "SELECT args FROM procrastinate_jobs",
        "UPDATE audit_events SET actor_id = 'another'",
        "DELETE FROM audit_events",
        "SELECT purge_audit_events('one', 1)",
        "SELECT purge_tenant('one')",
        "SELECT id FROM operator_acts",
        "UPDATE operator_acts SET name = NULL",
        "DELETE FROM operator_acts",
        f"{ACT} ('act_3', now(), '', 'another', '', '', '')",
        f"{ACT} ('act_3', now(), '', NULL, '', '', '')",
    ],
)
def test_api_role_lacks_privileges_that_no_request_needs(filled: str, statement: str) -> None:
    with as_role(filled, API) as connection, pytest.raises(InsufficientPrivilege):
        connection.execute(statement)


@cases(
    "statement",
    [
        "SELECT digest FROM api_keys",
        "SELECT owner_email FROM tenants",
        "UPDATE memberships SET removed_at = NULL",
        "SELECT FROM billing_events",
        "SELECT FROM projects",
        "SELECT FROM audit_events",
        "SELECT FROM operator_acts",
        "SELECT event_body('evt_one')",
    ],
)
def test_role_for_people_cannot_read_tenants_data(filled: str, statement: str) -> None:
    with as_role(filled, PEOPLE) as connection, pytest.raises(InsufficientPrivilege):
        connection.execute(statement)


@cases("privilege", ["INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"])
def test_the_read_only_role_writes_nowhere(filled: str, privilege: str) -> None:
    by_column = privilege in ("INSERT", "UPDATE", "REFERENCES")
    check = "has_any_column_privilege" if by_column else "has_table_privilege"
    query = sql.SQL("SELECT name FROM unnest(%s::text[]) AS name WHERE {}(%s, name, %s)").format(
        sql.Identifier(check)
    )
    with psycopg.connect(filled) as connection:
        assert (
            connection.execute(query, (list(privileges().tables), READ, privilege)).fetchall() == []
        )


@cases(
    ("table", "column"),
    [
        ("api_keys", "digest"),
        ("api_keys", "pepper_id"),
        ("api_keys", "last_used_address"),
        ("tenants", "owner_email"),
        ("billing_bodies", "body"),
        ("billing_events", "invoice_url"),
        ("mails", "data"),
        ("mails", "recipient"),
        ("mails", "last_error"),
        ("audit_events", "before"),
        ("audit_events", "after"),
        ("audit_events", "address"),
        ("idempotency_keys", "answer"),
        ("dashboard_sessions", "subject"),
        ("user_profiles", "name"),
        ("operator_acts", "id"),
        ("operator_acts", "subject"),
        ("procrastinate_jobs", "args"),
    ],
)
def test_the_read_only_role_reads_no_digest_no_address_and_no_session(
    filled: str, table: str, column: str
) -> None:
    with as_role(filled, READ) as connection, pytest.raises(InsufficientPrivilege):
        read(connection, table, column)


def test_read_only_role_reads_the_state_of_tenants(filled: str) -> None:
    with as_role(filled, READ) as connection:
        found = connection.execute(
            "SELECT t.id, t.plan, count(k.id), max(e.outcome) FROM tenants t JOIN api_keys k ON k.org_id = t.id "
            "JOIN billing_events e ON e.tenant_id = t.id GROUP BY t.id ORDER BY t.id"
        ).fetchall()
    assert found == [("one", "free", 1, "applied"), ("two", "free", 1, "applied")]


def test_granted_privileges_are_unchanged_at_the_next_start(conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        policies = connection.execute("SELECT oid FROM pg_policy ORDER BY oid").fetchall()
        migrate(conninfo)
        assert connection.execute("SELECT oid FROM pg_policy ORDER BY oid").fetchall() == policies


def test_changed_privileges_need_another_edition() -> None:
    found = privileges()
    decided = (found.tables, found.functions, found.sequences, RLS_POLICIES)
    assert hashlib.sha256(repr(decided).encode()).hexdigest() == DIGESTS[EDITION]


def test_privileges_missing_in_a_copy_are_granted_again(conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        everyone = sql.SQL(", ").join(map(sql.Identifier, ROLES))
        connection.execute(
            sql.SQL("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {}").format(everyone)
        )
        migrate(conninfo)
    add_rows(conninfo)
    with as_role(conninfo, API) as connection:
        assert connection.execute("SELECT org_id FROM projects").fetchall() == [(ONE,)]


def test_privileges_of_a_later_release_are_unchanged(conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("COMMENT ON POLICY one_tenant ON tenants IS '1000 0006'")
        connection.execute("GRANT SELECT ON projects TO tenantry_people")
        migrate(conninfo)
    with as_role(conninfo, PEOPLE) as connection:
        read(connection, "projects", "id")


def test_privileges_of_an_earlier_release_are_replaced(conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("COMMENT ON POLICY one_tenant ON tenants IS '0 0005'")
        connection.execute("GRANT SELECT (digest) ON api_keys TO tenantry_api")
        connection.execute("REVOKE ALL ON projects FROM tenantry_api")
        connection.execute("DROP POLICY one_tenant ON projects")
        migrate(conninfo)
    add_rows(conninfo)
    with as_role(conninfo, API) as connection:
        assert connection.execute("SELECT org_id FROM projects").fetchall() == [(ONE,)]
        with pytest.raises(InsufficientPrivilege):
            connection.execute("SELECT digest FROM api_keys")
