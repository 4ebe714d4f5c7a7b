"""Queueing mails to owners: security notices, digests and confirmations, each within its limits."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.domain import owner_mails as rules
from tenantry.notifications import mails_store as store

logger = logging.getLogger(__name__)


class MailOutbox(Protocol):
    """Defers the delivery of mails in a transaction: it starts once that is committed."""

    async def defer_mail(
        self,
        connection: Connection,
        ids: Sequence[UUID],
        traces: Mapping[UUID, str] = ...,
        /,
        *,
        delay: timedelta | None = None,
    ) -> None:
        """Deliver these mails, after ``delay`` if given."""


async def notify(
    connection: Connection,
    outbox: MailOutbox,
    tenant_id: str,
    address: rules.OwnerAddress,
    notice: rules.SecurityNotice,
    now: datetime,
) -> None:
    """Queue a security notice for the address that was verified last; above the limit add it to a digest.

    The caller holds the tenant's row, in a transaction across tenants.
    """
    recipient = address.for_security
    if recipient is None:
        logger.warning("tenant %s has no verified owner address: a security notice is not mailed", tenant_id)
        return
    await store.lock_name(connection, f"security notices of {tenant_id}")
    latest = await store.latest_notices(connection, tenant_id, now - rules.NOTICE_WINDOW)
    delay, due_at = None, None
    mail_type = rules.KEY_LEAKED if isinstance(notice, rules.KeyLeakedData) else rules.OWNER_ADDRESS_CHANGED
    data: rules.SecurityNotice | rules.DigestData = notice
    if len(latest) >= rules.NOTICES_PER_HOUR:
        if await store.add_to_digest(connection, tenant_id, recipient, notice):
            return
        due_at = latest[-1] + rules.NOTICE_WINDOW
        delay, mail_type = due_at - now, rules.SECURITY_DIGEST
        data = rules.DigestData(
            [notice] if isinstance(notice, rules.KeyLeakedData) else [],
            [notice] if isinstance(notice, rules.AddressChangedData) else [],
            0,
        )
    mail_id = await store.insert_owner_mail(connection, tenant_id, mail_type, recipient, data, now, due_at)
    await outbox.defer_mail(connection, [mail_id], delay=delay)


async def announce(
    connection: Connection,
    outbox: MailOutbox,
    tenant_id: str,
    before: rules.OwnerAddress | None,
    after: rules.OwnerAddress,
    now: datetime,
) -> None:
    """Queue the mails after a change of an owner's address; ``before`` is None for a new tenant.

    The former verified address gets a notice; a new address that is not verified gets a confirmation mail. The caller
    holds the tenant's row.
    """
    async with connection.within(ACROSS_TENANTS):
        if before is not None and not rules.same_address(before.email, after.email):
            former = before.for_security
            if former is not None and not rules.same_address(former, after.email):
                change = rules.AddressChangedData(after.email, now, after.is_verified)
                await notify(connection, outbox, tenant_id, before, change, now)
        if not after.is_verified and not await request_confirmation(connection, outbox, tenant_id, after.email, now):
            logger.info("tenant %s: no confirmation mail, the limit is reached", tenant_id)


async def request_confirmation(
    connection: Connection, outbox: MailOutbox, tenant_id: str, email: str, now: datetime
) -> bool:
    """Queue a confirmation mail to an address; return False if the limit of the tenant or the address is reached.

    The caller holds the tenant's row, in a transaction across tenants.
    """
    key = rules.limit_key(email)
    await store.lock_name(connection, f"confirmations to {key}")
    for_tenant, to_address, to_address_today = await store.count_confirmations(
        connection, tenant_id, key, hour=now - timedelta(hours=1), day=now - timedelta(days=1)
    )
    if max(for_tenant, to_address) >= rules.CONFIRMATIONS_PER_HOUR or to_address_today >= rules.CONFIRMATIONS_PER_DAY:
        return False
    mail_id = await store.insert_owner_mail(connection, tenant_id, rules.OWNER_ADDRESS_CONFIRMATION, email, None, now)
    await outbox.defer_mail(connection, [mail_id])
    return True
