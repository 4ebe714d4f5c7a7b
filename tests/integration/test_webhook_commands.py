"""``tenantry webhooks``: the endpoints, their state, and what is sent again."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tenantry.common.clock import system_clock
from tenantry.domain.webhooks import signed_headers
from tests.support.billing import rows
from tests.support.command_runner import invoke_async
from tests.support.commands import SECRETS, Done
from tests.support.outbound_webhooks import Sending, ids
from tests.support.patience import patient_database
from tests.support.postgres import PostgresServer, as_url
from tests.support.service import ManualClock
from tests.support.webhook_endpoint import (
    SECRET,
    WebhookServer,
    answer,
    endpoint_at,
    running_webhook_server,
)

GONE: Final = answer(410)
NEVER: Final = {
    "state": "active",
    "waiting": 0,
    "held": 0,
    "lastSuccessAt": None,
    "failingSince": None,
    "pausedUntil": None,
    "disabledAt": None,
    "disabledReason": None,
}


class Operating:
    """Webhooks to the endpoint ``app`` with a worker, and the commands of their operator."""

    def __init__(
        self, folder: Path, conninfo: str, server: WebhookServer, sending: Sending
    ) -> None:
        self.folder = folder
        self.conninfo = conninfo
        self.server = server
        self.sending = sending
        self.catalog = folder / "plans.toml"
        self.write_catalog(f"http://127.0.0.1:{server.port}/?token=abc")

    def write_catalog(self, url: str) -> None:
        fields = f'name = "app"\nurl = "{url}"\ntypes = ["tenant.*"]\nsecrets = ["{SECRET}"]\n'
        text = f'[[plans]]\nid = "free"\n[[webhooks]]\n{fields}allow_private = true\n'
        self.catalog.write_text(text)

    async def run(self, *arguments: str, **values: str) -> Done:
        """Run a command of ``tenantry webhooks``."""
        settings = {
            "DATABASE_URL": as_url(self.conninfo),
            "API_KEY_PEPPER": SECRETS["API_KEY_PEPPER"],
            "TENANTRY_PLANS": str(self.catalog),
            **values,
        }
        done = await invoke_async("webhooks", *arguments, folder=self.folder, **settings)
        assert SECRET[6:] not in done.out + done.err
        return done

    async def json(self, *arguments: str) -> Any:
        """Run a command that must succeed; return its JSON."""
        done = await self.run(*arguments, "--json")
        assert done.code == 0, done
        return json.loads(done.out)

    async def disable(self) -> list[str]:
        """Let the receiver end the endpoint at the first of three events; return their ids."""
        self.server.responses.append(GONE)
        first = await self.sending.publish()
        await self.sending.send()
        self.server.received.clear()
        return first + await self.sending.publish(2)


@pytest.fixture
async def operating(tmp_path: Path, postgres: PostgresServer) -> AsyncIterator[Operating]:
    with postgres.database() as conninfo:
        async with (
            running_webhook_server() as server,
            patient_database(conninfo, pool_size=4) as database,
        ):
            endpoint = endpoint_at(f"http://127.0.0.1:{server.port}/")
            sending = Sending(database, [endpoint], clock=ManualClock(system_clock()))
            yield Operating(tmp_path, conninfo, server, sending)


async def test_without_endpoints_the_list_says_how_to_have_some(operating: Operating) -> None:
    operating.catalog.write_text('[[plans]]\nid = "free"\n')
    assert await operating.json("list") == []
    done = await operating.run("list")
    assert (done.code, done.out) == (0, "")
    assert "has no [[webhooks]]" in done.err


async def test_endpoint_that_has_received_nothing_is_listed(operating: Operating) -> None:
    [listed] = await operating.json("list")
    url = f"http://127.0.0.1:{operating.server.port}/?..."
    assert listed == {"name": "app", "url": url, "types": ["tenant.*"], **NEVER}


async def test_list_shows_what_waits_and_what_is_held(operating: Operating) -> None:
    sending = operating.sending
    await sending.begin()
    await sending.publish(3)
    [listed] = await operating.json("list")
    assert (listed["state"], listed["waiting"], listed["held"]) == ("active", 3, 0)
    await sending.send()
    [listed] = await operating.json("list")
    assert (listed["state"], listed["waiting"], listed["lastSuccessAt"] is None) == (
        "active",
        0,
        False,
    )
    operating.server.responses.append(answer(500))
    await sending.publish()
    await sending.send()
    [listed] = await operating.json("list")
    assert (listed["state"], listed["waiting"]) == ("failing", 1)
    await operating.disable()
    [listed] = await operating.json("list")
    assert (listed["state"], listed["waiting"], listed["held"]) == ("disabled", 0, 4)
    table = (await operating.run("list")).out
    assert "the receiver answered 410 Gone" in table
    assert "token=abc" not in table


async def test_enabled_endpoint_gets_all_that_is_held(operating: Operating) -> None:
    await operating.sending.begin()
    events = await operating.disable()
    done = await operating.run("enable", "app")
    assert done == Done(0, "", "Enabled app; 3 events will be sent.\n")
    operating.sending.clock.now = system_clock()
    await operating.sending.send()
    assert sorted(ids(operating.server.received)) == events
    assert await operating.json("enable", "app") == {"name": "app", "events": 0}


async def test_resent_events_wait_while_the_endpoint_is_disabled(operating: Operating) -> None:
    await operating.sending.begin()
    first, _, _ = await operating.disable()
    done = await operating.run("resend", "app", "--event", first)
    assert done == Done(0, "", "app is disabled. `tenantry webhooks enable app` sends 1 event.\n")
    assert (await operating.json("list"))[0]["state"] == "disabled"


async def test_one_event_is_sent_again(operating: Operating) -> None:
    await operating.sending.begin()
    first, _ = await operating.sending.publish(2)
    await operating.sending.send()
    operating.server.received.clear()
    done = await operating.run("resend", "app", "--event", first)
    assert done == Done(0, "", "1 event will be sent to app.\n")
    operating.sending.clock.now = system_clock()
    await operating.sending.send()
    assert ids(operating.server.received) == [first]


async def test_events_since_a_moment_are_sent_again(operating: Operating) -> None:
    clock = operating.sending.clock
    clock.now -= timedelta(days=3)
    await operating.sending.begin()
    await operating.sending.publish()
    clock.advance(days=2)
    recent = await operating.sending.publish(2)
    await operating.sending.send()
    operating.server.received.clear()
    resent = await operating.json("resend", "app", "--since", "2d")
    assert resent == {"name": "app", "events": 2}
    clock.now = system_clock()
    await operating.sending.send()
    assert sorted(ids(operating.server.received)) == sorted(recent)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("enable", "gone"), 5, "There is no such webhook in the plan catalog: 'gone'.\n"),
        (("resend", "gone"), 5, "There is no such webhook in the plan catalog: 'gone'.\n"),
        (("test", "gone"), 5, "There is no such webhook in the plan catalog: 'gone'.\n"),
        (
            ("resend", "app", "--event", "evt_1"),
            5,
            "There is no such event for the webhook 'app': 'evt_1'.\n",
        ),
        (
            ("resend", "app", "--event", "evt_1", "--since", "1d"),
            2,
            "Error: Pass either --event or --since.\n",
        ),
    ],
)
async def test_what_is_not_there_is_named(
    operating: Operating, arguments: tuple[str, ...], code: int, message: str
) -> None:
    await operating.sending.begin()
    done = await operating.run(*arguments)
    assert (done.code, done.err.endswith(message), done.out) == (code, True, "")


async def test_test_message_is_signed_and_is_no_delivery(operating: Operating) -> None:
    done = await operating.run("test", "app")
    assert done == Done(0, "", "app accepted the message (status 204).\n")
    [received] = operating.server.received
    message = json.loads(received.body)
    assert message["type"] == "webhook.test"
    at = system_clock().fromtimestamp(
        int(received.headers["webhook-timestamp"]), system_clock().tzinfo
    )
    expected = signed_headers(endpoint_at("http://x/"), message["id"], at, received.body)
    assert expected.items() <= received.headers.items()


async def test_test_message_that_is_not_accepted(operating: Operating) -> None:
    operating.server.response = answer(401)
    done = await operating.run("test", "app")
    assert done == Done(1, "", "app did not accept the message: it answered 401.\n")
    done = await operating.run("test", "app", "--json")
    expected = {"name": "app", "accepted": False, "status": 401, "error": None}
    assert (done.code, json.loads(done.out)) == (1, expected)


async def test_test_message_that_nobody_answers(operating: Operating) -> None:
    operating.write_catalog("http://127.0.0.1:1/")
    done = await operating.run("test", "app")
    assert done == Done(6, "", "app did not answer: no connection.\n")


async def test_commands_name_no_person_and_are_not_in_the_trail_of_people(
    operating: Operating,
) -> None:
    await operating.sending.begin()
    for command in ("test", "enable", "resend"):
        assert (await operating.run(command, "app")).code == 0
    assert await rows(operating.conninfo, "SELECT FROM operator_acts") == []
