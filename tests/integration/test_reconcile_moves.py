"""Reconciling after the event was lost that moved a subscription to another tenant: both are right
after one run.
"""

import pytest

from tenantry.domain.billing.events import KNOWN_TYPES
from tenantry.domain.billing.state import BillingPolicy
from tests.support.billing import Subscriber
from tests.support.facts import ANY, EACH
from tests.support.truth import World, drifted, running_world

CASES = [
    (True, "all"),  # first: later there are the tenants of other cases too
    (True, "former"),
    (True, "present"),
    (False, "former"),
    (False, "present"),
]
"""Whether the other tenant has a customer, and which tenants are compared."""
OVER = ("free", "canceled")
PAID = ("pro", "active")


async def lost_move(world: World, *, with_customer: bool) -> tuple[Subscriber, Subscriber]:
    """A tenant whose subscription has moved to another one, while the event of that was lost."""
    former, present = (
        await world.subscriber("price_pro"),
        await world.subscriber(linked=with_customer),
    )
    assert await world.compare_one(former) is None
    async with world.losing_deliveries():
        world.simulator.set_metadata(world.subscription(former), {"orgId": present.id})
    return former, present


@pytest.mark.parametrize("policy", [ANY, EACH], ids=["any", "each"])
async def test_both_tenants_of_a_lost_move_are_right_after_one_run(
    conninfo: str, policy: BillingPolicy
) -> None:
    async with running_world(conninfo, policy=policy) as world:
        for with_customer, named in CASES:
            case = f"{with_customer=}, {named=}"
            former, present = await lost_move(world, with_customer=with_customer)
            selected = {"all": [], "former": [former], "present": [present]}[named]
            looked = await world.compare(*selected, dry_run=True)
            assert drifted(looked) == sorted([former.id, present.id]), case
            assert await world.provider.state(former) == PAID, case
            found = await world.compare(*selected)
            assert drifted(found) == sorted([former.id, present.id]), case
            assert await states(world, former, present) == [OVER, PAID], case
            for again in (former, present):
                assert await world.compare_one(again) is None, case
            assert await states(world, former, present) == [OVER, PAID], case
        assert (await world.compare()).drifted == ()


async def states(world: World, *subscribers: Subscriber) -> list[tuple[str, str]]:
    return [await world.provider.state(each) for each in subscribers]


async def test_comparison_leaves_a_subscription_with_the_tenant_that_its_metadata_name(
    conninfo: str,
) -> None:
    async with running_world(conninfo, policy=EACH) as world:
        former, present = await world.subscriber("price_pro"), await world.subscriber()
        world.simulator.set_metadata(world.subscription(former), {"orgId": present.id})
        await world.passes(minutes=1)
        for _ in range(2):
            assert (await world.compare()).drifted == ()
            assert await world.provider.state(former) == ("free", "canceled")
            assert await world.provider.state(present) == ("pro", "active")


async def test_a_lost_move_and_the_lost_payments_after_it_are_right_after_a_backfill(
    conninfo: str,
) -> None:
    """The backfill ingests the newest events first."""
    async with running_world(conninfo, policy=EACH, types=KNOWN_TYPES) as world:
        former, present = await world.subscriber("price_pro"), await world.subscriber()
        since = int(world.service.clock.now.timestamp())
        async with world.losing_deliveries():
            world.simulator.set_metadata(world.subscription(former), {"orgId": present.id})
            world.simulator.card_declines(former.customer)
            await world.passes(days=29)
        assert await world.provider.state(former) == PAID
        async with world.losing_deliveries():
            await world.passes(days=4)
        await world.reconciler.backfill.run(since)
        assert await world.provider.state(former) == OVER
        assert await world.provider.state(present) == ("pro", "past_due")
        assert await world.provider.notifications(former) == []
        assert len(await world.provider.notifications(present)) > 0
