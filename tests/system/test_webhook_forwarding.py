"""The program of docs/how-to/webhooks-for-your-customers.md, as a process between the service and
one that behaves like Svix or Outpost.
"""

import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, NamedTuple

import httpx2
import pytest

from tests.sdk.sdk_support import Served, serving
from tests.support.app import OPERATOR_TOKEN
from tests.support.commands import Running, run, running
from tests.support.documentation import ROOT, Kind, blocks
from tests.support.postgres import PostgresServer
from tests.support.service import KEYS, Organization
from tests.support.webhook_services import MOST_SECONDS, TOKEN, Accepted

PAGE: Final = ROOT / "docs" / "how-to" / "webhooks-for-your-customers.md"
STUB: Final = "tests.support.webhook_services"
EVENTS: Final = "/api/v1/operator/events"
VARIABLES: Final = {
    "to_svix": ("SVIX_URL", "SVIX_TOKEN"),
    "to_outpost": ("OUTPOST_URL", "OUTPOST_API_KEY"),
}


class WebhookService(NamedTuple):
    """The service behind the program."""

    url: str
    client: httpx2.AsyncClient

    async def accepted(self, least: int) -> list[Accepted]:
        """The messages that it has, once there are so many."""
        found = (await self.client.get(f"/accepted/{least}")).json()["accepted"]
        assert len(found) >= least
        return [Accepted(*each) for each in found]

    async def requests(self) -> int:
        """How many messages it was sent, failed ones and copies included."""
        return int((await self.client.get("/accepted/0")).json()["requests"])

    async def fail(self, *failures: str) -> None:
        """Let the next messages meet these failures, and those after them none."""
        await self.client.put("/failures", json=failures)


class Forwarding(NamedTuple):
    """The program with its folder and variables, what is behind it, and a tenant of the service."""

    target: str
    folder: Path
    values: dict[str, str]
    behind: WebhookService
    org: Organization

    def program(self) -> AbstractAsyncContextManager[Running]:
        return running(self.target, folder=self.folder, module="forward", **self.values)

    async def create_key(self) -> str:
        """Create a key; return its id."""
        body = {"orgId": self.org.id, "name": "k", "scopes": ["projects:read"]}
        return str((await self.org.owner.post(KEYS, body)).json()["id"])

    async def create_keys(self, count: int) -> list[str]:
        return [await self.create_key() for _ in range(count)]


def keys_of(messages: list[Accepted]) -> list[str]:
    """The ids of the keys that messages are about."""
    return [message.body["data"]["id"] for message in messages]


@pytest.fixture(scope="module")
async def tenantry(postgres: PostgresServer) -> AsyncIterator[Served]:
    with postgres.database() as conninfo:
        async with serving(conninfo) as served:
            yield served


@pytest.fixture
async def behind(tmp_path: Path) -> AsyncIterator[WebhookService]:
    async with running(folder=tmp_path, module=STUB) as stub:
        await stub.until("\n", "out")
        url = stub.text["out"].strip()
        async with httpx2.AsyncClient(
            base_url=url, trust_env=False, timeout=2 * MOST_SECONDS
        ) as client:
            yield WebhookService(url, client)


@pytest.fixture(params=VARIABLES)
async def forwarding(
    request: pytest.FixtureRequest, tenantry: Served, behind: WebhookService, tmp_path: Path
) -> Forwarding:
    """The program of the page, which has not run yet."""
    for block in blocks(PAGE):
        if block.kind is Kind.FILE:
            (tmp_path / block.name).write_text(block.text, "utf-8")
    values = dict(zip(VARIABLES[request.param], (behind.url, TOKEN), strict=True))
    values |= {"TENANTRY_BASE_URL": tenantry.url, "TENANTRY_OPERATOR_TOKEN": OPERATOR_TOKEN}
    org = await tenantry.service.organization()
    return Forwarding(request.param, tmp_path, values, behind, org)


@pytest.fixture
async def begun(forwarding: Forwarding, tenantry: Served) -> Forwarding:
    """The same, with the cursor of an earlier run."""
    page = (await tenantry.service.operator.get(EVENTS, after="now")).json()
    (forwarding.folder / "cursor").write_text(page["nextCursor"])
    return forwarding


async def test_events_from_the_first_start_on_become_messages_of_their_tenant(
    forwarding: Forwarding, tenantry: Served
) -> None:
    await forwarding.create_key()
    async with forwarding.program() as program:
        await program.until("Forwarding", "out")
        key = await forwarding.create_key()
        other = await tenantry.service.organization()  # an event of the tenant, and one of its key
        first, second = await forwarding.behind.accepted(2)
    assert [first.tenant, second.tenant] == [forwarding.org.id, other.id]
    assert [first.type, second.type] == ["api_key.created"] * 2
    assert keys_of([first, second]) == [key, other.key.id]
    page = (await tenantry.service.operator.get(EVENTS, orgId=forwarding.org.id)).json()
    event = page["data"][-1]
    assert first.id == event["id"]
    assert first.body == {**event, "timestamp": event["at"]}


async def test_each_event_is_sent_until_the_service_has_it(begun: Forwarding) -> None:
    failures = ("503", "429", "reset", "lost")
    await begun.behind.fail(*(failure for each in failures for failure in (each, "")))
    async with begun.program():
        keys = await begun.create_keys(len(failures) + 1)
        messages = await begun.behind.accepted(len(keys))
    assert keys_of(messages) == keys
    assert await begun.behind.requests() >= len(keys) + len(failures)


async def test_an_event_is_one_message_if_the_program_is_killed_before_it_stores_its_cursor(
    begun: Forwarding,
) -> None:
    await begun.behind.fail("silent")
    async with begun.program() as program:
        key = await begun.create_key()
        assert keys_of(await begun.behind.accepted(1)) == [key]
        await program.end(signal.SIGKILL)
    later = await begun.create_key()
    async with begun.program():
        assert keys_of(await begun.behind.accepted(2)) == [key, later]
    assert await begun.behind.requests() == 3


@pytest.mark.parametrize("status", ["401", "422"])
async def test_the_program_ends_at_an_event_that_the_service_never_accepts_and_leaves_none_out(
    begun: Forwarding, status: str
) -> None:
    await begun.behind.fail(status)
    keys = await begun.create_keys(2)
    ended = await run(begun.target, folder=begun.folder, module="forward", **begun.values)
    assert ended.code == 1
    assert f": {status} " in ended.err
    async with begun.program():
        assert keys_of(await begun.behind.accepted(2)) == keys
