"""Owners' addresses, kept as the identity provider has them: noticed in tokens, written together every few seconds."""

import asyncio
import logging
from typing import Final

import psycopg

from tenantry.accounts import tenants_store as tenants
from tenantry.accounts.tenants_store import OwnerSeen
from tenantry.audit import trail as audit
from tenantry.common.clock import Clock
from tenantry.db.database import Database
from tenantry.db.scope import ACROSS_TENANTS
from tenantry.domain.audit import Action, ActorKind, Author
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.domain.members import Ownership
from tenantry.domain.owner_addresses import OwnerAddress
from tenantry.integrations.oidc.tokens import Claims
from tenantry.notifications.owner_mail import MailOutbox, announce

INTERVAL: Final = 5.0
"""Seconds between writes: what a process that is killed can lose, until the owner's next request."""

logger = logging.getLogger(__name__)


class OwnerAddresses:
    """Collects owners whose address has changed; `run` writes them, in one statement for all tenants.

    Of two tokens that disagree the one that ends later counts, so that a token from before the change, which goes on
    for a while, does not bring the old address back.
    """

    def __init__(self, database: Database, outbox: MailOutbox, clock: Clock) -> None:
        self._database = database
        self._outbox = outbox
        self._clock = clock
        self._seen: dict[str, OwnerSeen] = {}

    def record(self, org_id: str, claims: Claims) -> None:
        """The tenant's owner has just sent a token with this verified address."""
        if claims.email is None:
            return
        known = self._seen.get(org_id)
        if known is None or known.token_issued <= claims.issued_at:
            self._seen[org_id] = OwnerSeen(org_id, claims.subject, claims.email, claims.issued_at)

    async def run(self) -> None:
        """Write what was collected every `INTERVAL` seconds, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            await self.write()

    async def write(self) -> None:
        """Write what was collected so far. While the database does not take it, it is kept for the next time."""
        seen, self._seen = self._seen, {}
        if not seen:
            return
        now = self._clock()
        try:
            async with self._database.transaction(ACROSS_TENANTS) as connection:
                for seen_as, was in await tenants.move_owner_emails(connection, list(seen.values()), now):
                    await audit.record(
                        connection,
                        Author(ActorKind.SYSTEM),
                        Action.TENANT_UPDATED,
                        org_id=seen_as.org_id,
                        target_id=seen_as.org_id,
                        before=Ownership(seen_as.user_id, was.email, owner_email_verified=was.is_verified),
                        after=Ownership(seen_as.user_id, seen_as.email, owner_email_verified=True),
                        now=now,
                    )
                    is_now = OwnerAddress(seen_as.email, seen_as.email)
                    await announce(connection, self._outbox, seen_as.org_id, was, is_now, now)
        except (DatabaseUnavailableError, psycopg.Error) as error:
            self._seen = {**seen, **self._seen}
            why = type(error.__cause__ or error).__name__  # its text may hold an address
            logger.info("the addresses of %d owners are written later: %s", len(seen), why)
