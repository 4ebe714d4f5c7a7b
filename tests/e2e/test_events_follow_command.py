"""``tenantry events follow`` as a process: Ctrl-C, pipes, terminals, and an absent database."""

import asyncio
import json
import os
import pty
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.support.command_runner import invoke_async
from tests.support.commands import Running, running, running_into
from tests.support.database_link import database_link
from tests.support.issuer import NOW
from tests.support.postgres import as_url
from tests.support.service import Service, running_service

FOLLOW: Final = ("events", "follow")
AT: Final = f"{NOW:%Y-%m-%dT%H:%M:%SZ}"
EVENTS: Final = "/api/v1/operator/events"


class Operator(NamedTuple):
    """Who runs commands on the database of a service."""

    folder: Path
    service: Service
    address: str

    def following(self, *options: str, address: str | None = None) -> Any:
        return running(*FOLLOW, *options, folder=self.folder, DATABASE_URL=address or self.address)

    async def events(self) -> list[dict[str, Any]]:
        """All events, as the API shows them."""
        events: list[dict[str, Any]] = []
        after: dict[str, str] = {}
        while True:
            page = (await self.service.operator.get(EVENTS, limit=10, **after)).json()
            if not page["data"]:
                return events
            events += page["data"]
            after = {"after": page["nextCursor"]}


@pytest.fixture
async def operator(conninfo: str, database_url: str, tmp_path: Path) -> AsyncIterator[Operator]:
    async with running_service(conninfo) as service:
        yield Operator(tmp_path, service, database_url)


def printed(command: Running) -> list[dict[str, Any]]:
    """The events that a command has printed in a pipe."""
    return [json.loads(line) for line in command.text["out"].splitlines()]


async def test_changes_are_shown_as_they_come_until_ctrl_c(operator: Operator) -> None:
    before = await operator.service.organization()
    async with operator.following() as command:
        while not command.text["out"]:  # it may not have begun
            await operator.service.organization()
        after = await operator.service.organization()
        await command.until(after.key.id, "out")
        assert await command.end(signal.SIGINT) == 0
    assert command.text["err"] == ""
    shown, events = printed(command), await operator.events()
    assert events[-len(shown) :] == shown
    assert before.id not in {event["orgId"] for event in shown}


@pytest.mark.thorough
async def test_an_event_continues_the_command_before(operator: Operator) -> None:
    await operator.service.organization()
    events = await operator.events()
    async with operator.following("--after", "oldest", "--types", "tenant.*,api_key.*") as command:
        await command.until(events[-1]["id"], "out")
        await command.end(signal.SIGINT)
    assert printed(command) == events
    async with operator.following("--after", events[0]["id"]) as command:
        await command.until(events[-1]["id"], "out")
        await command.end(signal.SIGINT)
    assert printed(command) == events[1:]


async def test_a_database_that_is_away_is_waited_for(operator: Operator) -> None:
    await operator.service.organization()
    async with (
        database_link(operator.service.conninfo) as link,
        operator.following("--after", "oldest", address=as_url(link.conninfo)) as command,
    ):
        await command.until("api_key.created", "out")
        await link.cut()
        await command.until("The database is unreachable", "err")
        org = await operator.service.organization()
        await link.restore()
        await command.until(org.key.id, "out")
        assert await command.end(signal.SIGINT) == 0
    assert printed(command) == await operator.events()
    assert (
        command.text["err"] == "The database is unreachable. Try again shortly. Waiting for it.\n"
    )


@pytest.mark.thorough
async def test_a_closed_pipe_ends_it_quietly(operator: Operator) -> None:
    await operator.service.organization()
    read_end, write_end = os.pipe()
    os.close(read_end)
    options = ("--after", "oldest")
    async with running_into(
        write_end, *FOLLOW, *options, folder=operator.folder, DATABASE_URL=operator.address
    ) as command:
        os.close(write_end)
        assert await command.wait() == 0
    assert command.text["err"] == ""


@pytest.mark.thorough
async def test_a_terminal_gets_a_line_for_each_event(operator: Operator) -> None:
    org = await operator.service.organization()
    ours, theirs = pty.openpty()
    options = ("--after", "oldest", "--org", org.id)
    async with running_into(
        theirs, *FOLLOW, *options, folder=operator.folder, DATABASE_URL=operator.address
    ) as command:
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            lines = [await asyncio.to_thread(terminal.readline) for _ in range(2)]
            assert await command.end(signal.SIGINT) == 0
        os.close(theirs)
    assert [line.decode().split() for line in lines] == [
        [AT, "tenant.created", org.id, "free", "none"],
        [AT, "api_key.created", org.id, org.key.id, "key"],
    ]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--types", "robot.built"), 2, "types: 'robot.built' is not a type of event"),
        (("--org", "a/b"), 2, "is no tenant id"),
        (("--after", "!"), 2, "The cursor is invalid"),
        (("--after", "evt_1"), 1, "Events after this cursor were removed"),
    ],
)
async def test_what_cannot_be_followed_is_said(
    operator: Operator, options: tuple[str, ...], code: int, message: str
) -> None:
    done = await invoke_async(
        *FOLLOW, *options, folder=operator.folder, DATABASE_URL=operator.address
    )
    assert (done.code, done.out) == (code, "")
    assert message in done.err
