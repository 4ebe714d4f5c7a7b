"""The provider's side of the running service: send events; read tenants, ledger and
notifications.
"""

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import httpx2
import psycopg
from psycopg.rows import dict_row

from tenantry.billing.ledger_store import unpack
from tests.support.events import INVOICE_URL
from tests.support.service import Organization, Service
from tests.support.signing import deliver

EVENTS: Final = "/api/v1/billing/events"
_ADD_TENANTS: Final = """
WITH given AS (
  SELECT * FROM json_to_recordset(%s::json) AS given (id text, customer text)
), made AS (
  INSERT INTO tenants (id, name, owner_id, owner_email, stripe_customer_id)
  SELECT id, id, 'usr_' || id, 'owner@x.example', customer FROM given RETURNING id)
INSERT INTO customers (id, tenant_id, linked_by)
SELECT customer, id, 'operator' FROM made JOIN given USING (id) WHERE customer IS NOT NULL
"""
_PATIENCE: Final = 20.0
_DELIVERIES: Final = 10
_numbers = itertools.count(1)


class Subscriber(NamedTuple):
    """A tenant, and the provider's customer that it is to be."""

    id: str
    customer: str
    organization: Organization | None

    @property
    def names(self) -> dict[str, Any]:
        """What a subscription or checkout event says of it."""
        return {"org": self.id, "customer": self.customer, "subscription_id": f"sub_{self.id}"}


class Provider:
    """The payment provider, as the service meets it."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def subscriber(self, *, linked: bool = True) -> Subscriber:
        """A new tenant."""
        customer = f"cus_{next(_numbers)}"
        fields = {"stripeCustomerId": customer} if linked else {}
        organization = await self.service.organization(**fields)
        return Subscriber(organization.id, customer, organization)

    def unlinked(self) -> Subscriber:
        """A tenant that does not exist yet."""
        number = next(_numbers)
        return Subscriber(f"late-{number}", f"cus_{number}", None)

    async def arrives(self, unlinked: Subscriber, **fields: Any) -> None:
        """The operator makes (or sets) the tenant."""
        body = {
            "name": unlinked.id,
            "ownerEmail": "owner@x.example",
            "ownerId": f"usr_{unlinked.id}",
            **fields,
        }
        answer = await self.service.operator.put(f"/api/v1/tenants/{unlinked.id}", body)
        assert answer.status_code in (200, 201), answer.text

    async def post(self, event: dict[str, Any] | bytes, **options: Any) -> httpx2.Response:
        """The answer to one delivery."""
        return await deliver(
            self.service.client, event, at=int(self.service.clock.now.timestamp()), **options
        )

    async def send(self, *events: dict[str, Any]) -> None:
        """Deliver events, one after the other; each must be taken."""
        for event in events:
            answer = await self.post(event)
            assert (answer.status_code, answer.text) == (200, "OK")

    async def send_together(self, events: Sequence[dict[str, Any]]) -> list[int]:
        """Deliver events at the same time; returns the answers' statuses."""
        return [
            answer.status_code
            for answer in await asyncio.gather(*(self.post(event) for event in events))
        ]

    async def deliver_together(self, events: Sequence[dict[str, Any]]) -> None:
        """Deliver events at the same time, and what a slow machine refuses with 503 again, as the
        provider does.
        """
        left = list(events)
        for _ in range(_DELIVERIES):
            statuses = await self.send_together(left)
            assert set(statuses) <= {200, 503}
            left = [event for event, status in zip(left, statuses, strict=True) if status == 503]
            if not left:
                return
        raise AssertionError(f"{len(left)} events were refused each time")

    async def tenant(self, subscriber: Subscriber) -> dict[str, Any]:
        """The tenant's record, as the API gives it."""
        export = await self.service.operator.get(f"/api/v1/tenants/{subscriber.id}/export")
        assert export.status_code == 200, export.text
        record: dict[str, Any] = export.json()["tenant"]
        return record

    async def state(self, subscriber: Subscriber) -> tuple[str, str]:
        """The tenant's plan and subscription status."""
        record = await self.tenant(subscriber)
        return record["plan"], record["subscriptionStatus"]

    async def ledger(self, subscriber: Subscriber) -> dict[str, dict[str, Any]]:
        """The tenant's ledger, by event id."""
        export = await self.service.operator.get(f"/api/v1/tenants/{subscriber.id}/export")
        return {entry["id"]: entry for entry in export.json()["billingEvents"]}

    async def notifications(self, subscriber: Subscriber) -> list[dict[str, Any]]:
        """The tenant's notifications."""
        return await rows(
            self.service.conninfo,
            "SELECT id::text, type, recipient_id, tenant_id, channels, data, cause, status FROM notifications "
            "WHERE tenant_id = %s ORDER BY created_at",
            subscriber.id,
        )

    async def stored(self, event_id: str) -> dict[str, Any] | None:
        """An event of any tenant as the ledger holds it, and its raw body."""
        found = await rows(
            self.service.conninfo,
            "SELECT e.*, b.body FROM billing_events e LEFT JOIN billing_bodies b USING (arrival) WHERE id = %s",
            event_id,
        )
        if not found:
            return None
        [row] = found
        body = None if row["body"] is None else unpack(row["body"])
        return {"before": None, "after": None, **row.pop("document"), **row, "body": body}


def notice(event: dict[str, Any], subscriber: Subscriber, owner: str) -> dict[str, Any]:
    """The notification of SPEC 2.4 for a failed payment, without its id."""
    return {
        "type": "billing.payment_failed",
        "recipient_id": owner,
        "tenant_id": subscriber.id,
        "channels": ["email"],
        "data": {"invoiceUrl": INVOICE_URL},
        "cause": event["id"],
        "status": "queued",
    }


async def add_tenants(conninfo: str, customers: Mapping[str, str | None]) -> None:
    """Create tenants in one statement, each with its customer if it has one."""
    made = [{"id": tenant, "customer": customer} for tenant, customer in customers.items()]
    await rows(conninfo, _ADD_TENANTS, json.dumps(made))


async def rows(conninfo: str, statement: str, *parameters: object) -> list[dict[str, Any]]:
    """The rows of a query."""
    async with await psycopg.AsyncConnection.connect(
        conninfo, row_factory=dict_row, autocommit=True
    ) as connection:
        cursor = await connection.execute(statement.encode(), parameters or None)
        return await cursor.fetchall() if cursor.description else []


async def until_blocked(conninfo: str, count: int = 1) -> None:
    """Return as soon as so many connections of the database wait for a lock."""
    statement = b"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(_PATIENCE):
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
            while (await (await connection.execute(statement)).fetchall())[0][0] < count:
                pass
