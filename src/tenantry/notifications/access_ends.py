"""Notices to owners whose access ended by time, which no event reports."""

import logging
from datetime import timedelta
from typing import Final

from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.billing.notices import ACCESS_END_MAILED
from tenantry.domain.billing.state import BillingPolicy
from tenantry.notifications import mails_store as store
from tenantry.notifications.mail_outbox import MailOutbox

_SETTLED: Final = timedelta(minutes=10)
"""How long after the end: an event that extends the access may be on its way, such as that of a
renewal.
"""
_MOST_AT_ONCE: Final = 500
_MOST_ROUNDS: Final = 20

logger = logging.getLogger(__name__)


async def mail_access_ends(
    database: Database, outbox: Outbox, policy: BillingPolicy, clock: Clock
) -> int:
    """Queue a notice for each tenant whose access ended in the last three days; return the number
    of new ones.

    Several processes may run it at the same time. Raises `DatabaseUnavailableError`.
    """
    now = clock()
    total = 0
    for _ in range(_MOST_ROUNDS):
        async with database.transaction(ACROSS_TENANTS) as connection:
            notices = await store.find_access_ends(
                connection, now - ACCESS_END_MAILED, now - _SETTLED, _MOST_AT_ONCE, policy
            )
            total += await MailOutbox(connection, outbox, now).add(notices)
        if len(notices) < _MOST_AT_ONCE:
            break
    if total:
        logger.info("access of %d tenants has ended by time; their owners get a mail", total)
    return total
