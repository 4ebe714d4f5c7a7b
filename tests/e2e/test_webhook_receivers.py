"""The receivers of docs/how-to/receive-webhooks.md in Python, as processes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import pytest

from tests.support.app import OPERATOR_TOKEN, running_app
from tests.support.catalogs import catalog_file
from tests.support.postgres import PostgresServer
from tests.support.webhook_receivers import (
    CHECKS,
    DJANGO,
    FASTAPI,
    Framework,
    Receiver,
    receiving,
    until_followed,
)

EVENTS: Final = "/api/v1/operator/events"


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
    catalog = catalog_file(receiver.catalog)
    async with running_app(conninfo, RUN_JOBS="true", TENANTRY_PLANS=catalog) as client:
        await until_followed(conninfo)
        client.headers["Authorization"] = f"Bearer {OPERATOR_TOKEN}"
        tenant = {"name": "Müller & Söhne", "ownerEmail": "owner@x.example"}
        assert (await client.put("/api/v1/tenants/sent", json=tenant)).status_code == 201
        kept = await receiver.until_kept("sent")
        [event] = (await client.get(EVENTS, params={"orgId": "sent"})).json()["data"]
    assert kept == {("tenant", "sent"): event["version"]}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_receiver_of_the_guide(
    receiver: Receiver, check: Callable[[Receiver], Awaitable[None]]
) -> None:
    await check(receiver)
