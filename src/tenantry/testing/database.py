"""What tests need of the database itself: what no request tells, or does."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import psycopg


class Notice(NamedTuple):
    """A mail that the service was to send: ``status`` is queued, sent or failed."""

    id: UUID
    status: str
    error: str | None


class Rows:
    """The database at this address, with a connection for each question."""

    def __init__(self, address: str) -> None:
        self._address = address

    def notices(self, tenants: Sequence[str]) -> list[Notice]:
        """The mails that were to be sent to these tenants' owners, oldest first."""
        with psycopg.connect(self._address, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT id, status, last_error FROM notifications WHERE tenant_id = ANY(%s) ORDER BY created_at, id",
                (list(tenants),),
            ).fetchall()
        return [Notice(*row) for row in rows]

    def expire_key(self, tenant_id: str, key_id: str) -> None:
        """Let a key have expired a second ago."""
        with psycopg.connect(self._address, autocommit=True) as connection:
            connection.execute(
                "UPDATE api_keys SET expires_at = now() - interval '1 second' WHERE org_id = %s AND id = %s",
                (tenant_id, key_id),
            )
