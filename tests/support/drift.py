"""Many tenants that lost one event in twenty: reconciliation finds and repairs each one once."""

import random
from typing import Any, Final

from tenantry.domain.billing.events import REQUIRED_TYPES
from tenantry_devkit.simulator import Simulator, State
from tests.support import figures
from tests.support.billing import rows
from tests.support.truth import (
    NOTHING,
    Record,
    World,
    drifted,
    missed_ids,
    record_of,
    running_world,
)

DROPPED: Final = 0.05
WEEKS: Final = 2
SEED: Final = 5
ADD_TENANTS: Final = """
WITH made AS (
  INSERT INTO tenants (id, name, owner_id, owner_email)
  SELECT 'org-' || n, 'Org ' || n, 'usr_' || n, 'owner@x.example' FROM generate_series(1, %s) AS n RETURNING id)
INSERT INTO customers (id, tenant_id, linked_by) SELECT 'cus_' || id, id, 'operator' FROM made
"""
RECORDS: Final = """
SELECT id, plan, subscription_status AS "subscriptionStatus", cancel_at_period_end AS "cancelAtPeriodEnd",
       to_char(to_timestamp(current_period_end), 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS "currentPeriodEnd"
  FROM tenants ORDER BY id
"""


async def live(world: World, tenants: int) -> None:
    """Everybody subscribes to something weekly, and then all kinds of things happen for two
    weeks.
    """
    simulator, chance = world.simulator, random.Random(SEED)  # noqa: S311  # to be the same again, not to be secret
    for price, amount in (("price_pro", 2900), ("price_business", 9900)):
        simulator.price(price, amount, interval="week")
    subscriptions = []
    for number in range(1, tenants + 1):
        org = f"org-{number}"
        simulator.customer(f"cus_{org}")
        price, days = (
            chance.choice(["price_pro", "price_business"]),
            chance.choice([0, 0, 0, 5, 20]),
        )
        subscriptions.append(
            simulator.subscribe(f"cus_{org}", price, metadata={"orgId": org}, trial_days=days)
        )
    for _ in range(WEEKS):
        for subscription in subscriptions:
            if not simulator.subscriptions[subscription.id].has_ended:
                run_weeks(simulator, subscription.id, subscription.customer, chance)
        await world.passes(days=7)
    await world.passes(minutes=5)


def run_weeks(
    simulator: Simulator, subscription: str, customer: str, chance: random.Random
) -> None:
    """One of the things that happen to subscribers, or nothing."""
    match chance.randrange(12):
        case 0:
            simulator.change_plan(subscription, chance.choice(["price_pro", "price_business"]))
        case 1:
            simulator.cancel(subscription)
        case 2:
            simulator.cancel(subscription, at_period_end=True)
        case 3:
            simulator.resume(subscription)
        case 4:
            simulator.card_declines(customer)
        case 5:
            simulator.card_works(customer)


async def records(world: World) -> dict[str, Record]:
    """What the tenants' records are."""
    return {row["id"]: Record.of(row) for row in await rows(world.service.conninfo, RECORDS)}


def truth(simulator: Simulator, tenants: int) -> dict[str, Record]:
    """What they must be."""
    by_customer = {each.customer: record_of(each) for each in simulator.subscriptions.values()}
    return {f"org-{n}": by_customer.get(f"cus_org-{n}", NOTHING) for n in range(1, tenants + 1)}


def wrong(found: dict[str, Record], true: dict[str, Record]) -> set[str]:
    return {tenant for tenant, record in found.items() if record != true[tenant]}


def lost(simulator: Simulator) -> dict[str, set[str]]:
    """The events that were lost, by tenant."""
    missing = {
        delivery.event for delivery in simulator.deliveries() if delivery.state is State.LOST
    }
    by_tenant: dict[str, set[str]] = {}
    for event in simulator.events(*REQUIRED_TYPES):
        if event.id in missing:
            by_tenant.setdefault((event.customer or "").removeprefix("cus_"), set()).add(event.id)
    return by_tenant


async def drift_is_repaired(
    conninfo: str, tenants: int, record_property: figures.RecordProperty
) -> None:
    """On an empty database: compare so many tenants with the provider, and record what was
    found.
    """
    async with running_world(conninfo, seed=SEED, concurrency=64) as world:
        await rows(conninfo, ADD_TENANTS, tenants)
        world.simulator.misbehave(drop=DROPPED)
        await live(world, tenants)
        world.simulator.behave()
        true, missing = truth(world.simulator, tenants), lost(world.simulator)
        before = await records(world)
        assert len(wrong(before, true)) > tenants * DROPPED / 2

        looked = await world.compare(dry_run=True)
        assert await records(world) == before
        named = set(drifted(looked))
        assert named == wrong(before, true)
        assert (looked.compared, looked.troubled, looked.stopped) == (tenants, (), None)

        repaired = await world.compare()
        assert set(drifted(repaired)) == named
        assert {each.tenant_id: set(missed_ids(each)) for each in repaired.drifted} == {
            tenant: missing.get(tenant, set()) for tenant in named
        }
        assert await records(world) == true

        again = await world.compare()
        assert (again.compared, again.drifted) == (tenants, ())

        deliveries = world.simulator.deliveries()
        counts: dict[str, Any] = {
            "tenants": tenants,
            "events": len(deliveries),
            "lost": sum(map(len, missing.values())),
        }
        ended = {
            "before": len(wrong(before, true)),
            "named by a dry run": len(named),
            "after reconcile": len(wrong(await records(world), true)),
            "found by a second run": len(again.drifted),
        }
        figures.record(record_property, "drift from the provider", counts, ended)
