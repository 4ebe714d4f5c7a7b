"""Row-level security between tenants: statements without a condition on the tenant."""

from collections.abc import Iterator
from typing import Final

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.errors import InsufficientPrivilege

from tenantry.db.connection import (
    ACROSS_TENANTS,
    API,
    BATCH,
    OF_PEOPLE,
    PEOPLE,
    READ,
    TENANT,
    Connection,
    of_tenant,
)
from tenantry.db.roles import RLS_POLICIES, ROLES, privileges
from tests.support.cases import cases
from tests.support.patience import patient_database
from tests.support.postgres import PostgresServer
from tests.support.rows import ONE, OWNER_OF, TWO, add_rows

COLUMNS: Final = """
SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
"""


def may_read(role: str, table: str) -> bool:
    return privileges().tables[table].get(role, "").startswith("SELECT")


OF_API: Final = [table for table in RLS_POLICIES if may_read(API, table)]


@pytest.fixture(scope="module")
def filled(postgres: PostgresServer) -> Iterator[str]:
    """A database with two tenants, for tests that leave nothing behind."""
    with postgres.database() as conninfo:
        add_rows(conninfo)
        yield conninfo


@pytest.fixture
def privileged(filled: str) -> Iterator[psycopg.Connection]:
    """The API's role with every privilege: only row-level security limits it."""
    with psycopg.connect(filled) as connection:
        connection.execute(
            sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA public TO {}").format(sql.Identifier(API))
        )
        connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(API)))
        connection.execute("SET LOCAL synchronous_commit = local")  # as `Database.change` does
        yield connection
        connection.rollback()


def as_role(conninfo: str, role: str, tenant_id: str | None = None) -> psycopg.Connection:
    named = "" if tenant_id is None else f" -c {TENANT}={tenant_id}"
    return psycopg.connect(make_conninfo(conninfo, options=f"-c role={role}{named}"))


def name_tenant(connection: psycopg.Connection, tenant_id: str) -> None:
    connection.execute("SELECT set_config(%s, %s, true)", (TENANT, tenant_id))


def owners_in(connection: psycopg.Connection, table: str) -> set[str]:
    """Return the tenants whose rows a statement without a tenant condition sees."""
    statement = sql.SQL("SELECT {} FROM {}").format(sql.SQL(OWNER_OF[table]), sql.Identifier(table))
    return {row[0] for row in connection.execute(statement).fetchall()}


def columns(connection: psycopg.Connection, table: str) -> list[str]:
    return [row[0] for row in connection.execute(COLUMNS, (table,)).fetchall()]


def views_of_their_users(connection: psycopg.Connection) -> set[str]:
    """Return the views that show a role only what its own policies let it see."""
    return {
        row[0]
        for row in connection.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'v' AND 'security_invoker=true' = ANY(reloptions)"
        ).fetchall()
    }


