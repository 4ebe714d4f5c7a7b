"""Mails to owners: queueing them, each kind within its limits, and delivering them with retries."""

import logging
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from tenantry.common.clock import Clock, exponential
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain import owner_mails as rules
from tenantry.domain.branding import DEFAULT_BRANDING, Branding
from tenantry.domain.invitation_links import InvitationLinks
from tenantry.domain.owner_mails import PendingMail
from tenantry.integrations.smtp import MailDeliveryError, Mailer, PermanentMailError
from tenantry.notifications import mail_delivery_store as store
from tenantry.notifications.mail_composition import compose

RetrySchedule = Callable[[int], float | None]
"""Returns the seconds to wait after failed attempt number n, from 1; None to give up."""

MOST_ATTEMPTS: Final = 81

logger = logging.getLogger(__name__)


async def notify(
    connection: Connection,
    outbox: Outbox,
    tenant_id: str,
    address: rules.OwnerAddress,
    notice: rules.SecurityNotice,
    now: datetime,
) -> None:
    """Queue a security notice for the address that was verified last; above the limit add it to a
    digest.

    The caller holds the tenant's row, in a transaction across tenants.
    """
    recipient = address.for_security
    if recipient is None:
        logger.warning(
            "tenant %s has no verified owner address: a security notice is not mailed", tenant_id
        )
        return
    await connection.lock_name(f"security notices of {tenant_id}")
    latest = await store.latest_notices(connection, tenant_id, now - rules.NOTICE_WINDOW)
    if len(latest) < rules.NOTICES_PER_HOUR:
        mail_type = (
            rules.KEY_LEAKED
            if isinstance(notice, rules.KeyLeakedData)
            else rules.OWNER_ADDRESS_CHANGED
        )
        mail_id = await store.insert_owner_mail(
            connection,
            tenant_id,
            mail_type,
            recipient,
            notice,
            now,
        )
        await outbox.defer_mail(connection, [mail_id])
    elif not await store.add_to_digest(
        connection,
        tenant_id,
        recipient,
        notice,
    ):
        digest = rules.DigestData([], [], 0)
        due_at = latest[-1] + rules.NOTICE_WINDOW
        mail_id = await store.insert_owner_mail(
            connection,
            tenant_id,
            rules.SECURITY_DIGEST,
            recipient,
            digest,
            now,
            due_at,
        )
        await store.add_to_digest(
            connection,
            tenant_id,
            recipient,
            notice,
        )
        await outbox.defer_mail(connection, [mail_id], delay=due_at - now)


async def announce(
    connection: Connection,
    outbox: Outbox,
    tenant_id: str,
    before: rules.OwnerAddress | None,
    after: rules.OwnerAddress,
    now: datetime,
) -> None:
    """Queue the mails after a change of an owner's address; ``before`` is None for a new tenant.

    The former verified address gets a notice; a new address that is not verified gets a
    confirmation mail. The caller holds the tenant's row.
    """
    async with connection.within(ACROSS_TENANTS):
        if before is not None and before.loses_to(after.email):
            change = rules.AddressChangedData(after.email, now, after.is_verified)
            await notify(connection, outbox, tenant_id, before, change, now)
        if after.is_verified:
            return
        if not await request_confirmation(connection, outbox, tenant_id, after.email, now):
            logger.info("tenant %s: no confirmation mail, the limit is reached", tenant_id)


async def request_confirmation(
    connection: Connection, outbox: Outbox, tenant_id: str, email: str, now: datetime
) -> bool:
    """Queue a confirmation mail to an address; return False if the limit of the tenant or the
    address is reached.

    The caller holds the tenant's row, in a transaction across tenants.
    """
    key = rules.limit_key(email)
    await connection.lock_name(f"confirmations to {key}")
    for_tenant, to_address, to_address_today = await store.count_confirmations(
        connection,
        tenant_id,
        key,
        hour=now - timedelta(hours=1),
        day=now - timedelta(days=1),
    )
    if (
        max(for_tenant, to_address) >= rules.CONFIRMATIONS_PER_HOUR
        or to_address_today >= rules.CONFIRMATIONS_PER_DAY
    ):
        return False
    mail_id = await store.insert_owner_mail(
        connection,
        tenant_id,
        rules.OWNER_ADDRESS_CONFIRMATION,
        email,
        None,
        now,
    )
    await outbox.defer_mail(connection, [mail_id])
    return True


