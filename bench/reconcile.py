"""Measure the reconciliation of a whole account: ``python -m bench.reconcile``.

Compares so many tenants with the simulated provider, all on this machine: by a request for each
customer, as ``tenantry reconcile --tenant`` does for those that it names, and by the list of all
subscriptions. Before the second comparison some tenants lose an event each.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable
from typing import Final

from tenantry.billing.reconcile import Reconciliation
from tenantry.domain.billing.events import SUBSCRIPTION_CREATED
from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry_devkit.simulator import Simulator
from tests.support.billing import rows
from tests.support.drift import ADD_TENANTS
from tests.support.postgres import running_server
from tests.support.truth import World, running_stage

_DRIFTED: Final = 10


class _CountingProvider:
    """Counts the requests to the provider."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self.requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        await self._simulator(scope, receive, send)


async def _subscribe(world: World, tenants: int) -> None:
    """Give each tenant a subscription, and the state that follows from its only event."""
    await rows(world.service.conninfo, ADD_TENANTS, tenants)
    for number in range(1, tenants + 1):
        org_id = f"org-{number}"
        world.simulator.customer(f"cus_{org_id}")
        world.simulator.subscribe(
            f"cus_{org_id}", "price_pro", metadata={"orgId": org_id}, trial_days=14
        )
    await world.simulator.deliver()


async def _lose_changes(world: World) -> None:
    world.simulator.misbehave(drop=1.0)
    subscriptions = list(world.simulator.subscriptions)
    for subscription_id in subscriptions[:: len(subscriptions) // _DRIFTED][:_DRIFTED]:
        world.simulator.change_plan(subscription_id, "price_business")
    await world.passes(minutes=1)


async def _measure(tenants: int) -> None:
    with running_server() as server, server.database() as conninfo:
        async with (
            running_stage(conninfo) as stage,
            stage.world(types=[SUBSCRIPTION_CREATED], concurrency=64) as world,
        ):
            await _subscribe(world, tenants)
            provider = _CountingProvider(world.simulator)
            stage.address.simulator = provider
            named = [f"org-{number}" for number in range(1, tenants + 1)]
            # the missed events of an hour before the last comparison are looked for
            await world.passes(hours=2)
            await _report("by customer", provider, world.reconciler.run(named))
            await _lose_changes(world)
            await _report("by the list", provider, world.reconciler.run())
            await _report("by the list, nothing differs", provider, world.reconciler.run())


async def _report(what: str, provider: _CountingProvider, run: Awaitable[Reconciliation]) -> None:
    before, start = provider.requests, time.monotonic()
    found = await run
    seconds = time.monotonic() - start
    counts = f"{found.compared:,} compared, {len(found.drifted):,} drifted"
    print(
        f"{what:<32} {provider.requests - before:>7,} requests {seconds:>8.1f} s   {counts}",
        flush=True,
    )


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tenants", type=int, default=10_000)
    asyncio.run(_measure(parser.parse_args().tenants))


if __name__ == "__main__":
    main()
