"""Connections to the payment provider's API: reused, shared, replaced and closed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Final

import pytest

from tenantry.common.secret import Secret
from tenantry.domain.billing.snapshot import ProviderSubscription
from tenantry.integrations.stripe.client import ProviderApi
from tests.support.provider_api import KEY, ProviderServer, running_provider

CUSTOMER: Final = "cus_acme"


@pytest.fixture
async def server() -> AsyncIterator[ProviderServer]:
    async with running_provider() as server:
        server.subscriptions[CUSTOMER] = []
        yield server


@pytest.fixture
async def api(server: ProviderServer) -> AsyncIterator[ProviderApi]:
    async with aclosing(ProviderApi(Secret(KEY), server.url)) as api:
        yield api


async def subscriptions(api: ProviderApi) -> Sequence[ProviderSubscription]:
    """Ask something."""
    answer = await api.subscriptions_of(CUSTOMER)
    assert answer is not None
    return answer.subscriptions


async def test_a_connection_is_kept_from_call_to_call(
    api: ProviderApi, server: ProviderServer
) -> None:
    for _ in range(3):
        await subscriptions(api)
    assert [event async for event in api.events_since(0, ["invoice.paid"])] == []
    assert server.connections == 1


async def test_calls_at_once_share_what_the_first_one_made(
    api: ProviderApi, server: ProviderServer
) -> None:
    await asyncio.gather(*(subscriptions(api) for _ in range(8)))
    await api.aclose()
    await server.until_left()
    assert len(server.requests) == 8


async def test_a_kept_connection_that_the_provider_closed_is_replaced(
    api: ProviderApi, server: ProviderServer
) -> None:
    await subscriptions(api)
    await server.cut()
    await subscriptions(api)
    assert (server.connections, len(server.requests)) == (2, 2)


async def test_a_kept_connection_that_is_closed_on_asking_is_replaced(
    api: ProviderApi, server: ProviderServer
) -> None:
    await subscriptions(api)
    server.hang_up = 1
    await subscriptions(api)
    assert (server.connections, len(server.requests)) == (2, 3)


async def test_many_kept_connections_that_the_provider_closed(
    api: ProviderApi, server: ProviderServer
) -> None:
    server.open.clear()
    calls = [asyncio.create_task(subscriptions(api)) for _ in range(10)]
    await server.until_requested(10)
    server.open.set()
    await asyncio.gather(*calls)
    await server.cut()
    await asyncio.gather(*(subscriptions(api) for _ in range(10)))
    assert len(server.requests) == 20


async def test_a_call_that_is_given_up_does_not_disturb_the_next(
    api: ProviderApi, server: ProviderServer
) -> None:
    server.open.clear()
    call = asyncio.create_task(subscriptions(api))
    await server.until_requested(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    server.open.set()
    assert await subscriptions(api) == ()


async def test_closing_ends_the_connections(api: ProviderApi, server: ProviderServer) -> None:
    await subscriptions(api)
    await api.aclose()
    await server.until_left()


async def test_closing_what_was_never_used(server: ProviderServer) -> None:
    await ProviderApi(Secret(KEY), server.url).aclose()
    assert server.connections == 0


async def test_a_call_after_closing_connects_again(
    api: ProviderApi, server: ProviderServer
) -> None:
    await subscriptions(api)
    await api.aclose()
    await subscriptions(api)
    assert server.connections == 2