async def queue_invitation(
    connection: Connection,
    outbox: Outbox,
    tenant_id: str,
    email: str,
    invitation_id: str,
    now: datetime,
) -> None:
    """Queue the mail of an invitation. The limits are checked before, by `count_invitation_mails`.

    The caller holds the tenant's row, in a transaction across tenants.
    """
    mail_id = await store.insert_owner_mail(
        connection,
        tenant_id,
        rules.INVITATION,
        email,
        rules.InvitationReference(invitation_id),
        now,
    )
    await outbox.defer_mail(connection, [mail_id])


async def count_invitation_mails(
    connection: Connection, tenant_id: str, email: str, now: datetime
) -> tuple[int, int]:
    """Count the invitation mails of the last 24 hours, of a tenant and to an address, which is
    locked.

    The caller holds the tenant's row, in a transaction across tenants.
    """
    key = rules.limit_key(email)
    await connection.lock_name(f"invitations to {key}")
    return await store.count_invitation_mails(connection, tenant_id, key, now - timedelta(days=1))


async def request_invitation_confirmation(
    connection: Connection,
    outbox: Outbox,
    tenant_id: str,
    email: str,
    invitation_id: str,
    now: datetime,
) -> bool:
    """Queue the mail by which an invited user confirms the address; return False if the limit of
    the address is reached.

    The caller holds the tenant's row, in a transaction across tenants.
    """
    key = rules.limit_key(email)
    await connection.lock_name(f"confirmations of invitations to {key}")
    this_hour, today = await store.count_invitation_confirmations(
        connection,
        key,
        hour=now - timedelta(hours=1),
        day=now - timedelta(days=1),
    )
    if this_hour >= rules.CONFIRMATIONS_PER_HOUR or today >= rules.CONFIRMATIONS_PER_DAY:
        return False
    mail_id = await store.insert_owner_mail(
        connection,
        tenant_id,
        rules.INVITATION_CONFIRMATION,
        email,
        rules.InvitationReference(invitation_id),
        now,
    )
    await outbox.defer_mail(connection, [mail_id])
    return True


def retry_delay(attempt: int) -> float:
    """Return the seconds to wait after failed attempt number ``attempt``, from 1: 10 s, then twice
    as long after each further one, at most an hour.
    """
    return exponential(
        min(attempt, MOST_ATTEMPTS),
        first=10,
        factor=2,
        ceiling=3600,
    )


def standard_schedule(attempt: int) -> float | None:
    """Wait `retry_delay` seconds, and give up after `MOST_ATTEMPTS`: about 3 days in all."""
    return None if attempt >= MOST_ATTEMPTS else retry_delay(attempt)


class MailDeferredError(Exception):
    """The mail was not delivered: try again in ``delay`` seconds."""

    def __init__(self, message: str, delay: float) -> None:
        super().__init__(message)
        self.delay = delay


