"""Webhooks that are sent to receivers on loopback, with a clock that tests move."""

import asyncio
import hmac
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.outbound_events import NewEvent, event_id
from tenantry.domain.webhook_endpoints import QueuedEvents
from tenantry.domain.webhooks import WebhookEndpoint
from tenantry.integrations.webhook_client import WebhookClient
from tenantry.outbound.publishing import publish
from tenantry.outbound.webhooks import OutboundWebhooks
from tests.support.service import ManualClock
from tests.support.webhook_endpoint import ReceivedWebhook

JsonObject = dict[str, Any]
_PATIENCE: Final = 240.0


class Changed(msgspec.Struct):
    """The object of an event."""

    number: int


@dataclass
class Sending:
    """Webhooks to endpoints, on a database that may have others who send."""

    database: Database
    endpoints: Sequence[WebhookEndpoint]
    clock: ManualClock = field(default_factory=ManualClock)
    timeout: float = 5.0

    def __post_init__(self) -> None:
        self.webhooks = OutboundWebhooks(
            self.database,
            Outbox(),
            WebhookClient(timeout=self.timeout),
            self.clock,
            self.endpoints,
            interval=0.02,
        )

    async def begin(self) -> None:
        """Let the endpoints receive the changes from now on."""
        await self.webhooks.queue_due()

    async def publish(self, number: int = 1, event_type: str = "tenant.updated") -> list[str]:
        """Publish events, each in its own transaction, and return their ids in order."""
        for each in range(number):
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                now = self.clock()
                await publish(connection, [NewEvent(event_type, "acme", now, Changed(each))], now)
        return (await self.events())[-number:]

    async def publish_together(self, number: int) -> None:
        """Publish events in one transaction."""
        now = self.clock()
        events = [NewEvent("tenant.updated", "acme", now, Changed(each)) for each in range(number)]
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            await publish(connection, events, now)

    async def enable(self, name: str) -> QueuedEvents:
        """Enable an endpoint, and commit."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await self.webhooks.enable(connection, name)

    async def resend(
        self, name: str, *, event: str | None = None, since: datetime | None = None
    ) -> QueuedEvents:
        """Send events again, and commit."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await self.webhooks.resend(connection, name, event=event, since=since)

    async def events(self) -> list[str]:
        """The ids of all events, in order."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            found = await connection.fetch_column(
                "SELECT version FROM outbound_events ORDER BY epoch, xid, version"
            )
        return [event_id(version) for version in found]

    async def send(self) -> None:
        """Do what a worker does at this moment."""
        await self.webhooks.queue_due()
        for endpoint in self.endpoints:
            await self.webhooks.deliver(endpoint.name)

    async def until_delivered(self, number: int) -> None:
        """Wait until workers have delivered as many events."""
        async with asyncio.timeout(_PATIENCE):
            while [each[1] for each in await self.deliveries()].count("delivered") < number:  # noqa: ASYNC110  # another process delivers
                await asyncio.sleep(0.2)

    async def deliveries(self) -> list[tuple[str, str, int]]:
        """The event, status and number of attempts of each delivery, in the order of the events."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            rows = await connection.fetch(
                "SELECT version, status, attempts FROM webhook_deliveries ORDER BY endpoint, version"
            )
        return [(event_id(version), status, attempts) for version, status, attempts in rows]


def ids(received: Sequence[ReceivedWebhook]) -> list[str]:
    """The ids of messages."""
    return [each.headers["webhook-id"] for each in received]


def signature_of(received: ReceivedWebhook, secret: str) -> str:
    """The signature that a message must have (Standard Webhooks 1.0)."""
    head = f"{received.headers['webhook-id']}.{received.headers['webhook-timestamp']}."
    key = b64decode(secret.removeprefix("whsec_"))
    return "v1," + b64encode(hmac.digest(key, head.encode() + received.body, "sha256")).decode()


def content(received: ReceivedWebhook) -> JsonObject:
    """The message itself."""
    decoded: JsonObject = msgspec.json.decode(received.body)
    return decoded
