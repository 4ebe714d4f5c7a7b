"""The service with a simulated provider: its changes, deliveries, and reconciliation."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from tenantry.billing.ingest import WebhookService
from tenantry.billing.reconcile import Reconciler, Reconciliation
from tenantry.billing.tenant_comparison import Comparison
from tenantry.common.clock import Clock, from_epoch, system_clock
from tenantry.common.secret import Secret
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.billing.events import REQUIRED_TYPES
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.plans import OVER as ENDED
from tenantry.integrations.stripe.client import ProviderApi
from tenantry.jobs.queue import JobQueue
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tenantry.server.asgi_types import AsgiApp, Receive, Scope, Send
from tenantry_devkit.serving import serving
from tenantry_devkit.simulator import SECRET_KEY, ProviderEvent, Simulator, State, Subscription
from tests.support.app import BASE_URL, WEBHOOK_SECRET
from tests.support.billing import Provider, Subscriber, rows
from tests.support.facts import ANY
from tests.support.issuer import NOW
from tests.support.patience import patient_database, patient_queue
from tests.support.service import Service, running_service
from tests.support.signing import PATH

_PATIENCE: Final = 20.0
PLANS: Final = {"price_free": "free", "price_pro": "pro", "price_business": "business"}
"""The plans that the prices mean, in the catalog of the package as in that of
`tests.support.facts`.
"""


class Record(NamedTuple):
    """What the provider decides of a tenant record; ``cancels`` says nothing once the subscription
    is over.
    """

    plan: str
    status: str
    period_end: str | None
    cancels: bool | None

    @classmethod
    def of(cls, tenant: dict[str, Any]) -> "Record":
        """What a tenant record says."""
        is_over = tenant["subscriptionStatus"] == "canceled"
        return cls(
            tenant["plan"],
            tenant["subscriptionStatus"],
            tenant["currentPeriodEnd"],
            None if is_over else tenant["cancelAtPeriodEnd"],
        )


NOTHING: Final = Record("free", "none", None, cancels=False)
"""The record of a tenant that nothing is known of."""
OVER: Final = Record("free", "canceled", None, cancels=None)
"""The record of a tenant whose subscription is over."""


def record_of(subscription: Subscription) -> Record:
    """What the record of a tenant must be that has this subscription alone."""
    if subscription.has_ended:
        return OVER
    end = from_epoch(subscription.period_end)
    return Record(
        PLANS[subscription.price],
        subscription.status,
        end.isoformat().replace("+00:00", "Z"),
        subscription.cancel_at_period_end,
    )


class Desk(NamedTuple):
    """The reconciler, with a separate database and job queue."""

    reconciler: Reconciler
    database: Database
    queue: JobQueue
    outbox: Outbox

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """A worker that asks the provider, for the time of the block; at its end the jobs under way
        have ended.
        """
        retention = RetentionService(self.database, timedelta(days=90), system_clock)
        work = Work(None, retention, reconciler=self.reconciler)
        task = asyncio.create_task(
            self.queue.run_worker(work, polling_interval=0.02, grace=_PATIENCE)
        )
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class World:
    """A provider and the service, at the same moment; events arrive when time passes, unless they
    are lost.
    """

    def __init__(self, service: Service, simulator: Simulator, desk: Desk) -> None:
        self.service = service
        self.simulator = simulator
        self.desk = desk
        self.reconciler = desk.reconciler
        self.provider = Provider(service)

    async def subscriber(
        self, price: str | None = None, *, linked: bool = True, **options: Any
    ) -> Subscriber:
        """A new tenant and its customer, with a subscription if there is a price; ``options`` are
        its.
        """
        subscriber = await self.provider.subscriber(linked=linked)
        self.simulator.customer(subscriber.customer)
        if price is not None:
            self.subscribe(subscriber, price, **options)
            await self.passes(minutes=1)
        return subscriber

    def subscribe(self, subscriber: Subscriber, price: str, **options: Any) -> Subscription:
        """The tenant's customer takes a subscription that names the tenant."""
        return self.simulator.subscribe(
            subscriber.customer, price, metadata={"orgId": subscriber.id}, **options
        )

    def subscription(self, subscriber: Subscriber) -> Subscription:
        """The newest subscription of the tenant's customer."""
        return self._subscriptions(subscriber)[-1]

    def _subscriptions(self, subscriber: Subscriber) -> list[Subscription]:
        return [
            each
            for each in self.simulator.subscriptions.values()
            if each.customer == subscriber.customer
        ]

    def truth(self, subscriber: Subscriber) -> Record:
        """What the tenant's record must be: what its living subscription says, of which there is
        one at most.
        """
        subscriptions = self._subscriptions(subscriber)
        living = [each for each in subscriptions if each.status not in ENDED]
        return record_of((living or subscriptions)[-1]) if subscriptions else NOTHING

    async def record(self, subscriber: Subscriber) -> Record:
        """What the tenant's record is."""
        return Record.of(await self.provider.tenant(subscriber))

    async def passes(self, **parts: float) -> None:
        """Let time pass, for both; what is on its way arrives."""
        self.service.clock.advance(**parts)
        await self.simulator.advance(timedelta(**parts))

    @asynccontextmanager
    async def losing_deliveries(
        self, *types: str, subscribers: Collection[Subscriber] = ()
    ) -> AsyncIterator[None]:
        """Within the block, events of these types (or all) about these subscribers (or all) are
        lost.
        """
        customers = {subscriber.customer for subscriber in subscribers}
        await self.simulator.deliver()
        self.simulator.misbehave(
            drop=1.0, types=types, only=lambda event: not customers or event.customer in customers
        )
        yield
        await self.simulator.deliver()
        self.simulator.behave()

    def lost(self, subscriber: Subscriber | None = None) -> list[ProviderEvent]:
        """The events (of a subscriber) that were to be delivered and never were, oldest first."""
        missing = {
            delivery.event
            for delivery in self.simulator.deliveries()
            if delivery.state is State.LOST
        }
        return [
            event
            for event in self.simulator.events(*REQUIRED_TYPES)
            if event.id in missing and (subscriber is None or event.customer == subscriber.customer)
        ]

    async def compare(self, *subscribers: Subscriber, dry_run: bool = False) -> Reconciliation:
        """Compare these subscribers, or all tenants, with the provider, a minute after what
        happened last.
        """
        await self.passes(minutes=1)
        only = [subscriber.id for subscriber in subscribers] or None
        return await self.reconciler.run(only, dry_run=dry_run)

    async def compare_one(
        self, subscriber: Subscriber, *, dry_run: bool = False
    ) -> Comparison | None:
        """The comparison of a subscriber if it had drifted."""
        found = await self.compare(subscriber, dry_run=dry_run)
        assert (found.compared, found.troubled, found.stopped) == (1, (), None)
        return found.drifted[0] if found.drifted else None


