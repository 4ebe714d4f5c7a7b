"""Parked refunds and disputes: the job that places them, by the ledger or by the provider."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Final

import pytest

from tenantry.billing import reversals_store as store
from tenantry.billing.reversals import ReversalPlacer
from tenantry.common.secret import Secret
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.outbox import Outbox
from tenantry.domain.billing.state import BillingPolicy
from tenantry.installation.findings import CheckedDatabase
from tenantry.installation.ledger_checks import check_refusals
from tenantry.integrations.stripe.client import ProviderApi
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tests.support import events
from tests.support.billing import Provider, rows
from tests.support.facts import ANY, EACH
from tests.support.findings import checked_settings
from tests.support.logs import watched
from tests.support.patience import patient_database, patient_queue
from tests.support.provider_api import KEY, Answer, ProviderServer, refusal, running_provider
from tests.support.reversals import charge_refunded, disputed, paid_invoice, refunded
from tests.support.service import Service, running_service

FEED: Final = "/api/v1/operator/events"
INVOICE_PAYMENTS: Final = "/v1/invoice_payments"


class Scene:
    """A service, and the provider that its worker asks."""

    def __init__(self, service: Service, server: ProviderServer) -> None:
        self.provider = Provider(service)
        self.service = service
        self.server = server

    async def place(self, *, asks: bool = True, policy: BillingPolicy = ANY) -> int:
        """Run the job once."""
        database = patient_database(self.service.conninfo, pool_size=2)
        await database.open()
        clock = self.service.clock
        async with aclosing(ProviderApi(Secret(KEY), self.server.url, clock)) as api:
            placer = ReversalPlacer(
                database, api if asks else None, policy, Outbox(asks_provider=asks), clock
            )
            try:
                return await placer.place_parked()
            finally:
                await database.close()

    async def changes(self, org_id: str) -> list[tuple[str | None, str]]:
        answer = await self.service.operator.get(FEED, orgId=org_id, types="billing.*")
        return [(each["data"]["id"], each["data"]["status"]) for each in answer.json()["data"]]

    async def stored(self, event: dict[str, Any]) -> tuple[str, str]:
        found = await self.provider.stored(event["id"])
        assert found is not None
        return found["outcome"], found["reason"]

    @property
    def asked(self) -> list[str]:
        return [request.path for request in self.server.requests]


@pytest.fixture
async def scene(fresh_service: Service) -> AsyncIterator[Scene]:
    async with running_provider() as server:
        yield Scene(fresh_service, server)


def of_customer(customer: str | None, intent: str | None = "pi_1") -> Answer:
    return Answer(200, {"object": "charge", "customer": customer, "payment_intent": intent})


async def test_an_invoice_that_arrives_later_places_them_without_the_provider(scene: Scene) -> None:
    subscriber = await scene.provider.subscriber()
    event = refunded()
    await scene.provider.send(event)
    assert await scene.place(asks=False) == 0
    await scene.provider.send(paid_invoice(subscriber.customer))
    assert await scene.changes(subscriber.id) == []
    assert await scene.place(asks=False) == 1
    assert await scene.changes(subscriber.id) == [("re_1", "succeeded")]
    assert await scene.place() == 0
    assert scene.asked == []


async def test_the_provider_says_whose_a_charge_is(scene: Scene) -> None:
    subscriber = await scene.provider.subscriber()
    await scene.provider.send(disputed())
    scene.server.answers.append(of_customer(subscriber.customer))
    assert await scene.place() == 1
    assert scene.asked == ["/v1/charges/ch_1"]
    assert await scene.changes(subscriber.id) == [("dp_1", "needs_response")]
    closed = disputed("charge.dispute.closed", status="lost", at=events.NOW + 9)
    await scene.provider.send(closed)  # now the ledger knows the charge
    assert await scene.changes(subscriber.id) == [("dp_1", "needs_response"), ("dp_1", "lost")]


async def test_a_refund_without_charge_is_asked_by_its_payment_intent(scene: Scene) -> None:
    subscriber = await scene.provider.subscriber()
    await scene.provider.send(refunded(charge=None))
    scene.server.answers.append(Answer(200, {"customer": {"id": subscriber.customer}}))
    assert await scene.place() == 1
    assert scene.asked == ["/v1/payment_intents/pi_1"]


async def test_an_unknown_customer_is_asked_once_and_waits_for_its_link(scene: Scene) -> None:
    subscriber = await scene.provider.subscriber(linked=False)
    event = refunded()
    await scene.provider.send(event)
    scene.server.answers.append(of_customer(subscriber.customer))
    assert await scene.place() == await scene.place() == 0
    assert len(scene.asked) == 1
    waits = f"Waits: customer {subscriber.customer} is not known yet."
    assert await scene.stored(event) == ("parked", waits)
    await scene.provider.arrives(subscriber, stripeCustomerId=subscriber.customer)
    assert await scene.changes(subscriber.id) == [("re_1", "succeeded")]


async def test_a_payment_of_a_guest_is_ignored(scene: Scene) -> None:
    event = refunded()
    await scene.provider.send(event)
    scene.server.answers.append(of_customer(None))
    assert await scene.place() == 0
    assert await scene.stored(event) == ("ignored", "The payment has no customer at the provider.")


async def test_a_payment_that_the_provider_does_not_know_is_asked_about_for_a_day(
    scene: Scene,
) -> None:
    event = refunded()
    await scene.provider.send(event)
    missing = refusal(404, code="resource_missing", message="No such charge: 'ch_1'")
    scene.server.answers.extend([missing] * 3)
    for _ in range(2):
        assert await scene.place() == 0
    assert len(scene.asked) == 2
    scene.service.clock.advance(days=1)
    assert await scene.place() == 0
    assert len(scene.asked) == 2
    assert (await scene.stored(event))[0] == "parked"


async def test_a_refusal_leaves_the_others_to_the_ledger(scene: Scene) -> None:
    subscriber = await scene.provider.subscriber()
    await scene.provider.send(
        refunded(charge="ch_unknown", intent=None), refunded("refund.created")
    )
    await scene.provider.send(paid_invoice(subscriber.customer))
    scene.server.answers.append(refusal(403, message="The key lacks rak_charge_read."))
    assert await scene.place() == 1
    assert await scene.changes(subscriber.id) == [("re_1", "succeeded")]
    [kept] = await rows(scene.service.conninfo, "SELECT operation FROM provider_refusals")
    assert kept["operation"] == "payment lookup"


async def test_a_refusal_about_one_payment_does_not_stop_the_others(scene: Scene) -> None:
    subscriber = await scene.provider.subscriber()
    await scene.provider.send(refunded(charge="ch_odd", intent=None))
    await scene.provider.send(disputed())
    scene.server.answers.append(refusal(400, message="This charge cannot be read."))
    scene.server.answers.append(of_customer(subscriber.customer))
    assert await scene.place() == 1
    assert await scene.changes(subscriber.id) == [("dp_1", "needs_response")]


async def test_parked_refunds_are_ignored_after_thirty_days(scene: Scene) -> None:
    event = refunded()
    await scene.provider.send(event)
    scene.service.clock.advance(days=30, seconds=1)
    database = patient_database(scene.service.conninfo, pool_size=2)
    await database.open()
    await RetentionService(database, timedelta(days=90), scene.service.clock).run()
    await database.close()
    assert (await scene.stored(event))[0] == "ignored"


async def test_doctor_reports_a_refused_lookup_without_a_tenant(scene: Scene) -> None:
    await scene.provider.send(refunded())
    scene.server.answers.append(refusal(403, message="The key lacks rak_charge_read."))
    await scene.place()
    database = patient_database(scene.service.conninfo, pool_size=2)
    await database.open()
    async with database.transaction(ACROSS_TENANTS) as connection:
        now = scene.service.clock()
        [found] = await check_refusals(CheckedDatabase(connection, checked_settings(), now))
    await database.close()
    assert found.message.startswith("payment lookup refused, last at 2026-01-01 12:00 UTC (1 time ")


async def test_a_connected_accounts_payment_is_not_asked_for(scene: Scene) -> None:
    async with running_service(scene.service.conninfo, PROVIDER_ACCOUNTS="acct_1") as service:
        await Provider(service).send({**refunded(), "account": "acct_1"})
    assert await scene.place() == 0
    assert scene.asked == []


async def test_the_invoice_decides_between_tenants_of_one_customer(scene: Scene) -> None:
    async with running_service(scene.service.conninfo, SUBSCRIPTIONS="each") as service:
        provider = Provider(service)
        first, second = await provider.subscriber(), await provider.subscriber(linked=False)
        names = {**second.names, "customer": first.customer}
        invoice = events.succeeded(
            customer=first.customer,
            subscription_id=names["subscription_id"],
            invoice_id="in_second",
        )
        await provider.send(events.updated(**names), invoice, disputed())
        listed = {"object": "list", "has_more": False, "data": [{"invoice": "in_second"}]}
        scene.server.answers.extend([of_customer(first.customer), Answer(200, listed)])
        assert await scene.place(policy=EACH) == 1
    assert scene.asked == ["/v1/charges/ch_1", INVOICE_PAYMENTS]
    assert scene.server.requests[1].params["payment[payment_intent]"] == "pi_1"
    assert await scene.changes(second.id) == [("dp_1", "needs_response")]
    assert await scene.changes(first.id) == []


async def test_two_workers_place_it_once(scene: Scene) -> None:
    subscriber = await scene.provider.subscriber()
    await scene.provider.send(refunded(), paid_invoice(subscriber.customer))
    placed = await asyncio.gather(*(scene.place(asks=False) for _ in range(4)))
    assert sum(placed) == 1
    assert await scene.changes(subscriber.id) == [("re_1", "succeeded")]


LEDGER: Final = """
INSERT INTO billing_events (id, arrival, type, created, received_at, tenant_id, outcome, payments)
SELECT 'evt_' || n, n, 'invoice.paid', n, now(), 'tenant_' || n % 100, 'applied',
       CASE WHEN n % 2 = 0 THEN ARRAY['ch_' || n, 'pi_' || n] END
  FROM generate_series(1, 20000) AS n
