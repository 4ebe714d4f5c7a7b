"""Random histories of several subscriptions, delivered to the database and compared with the
oracle.
"""

import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from tenantry.accounts.tenants import TenantService
from tenantry.billing.batch_store import lock_account
from tenantry.billing.ingest import WebhookService
from tenantry.billing.ledger_queries import OperatorLedger
from tenantry.billing.replay import ReplayService, Selection
from tenantry.db.connection import of_tenant
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.explanation import BillingExplanation
from tenantry.domain.billing.ledger import ReceivedEvent
from tenantry.domain.billing.tenant_record import BillingRecord
from tenantry.domain.tenants import TenantInput
from tests.support import figures
from tests.support.orders import shuffled
from tests.support.patience import patient_database
from tests.support.random_subscription_histories import random_history
from tests.support.subscription_oracle import Expected, Rules
from tests.support.subscription_orders import differences, policy_of

MOMENT: Final = datetime.fromtimestamp(10**6, UTC)
_MOST_TOGETHER: Final = 12


class DeliveredTenant(NamedTuple):
    """A tenant with what happened to it, and the plan that the operator gave it."""

    id: str
    happened: Sequence[BillingEvent]
    rules: Rules
    customer: str | None
    base_plan: str


def tenant_of_seed(seed: int) -> DeliveredTenant:
    """A tenant with a random history; each third has a plan of the operator."""
    history = random_history(seed)
    customer = f"cus_{seed}" if history.customers else None
    events = [_renamed(event, seed) for event in history.events]
    base_plan = ("free", "free", "pro", "free", "free", "business")[seed % 6]
    return DeliveredTenant(f"org_{seed}", events, history.rules, customer, base_plan)


def _renamed(event: BillingEvent, seed: int) -> BillingEvent:
    """The event with ids that no other history has."""
    names = {
        name: f"{seed}_{value}"
        for name in ("id", "subscription_id", "invoice_id")
        if (value := getattr(event, name)) is not None
    }
    org = {} if event.org_id is None else {"org_id": f"org_{seed}"}
    return msgspec.structs.replace(event, customer_id=f"cus_{seed}", **names, **org)


class Instance:
    """The part of the service that handles events."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._policy = policy_of(rules)
        self.webhooks = WebhookService([database.lane()], self._policy, None, lambda: MOMENT)
        self._tenants = TenantService(database, self._policy, Outbox(), lambda: MOMENT)

    async def create(self, tenant: DeliveredTenant) -> None:
        """Make a tenant with its customer, if one is linked from the start."""
        await self._tenants.put(
            BY_OPERATOR,
            tenant.id,
            TenantInput(
                tenant.id, "owner@x.example", "usr", tenant.customer, plan=tenant.base_plan
            ),
        )

    async def deliver_all(self, tenants: Sequence[DeliveredTenant]) -> None:
        """Make tenants, and deliver their events in random orders, mixed with each other."""
        for tenant in tenants:
            await self.create(tenant)
        for batch in _batches(tenants):
            await self.deliver(batch)

    async def deliver(self, batch: Sequence[BillingEvent]) -> None:
        """Deliver events in one transaction."""
        answers = await self.webhooks.apply([ReceivedEvent(event, MOMENT) for event in batch])
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

    async def explanation(self, tenant: DeliveredTenant, now: datetime) -> BillingExplanation:
        """What `tenantry admin explain-tenant` gets at a moment."""
        ledger = OperatorLedger(self._database, self._policy, lambda: now)
        return await ledger.explain(tenant.id, 100)

    async def record(self, tenant: DeliveredTenant) -> BillingRecord:
        """What the database says of a tenant."""
        async with self._database.transaction(of_tenant(tenant.id)) as connection:
            account = await lock_account(connection, tenant.id, self._policy)
        assert account is not None
        return account.record

    async def rebuilt_otherwise(self, tenants: Iterable[DeliveredTenant]) -> list[str]:
        """The tenants whose stored state is not what the fold of their whole ledger gives."""
        replay = ReplayService(self._database, self._policy, lambda: MOMENT)
        selection = Selection(tuple(tenant.id for tenant in tenants))
        checked = [
            each async for chunk in replay.run(selection, dry_run=True) for each in chunk.checked
        ]
        return [each.tenant_id for each in checked if not each.is_right]


@asynccontextmanager
async def running_instance(conninfo: str, rules: Rules) -> AsyncIterator[Instance]:
    """An instance while the block runs."""
    database = patient_database(conninfo, pool_size=2)
    await database.open()
    instance = Instance(database, rules)
    try:
        yield instance
    finally:
        await instance.webhooks.close()
        await database.close()


def by_catalog(seeds: Iterable[int]) -> list[list[DeliveredTenant]]:
    """Tenants with random histories, those of one catalog together."""
    groups: defaultdict[int, list[DeliveredTenant]] = defaultdict(list)
    for seed in seeds:
        tenant = tenant_of_seed(seed)
        groups[id(tenant.rules.catalog)].append(tenant)
    return list(groups.values())


async def check_in_database(
    conninfo: str, seeds: Iterable[int], record_property: figures.RecordProperty
) -> None:
    """Deliver random histories in random orders, mixed with each other, and assert what the
    database says then.
    """
    groups = by_catalog(seeds)
    wrong: dict[str, list[str]] = {}
    for tenants in groups:
        async with running_instance(conninfo, tenants[0].rules) as instance:
            await instance.deliver_all(tenants)
            for tenant in tenants:
                now = max(event.created for event in tenant.happened)
                expected = Expected(tenant.happened, tenant.rules, tenant.base_plan)
                if found := differences(await instance.record(tenant), expected, tenant.rules, now):
                    wrong[tenant.id] = found
            for tenant_id in await instance.rebuilt_otherwise(tenants):
                wrong.setdefault(tenant_id, []).append("a rebuild gives another state")
    number = sum(map(len, groups))
    figures.record(
        record_property,
        "Several subscriptions in the database",
        {"tenants": number},
        {"tenantry": len(wrong)},
    )
    assert not wrong, wrong


def _batches(tenants: Sequence[DeliveredTenant]) -> Iterable[Sequence[BillingEvent]]:
    """The events of all tenants, each with some duplicates and in a random order, mixed, in batches
    of random size.
    """
    rng = random.Random(tenants[0].id)  # noqa: S311  # a sample that can be repeated
    streams = [shuffled(rng, [tenant.happened]) for tenant in tenants]
    turns = [stream for stream in streams for _ in stream]
    rng.shuffle(turns)
    waiting = {id(stream): iter(stream) for stream in streams}
    events = [next(waiting[id(stream)]) for stream in turns]
    while events:
        size = rng.randint(1, _MOST_TOGETHER)
        yield events[:size]
        events = events[size:]
