"""The mails of tests, and what only the database can show or do."""

from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from tenantry_devkit.inbox import Inbox, Mail
from tenantry_devkit.testing.errors import MailError, StartError

_NEUTRAL: Final = {
    "client_encoding": "UTF8", "connect_timeout": "10", "hostaddr": "", "options": "", "password": "",
    "require_auth": "", "requirepeer": "", "sslcertmode": "allow", "ssl_max_protocol_version": "",
}  # fmt: skip
"""Neutral values of parameters without a default in libpq; an empty string is invalid for the others."""
_MAILS: Final = """
    SELECT id, status, last_error
      FROM (SELECT id, status, last_error, created_at FROM notifications WHERE tenant_id = ANY(%(tenants)s)
             UNION ALL
            SELECT id, status, last_error, created_at FROM owner_mails
             WHERE tenant_id = ANY(%(tenants)s) AND status NOT IN ('collecting', 'dropped')) AS mails
     ORDER BY created_at, id
"""
_EXPIRE_KEY: Final = "UPDATE api_keys SET expires_at = now() - interval '1 second' WHERE org_id = %s AND id = %s"


class QueuedMail(NamedTuple):
    """``status`` is queued, sent or failed."""

    id: UUID
    status: str
    error: str | None


class SessionDatabase:
    """Queries the database at this address; environment variables such as ``PGPORT`` have no effect.

    Raises `StartError` if this process cannot reach the database.
    """

    def __init__(self, address: str) -> None:
        self._conninfo = make_conninfo("", **{**_default_parameters(), **conninfo_to_dict(address)})
        try:
            self._connect().close()
        except psycopg.Error as error:
            raise StartError(f"The tests cannot reach their own database: {error}") from None

    def mails(self, tenants: Sequence[str]) -> list[QueuedMail]:
        """Return the mails to these tenants' owners, oldest first."""
        with self._connect() as connection:
            return [QueuedMail(*row) for row in connection.execute(_MAILS, {"tenants": list(tenants)}).fetchall()]

    def expire_key(self, tenant_id: str, key_id: str) -> None:
        with self._connect() as connection:
            connection.execute(_EXPIRE_KEY, (tenant_id, key_id))

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self._conninfo, autocommit=True)


def _default_parameters() -> dict[str, str]:
    """Return a value for each parameter that libpq would read from the environment, except the service file."""
    values = {
        option.keyword.decode(): option.compiled.decode() if option.compiled else None
        for option in Conninfo.get_defaults()
        if option.envvar is not None and option.keyword != b"service"
    }
    neutral = {name: _NEUTRAL.get(name, default) for name, default in values.items()}
    return {name: text for name, text in neutral.items() if text is not None}


class MailFinder:
    """Finds the mails of tenants, for a whole session; the database has which ones there must be."""

    def __init__(self, inbox: Inbox, database: SessionDatabase) -> None:
        self._inbox = inbox
        self._database = database
        self._notifications: dict[str, str] = {}
        """The notification of each mail, so that each is read once."""

    def of(self, tenants: Sequence[str], *, within: float) -> Sequence[Mail]:
        """Return every mail to these tenants' owners so far, oldest first; raises `MailError` after ``within`` seconds.

        The transaction that handles an event also queues its mails, so the list is complete.
        """
        wanted = [str(mail.id) for mail in self._database.mails(tenants)]
        if not self._inbox.wait_until(lambda: set(wanted) <= self._arrived().keys(), within):
            raise MailError(self._describe_missing(tenants, within))
        arrived = self._arrived()
        found = (self._inbox.mail(mail_id) for notification in wanted for mail_id in arrived[notification])
        return [mail for mail in found if mail is not None]

    def _arrived(self) -> dict[str, list[str]]:
        """Return the ids of all mails by notification; a mail that was sent twice has two."""
        arrived: dict[str, list[str]] = {}
        for mail_id in reversed(self._inbox.ids()):
            if mail_id not in self._notifications and (mail := self._inbox.mail(mail_id)) is not None:
                headers = {name.lower(): text for name, text in mail.headers}
                self._notifications[mail_id] = headers.get("message-id", "").strip("<>").partition("@")[0]
            arrived.setdefault(self._notifications.get(mail_id, ""), []).append(mail_id)
        return arrived

    def _describe_missing(self, tenants: Sequence[str], within: float) -> str:
        mails, arrived = self._database.mails(tenants), self._arrived()
        missing = [mail for mail in mails if str(mail.id) not in arrived]
        states = "; ".join(f"{mail.id} is {mail.status}{f' ({mail.error})' if mail.error else ''}" for mail in missing)
        return f"{len(missing)} of {len(mails)} mails have not arrived within {within:g} s: {states}"