def test_every_table_with_a_tenant_has_row_level_security(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        views = views_of_their_users(connection)
        with_tenant = {
            row[0]
            for row in connection.execute(
                "SELECT table_name FROM information_schema.columns WHERE table_schema = 'public' "
                "AND column_name IN ('tenant_id', 'org_id')"
            ).fetchall()
        }
        secured = {
            row[0]
            for row in connection.execute(
                "SELECT relname FROM pg_policy JOIN pg_class c ON c.oid = polrelid WHERE c.relrowsecurity "
                "AND NOT polpermissive AND polroles = ARRAY[%s::regrole::oid] AND polcmd = '*'",
                (API,),
            ).fetchall()
        }
    assert with_tenant <= secured | views
    assert secured == set(RLS_POLICIES) == set(OWNER_OF)


def test_the_api_cannot_read_tables_without_row_level_security(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        secured = {*RLS_POLICIES, *views_of_their_users(connection)}
    assert {table for table, grants in privileges().tables.items() if API in grants} <= secured


@cases("table", OF_API)
def test_the_api_cannot_disable_row_level_security(filled: str, table: str) -> None:
    with as_role(filled, API) as connection:
        connection.execute("SET row_security = off")
        with pytest.raises(InsufficientPrivilege, match="row-level security"):
            owners_in(connection, table)


@cases("tenant_id", [ONE, TWO])
@cases("table", OF_API)
def test_api_sees_only_rows_of_its_transaction_s_tenant(
    filled: str, table: str, tenant_id: str
) -> None:
    with as_role(filled, API) as connection:
        name_tenant(connection, tenant_id)
        assert owners_in(connection, table) == {tenant_id}


@cases("table", RLS_POLICIES)
def test_without_a_tenant_the_api_sees_nothing(privileged: psycopg.Connection, table: str) -> None:
    assert owners_in(privileged, table) == set()


@cases("table", OF_API)
def test_after_a_transaction_its_tenant_is_forgotten(filled: str, table: str) -> None:
    with as_role(filled, API) as connection:
        name_tenant(connection, ONE)
        assert owners_in(connection, table) == {ONE}
        connection.commit()
        assert owners_in(connection, table) == set()


@cases(
    ("role", "table"),
    [
        (role, table)
        for role in (PEOPLE, BATCH, READ)
        for table in RLS_POLICIES
        if may_read(role, table)
    ],
)
def test_roles_for_many_tenants_see_the_rows_of_all(filled: str, role: str, table: str) -> None:
    with as_role(filled, role) as connection:
        [(number,)] = connection.execute(
            sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
        ).fetchall()
    assert number == 2


@cases("table", [table for table in RLS_POLICIES if table not in ("audit_events", "tenants")])
def test_deleting_all_rows_deletes_one_tenants(privileged: psycopg.Connection, table: str) -> None:
    with privileged.transaction(force_rollback=True):
        name_tenant(privileged, ONE)
        privileged.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
        privileged.execute("RESET ROLE")
        assert owners_in(privileged, table) == {TWO}


@cases("table", [table for table in RLS_POLICIES if table != "audit_events"])
def test_changing_all_rows_changes_one_tenants(privileged: psycopg.Connection, table: str) -> None:
    with privileged.transaction(force_rollback=True):
        name_tenant(privileged, ONE)
        column = next(name for name in columns(privileged, table) if name not in ("id", "document"))
        changed = privileged.execute(
            sql.SQL("UPDATE {table} SET {column} = {column}").format(
                table=sql.Identifier(table), column=sql.Identifier(column)
            )
        )
        assert changed.rowcount == 1


@cases("table", RLS_POLICIES)
def test_no_row_can_be_made_for_another_tenant(
    filled: str, privileged: psycopg.Connection, table: str
) -> None:
    with privileged.transaction(force_rollback=True):
        privileged.execute("RESET ROLE")
        names = sql.SQL(", ").join(
            map(sql.Identifier, [name for name in columns(privileged, table) if name != "document"])
        )
        parts = {"table": sql.Identifier(table), "names": names, "owner": sql.SQL(OWNER_OF[table])}
        privileged.execute(
            sql.SQL(
                "CREATE TEMP TABLE of_two AS SELECT {names} FROM {table} WHERE {owner} = {two}"
            ).format(**parts, two=sql.Literal(TWO))
        )
        privileged.execute(sql.SQL("GRANT SELECT ON of_two TO {}").format(sql.Identifier(API)))
        privileged.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(API)))
        name_tenant(privileged, ONE)
        with pytest.raises(InsufficientPrivilege, match="row-level security"):
            privileged.execute(
                sql.SQL("INSERT INTO {table} ({names}) SELECT {names} FROM of_two").format(**parts)
            )


