"""Access of tenants that never paid, whichever way the events come: webhook, backfill,
reconciliation, replay.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

import pytest

from tenantry.domain.billing.events import KNOWN_TYPES
from tenantry.domain.billing.state import SubscriptionRule
from tenantry_devkit.simulator import ApiError
from tests.support.billing import Subscriber, rows
from tests.support.facts import ANY, EACH
from tests.support.replays import replay_one
from tests.support.service import VERIFY
from tests.support.truth import World, running_world

POLICIES: Final = {SubscriptionRule.ANY: ANY, SubscriptionRule.EACH: EACH}


@pytest.fixture(params=SubscriptionRule)
async def world(conninfo: str, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with running_world(conninfo, policy=POLICIES[request.param], types=KNOWN_TYPES) as world:
        yield world


async def abandoned(world: World, plan: str | None = None) -> Subscriber:
    """A tenant whose first payment of the plan `business` fails twice; if given, with another plan
    by contract.
    """
    subscriber = await world.subscriber()
    if plan is not None:
        terms = {"plan": plan, "reason": "a contract"}
        await world.service.operator.put(f"/api/v1/tenants/{subscriber.id}/grants/contract", terms)
    world.simulator.card_declines(subscriber.customer)
    subscription = world.subscribe(subscriber, "price_business")
    await world.passes(minutes=1)
    with pytest.raises(ApiError, match="declined"):
        world.simulator.pay(subscription.latest_invoice or "")
    return subscriber


async def verified(subscriber: Subscriber) -> tuple[str, str]:
    """The access and the effective plan that a gateway gets for a key."""
    assert subscriber.organization is not None
    headers = (await subscriber.organization.owner.get(f"{VERIFY}-")).headers
    return headers["x-access"], headers["x-effective-plan"]


async def test_webhooks_give_no_access_for_a_failed_first_payment(world: World) -> None:
    subscriber, of_operator = await abandoned(world), await abandoned(world, "pro")
    await world.passes(minutes=1)
    assert (await world.provider.tenant(subscriber))["subscriptionStatus"] == "past_due"  # SPEC 3
    assert await verified(subscriber) == ("none", "free")
    assert await verified(of_operator) == ("full", "pro")
    plan = (await world.provider.tenant(of_operator))["plan"]
    assert plan == ("pro" if world.reconciler.policy.is_each else "business")


async def test_a_backfill_gives_no_access_for_a_failed_first_payment(world: World) -> None:
    async with world.losing_deliveries():
        subscriber, of_operator = await abandoned(world), await abandoned(world, "pro")
    since = int(world.service.clock.now.timestamp()) - 3600
    await world.passes(minutes=1)
    async with aclosing(world.reconciler.backfill.parts(since, dry_run=False).results()) as parts:
        missed = [event async for part in parts for event in part.missed]
    assert len(missed) >= 4
    assert await verified(subscriber) == ("none", "free")
    assert await verified(of_operator) == ("full", "pro")


async def test_a_reconciliation_gives_no_access_for_a_failed_first_payment(world: World) -> None:
    subscriber, of_operator = await abandoned(world), await abandoned(world, "pro")
    await world.passes(minutes=1)
    await world.compare()
    assert await verified(subscriber) == ("none", "free")
    assert await verified(of_operator) == ("full", "pro")
    await world.passes(days=2)  # both expire
    await world.compare()
    assert await verified(subscriber) == ("none", "free")
    assert await verified(of_operator) == ("full", "pro")


async def test_a_replay_repairs_access_that_was_given_for_a_failed_first_payment(
    world: World,
) -> None:
    subscriber = await abandoned(world)
    await world.passes(minutes=1)
    policy = world.reconciler.policy
    assert (await replay_one(world.provider, subscriber, policy=policy)).is_right
    await rows(
        world.service.conninfo, "UPDATE tenants SET access = NULL WHERE id = %s", subscriber.id
    )
    assert await verified(subscriber) == ("grace", "business")
    assert (await replay_one(world.provider, subscriber, policy=policy)).repaired
    assert await verified(subscriber) == ("none", "free")
