"""Refusals of those who have shown no credential."""

import asyncio

from tenantry.server.rate_limits import AT_ONCE, AnonymousThrottle


async def test_a_few_are_refused_at_once_and_more_than_that_wait() -> None:
    strangers = AnonymousThrottle(now=lambda: 0.0)
    for _ in range(AT_ONCE):
        await strangers.hold()
    held = asyncio.create_task(strangers.hold())
    await asyncio.sleep(0)
    assert strangers.waiting == 1
    held.cancel()
    await asyncio.wait({held})
    assert strangers.waiting == 0
