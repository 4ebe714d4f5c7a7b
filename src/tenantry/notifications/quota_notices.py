"""Notices to owners whose tenants have used 80 or 100 percent of a quota."""

from collections.abc import Sequence
from datetime import datetime

from tenantry.db.connection import Connection
from tenantry.db.outbox import Outbox
from tenantry.domain.plans import Catalog
from tenantry.domain.quota_notices import UseChange, notice_of
from tenantry.notifications.mail_outbox import MailOutbox


class QuotaNotices:
    """Queues notices in the transaction that reaches a mark, so that no crash loses one."""

    def __init__(self, outbox: Outbox, catalog: Catalog) -> None:
        self._outbox = outbox
        self._catalog = catalog

    async def queue(
        self, connection: Connection, changes: Sequence[UseChange], now: datetime
    ) -> None:
        """Queue a mail for each mark that a change reaches for the first time in its period."""
        found = (notice_of(change, self._catalog) for change in changes)
        notices = [notice for notice in found if notice is not None]
        if notices:
            await MailOutbox(connection, self._outbox, now).add(notices)
