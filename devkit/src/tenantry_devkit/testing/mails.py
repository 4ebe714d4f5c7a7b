"""The mails that the service sends during tests."""

from collections.abc import Sequence

from tenantry_devkit.inbox.inbox import Inbox, Mail
from tenantry_devkit.testing.database import Notice, Rows
from tenantry_devkit.testing.errors import MailError


class Mails:
    """Finds the mails of tenants: which ones there must be says the database, and the inbox what was in them.

    It is the session's: of each mail it remembers what it is for, so that none is read by every test that follows.
    """

    def __init__(self, inbox: Inbox, rows: Rows) -> None:
        self._inbox = inbox
        self._rows = rows
        self._delivers: dict[str, str] = {}

    def of(self, tenants: Sequence[str], *, within: float) -> Sequence[Mail]:
        """Every mail that these tenants' owners were to get so far, oldest first, once all of them have come.

        A mail is asked for in the transaction that handles its event, so that none can be missed that is still on its
        way, and no waiting is needed to know that there is none. Raises `MailError` after ``within`` seconds.
        """
        notices = self._rows.notices(tenants)
        wanted = [str(notice.id) for notice in notices]
        if not self._inbox.wait_until(lambda: set(wanted) <= self._arrived().keys(), within):
            raise MailError(self._missing(self._rows.notices(tenants), within))
        arrived = self._arrived()
        found = (self._inbox.mail(mail_id) for notice in wanted for mail_id in arrived[notice])
        return [mail for mail in found if mail is not None]

    def _arrived(self) -> dict[str, list[str]]:
        """The ids of all mails by the notification that they deliver; a mail that was sent twice is there twice."""
        arrived: dict[str, list[str]] = {}
        for mail_id in reversed(self._inbox.ids()):
            if mail_id not in self._delivers and (mail := self._inbox.mail(mail_id)) is not None:
                self._delivers[mail_id] = _notification_of(mail)
            arrived.setdefault(self._delivers.get(mail_id, ""), []).append(mail_id)
        return arrived

    def _missing(self, notices: Sequence[Notice], within: float) -> str:
        arrived = self._arrived()
        missing = [notice for notice in notices if str(notice.id) not in arrived]
        states = "; ".join(
            f"{notice.id} is {notice.status}{f' ({notice.error})' if notice.error else ''}" for notice in missing
        )
        return f"{len(missing)} of {len(notices)} mails have not arrived within {within:g} s: {states}"


def _notification_of(mail: Mail) -> str:
    """The id that its ``Message-ID`` begins with."""
    headers = {name.lower(): text for name, text in mail.headers}
    return headers.get("message-id", "").strip("<>").partition("@")[0]
