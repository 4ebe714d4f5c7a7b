"""Reconciliation concurrent with itself and with incoming events."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Final

import pytest

from tests.support.billing import Subscriber, rows
from tests.support.facts import EACH
from tests.support.truth import Stage, World, drifted, reconciling, running_world

SUBSCRIBERS: Final = 12
ROUNDS: Final = 8


@pytest.fixture
async def world(stage: Stage, emptied: str) -> AsyncIterator[World]:
    async with stage.world(concurrency=8) as world:
        yield world


async def subscribers(world: World) -> list[Subscriber]:
    made = [await world.subscriber() for _ in range(SUBSCRIBERS)]
    for subscriber in made:
        world.subscribe(subscriber, "price_pro")
    await world.passes(minutes=1)
    return made


async def assert_true(world: World, made: list[Subscriber]) -> None:
    assert [await world.record(each) for each in made] == [world.truth(each) for each in made]


async def test_two_comparisons_at_once_repair_each_tenant_once(world: World, emptied: str) -> None:
    made = await subscribers(world)
    async with world.losing_deliveries():
        for subscriber in made:
            world.simulator.change_plan(world.subscription(subscriber), "price_business")
    await world.passes(minutes=1)
    async with reconciling(emptied, world.simulator.url, clock=world.service.clock) as other:
        found = await asyncio.gather(world.reconciler.run(), other.reconciler.run())
    assert sorted(drifted(found[0]) + drifted(found[1])) == sorted(each.id for each in made)
    await assert_true(world, made)
    assert (await world.compare()).drifted == ()
    drifts = await rows(emptied, "SELECT id FROM billing_events WHERE 'drift' = ANY(anomalies)")
    assert len(drifts) == SUBSCRIBERS


async def test_comparisons_while_events_come_in_end_at_the_truth(world: World) -> None:
    made, chance = await subscribers(world), random.Random(1)  # noqa: S311  # to be the same again
    world.simulator.misbehave(drop=0.2, duplicates=1)

    async def go_on() -> None:
        for _ in range(ROUNDS):
            for subscriber in chance.sample(made, SUBSCRIBERS // 2):
                change_at_random(world, subscriber, chance)
            await world.passes(seconds=chance.randint(0, 3))

    async def compare() -> None:
        while not done.is_set():
            found = await world.reconciler.run()
            assert (found.troubled, found.stopped) == ((), None)

    done = asyncio.Event()
    comparing = asyncio.create_task(compare())
    await go_on()
    done.set()
    await comparing
    world.simulator.behave()
    await world.compare()
    await assert_true(world, made)
    assert (await world.compare()).drifted == ()


def change_at_random(world: World, subscriber: Subscriber, chance: random.Random) -> None:
    subscription = world.subscription(subscriber)
    if subscription.has_ended:
        world.subscribe(subscriber, "price_pro")
        return
    match chance.randrange(4):
        case 0:
            world.simulator.cancel(subscription)
        case 1:
            world.simulator.cancel(subscription, at_period_end=True)
        case 2:
            world.simulator.resume(subscription)
        case _:
            world.simulator.change_plan(
                subscription, chance.choice(["price_pro", "price_business"])
            )


async def test_with_each_every_subscription_is_compared(conninfo: str) -> None:
    async with running_world(conninfo, policy=EACH) as world:
        subscriber = await world.subscriber("price_pro")
        first = world.subscription(subscriber)
        async with world.losing_deliveries():
            await world.passes(minutes=1)
            world.subscribe(subscriber, "price_business")
        await world.compare(subscriber)
        assert await world.provider.state(subscriber) == ("business", "active")
        async with world.losing_deliveries():
            world.simulator.cancel(first)
        [comparison] = (await world.compare(subscriber)).drifted
        assert comparison.drift[f"{first.id}.plan"] == ("pro", "free")
        world.simulator.cancel(world.subscription(subscriber))
        await world.passes(minutes=1)
        assert await world.provider.state(subscriber) == ("free", "canceled")
        assert await world.compare_one(subscriber) is None
