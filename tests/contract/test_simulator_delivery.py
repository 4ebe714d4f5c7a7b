"""How the simulator delivers events, correctly and with delivery failures."""

import asyncio
import socket
from datetime import timedelta

import pytest

from tenantry_devkit.simulator import (
    NEW_VERSION,
    OLD_VERSION,
    PRICES,
    ApiError,
    Simulator,
    State,
    WebhookEndpoint,
)
from tests.support.simulator import (
    SECRET,
    WALL_CLOCK,
    WEBHOOK,
    Receiver,
    a_simulator,
    simulator_with_receiver,
)

UPDATED = "customer.subscription.updated"


def subscribe(sim: Simulator, count: int = 1) -> list[str]:
    """Subscribe customers; returns the ids of the events, in their order."""
    for _ in range(count):
        sim.subscribe(sim.customer(), "price_pro", metadata={"orgId": "acme"})
    return [event.id for event in sim.events() if event.type != "price.created"]


def new_customer(sim: Simulator) -> list[str]:
    sim.customer()
    return [event.id for event in sim.events("customer.created")]


async def test_events_arrive_signed_and_in_order() -> None:
    async with simulator_with_receiver() as (sim, receiver):
        ids = subscribe(sim)
        assert await sim.deliver() == len(ids)
        assert receiver.ids == ids
        assert {delivery.state for delivery in sim.deliveries()} == {State.DELIVERED}


async def test_only_enabled_types_are_sent() -> None:
    async with simulator_with_receiver() as (sim, receiver):
        sim.add_endpoint(WEBHOOK, SECRET, enabled_events=[UPDATED])
        subscribe(sim)
        await sim.deliver()
        assert receiver.types.count(UPDATED) == 2
        assert receiver.types.count("customer.created") == 1


async def test_each_endpoint_has_its_shape() -> None:
    async with simulator_with_receiver(api_version=OLD_VERSION) as (sim, receiver):
        sim.add_endpoint(WEBHOOK, SECRET, api_version=NEW_VERSION)
        subscribe(sim)
        await sim.deliver()
        old, new = (event for event in receiver.events if event["type"] == UPDATED)
        assert (old["api_version"], new["api_version"]) == (OLD_VERSION, NEW_VERSION)
        assert "current_period_end" in old["data"]["object"]
        assert "current_period_end" in new["data"]["object"]["items"]["data"][0]


async def test_rejected_event_is_retried() -> None:
    async with simulator_with_receiver() as (sim, receiver):
        sim.customer()
        receiver.statuses.extend([500, 503])
        await sim.deliver()
        await sim.advance(minutes=4)
        assert receiver.ids == []
        await sim.advance(minutes=1)
        assert receiver.ids == []
        await sim.advance(minutes=30)
        (delivery,) = sim.deliveries()
        assert receiver.ids == [delivery.event]
        assert [attempt.status for attempt in delivery.attempts] == [500, 503, 200]


async def test_event_is_given_up_after_three_days() -> None:
    async with simulator_with_receiver() as (sim, receiver):
        sim.customer()
        receiver.statuses.extend([500] * 100)
        await sim.advance(days=10)
        (delivery,) = sim.deliveries()
        assert delivery.state is State.FAILED
        assert timedelta(seconds=delivery.attempts[-1].at - delivery.attempts[0].at) > timedelta(
            days=2
        )


async def test_unreachable_endpoint_gets_its_events_later() -> None:
    receiver = Receiver()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        away = f"http://127.0.0.1:{taken.getsockname()[1]}/"
    sim = a_simulator(endpoints=[WebhookEndpoint(url=away, secret=SECRET)])
    sim.customer()
    await sim.deliver()
    (delivery,) = sim.deliveries()
    assert delivery.state is State.PENDING
    assert delivery.attempts[0].status is None
    assert "ConnectError" in (delivery.attempts[0].error or "")
    assert receiver.ids == []


async def test_an_event_may_be_sent_again_on_request() -> None:
    async with simulator_with_receiver() as (sim, receiver):
        (event,) = new_customer(sim)
        await sim.deliver()
        sim.misbehave(drop=1.0)
        (again,) = await sim.resend(event)
        assert receiver.ids == [event, event]
        assert (again.copy, again.state) == (1, State.DELIVERED)
        with pytest.raises(ApiError, match="No such event"):
            await sim.resend("evt_of_nobody")


