"""Mails that are queued in the transaction of their cause, each kind within its limits."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.outbox import Outbox
from tenantry.domain import owner_mails as rules
from tenantry.domain.billing.notices import BillingNotice
from tenantry.domain.owner_mails import NewMail
from tenantry.notifications import mails_store as store

logger = logging.getLogger(__name__)


class MailOutbox(msgspec.Struct, frozen=True):
    """Queues mails at ``now`` in the transaction of ``connection``, which may read the rows of all
    tenants. So there are mails exactly if there is their cause.
    """

    connection: Connection
    outbox: Outbox
    now: datetime

    async def add(
        self, mails: Sequence[NewMail], traces: Mapping[str, str | None] | None = None
    ) -> int:
        """Queue the mails whose cause was not mailed yet, and return their number.

        ``traces`` has the ``traceparent`` of causes that do not belong to the current trace.
        """
        if not mails:
            return 0
        added = await store.insert_mails(self.connection, mails, self.now)
        of_mails = {mail_id: (traces or {}).get(cause) for mail_id, cause in added.items()}
        await self.outbox.defer_mail(self.connection, list(added), of_mails)
        return len(added)

    async def add_billing_notices(self, notices: Sequence[BillingNotice]) -> None:
        """Queue the notices that count, by the mails of before, and whose cause was not mailed
        yet.
        """
        added = await store.insert_billing_notices(self.connection, notices, self.now)
        await self.outbox.defer_mail(self.connection, list(added))

    async def begin_digest(self, tenant_id: str, email: str, due_at: datetime) -> None:
        """Queue a digest, which collects notices until it is delivered at ``due_at``."""
        empty = rules.DigestData([], [], 0)
        digest = NewMail(rules.SECURITY_DIGEST, tenant_id, empty, due_at=due_at).to(email)
        added = await store.insert_mails(self.connection, [digest], self.now)
        await self.outbox.defer_mail(self.connection, list(added), delay=due_at - self.now)


class TenantMails(msgspec.Struct, frozen=True):
    """Queues a tenant's mails to addresses that users choose, within the limits of the tenant and
    of each address. The caller's transaction has locked the tenant's row.
    """

    connection: Connection
    outbox: Outbox
    now: datetime
    tenant_id: str

    async def notify(self, address: rules.OwnerAddress, notice: rules.SecurityNotice) -> None:
        """Queue a security notice for the address that was verified last; above the limit add it to
        a digest.
        """
        recipient = address.for_security
        if recipient is None:
            logger.warning(
                "tenant %s has no verified owner address: a security notice is not mailed",
                self.tenant_id,
            )
            return
        async with self.connection.within(ACROSS_TENANTS):
            await self._notify(recipient, notice)

    async def _notify(self, recipient: str, notice: rules.SecurityNotice) -> None:
        connection, tenant_id = self.connection, self.tenant_id
        await connection.lock_name(f"security notices of {tenant_id}")
        latest = await store.latest_notices(connection, tenant_id, self.now - rules.NOTICE_WINDOW)
        if len(latest) < rules.NOTICES_PER_HOUR:
            await self._mails.add([rules.security_mail(tenant_id, recipient, notice)])
        elif not await store.add_to_digest(connection, tenant_id, recipient, notice):
            due_at = latest[-1] + rules.NOTICE_WINDOW
            await self._mails.begin_digest(tenant_id, recipient, due_at)
            await store.add_to_digest(connection, tenant_id, recipient, notice)

    async def announce(self, before: rules.OwnerAddress | None, after: rules.OwnerAddress) -> None:
        """Queue the mails after a change of the owner's address; ``before`` is None for a new
        tenant.

        The former verified address gets a notice; a new address that is not verified gets a
        confirmation mail.
        """
        if before is not None and before.loses_to(after.email):
            notice = rules.AddressChangedData(after.email, self.now, after.is_verified)
            await self.notify(before, notice)
        if after.is_verified:
            return
        if not await self.confirm_owner(after.email):
            logger.info("tenant %s: no confirmation mail, the limit is reached", self.tenant_id)

    async def confirm_owner(self, email: str) -> bool:
        """Queue a confirmation mail to the owner's address; return False if the limit of the tenant
        or of the address is reached.
        """
        confirmation = self._to(email, rules.OWNER_ADDRESS_CONFIRMATION, rules.NoData())
        return await self._confirm(confirmation, of_tenant=True)

    async def confirm_invited(self, email: str, invitation_id: str) -> bool:
        """Queue the mail by which an invited user confirms the address; return False if the limit
        of the address is reached.
        """
        reference = rules.InvitationReference(invitation_id)
        confirmation = self._to(email, rules.INVITATION_CONFIRMATION, reference)
        return await self._confirm(confirmation, of_tenant=False)

    async def _confirm(self, confirmation: NewMail, *, of_tenant: bool) -> bool:
        async with self.connection.within(ACROSS_TENANTS):
            recent = await store.count_recent(self.connection, confirmation, self.now)
            if not recent.allow_confirmation(of_tenant=of_tenant):
                return False
            await self._mails.add([confirmation])
        return True

    async def recent_invitations(self, email: str) -> rules.RecentMails:
        """Count the invitation mails of the last 24 hours, with the address locked."""
        async with self.connection.within(ACROSS_TENANTS):
            mail = self._to(email, rules.INVITATION, rules.NoData())
            return await store.count_recent(self.connection, mail, self.now)

    async def invite(self, email: str, invitation_id: str) -> None:
        """Queue the mail of an invitation; check the limits before, by `recent_invitations`."""
        reference = rules.InvitationReference(invitation_id)
        async with self.connection.within(ACROSS_TENANTS):
            await self._mails.add([self._to(email, rules.INVITATION, reference)])

    def _to(self, email: str, mail_type: str, data: rules.MailData) -> NewMail:
        return NewMail(mail_type, self.tenant_id, data).to(email)

    @property
    def _mails(self) -> MailOutbox:
        return MailOutbox(self.connection, self.outbox, self.now)
