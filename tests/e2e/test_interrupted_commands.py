"""Ctrl-C during long work: the batch in flight ends, and the printed command continues after it."""

import json
import shlex
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from tests.cli.command_support import Home, on_terminal
from tests.support import events
from tests.support.billing import Provider, until_blocked
from tests.support.command_runner import invoke_async
from tests.support.commands import Running, running
from tests.support.provider_api import KEY, ProviderServer, running_provider
from tests.support.service import running_service

ASKED = "Stopping after the batch in flight. Press Ctrl-C again to stop at once.\n"
BACKFILL = ("backfill", "--since", "2026-01-01T00:00:00Z")


class Operator(NamedTuple):
    """Who runs commands on a database with 250 tenants, beside a provider that lists 250 missed
    events of the first.
    """

    folder: Path
    provider: Provider
    server: ProviderServer
    settings: Mapping[str, str]

    @property
    def conninfo(self) -> str:
        return self.provider.service.conninfo


@pytest.fixture
async def operator(conninfo: str, database_url: str, tmp_path: Path) -> AsyncIterator[Operator]:
    async with running_service(conninfo) as service, running_provider() as server:
        provider = Provider(service)
        subscriber = await provider.subscriber()
        with psycopg.connect(conninfo) as connection:
            connection.execute(
                "INSERT INTO tenants (id, name, owner_id, owner_email, created_at, updated_at) "
                "SELECT 'a' || number, 'A', 'usr', 'o@x.example', now(), now() FROM generate_series(100, 348) AS number"
            )
        server.events = [
            events.updated(**subscriber.names, event_id=f"evt_{age:03}", created=events.NOW - age)
            for age in range(250)
        ]
        settings = {
            "DATABASE_URL": database_url,
            "PROVIDER_API_BASE": server.url,
            "PROVIDER_SECRET_KEY": KEY,
        }
        yield Operator(tmp_path, provider, server, settings)


def last_command(error: str) -> list[str]:
    """The arguments of the command that goes on."""
    return shlex.split(error.rstrip("\n").rpartition(" -m tenantry ")[2])


async def hold_the_third_page(server: ProviderServer) -> None:
    """Return once the provider was asked for the third page, which it does not give: two batches
    were not ingested.
    """
    await server.until_requested(3)
    server.open.clear()
    await server.until_requested(4)


async def interrupt(command: Running) -> None:
    """Press Ctrl-C, and wait until the command has noticed."""
    command.signal(signal.SIGINT)
    await command.until(ASKED, "err")


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


@pytest.mark.parametrize("words", [("events", "replay"), ("tenants", "rebuild")], ids=" ".join)
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


@pytest.mark.parametrize("plain", [{}, {"NO_COLOR": "1"}], ids=["color", "NO_COLOR"])
async def test_progress_is_shown_on_a_terminal(operator: Operator, plain: dict[str, str]) -> None:
    home = Home(operator.folder)
    shown = {
        ("events", "replay"): "folding tenants",
        BACKFILL: "fetching events",
        ("reconcile",): "comparing tenants",
    }
    for words, label in shown.items():
        seen = await on_terminal(home, {**operator.settings, **plain}, *words)
        assert seen.code in (0, 1)  # the provider knows none of the customers
        assert label in seen.text
        assert ("\x1b[38" in seen.shown) is not bool(plain)
        apart = await on_terminal(home, {**operator.settings, **plain}, *words, captured=True)
        assert label not in apart.out
        assert "\x1b" not in apart.out