@cases(
    ("table", "column"),
    [(table, column) for table, column in OWNER_OF.items() if column in ("org_id", "tenant_id")],
)
def test_no_row_can_be_handed_to_another_tenant(
    privileged: psycopg.Connection, table: str, column: str
) -> None:
    with privileged.transaction(force_rollback=True):
        name_tenant(privileged, ONE)
        with pytest.raises(InsufficientPrivilege):
            privileged.execute(
                sql.SQL("UPDATE {} SET {} = {}").format(
                    sql.Identifier(table), sql.Identifier(column), sql.Literal(TWO)
                )
            )


def test_a_login_with_its_own_privileges_is_not_subject_to_row_level_security(
    postgres: PostgresServer, filled: str
) -> None:
    with psycopg.connect(filled) as connection:
        connection.execute("CREATE ROLE with_own_privileges")
        connection.execute("GRANT SELECT, DELETE ON projects TO with_own_privileges")
        connection.execute("SET LOCAL ROLE with_own_privileges")
        assert owners_in(connection, "projects") == {ONE, TWO}
        connection.rollback()


async def seen(connection: Connection) -> tuple[str, list[str]]:
    cursor = await connection.execute(
        "SELECT current_user, ARRAY(SELECT id FROM tenants ORDER BY id)"
    )
    [(role, tenants)] = await cursor.fetchall()
    return role, tenants


async def test_transaction_sees_only_its_scope(filled: str) -> None:
    database = patient_database(filled, pool_size=1)
    await database.open()
    met = []
    for scope in (of_tenant(ONE), ACROSS_TENANTS, of_tenant(TWO), OF_PEOPLE, of_tenant("")):
        async with database.transaction(scope) as connection:
            met.append(await seen(connection))
    await database.close()
    assert met == [(API, [ONE]), (BATCH, [ONE, TWO]), (API, [TWO]), (PEOPLE, [ONE, TWO]), (API, [])]


async def test_a_scope_within_another_ends_with_its_block(filled: str) -> None:
    database = patient_database(filled, pool_size=1)
    await database.open()
    async with database.transaction(of_tenant(ONE)) as connection:
        async with connection.within(ACROSS_TENANTS):
            inside = await seen(connection)
        with pytest.raises(LookupError):
            async with connection.within(of_tenant(TWO)):
                raise LookupError
        after = await seen(connection)
    await database.close()
    assert (inside, after) == ((BATCH, [ONE, TWO]), (API, [ONE]))


async def test_a_failed_transaction_leaves_no_scope_behind(filled: str) -> None:
    database = patient_database(filled, pool_size=1)
    await database.open()
    with pytest.raises(psycopg.errors.DivisionByZero):
        async with (
            database.transaction(ACROSS_TENANTS) as connection,
            connection.within(of_tenant(ONE)),
        ):
            await connection.execute("SELECT 1 / 0")
    async with database.transaction(of_tenant(TWO)) as connection:
        met = await seen(connection)
    await database.close()
    assert met == (API, [TWO])


async def test_a_snapshot_has_its_scope_from_the_beginning(filled: str) -> None:
    database = patient_database(filled, pool_size=1)
    await database.open()
    async with database.transaction(of_tenant(ONE), is_snapshot=True) as connection:
        cursor = await connection.execute("SHOW transaction_isolation")
        assert await cursor.fetchall() == [("repeatable read",)]
        assert await seen(connection) == (API, [ONE])
    await database.close()


async def test_batches_run_in_the_role_for_many_tenants(filled: str) -> None:
    database = patient_database(filled, pool_size=1)
    async with database.lane().use(autocommit=True) as connection:
        assert await seen(connection) == (BATCH, [ONE, TWO])
    await database.close()


def test_roles_cannot_log_in_and_cannot_bypass_row_level_security(filled: str) -> None:
    with psycopg.connect(filled) as connection:
        found = connection.execute(
            "SELECT rolname, rolcanlogin OR rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb FROM pg_roles "
            "WHERE rolname = ANY(%s) ORDER BY rolname",
            (list(ROLES),),
        ).fetchall()
    assert found == [(role, False) for role in sorted(ROLES)]
