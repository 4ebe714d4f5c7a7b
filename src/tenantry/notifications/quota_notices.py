"""Notices to owners whose tenants have used 80 or 100 percent of a quota."""

from collections.abc import Sequence
from datetime import datetime

from tenantry.db.connection import Connection
from tenantry.db.outbox import Outbox
from tenantry.domain.quota_notices import UseChange, notice_of
from tenantry.notifications import mail_delivery_store as store


class QuotaNotices:
    """Queues notices in the transaction that reaches a mark, so that no crash loses one."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    async def queue(
        self, connection: Connection, changes: Sequence[UseChange], now: datetime
    ) -> None:
        """Queue a mail for each mark that a change reaches for the first time in its period."""
        notices = [notice for change in changes if (notice := notice_of(change)) is not None]
        if notices:
            mails = await store.insert_quota_notices(connection, notices, now)
            await self._outbox.defer_mail(connection, mails)
