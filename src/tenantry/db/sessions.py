"""What a session is set to: the code relies on no setting of the database, the login, the pooler or
the environment (docs/decisions/0084-settings-of-sessions.md).
"""

from collections.abc import Mapping
from typing import Any, Final, LiteralString

import psycopg

from tenantry.db.pooler_detection import check_sessions
from tenantry.db.statements import TEXTS, BoundStatement, Statement

SessionSettings = Mapping[str, str]
"""PostgreSQL's settings of a session, by name."""
NO_SETTINGS: Final[SessionSettings] = {}

CLIENT_ENCODING: Final = "UTF8"
"""Requested when connecting, which every pooler supports: text is decoded from the first answer
on.
"""
UNIFORM: Final[SessionSettings] = {
    # how values are read and written
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    # how statements are understood
    "array_nulls": "on",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    # What transactions see: with one snapshot for all of its statements, a transaction that has
    # waited for a lock would not see what the holder has changed.
    "default_transaction_isolation": "read committed",
    "restrict_nonsystem_relation_kind": "",
    "row_security": "on",
    # what ends a session, a transaction or a statement
    "exit_on_error": "off",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "lock_timeout": "0",
    "statement_timeout": "0",
    "transaction_timeout": "0",
}
"""The settings of every session. Further ones may take their place."""

# An older server does not know all of them.
_SET: Final[LiteralString] = """
SELECT set_config(name, value, {is_local})
  FROM unnest({names}::text[], {values}::text[]) AS setting (name, value)
 WHERE current_setting(name, true) IS NOT NULL
"""
_SET_SESSION: Final = Statement(_SET.format(is_local=False, names="$1", values="$2"), TEXTS, TEXTS)
_SET_TRANSACTION: Final = Statement(
    _SET.format(is_local=True, names="$1", values="$2"), TEXTS, TEXTS
)
_SET_BY_DRIVER: Final = _SET.format(is_local=False, names="%s", values="%s")


class UnusableEncodingError(psycopg.OperationalError):
    """The encoding of the database cannot hold every text."""

    def __init__(self, encoding: str) -> None:
        super().__init__(f"the encoding of the database is {encoding}, and tenantry needs UTF8")
        self.encoding = encoding


def for_session(settings: SessionSettings) -> BoundStatement:
    """Return the statement that sets a session to `UNIFORM` and ``settings``."""
    names, values = _columns(settings)
    return _SET_SESSION(names, values)


def for_transaction(settings: SessionSettings) -> BoundStatement:
    """Return the statement that sets the rest of a transaction to `UNIFORM` and ``settings``: the
    first one, behind a pooler in transaction mode, which keeps no settings.
    """
    names, values = _columns(settings)
    return _SET_TRANSACTION(names, values)


def open_session(conninfo: str) -> psycopg.Connection[Any]:
    """Connect in autocommit mode, as migrations and commands do, and set the session to `UNIFORM`.

    Raises `TransactionPoolerError`, `UnusableEncodingError` and psycopg's errors.
    """
    connection = psycopg.connect(
        conninfo, autocommit=True, connect_timeout=5, client_encoding=CLIENT_ENCODING
    )
    try:
        check_sessions(connection, conninfo)  # other clients of a pooler would get the settings
        check_encoding(connection.info)
        connection.execute(_SET_BY_DRIVER, _columns(NO_SETTINGS), prepare=False)
    except BaseException:
        connection.close()
        raise
    return connection


def check_encoding(info: psycopg.ConnectionInfo) -> None:
    """Raise `UnusableEncodingError` for a database in another encoding than UTF8.

    In another one, a text that a request brings could not be stored, or not be read again.
    """
    encoding = info.parameter_status("server_encoding")
    if encoding not in (None, CLIENT_ENCODING):
        raise UnusableEncodingError(str(encoding))


def _columns(settings: SessionSettings) -> tuple[list[str], list[str]]:
    """Return the names and the values of `UNIFORM` with these settings."""
    merged = {**UNIFORM, **settings}
    return list(merged), list(merged.values())