class ProviderAddress:
    """The address that a service knows its provider by; passes requests on to one simulated
    provider after another.
    """

    def __init__(self) -> None:
        self.url = ""
        self.simulator: AsgiApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.simulator is not None
        await self.simulator(scope, receive, send)


class Stage(NamedTuple):
    """The service with a key to the provider at this address; carries one world after another."""

    service: Service
    address: ProviderAddress
    policy: BillingPolicy

    @asynccontextmanager
    async def world(
        self, now: datetime | None = None, types: Collection[str] = REQUIRED_TYPES, **options: Any
    ) -> AsyncIterator[World]:
        """A new provider beside the service, both at the moment ``now``; ``options`` are the
        simulator's.

        It sends these types of events.
        """
        service, url = self.service, self.address.url
        clock = service.clock
        clock.now = now or NOW
        simulator = Simulator(client=service.client, wall_clock=clock, start=clock.now, **options)
        simulator.url = url
        simulator.add_endpoint(f"{BASE_URL}{PATH}", WEBHOOK_SECRET, enabled_events=sorted(types))
        self.address.simulator = simulator
        async with reconciling(service.conninfo, url, clock=clock, policy=self.policy) as desk:
            yield World(service, simulator, desk)


@asynccontextmanager
async def running_stage(
    conninfo: str, policy: BillingPolicy = ANY, **values: str
) -> AsyncIterator[Stage]:
    """The service on this database, with a key to a simulated provider; ``values`` are further
    settings.
    """
    subscriptions = policy.subscriptions.value
    async with serving(ProviderAddress()) as address:
        values |= {
            "PROVIDER_SECRET_KEY": SECRET_KEY,
            "PROVIDER_API_BASE": address.url,
            "SUBSCRIPTIONS": subscriptions,
        }
        async with running_service(conninfo, **values) as service:
            yield Stage(service, address, policy)


@asynccontextmanager
async def running_world(
    conninfo: str, *, policy: BillingPolicy = ANY, now: datetime | None = None, **options: Any
) -> AsyncIterator[World]:
    """The service on this database, with a key to the simulated provider; ``options`` are the
    simulator's.
    """
    async with running_stage(conninfo, policy) as stage, stage.world(now, **options) as world:
        yield world


@asynccontextmanager
async def reconciling(
    conninfo: str, url: str, key: str = SECRET_KEY, *, clock: Clock, policy: BillingPolicy = ANY
) -> AsyncIterator[Desk]:
    """What keeps tenants at the truth of the provider at this address."""
    database, queue = patient_database(conninfo, pool_size=5), patient_queue(conninfo)
    outbox = Outbox(asks_provider=True)
    webhooks = WebhookService([database.lane()], policy, outbox, clock)
    await database.open()
    await queue.open()
    async with aclosing(ProviderApi(Secret(key), url, clock)) as provider:
        try:
            yield Desk(
                Reconciler(database, provider, webhooks, policy, outbox, clock),
                database,
                queue,
                outbox,
            )
        finally:
            await webhooks.close()
            await queue.close()
            await database.close()


async def fetches(conninfo: str) -> list[dict[str, Any]]:
    """The jobs that are to ask the provider: ``args``, ``attempts``, ``status``."""
    return await rows(
        conninfo,
        "SELECT args, attempts, status::text FROM procrastinate_jobs WHERE task_name = 'ask_provider' ORDER BY id",
    )


async def until_fetches(conninfo: str, holds: Callable[[list[dict[str, Any]]], bool]) -> None:
    """Return as soon as this holds of the jobs that are to ask the provider."""
    async with asyncio.timeout(_PATIENCE):
        while not holds(await fetches(conninfo)):
            pass


def drifted(found: Reconciliation) -> list[str]:
    """The tenants that had drifted."""
    return [comparison.tenant_id for comparison in found.drifted]


def missed_ids(comparison: Comparison | None) -> list[str]:
    """The events that a drifted tenant had missed, of the types that the endpoint is sent."""
    assert comparison is not None
    return [event.id for event in comparison.missed if event.type in REQUIRED_TYPES]


def ids(events: Iterable[ProviderEvent]) -> list[str]:
    """The ids of events."""
    return [event.id for event in events]
