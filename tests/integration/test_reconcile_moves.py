"""Reconciling after the event was lost that moved a subscription to another tenant: both are right
after one run.
"""

import pytest

from tenantry.domain.billing.events import KNOWN_TYPES
from tenantry.domain.billing.state import BillingPolicy
from tests.support.billing import Subscriber
from tests.support.facts import ANY, EACH
from tests.support.truth import World, drifted, running_world

OVER = ("free", "canceled")
PAID = ("pro", "active")


async def lost_move(world: World, *, with_customer: bool) -> tuple[Subscriber, Subscriber]:
    """A tenant whose subscription has moved to another one, while the event of that was lost."""
    former, present = (
        await world.subscriber("price_pro"),
        await world.subscriber(linked=with_customer),
    )
    assert (await world.compare()).drifted == ()
    async with world.losing_deliveries():
        world.simulator.set_metadata(world.subscription(former), {"orgId": present.id})
    return former, present


@pytest.mark.parametrize("policy", [ANY, EACH], ids=["any", "each"])
@pytest.mark.parametrize("with_customer", [True, False], ids=["customer", "no-customer"])
@pytest.mark.parametrize("named", ["all", "former", "present"])
async def test_both_tenants_of_a_lost_move_are_right_after_one_run(
    conninfo: str, policy: BillingPolicy, with_customer: bool, named: str
) -> None:
    async with running_world(conninfo, policy=policy) as world:
        former, present = await lost_move(world, with_customer=with_customer)
        selected = {"all": [], "former": [former], "present": [present]}[named]
        looked = await world.compare(*selected, dry_run=True)
        assert drifted(looked) == sorted([former.id, present.id])
        assert await world.provider.state(former) == PAID
        found = await world.compare(*selected)
        assert drifted(found) == sorted([former.id, present.id])
        states = [await world.provider.state(each) for each in (former, present)]
        assert states == [OVER, PAID]
        for again in ([], [former], [present]):
            assert (await world.compare(*again)).drifted == ()
        assert [await world.provider.state(each) for each in (former, present)] == [OVER, PAID]


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