"""


async def test_the_tenant_of_a_payment_is_found_by_an_index(emptied: str) -> None:
    await rows(emptied, LEDGER)
    await rows(emptied, "ANALYZE billing_events")
    plan = str(await rows(emptied, f"EXPLAIN {store.TENANTS_OF_PAYMENTS}", ["ch_4711"]))
    assert "billing_events_of_payment" in plan
    assert "Seq Scan" not in plan


PARKED: Final = """
INSERT INTO billing_events (id, arrival, type, created, received_at, customer_id, subscription_id, outcome)
SELECT 'evt_' || n, n, 'invoice.paid', n, now(), 'cus_' || n, 'sub_' || n, 'parked'
  FROM generate_series(1, 20000) AS n
"""


async def test_other_parked_events_cost_the_job_nothing(emptied: str) -> None:
    await rows(emptied, PARKED)
    await rows(emptied, "ANALYZE billing_events")
    plan = str(await rows(emptied, f"EXPLAIN {store.WAITING}", ["refund.created"], 200))
    assert "billing_events_parked_by_subscription" in plan
    assert "Index Cond: (subscription_id IS NULL)" in plan


async def test_those_that_wait_for_a_customer_do_not_keep_others_from_their_turn(
    scene: Scene,
) -> None:
    first = refunded()
    await scene.provider.send(first, charge_refunded(1000, charge="ch_2", customer="cus_other"))
    database = patient_database(scene.service.conninfo, pool_size=1)
    await database.open()
    async with database.transaction(ACROSS_TENANTS) as connection:
        [found] = await store.read_waiting(connection, 1)
    await database.close()
    assert found.event.id == first["id"]


async def test_a_parked_event_defers_the_job(emptied: str) -> None:
    settings = {"PROVIDER_SECRET_KEY": KEY, "PROVIDER_API_BASE": "http://127.0.0.1:1"}
    async with running_service(emptied, **settings) as service:
        provider = Provider(service)
        subscriber = await provider.subscriber()
        await provider.send(charge_refunded(1000, customer=subscriber.customer))
        assert await _jobs(emptied) == []
        await provider.send(disputed(charge="ch_2", intent=None))
        await provider.send(disputed(charge="ch_3", intent=None, dispute_id="dp_3"))
        assert [job["lock"] for job in await _jobs(emptied)] == ["place_refunds_and_disputes"]
        await _work(service)


async def _jobs(conninfo: str) -> list[dict[str, Any]]:
    return await rows(
        conninfo,
        "SELECT lock FROM procrastinate_jobs WHERE task_name = 'place_refunds_and_disputes'",
    )


async def _work(service: Service) -> None:
    """Let a worker do the job that waits."""
    database, queue = (
        patient_database(service.conninfo, pool_size=2),
        patient_queue(service.conninfo),
    )
    await database.open()
    await queue.open()
    placer = ReversalPlacer(database, None, ANY, Outbox(), service.clock)
    work = Work(
        None,
        RetentionService(database, timedelta(days=90), service.clock),
        place_reversals=placer.place_parked,
    )
    with watched("procrastinate") as log:
        worker = asyncio.create_task(queue.run_worker(work, polling_interval=0.02))
        await log.until("place_refunds_and_disputes")
        await log.until("(timestamp=0) ended with status: Success")
        worker.cancel()
        await asyncio.wait({worker})
    await queue.close()
    await database.close()
