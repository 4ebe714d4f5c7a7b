"""A database, a login and an environment in which every setting that sessions could take over is
another one than tenantry needs.
"""

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.postgres import PostgresServer

OF_DATABASE: Final[Mapping[str, str]] = {
    "client_encoding": "LATIN1",
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "timezone_abbreviations": "India",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "array_nulls": "off",
    "backslash_quote": "off",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "transform_null_equals": "on",
    "xmlbinary": "hex",
    "default_transaction_deferrable": "on",
    "default_transaction_isolation": "repeatable read",
    "row_security": "off",
    "exit_on_error": "on",
    "check_function_bodies": "off",
    "plpgsql.extra_errors": "all",
    "tenantry.tenant_id": "of-another",
}
"""Set by ``ALTER DATABASE``."""
OF_LOGIN: Final[Mapping[str, str]] = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "postgres_verbose",
    "TimeZone": "America/St_Johns",
    "client_min_messages": "debug1",
    "statement_timeout": "2s",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "500ms",
    "idle_session_timeout": "500ms",
    "plan_cache_mode": "force_custom_plan",
    "enable_indexscan": "off",
    "enable_sort": "off",
    "work_mem": "64kB",
}
"""Set by ``ALTER ROLE``; these take the place of the database's."""
OF_ENVIRONMENT: Final[Mapping[str, str]] = {
    "PGCLIENTENCODING": "SQL_ASCII",
    "PGDATESTYLE": "Postgres, DMY",
    "PGTZ": "Pacific/Chatham",
}
"""What libpq asks for when it connects; it takes the place of both."""

_numbers: Final = itertools.count(1)


class HostileDatabase(NamedTuple):
    """The connection strings of its owner, and of the login of the service."""

    owner: str
    service: str
    login: str


@contextmanager
def hostile_database(postgres: PostgresServer) -> Iterator[HostileDatabase]:
    """An empty database with these settings, and a login with its own."""
    login = f"hostile_{os.getpid()}_{next(_numbers)}"
    role = sql.Identifier(login)
    with (
        postgres.database(migrated=False) as conninfo,
        psycopg.connect(postgres.conninfo, autocommit=True) as connection,
    ):
        database = sql.Identifier(str(conninfo_to_dict(conninfo)["dbname"]))
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
        try:
            _set(connection, sql.SQL("DATABASE {}").format(database), OF_DATABASE)
            _set(connection, sql.SQL("ROLE {}").format(role), OF_LOGIN)
            yield HostileDatabase(conninfo, make_conninfo(conninfo, user=login), login)
        finally:
            with psycopg.connect(conninfo, autocommit=True) as owner:
                owner.execute(sql.SQL("DROP OWNED BY {}").format(role))
                owner.execute(sql.SQL("DROP ROLE {}").format(role))


def _set(connection: psycopg.Connection, whose: sql.Composed, settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        connection.execute(
            sql.SQL("ALTER {} SET {} = {}").format(
                whose, sql.Identifier(*name.split(".")), _value(value)
            )
        )


def _value(value: str) -> sql.Composable:
    """A list, such as that of DateStyle, is not one quoted text."""
    return sql.SQL(", ").join(map(sql.Literal, value.split(", ")))
