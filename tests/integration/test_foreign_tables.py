"""A database with tables of others: nothing is created in it."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tenantry.db.foreign_tables import ForeignTablesError, own_tables
from tenantry.db.migrate import migrate, newest_revision
from tests.support import other_program
from tests.support.postgres import PostgresServer


@pytest.fixture
def empty(postgres: PostgresServer) -> Iterator[str]:
    """The connection string of a database without tables."""
    with postgres.database(migrated=False) as conninfo:
        yield conninfo


def execute(conninfo: str, *statements: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def found_in(conninfo: str) -> str:
    """What keeps tenantry out of this database."""
    with pytest.raises(ForeignTablesError) as caught:
        migrate(conninfo)
    return caught.value.found


def test_database_of_another_program_stays_as_it_is(empty: str) -> None:
    other_program.fill(empty)
    before = other_program.dump(empty)
    assert found_in(empty) == other_program.FOUND
    assert other_program.dump(empty) == before


def test_many_tables_are_counted(empty: str) -> None:
    execute(empty, *(f"CREATE TABLE table_{number} (id int)" for number in range(1, 8)))
    assert found_in(empty) == "table_1, table_2, table_3, table_4, table_5 and 2 more"


def test_login_without_privileges_on_the_tables_learns_their_names(empty: str) -> None:
    other_program.fill(empty)
    execute(
        empty, "CREATE ROLE sees_nothing LOGIN", "GRANT CREATE ON SCHEMA public TO sees_nothing"
    )
    found = found_in(make_conninfo(empty, user="sees_nothing"))
    execute(empty, "DROP OWNED BY sees_nothing", "DROP ROLE sees_nothing")
    assert found == "alembic_version, orders, tenants"


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE SCHEMA auth", "CREATE TABLE auth.users (id int)"),
        (
            "CREATE TABLE spatial_ref_sys (id int)",
            "ALTER EXTENSION plpgsql ADD TABLE spatial_ref_sys",
        ),
        ("CREATE VIEW pg_stat_activity_of_all AS SELECT * FROM pg_stat_activity",),
    ],
    ids=["another schema", "an extension's table", "a view"],
)
def test_what_is_no_table_of_another_program_does_not_matter(
    empty: str, statements: tuple[str, ...]
) -> None:
    execute(empty, *statements)
    assert migrate(empty) == (None, newest_revision())


def test_schema_of_the_search_path_decides(empty: str) -> None:
    other_program.fill(empty)
    execute(empty, 'CREATE SCHEMA "Own"')
    own = make_conninfo(empty, options='-c search_path="Own"')
    assert migrate(own) == (None, newest_revision())
    execute(own, "CREATE TABLE more (id int)")
    assert migrate(own) == (newest_revision(), newest_revision())


def test_table_that_another_program_adds_later_does_not_stop_the_service(conninfo: str) -> None:
    execute(conninfo, "CREATE TABLE alembic_version (version_num varchar(32))")
    assert migrate(conninfo) == (newest_revision(), newest_revision())


def test_own_tables_are_all_that_a_migration_makes(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        made = connection.execute(
            "SELECT relname FROM pg_class "
            "WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v') AND NOT relispartition"
        ).fetchall()
    assert {name for (name,) in made} == set(own_tables())
