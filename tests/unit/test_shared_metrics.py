"""The metrics are rendered for all who wait for them."""

import asyncio
from collections.abc import Sequence

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from tenantry.server.health import SharedMetrics
from tenantry.server.metrics import Metrics


async def test_readers_share_a_rendering_that_begins_after_they_came() -> None:
    renderings = 0
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def read() -> Sequence[Metric]:
        nonlocal renderings
        renderings += 1
        begun.set()
        await may_end.wait()
        return [GaugeMetricFamily("renderings", "", renderings)]

    shared = SharedMetrics(Metrics(several_processes=False), read, interval=0.0)
    first = asyncio.create_task(shared.read())
    await begun.wait()
    later = [asyncio.create_task(shared.read()) for _ in range(9)]
    await asyncio.sleep(0)
    may_end.set()
    assert b"\nrenderings 1.0\n" in (await first).plain
    found = await asyncio.gather(*later)
    assert b"\nrenderings 2.0\n" in found[0].plain
    assert all(each is found[0] for each in found)


async def test_failed_rendering_is_repeated_for_the_next_reader() -> None:
    async def fail() -> Sequence[Metric]:
        raise OSError

    shared = SharedMetrics(Metrics(several_processes=False), fail, interval=0.0)
    failures = await asyncio.gather(shared.read(), shared.read(), return_exceptions=True)
    assert [type(each) for each in failures] == [OSError, OSError]
