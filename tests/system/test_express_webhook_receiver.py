"""The receiver of docs/how-to/receive-webhooks.md in Node.js, as a process."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.support.postgres import PostgresServer
from tests.support.required import node, node_package
from tests.support.typescript_client import packed_client
from tests.support.webhook_receivers import (
    CHECKS,
    EXPRESS,
    Receiver,
    check_that_what_tenantry_sends_is_kept,
    receiving,
)


@pytest.fixture(scope="module")
async def receiver(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Receiver]:
    node()
    folder = tmp_path_factory.mktemp("receiver")
    packages = packed_client(folder).client.parents[1]
    for package in node_package("webhook_receiver", "express").parent.iterdir():
        (packages / package.name).unlink(missing_ok=True)
        (packages / package.name).symlink_to(package)
    with postgres.database(migrated=False) as conninfo:
        async with receiving(EXPRESS, conninfo, folder, packages) as receiver:
            yield receiver


async def test_receiver_keeps_what_tenantry_sends(receiver: Receiver, conninfo: str) -> None:
    await check_that_what_tenantry_sends_is_kept(receiver, conninfo)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_receiver_of_the_guide(
    receiver: Receiver, check: Callable[[Receiver], Awaitable[None]]
) -> None:
    await check(receiver)
