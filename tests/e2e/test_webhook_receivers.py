"""The receivers of docs/how-to/receive-webhooks.md in Python, as processes."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.support.postgres import PostgresServer
from tests.support.webhook_receivers import (
    CHECKS,
    DJANGO,
    FASTAPI,
    Framework,
    Receiver,
    check_that_what_tenantry_sends_is_kept,
    receiving,
)


@pytest.fixture(scope="module", params=[FASTAPI, DJANGO], ids=["fastapi", "django"])
async def receiver(
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Receiver]:
    framework: Framework = request.param
    folder = tmp_path_factory.mktemp("receiver")
    with postgres.database(migrated=False) as conninfo:
        async with receiving(framework, conninfo, folder) as receiver:
            yield receiver


async def test_receiver_keeps_what_tenantry_sends(receiver: Receiver, conninfo: str) -> None:
    await check_that_what_tenantry_sends_is_kept(receiver, conninfo)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_receiver_of_the_guide(
    receiver: Receiver, check: Callable[[Receiver], Awaitable[None]]
) -> None:
    await check(receiver)