async def test_lost_events_are_never_sent() -> None:
    async with simulator_with_receiver() as (sim, receiver):
        sim.misbehave(drop=0.2)
        ids = subscribe(sim, 40)
        await sim.advance(days=5)
        lost = [delivery.event for delivery in sim.deliveries() if delivery.state is State.LOST]
        assert 0.1 < len(lost) / len(ids) < 0.3
        assert set(receiver.ids) == set(ids) - set(lost)


async def test_which_events_are_lost_does_not_depend_on_when_they_are_delivered() -> None:
    async def lost(rounds: int) -> list[str]:
        async with simulator_with_receiver(seed=7) as (sim, _):
            sim.misbehave(drop=0.5)
            for _ in range(rounds):
                subscribe(sim, 12 // rounds)
                await sim.deliver()
            return [delivery.event for delivery in sim.deliveries() if delivery.state is State.LOST]

    assert await lost(1) == await lost(3)


async def test_events_of_a_type_or_a_customer_are_lost() -> None:
    async with simulator_with_receiver() as (sim, receiver):
        sim.misbehave(drop=1.0, types=[UPDATED])
        sim.misbehave(drop=1.0, only=lambda event: event.customer == "cus_lost")
        sim.customer("cus_lost")
        subscribe(sim)
        await sim.deliver()
        assert receiver.types.count("customer.created") == 1
        assert UPDATED not in receiver.types


async def test_behave_ends_delivery_rules() -> None:
    async with simulator_with_receiver() as (sim, receiver):
        sim.misbehave(drop=1.0)
        sim.behave()
        ids = subscribe(sim)
        await sim.deliver()
        assert receiver.ids == ids


async def test_duplicates_are_copies_of_the_same_event() -> None:
    async with simulator_with_receiver() as (sim, receiver):
        sim.misbehave(duplicates=2)
        (event,) = new_customer(sim)
        assert await sim.deliver() == 3
        assert receiver.ids == [event] * 3
        assert receiver.events[0] == receiver.events[2]


async def test_order_depends_on_the_seed() -> None:
    async def arrived(seed: int) -> list[str]:
        async with simulator_with_receiver(seed=seed) as (sim, receiver):
            sim.misbehave(reorder=True)
            subscribe(sim, 3)
            await sim.deliver()
            return receiver.types

    async with simulator_with_receiver() as (sim, receiver):
        subscribe(sim, 3)
        await sim.deliver()
        straight = receiver.types
    assert await arrived(1) == await arrived(1)
    assert await arrived(1) != await arrived(2)
    assert await arrived(1) != straight
    assert sorted(await arrived(1)) == sorted(straight)


async def test_delays_are_simulated_time() -> None:
    async with simulator_with_receiver() as (sim, receiver):
        sim.misbehave(delay=timedelta(days=2), types=["customer.created"])
        subscribe(sim)
        await sim.advance(days=1)
        assert "customer.created" not in receiver.types
        await sim.advance(days=1)
        assert receiver.types[-1] == "customer.created"


async def test_delays_between_two_bounds_bring_events_out_of_order() -> None:
    async with simulator_with_receiver() as (sim, receiver):
        sim.misbehave(delay=(timedelta(0), timedelta(days=1)))
        ids = subscribe(sim, 3)
        await sim.advance(days=1)
        assert receiver.ids != ids
        assert sorted(receiver.ids) == sorted(ids)


async def test_while_it_runs_what_becomes_due_is_delivered() -> None:
    moments = [WALL_CLOCK]
    async with simulator_with_receiver(running=True, wall_clock=lambda: moments[0]) as (
        sim,
        receiver,
    ):
        sim.misbehave(delay=timedelta(hours=1))
        sim.customer()
        moments[0] += timedelta(hours=1)
        running = asyncio.create_task(sim.run())
        await receiver.until_taken(1)
        running.cancel()


async def test_hundred_concurrent_customers() -> None:
    async with simulator_with_receiver(concurrency=32, prices=PRICES) as (sim, receiver):
        ids = subscribe(sim, 100)
        assert await sim.deliver() == 700
        assert sorted(receiver.ids) == sorted(ids)
