"""What the operator does with the endpoints of webhooks. It changes no tenant: what one of the
operator's people does is in their trail.
"""

from dataclasses import dataclass
from datetime import datetime

from tenantry.audit.operator_trail import record_acts
from tenantry.auth.changes import Repeated, answered_once
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db.connection import ACROSS_TENANTS, OF_PEOPLE
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim
from tenantry.domain.audit import Author
from tenantry.domain.operator_acts import NewAct, OperatorAction
from tenantry.domain.webhook_endpoints import ListedEndpoint, QueuedEvents, WebhookTest
from tenantry.outbound.webhooks import OutboundWebhooks


@dataclass(frozen=True)
class WebhookOperations:
    """Operates webhooks as `OutboundWebhooks` does, and records who does it in the same
    transaction.
    """

    webhooks: OutboundWebhooks

    @property
    def _database(self) -> Database:
        return self.webhooks.database

    @property
    def _clock(self) -> Clock:
        return self.webhooks.clock

    async def list_endpoints(self, most: int | None = None) -> list[ListedEndpoint]:
        """Return the endpoints of the catalog with their states as `read_states`."""
        return await self.webhooks.list_endpoints(most)

    async def test(self, author: Author, name: str) -> WebhookTest:
        """Send a test message, accepted or not. Raises `NotFoundError`."""
        self.webhooks.endpoint(name)
        act = self._act(OperatorAction.WEBHOOK_TESTED, name)
        # before the message, which no rollback takes back
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            await record_acts(connection, author, [act])
        return await self.webhooks.test(name)

    async def enable(self, author: Author, name: str) -> QueuedEvents:
        """Enable an endpoint, and send it what is held. Raises `NotFoundError`."""
        act = self._act(OperatorAction.WEBHOOK_ENABLED, name)
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            queued = await self.webhooks.enable(connection, name)
            await record_acts(connection, author, [act])
        return queued

    async def resend(
        self,
        author: Author,
        name: str,
        *,
        event: str | None = None,
        since: datetime | None = None,
        claim: Claim | None = None,
    ) -> QueuedEvents:
        """Send again: an event, those ``since`` a moment, or all that are not delivered; once for a
        ``claim``. Raises `NotFoundError`, and the errors of idempotency.
        """
        act = self._act(OperatorAction.WEBHOOK_RESENT, name)
        async with (
            # a claim is that of a person's form; the role of batches reads no kept answers
            self._database.transaction(OF_PEOPLE) as connection,
            answered_once(connection, claim, QueuedEvents, act.at) as request,
        ):
            if isinstance(request, Repeated):
                return request.first_answer
            async with connection.within(ACROSS_TENANTS):
                queued = await self.webhooks.resend(connection, name, event=event, since=since)
                await record_acts(connection, author, [act])
            return request.answer(queued)

    def _act(self, action: OperatorAction, name: str) -> NewAct:
        return NewAct(new_id("act"), self._clock(), action, None, name)
