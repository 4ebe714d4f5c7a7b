"""Delivering mails, with retries: here alone a mail is sent, dropped or given up."""

import logging
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from tenantry.common.clock import Clock, exponential
from tenantry.db.connection import ACROSS_TENANTS, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.domain import key_reminders
from tenantry.domain import owner_mails as rules
from tenantry.domain.branding import DEFAULT_BRANDING, Branding
from tenantry.domain.invitation_links import InvitationLinks
from tenantry.domain.owner_mails import MailStatus, PendingMail
from tenantry.integrations.smtp import MailDeliveryError, Mailer, PermanentMailError
from tenantry.notifications import key_reminders_store
from tenantry.notifications import mails_store as store
from tenantry.notifications.mail_composition import compose
from tenantry.notifications.mails_store import UnsentMail

RetrySchedule = Callable[[int], float | None]
"""Returns the seconds to wait after failed attempt number n, from 1; None to give up."""

FIRST_DELAY: Final = 10.0
LONGEST_DELAY: Final = 3600.0
MOST_ATTEMPTS: Final = 81

logger = logging.getLogger(__name__)


def standard_schedule(attempt: int) -> float | None:
    """Wait `FIRST_DELAY` seconds, then twice as long after each further attempt, at most
    `LONGEST_DELAY`; give up after `MOST_ATTEMPTS`, about 3 days in all.
    """
    if attempt >= MOST_ATTEMPTS:
        return None
    return exponential(attempt, first=FIRST_DELAY, factor=2, ceiling=LONGEST_DELAY)


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

    async def deliver(self, mail_id: UUID, attempt: int = 1) -> None:
        """Deliver one mail; do nothing if it has been delivered or given up.

        ``attempt`` is its number by the job queue. Raises `MailDeferredError` to be tried again,
        and `DatabaseUnavailableError`. After a crash between the mail server's acceptance and its
        record, the next attempt sends the mail again with the same ``Message-ID``.
        """
        mail = await self._prepare(mail_id)
        if mail is None:
            return
        try:
            composed = compose(mail, self.mailer.config.sender, self.base_url, self.product)
            await self.mailer.send(composed)
        except MailDeliveryError as error:
            await self._failed(mail, error, attempt)
        else:
            await self._record(mail, MailStatus.SENT)
            logger.info(
                "mail %s of tenant %s was accepted by the mail server", mail_id, mail.tenant_id
            )

    async def _prepare(self, mail_id: UUID) -> PendingMail | None:
        """Return a mail as it is to be sent now; None if it has ended, or ends now because it is no
        longer needed.
        """
        now = self.clock()
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            mail = await store.lock_unsent(connection, mail_id, now)
            if mail is None:
                return None
            about = await self._content(connection, mail, now)
            if about is None:
                await store.record(connection, mail_id, MailStatus.DROPPED, now)
                return None
        return PendingMail(
            mail.id,
            mail.type,
            mail.created_at,
            mail.tenant_name,
            mail.recipient,
            mail.tenant_id,
            about,
        )

    async def _content(
        self, connection: Connection, mail: UnsentMail, now: datetime
    ) -> rules.MailContent | None:
        """Return what a mail says now; None if it is no longer needed."""
        data = mail.data
        if isinstance(data, rules.PaymentFailedData):
            amounts = mail.amount_due, mail.amount_remaining, mail.currency
            return rules.PaymentFailure(data.invoice_url, *amounts)
        if isinstance(data, rules.NoData):
            return await self._confirmation(connection, mail, now)
        if isinstance(data, rules.InvitationReference):
            return self._invitation(mail, data.invitation_id)
        if isinstance(data, rules.KeyReminderData):
            return await _current_reminder(connection, mail, data, now)
        if isinstance(data, rules.DigestData):
            await self._close_digest(connection, mail, now)
        return data

    async def _confirmation(
        self, connection: Connection, mail: UnsentMail, now: datetime
    ) -> rules.Confirmation | None:
        """Give a confirmation that is needed a new link."""
        if not mail.is_to_be_confirmed:
            return None
        token = secrets.token_urlsafe(32)
        expires_at = now + rules.CONFIRMATION_VALID
        await store.set_link(connection, mail.id, rules.link_digest(token), expires_at)
        link = f"{self.base_url}{rules.CONFIRM_PATH}?token={token}"
        return rules.Confirmation(link, rules.CONFIRMATION_VALID // timedelta(hours=1))

    def _invitation(self, mail: UnsentMail, invitation_id: str) -> rules.InvitationMail | None:
        role, expires_at = mail.invited_role, mail.invited_until
        if role is None or expires_at is None or mail.tenant_deleted or self.links is None:
            return None
        return rules.InvitationMail(self.links.mailed_link(invitation_id), role, expires_at)

    async def _close_digest(self, connection: Connection, mail: UnsentMail, now: datetime) -> None:
        """Let a digest collect no further notices. Raises `MailDeferredError` before it is due."""
        if mail.status == MailStatus.COLLECTING and mail.due_at > now:
            raise MailDeferredError(
                f"digest {mail.id} is not due yet", (mail.due_at - now).total_seconds()
            )
        await store.close_digest(connection, mail.id)

    async def _failed(self, mail: PendingMail, error: MailDeliveryError, attempt: int) -> None:
        delay = None if isinstance(error, PermanentMailError) else self.schedule(attempt)
        status = rules.status_given_up(mail.type) if delay is None else MailStatus.QUEUED
        reason = f"{error}: {error.reply}" if error.reply else str(error)
        await self._record(mail, status, reason)
        # The log omits the server's reply, which may contain the owner's address.
        about = f"mail {mail.id} of tenant {mail.tenant_id}, attempt {attempt}: {error}"
        if delay is None:
            logger.error("%s; given up", about)
            return
        logger.warning("%s; next attempt in %.0f s", about, delay)
        raise MailDeferredError(about, delay) from None

    async def _record(self, mail: PendingMail, status: MailStatus, error: str = "") -> None:
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            await store.record(connection, mail.id, status, self.clock(), error)


async def _current_reminder(
    connection: Connection, mail: UnsentMail, data: rules.KeyReminderData, now: datetime
) -> rules.KeyReminderData | None:
    """Return what a reminder of API keys says, by the keys as they are now."""
    named = [key.key_id for key in data.expiring] + [key.key_id for key in data.unused]
    async with connection.within(of_tenant(mail.tenant_id)):
        keys = await key_reminders_store.reminded_keys(connection, mail.tenant_id, now, named)
    return key_reminders.still_due(data, keys, mail.recipient, now)
