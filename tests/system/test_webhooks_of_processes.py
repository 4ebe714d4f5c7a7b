"""Webhooks of a server and a worker as processes: the line at the start, and what they send."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenantry.common.clock import system_clock
from tests.support.command_runner import invoke_async
from tests.support.commands import SECRETS, running
from tests.support.outbound_webhooks import Sending, ids
from tests.support.patience import patient_database
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, as_url
from tests.support.service import ManualClock
from tests.support.webhook_endpoint import (
    SECRET,
    WebhookServer,
    answer,
    endpoint_at,
    running_webhook_server,
)


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookServer]:
    async with running_webhook_server() as receiver:
        yield receiver


@pytest.mark.parametrize("command", ["serve", "worker"])
async def test_disabled_endpoint_is_named_at_the_start_and_gets_its_events_once_enabled(
    tmp_path: Path, postgres: PostgresServer, receiver: WebhookServer, command: str
) -> None:
    catalog = tmp_path / "plans.toml"
    fields = f'name = "app"\nurl = "{receiver.url}"\ntypes = ["tenant.*"]\nsecrets = ["{SECRET}"]\n'
    catalog.write_text(f'[[plans]]\nid = "free"\n[[webhooks]]\n{fields}allow_private = true\n')
    with postgres.database() as conninfo:
        events = await _disable(conninfo, receiver)
        settings = {
            **SECRETS,
            "DATABASE_URL": as_url(conninfo),
            "TENANTRY_PLANS": str(catalog),
            "PORT": str(free_port()),
            "DRAIN_SECONDS": "0",
        }
        async with running(command, folder=tmp_path, **settings) as process:
            why = "the receiver answered 410 Gone. 3 events are held"
            remedy = "`tenantry webhooks enable app` sends them"
            line = f"The webhook app is disabled: {why}; {remedy}."
            await process.until(line, "err")
            done = await invoke_async("webhooks", "enable", "app", folder=tmp_path, **settings)
            assert done.code == 0, done
            await receiver.until(3)
            assert await process.end(signal.SIGTERM) == 0
        assert process.text["err"].count("is disabled") == 1
        assert SECRET[6:] not in process.text["out"] + process.text["err"]
    assert sorted(ids(receiver.received)) == events


async def _disable(conninfo: str, receiver: WebhookServer) -> list[str]:
    """Let the receiver end the endpoint at the first of three events; return their ids."""
    async with patient_database(conninfo, pool_size=4) as database:
        clock = ManualClock(system_clock())
        sending = Sending(database, [endpoint_at(receiver.url)], clock=clock)
        await sending.begin()
        receiver.responses.append(answer(410))
        await sending.publish()
        await sending.send()
        receiver.received.clear()
        return (await sending.events()) + await sending.publish(2)
