"""The receiver of docs/how-to/receive-webhooks.md in Node.js, as a process."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.support.postgres import PostgresServer
from tests.support.required import node, node_package
from tests.support.webhook_receivers import CHECKS, EXPRESS, Receiver, receiving


@pytest.fixture(scope="module")
async def receiver(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Receiver]:
    node()
    packages = node_package("webhook_receiver", "standardwebhooks").parent
    folder = tmp_path_factory.mktemp("receiver")
    with postgres.database(migrated=False) as conninfo:
        async with receiving(EXPRESS, conninfo, folder, packages) as receiver:
            yield receiver


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_receiver_of_the_guide(
    receiver: Receiver, check: Callable[[Receiver], Awaitable[None]]
) -> None:
    await check(receiver)
