"""Detection of a pooler in transaction mode, which changes the server's session between two
transactions.
"""

from typing import Any, Final

import psycopg

_PID: Final = "SELECT pg_backend_pid()"


class TransactionPoolerError(Exception):
    """A connection string that needs sessions leads to a pooler in transaction mode."""


def check_sessions(connection: psycopg.Connection[Any], conninfo: str) -> None:
    """Raise `TransactionPoolerError` if the server's session of a connection does not stay the
    same.

    ``connection`` is in autocommit mode, and was made with ``conninfo``. Costs one statement
    without a pooler: its clients get another process id at their start than the server's. With one,
    a second connection keeps a session of the server busy: that of the first one, if it is free
    between two transactions.
    """
    pid = _backend_pid(connection)
    if pid == connection.info.backend_pid:
        return
    with psycopg.connect(conninfo, connect_timeout=5) as other:
        _backend_pid(other)  # begins a transaction
        if _backend_pid(connection) != pid:
            raise TransactionPoolerError


def keeps_sessions(conninfo: str) -> bool:
    """Whether a connection string leads to a server or a pooler that keeps sessions. Raises psycopg
    errors.
    """
    with psycopg.connect(conninfo, autocommit=True, connect_timeout=5) as connection:
        try:
            check_sessions(connection, conninfo)
        except TransactionPoolerError:
            return False
    return True


def _backend_pid(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute(_PID).fetchone()
    if row is None:
        return -1
    return int(row[0])
