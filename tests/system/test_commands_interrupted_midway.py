"""Ctrl-C during long work, of the commands that `tests/e2e` does not interrupt."""

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from tests.support import events
from tests.support.billing import until_blocked
from tests.support.command_runner import invoke_async
from tests.support.commands import running
from tests.support.interrupted_commands import (
    ASKED,
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


async def test_second_ctrl_c_ends_backfill_at_once(operator: Operator) -> None:
    async with running(*BACKFILL, folder=operator.folder, **operator.settings) as command:
        await hold_the_third_page(operator.server)
        await interrupt(command)
        assert await command.end(signal.SIGINT) == 1
    assert f"{ASKED}Stopped at once." in command.text["err"]
    assert command.text["out"].count("\n") == 100
    with psycopg.connect(operator.conninfo) as connection:
        assert connection.execute("SELECT count(*) FROM billing_events").fetchall() == [(100,)]


async def test_interrupted_backfill_is_one_json_document(operator: Operator) -> None:
    async with running(*BACKFILL, "--json", folder=operator.folder, **operator.settings) as command:
        await hold_the_third_page(operator.server)
        await interrupt(command)
        operator.server.open.set()
        assert await command.wait() == 1
    document = json.loads(command.text["out"])
    assert (document["stopped"], document["listed"], len(document["details"])) == (
        "Interrupted.",
        200,
        200,
    )
    assert document["continueWith"].endswith("--until 2026-01-01T11:56:41Z --json")


async def test_reconcile_ends_after_the_tenants_in_flight_and_can_be_run_again(
    operator: Operator,
) -> None:
    drifted = [await operator.provider.subscriber() for _ in range(6)]
    for each in drifted:
        operator.server.subscriptions[each.customer] = [events.subscription(**each.names)]
    async with running("reconcile", folder=operator.folder, **operator.settings) as command:
        await operator.server.until_requested(1)  # the list of all subscriptions
        operator.server.open.clear()
        await operator.server.until_requested(5)  # the first four tenants
        await interrupt(command)
        operator.server.open.set()
        assert await command.wait() == 1
    repaired = [line for line in command.text["out"].splitlines() if line.endswith(": repaired")]
    assert repaired == [f"{each.id}: repaired" for each in drifted[:4]]
    assert command.text["out"].endswith("4 tenants compared: 4 drifted, 4 repaired\n")
    assert (
        "Stopped after 4 tenants: Interrupted.\nWhat is repaired stays. Continue with: "
        in command.text["err"]
    )
    rest = last_command(command.text["err"])
    assert rest == ["reconcile"]
    done = await invoke_async(*rest, folder=operator.folder, **operator.settings)
    assert (done.code, done.out.count(": repaired\n")) == (3, 2)
    assert [await operator.provider.state(each) for each in drifted] == [("pro", "active")] * 6


async def test_after_restore_ends_after_the_change_in_flight_and_can_be_run_again(
    operator: Operator,
) -> None:
    service = operator.provider.service
    organization = await service.organization()
    ended = [
        await service.key(organization.owner, organization.id, "projects:read") for _ in range(3)
    ]
    for key in ended:
        await organization.owner.delete(key.path)
    exported = await invoke_async(
        "admin", "export-audit", folder=operator.folder, **operator.settings
    )
    (operator.folder / "audit.ndjson").write_text(exported.out)
    ids = [key.id for key in ended]
    with psycopg.connect(operator.conninfo) as connection:  # as it was at the backup
        connection.execute("SET session_replication_role = replica")  # the trail is append-only
        connection.execute(
            "DELETE FROM audit_events WHERE target_id = ANY(%s) AND action = 'api_key.revoked'",
            (ids,),
        )
        connection.execute("UPDATE api_keys SET revoked_at = NULL WHERE id = ANY(%s)", (ids,))
    command = ("admin", "after-restore", "--audit", "audit.ndjson")
    with psycopg.connect(operator.conninfo) as locking:
        locking.execute("SELECT FROM api_keys WHERE id = %s FOR UPDATE", (ids[0],))
        async with running(*command, folder=operator.folder, **operator.settings) as redoing:
            await until_blocked(operator.conninfo)
            await interrupt(redoing)
            locking.rollback()
            assert await redoing.wait() == 1
    assert ids[0] in redoing.text["out"]
    assert redoing.text["out"].endswith(
        "1 change lost: 1 redone, 0 already done, 0 missing, 0 manual\n"
    )
    assert (
        "Interrupted. The other changes are not redone, and no session is ended"
        in redoing.text["err"]
    )
    done = await invoke_async(*command, folder=operator.folder, **operator.settings)
    assert done.out.splitlines()[-1].startswith("3 changes lost: 2 redone, 1 already done,")
