"""What tests need of the database itself: what no request tells, or does."""

from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from tenantry_devkit.testing.errors import StartError

_SERVICE: Final = "service"
_NEUTRAL: Final = {
    "client_encoding": "UTF8", "connect_timeout": "10", "hostaddr": "", "options": "", "password": "",
    "require_auth": "", "requirepeer": "", "sslcertmode": "allow", "ssl_max_protocol_version": "",
}  # fmt: skip
"""What says nothing, where the library itself has no default: an empty text is faulty for the others."""


class Notice(NamedTuple):
    """A mail that the service was to send: ``status`` is queued, sent or failed."""

    id: UUID
    status: str
    error: str | None


class Rows:
    """The database at this address, with a connection for each question.

    No variable of the environment has a say in where that is, or how (``PGPORT``, ``PGOPTIONS`` and the like).
    Raises `StartError` when the database cannot be reached from this process.
    """

    def __init__(self, address: str) -> None:
        self._conninfo = make_conninfo("", **{**_without_environment(), **conninfo_to_dict(address)})
        try:
            self._connect().close()
        except psycopg.Error as error:
            raise StartError(f"The tests cannot reach their own database: {error}") from None

    def notices(self, tenants: Sequence[str]) -> list[Notice]:
        """The mails that were to be sent to these tenants' owners, oldest first."""
        with self._connect() as connection:
            rows = connection.execute(
                """
                SELECT id, status, last_error
                  FROM (SELECT id, status, last_error, created_at FROM notifications WHERE tenant_id = ANY(%(tenants)s)
                         UNION ALL
                        SELECT id, status, last_error, created_at FROM owner_mails
                         WHERE tenant_id = ANY(%(tenants)s) AND status NOT IN ('collecting', 'dropped')) AS mails
                 ORDER BY created_at, id
                """,
                {"tenants": list(tenants)},
            ).fetchall()
        return [Notice(*row) for row in rows]

    def expire_key(self, tenant_id: str, key_id: str) -> None:
        """Let a key have expired a second ago."""
        with self._connect() as connection:
            connection.execute(
                "UPDATE api_keys SET expires_at = now() - interval '1 second' WHERE org_id = %s AND id = %s",
                (tenant_id, key_id),
            )

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self._conninfo, autocommit=True)


def _without_environment() -> dict[str, str]:
    """Every parameter that the library would look up in the environment, as it is without. The service is no parameter
    but a file of them, which go behind these; one that is not found cannot be got around.
    """
    found = {
        option.keyword.decode(): option.compiled.decode() if option.compiled else None
        for option in Conninfo.get_defaults()
        if option.envvar is not None
    }
    said = {name: _NEUTRAL.get(name, default) for name, default in found.items() if name != _SERVICE}
    return {name: text for name, text in said.items() if text is not None}
