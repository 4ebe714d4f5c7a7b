"""Ctrl-C during long work: the batch in flight ends, and the printed command continues after it.

`test_commands_interrupted_midway` interrupts further commands.
"""

import json
import shlex
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from tests.cli.command_support import Home, on_terminal
from tests.support import events
from tests.support.billing import until_blocked
from tests.support.command_runner import invoke_async
from tests.support.commands import running
from tests.support.interrupted_commands import (
    BACKFILL,
    Operator,
    hold_the_third_page,
    interrupt,
    last_command,
    running_operator,
)


@pytest.fixture
async def operator(conninfo: str, tmp_path: Path) -> AsyncIterator[Operator]:
    async with running_operator(conninfo, tmp_path) as operator:
        yield operator


async def test_backfill_ends_after_the_batch_and_goes_on_from_there(operator: Operator) -> None:
    async with running(*BACKFILL, folder=operator.folder, **operator.settings) as command:
        await hold_the_third_page(operator.server)
        await command.until("evt_099", "out")
        await interrupt(command)
        operator.server.open.set()
        assert await command.wait() == 1
    *lines, summary = command.text["out"].splitlines()
    assert [line.split()[2] for line in lines] == [f"evt_{age:03}" for age in range(200)]
    assert summary == "200 events listed, 200 missed: 1 applied, 199 late"
    assert (
        "Stopped after 200 events, at evt_199 of 2026-01-01T11:56:41Z: Interrupted.\n"
        in command.text["err"]
    )
    rest = last_command(command.text["err"])
    assert rest == [*BACKFILL, "--until", "2026-01-01T11:56:41Z"]
    done = await invoke_async(*rest, folder=operator.folder, **operator.settings)
    assert (done.code, done.out.splitlines()[-1].partition(", ")[2]) == (0, "50 missed: 50 late")
    assert operator.server.requests[-1].params["created[lte]"] == str(events.NOW - 199)


async def test_interrupted_reconcile_is_one_json_document_and_after_a_second_ctrl_c_none(
    operator: Operator,
) -> None:
    subscriber = await operator.provider.subscriber()
    operator.server.subscriptions[subscriber.customer] = [events.subscription(**subscriber.names)]
    words = ("reconcile", "--dry-run", "--json")
    async with running(*words, folder=operator.folder, **operator.settings) as command:
        await operator.server.until_requested(1)  # the list of all subscriptions
        operator.server.open.clear()
        await operator.server.until_requested(2)
        await interrupt(command)
        operator.server.open.set()
        assert await command.wait() == 1
    document = json.loads(command.text["out"])
    assert (document["stopped"], shlex.split(document["continueWith"])[-3:]) == (
        "Interrupted.",
        list(words),
    )
    operator.server.open.clear()
    async with running(*words, folder=operator.folder, **operator.settings) as command:
        await operator.server.until_requested(len(operator.server.requests) + 1)
        await interrupt(command)
        assert await command.end(signal.SIGINT) == 1
    assert command.text["out"] == ""


@pytest.mark.parametrize(
    "words", [("admin", "replay-events"), ("admin", "rebuild-tenants")], ids=" ".join
)
async def test_replay_ends_after_the_tenants_in_flight_and_goes_on_after_them(
    operator: Operator, words: tuple[str, ...]
) -> None:
    with psycopg.connect(operator.conninfo) as connection:
        connection.execute("UPDATE tenants SET plan = 'business' WHERE id IN ('a120', 'a340')")
    with psycopg.connect(operator.conninfo) as locking:
        locking.execute("SELECT FROM tenants WHERE id = 'a120' FOR UPDATE")
        async with running(*words, folder=operator.folder, **operator.settings) as command:
            await until_blocked(operator.conninfo)
            await interrupt(command)
            locking.rollback()
            assert await command.wait() == 1
    shown = command.text["out"].splitlines()
    assert shown[0] == "a120  plan: business -> free"
    assert shown[-1].startswith("200 tenants, 0 events folded in ")
    assert shown[-1].endswith(": 1 differing, 1 repaired")
    assert "Interrupted. It stopped after tenant a299. Continue with: " in command.text["err"]
    rest = last_command(command.text["err"])
    assert rest == [*words, "--after", "a299"]
    done = await invoke_async(*rest, folder=operator.folder, **operator.settings)
    assert (done.code, done.out.splitlines()[0]) == (0, "a340  plan: business -> free")
    assert done.out.splitlines()[-1].startswith("50 tenants, 0 events folded in ")


async def test_progress_is_shown_on_a_terminal(operator: Operator) -> None:
    home = Home(operator.folder)
    plain = {"NO_COLOR": "1"}
    shown: list[tuple[tuple[str, ...], dict[str, str], str]] = [
        (("admin", "replay-events"), plain, "folding tenants"),
        (BACKFILL, {}, "fetching events"),
        (("reconcile",), {}, "comparing tenants"),
    ]
    for words, values, label in shown:
        seen = await on_terminal(home, {**operator.settings, **values}, *words)
        assert seen.code in (0, 1)  # the provider knows none of the customers
        assert label in seen.text
        assert ("\x1b[38" in seen.shown) is not bool(values)
    apart = await on_terminal(home, operator.settings, *BACKFILL, captured=True)
    assert "events listed" in apart.out
    assert "\x1b" not in apart.out
    assert "fetching events" not in apart.out
