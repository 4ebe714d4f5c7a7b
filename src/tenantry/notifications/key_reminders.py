"""Reminders of API keys that expire or are unused."""

import logging
from datetime import datetime
from typing import Final

from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.key_reminders import reminder_mails
from tenantry.domain.owner_mails import NewMail
from tenantry.notifications import key_reminders_store as store
from tenantry.notifications.mail_outbox import MailOutbox

_TENANTS_AT_ONCE: Final = 50

logger = logging.getLogger(__name__)


async def mail_key_reminders(database: Database, outbox: Outbox, clock: Clock) -> int:
    """Queue the reminders that are due, and return their number: 14 and 3 days before a key
    expires, once each, and of unused keys once a quarter. After an interruption a key has the one
    reminder that is due then.

    Several processes may run it at the same time: of two, the second finds the mails of the first.
    Raises `DatabaseUnavailableError`.
    """
    now = clock()
    total, after = 0, ""
    while True:
        async with database.transaction(ACROSS_TENANTS) as connection:
            await connection.lock_name("reminders of API keys")
            tenants = await store.tenants_with_reminders(connection, after, _TENANTS_AT_ONCE, now)
            for tenant_id in tenants:
                mails = await _due_mails(connection, tenant_id, now)
                total += await MailOutbox(connection, outbox, now).add(mails)
        if len(tenants) < _TENANTS_AT_ONCE:
            break
        after = tenants[-1]
    if total:
        logger.info("%d reminders of API keys are queued", total)
    return total


async def _due_mails(connection: Connection, tenant_id: str, now: datetime) -> list[NewMail]:
    mailed = await store.mailed(connection, tenant_id, now)
    async with connection.within(of_tenant(tenant_id)):
        keys = await store.reminded_keys(connection, tenant_id, now)
    return reminder_mails(tenant_id, keys, mailed, now)