class MailService(msgspec.Struct, frozen=True):
    """Delivers mails. ``base_url`` is for links in them, ``product`` for their subjects.

    ``links`` makes the links of invitations; without it, their mails are dropped.
    """

    database: Database
    mailer: Mailer
    clock: Clock
    schedule: RetrySchedule = standard_schedule
    base_url: str = ""
    product: Branding = DEFAULT_BRANDING
    links: InvitationLinks | None = None

    async def deliver(self, notification_id: UUID) -> None:
        """Deliver one mail; do nothing if it has been delivered or given up.

        Raises `MailDeferredError` to be tried again, and `DatabaseUnavailableError`. After a crash
        between the mail server's acceptance and its record, the next attempt sends the mail again
        with the same ``Message-ID``.
        """
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            mail = await store.read_notification(connection, notification_id)
            if mail is None:
                mail = await self._owner_mail(connection, notification_id)
        if mail is None:
            return
        try:
            composed = compose(mail, self.mailer.config.sender, self.base_url, self.product)
            await self.mailer.send(composed)
        except MailDeliveryError as error:
            await self._failed(mail, error)
        else:
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                await store.mark_sent(connection, mail, self.clock())
            logger.info(
                "mail %s of tenant %s was accepted by the mail server",
                notification_id,
                mail.tenant_id,
            )

    async def _owner_mail(self, connection: Connection, mail_id: UUID) -> PendingMail | None:
        """Return a mail of ``owner_mails``; close it if it is a digest, and give a confirmation a
        new link.
        """
        row = await store.read_owner_mail(connection, mail_id)
        if row is None:
            return None
        now = self.clock()
        about: rules.SecurityNotice | rules.DigestData | rules.LinkMail | None
        if row.type in rules.TO_CHOSEN_ADDRESSES:
            about = await self._to_chosen_address(connection, mail_id, row, now)
        elif row.status == "collecting" and row.due_at > now:
            raise MailDeferredError(
                f"digest {mail_id} is not due yet", (row.due_at - now).total_seconds()
            )
        else:
            await store.set_status(connection, mail_id, "queued")
            about = row.about
        if about is None:
            await store.set_status(connection, mail_id, "dropped")
            return None
        return PendingMail(
            mail_id,
            row.attempts,
            row.created_at,
            row.tenant_name,
            row.recipient,
            row.tenant_id,
            about,
        )

    async def _to_chosen_address(
        self, connection: Connection, mail_id: UUID, row: store.PendingOwnerMail, now: datetime
    ) -> rules.LinkMail | None:
        """Return the content of a confirmation or an invitation; None if it is no longer
        needed.
        """
        if row.type == rules.OWNER_ADDRESS_CONFIRMATION:
            is_needed = row.is_to_be_confirmed
            return await self._renew_link(connection, mail_id, now) if is_needed else None
        invitation_id = row.invitation.invitation_id
        found = await store.find_open_invitation(connection, invitation_id, now)
        if found is None or row.tenant_deleted or self.links is None:
            return None
        role, expires_at = found
        link = self.links.mailed_link(invitation_id)
        if row.type == rules.INVITATION:
            return rules.InvitationMail(invitation_id, link, role, expires_at)
        return rules.InvitationConfirmation(link, expires_at)

    async def _renew_link(
        self, connection: Connection, mail_id: UUID, now: datetime
    ) -> rules.Confirmation:
        """Give a confirmation a new link."""
        token = secrets.token_urlsafe(32)
        expires_at = now + rules.CONFIRMATION_VALID
        await store.set_link(connection, mail_id, rules.link_digest(token), expires_at)
        link = f"{self.base_url}{rules.CONFIRM_PATH}?token={token}"
        return rules.Confirmation(link, rules.CONFIRMATION_VALID // timedelta(hours=1))

    async def _failed(self, mail: PendingMail, error: MailDeliveryError) -> None:
        attempt = mail.attempts + 1
        delay = None if isinstance(error, PermanentMailError) else self.schedule(attempt)
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            reason = f"{error}: {error.reply}" if error.reply else str(error)
            await store.mark_attempt(
                connection,
                mail,
                reason,
                final=delay is None,
            )
        # The log omits the server's reply, which may contain the owner's address.
        about = (
            f"mail {mail.notification_id} of tenant {mail.tenant_id}, attempt {attempt}: {error}"
        )
        if delay is None:
            logger.error("%s; given up", about)
            return
        logger.warning("%s; next attempt in %.0f s", about, delay)
        raise MailDeferredError(about, delay) from None
