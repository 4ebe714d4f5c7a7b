"""``tenantry reconcile`` and ``tenantry backfill``, as operators run them beside a provider."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

import psycopg
import pytest
from click.testing import CliRunner

from tenantry.common.clock import system_clock
from tenantry.domain.billing.events import KNOWN_TYPES, REQUIRED_TYPES
from tenantry_cli.commands import main
from tenantry_devkit.simulator import SECRET_KEY
from tests.support import events
from tests.support.billing import Subscriber
from tests.support.cases import cases
from tests.support.command_runner import invoke_async
from tests.support.commands import Done, running
from tests.support.emptying import Empty, emptying
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, as_url
from tests.support.provider_api import KEY, Answer, endpoint, refusal, running_provider
from tests.support.truth import Stage, World, running_stage

WRONG_KEY: Final = "sk_test_MustNeverBeShown"
UNSET: Final = "The payment provider's API is not set up here: PROVIDER_SECRET_KEY is unset.\n"


class Operator(NamedTuple):
    """Who runs commands, and the world that they work in."""

    world: World
    folder: Path
    settings: Mapping[str, str]

    async def runs(self, command: str, **values: str) -> Done:
        """What a command comes to; no secret is ever in what it writes."""
        done = await invoke_async(
            *command.split(), folder=self.folder, **{**self.settings, **values}
        )
        assert SECRET_KEY not in done.out + done.err
        assert WRONG_KEY not in done.out + done.err
        return done


@asynccontextmanager
async def operating(stage: Stage, folder: Path) -> AsyncIterator[Operator]:
    """An operator, at the present time: commands look at the clock."""
    async with stage.world(system_clock() - timedelta(days=3), types=KNOWN_TYPES) as world:
        settings = {
            "DATABASE_URL": as_url(stage.service.conninfo),
            "PROVIDER_SECRET_KEY": SECRET_KEY,
            "PROVIDER_API_BASE": world.simulator.url,
        }
        yield Operator(world, folder, settings)


@pytest.fixture(scope="module")
async def shared_stage(postgres: PostgresServer) -> AsyncIterator[tuple[Stage, Empty]]:
    """The service of this file, and what deletes the rows of earlier tests."""
    with postgres.database() as conninfo:
        async with emptying(conninfo) as empty, running_stage(conninfo) as stage:
            yield stage, empty


@pytest.fixture
async def operator(shared_stage: tuple[Stage, Empty], tmp_path: Path) -> AsyncIterator[Operator]:
    stage, empty = shared_stage
    await empty()
    async with operating(stage, tmp_path) as operator:
        yield operator


async def lost_upgrade(world: World) -> tuple[Subscriber, str, str]:
    """A tenant that has missed an upgrade; when that was, and the event's id."""
    subscriber = await world.subscriber("price_pro")
    async with world.losing_deliveries():
        world.simulator.change_plan(world.subscription(subscriber), "price_business")
    [lost] = world.lost(subscriber)
    moment = world.simulator.now.isoformat(timespec="seconds").replace("+00:00", "Z")
    await world.passes(minutes=1)
    return subscriber, moment, lost.id


async def test_drift_is_shown_and_repaired(operator: Operator) -> None:
    subscriber, moment, event_id = await lost_upgrade(operator.world)
    drift = (
        "  plan  pro -> business\n"
        f"{subscriber.id}: 1 missed event\n  {moment}  customer.subscription.updated  {event_id}\n"
    )
    assert await operator.runs("reconcile --dry-run") == Done(
        3,
        f"{subscriber.id}: has drifted\n{drift}1 tenant compared: 1 drifted, nothing written\n",
        "",
    )
    assert await operator.runs("reconcile", NO_COLOR="1") == Done(
        3, f"{subscriber.id}: repaired\n{drift}1 tenant compared: 1 drifted, 1 repaired\n", ""
    )
    assert await operator.world.provider.state(subscriber) == ("business", "active")
    assert await operator.runs(f"reconcile --org {subscriber.id}") == Done(
        0, "1 tenant compared: 0 drifted, 0 repaired\n", ""
    )


async def test_the_document_of_a_comparison(operator: Operator) -> None:
    subscriber, moment, event_id = await lost_upgrade(operator.world)
    async with operator.world.losing_deliveries():
        other = await operator.world.subscriber("price_pro", trial_days=2)
    done = await operator.runs(f"reconcile --org {subscriber.id} --org {other.id} --json")
    assert (done.code, done.err) == (3, "")
    document = json.loads(done.out)
    first, second = document.pop("details")
    assert document == {
        "dryRun": False,
        "compared": 2,
        "drifted": 2,
        "repaired": 2,
        "notCompared": 0,
        "stopped": None,
        "notPlaced": 0,
        "subscriptionsNotPlaced": [],
        "continueWith": None,
    }
    assert first == {
        "tenantId": subscriber.id,
        "repaired": True,
        "fields": [{"field": "plan", "ours": "pro", "provider": "business"}],
        "missed": [
            {
                "id": event_id,
                "type": "customer.subscription.updated",
                "created": moment,
                "tenantId": subscriber.id,
                "outcome": "late",
            }
        ],
        "trouble": None,
        "linked": [],
        "unknownPrices": [],
    }
    assert [(field["field"], field["ours"]) for field in second["fields"]] == [
        ("plan", "free"),
        ("subscriptionStatus", "none"),
        ("currentPeriodEnd", None),
    ]
    assert second["fields"][2]["provider"] == operator.world.truth(other).period_end


async def test_a_lost_first_payment_is_shown_and_repaired(operator: Operator) -> None:
    world = operator.world
    subscriber = await world.subscriber(linked=False)
    async with world.losing_deliveries():
        world.subscribe(subscriber, "price_pro")
        unknown = world.simulator.subscribe(world.simulator.customer("cus_unknown"), "price_pro")
    explained = await operator.runs(f"admin explain-tenant {subscriber.id}")
    assert f"tenantry reconcile --org {subscriber.id}" in explained.out
    done = await operator.runs("reconcile")
    assert done.code == 3
    assert f"{subscriber.id}: repaired\n  plan                free -> pro\n" in done.out
    assert f"  customer {subscriber.customer} is linked now\n" in done.out
    assert (
        f"not placed: subscription {unknown.id} of customer cus_unknown: it names no tenant, and its customer is "
        "linked to none\n  if it is a tenant's: tenantry admin link cus_unknown --org ORG\n"
    ) in done.out
    assert (
        "tenantry reconcile"
        not in (await operator.runs(f"admin explain-tenant {subscriber.id}")).out
    )


async def test_a_price_that_no_plan_has_is_named(operator: Operator) -> None:
    world = operator.world
    world.simulator.price("price_legacy", 1900)
    async with world.losing_deliveries():
        subscriber = await world.subscriber("price_legacy")
    done = await operator.runs("reconcile --dry-run")
    assert f"{subscriber.id}: has drifted\n  subscriptionStatus  none -> active\n" in done.out
    assert "\n  price price_legacy is in no plan of the catalog\n" in done.out
    async with world.losing_deliveries():
        world.simulator.cancel(world.subscription(subscriber))
    ended = await operator.runs("reconcile --dry-run")
    assert "  subscriptionStatus  none -> canceled\n" in ended.out
    assert "price_legacy" not in ended.out


@pytest.mark.thorough
async def test_the_command_that_places_a_subscription_can_be_pasted(operator: Operator) -> None:
    simulator = operator.world.simulator
    simulator.subscribe(simulator.customer("cus_a;b"), "price_pro")
    async with running("reconcile", folder=operator.folder, **operator.settings) as command:
        assert await command.wait() == 0
    assert " -m tenantry admin link 'cus_a;b' --org ORG\n" in command.text["out"]


async def test_a_tenant_that_cannot_be_compared_exits_with_1_unless_there_is_drift(
    operator: Operator,
) -> None:
    unlinked = await operator.world.provider.subscriber()
    trouble = (
        f"{unlinked.id}: could not be compared: the provider does not know its customer in this account and mode: "
        f"{unlinked.customer}\n"
    )
    assert await operator.runs("reconcile") == Done(
        1, f"{trouble}0 tenants compared: 0 drifted, 0 repaired, 1 could not be compared\n", ""
    )
    await lost_upgrade(operator.world)
    done = await operator.runs("reconcile --dry-run")
    assert (done.code, trouble in done.out) == (3, True)


async def test_a_tenant_that_does_not_exist_exits_with_5_and_nothing_is_done(
    operator: Operator,
) -> None:
    subscriber, _, _ = await lost_upgrade(operator.world)
    done = await operator.runs(f"reconcile --org {subscriber.id} --org missing")
    assert done == Done(5, "", "There is no such tenant: missing.\n")
    assert await operator.world.provider.state(subscriber) == ("pro", "active")


async def test_missed_events_are_processed(operator: Operator) -> None:
    subscriber, moment, event_id = await lost_upgrade(operator.world)
    line = f"{moment}  customer.subscription.updated  {event_id}  {subscriber.id}"
    assert await operator.runs(f"backfill --since {moment} --dry-run") == Done(
        0, f"{line}  missed\n1 event listed, 1 missed: nothing written\n", ""
    )
    done = await operator.runs(f"backfill --since {moment} --json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == {
        "dryRun": False,
        "since": moment,
        "listed": 1,
        "missed": 1,
        "until": None,
        "outcomes": {"applied": 1},
        "stopped": None,
        "continueWith": None,
        "reached": {"id": event_id, "created": moment},
        "details": [
            {
                "id": event_id,
                "type": "customer.subscription.updated",
                "created": moment,
                "tenantId": subscriber.id,
                "outcome": "applied",
            }
        ],
    }
    assert await operator.world.provider.state(subscriber) == ("business", "active")
    assert await operator.runs(f"backfill --since {moment}") == Done(
        0, "1 event listed, 0 missed: nothing to do\n", ""
    )


async def test_backfill_fetches_the_further_types_that_the_endpoint_sends(
    operator: Operator,
) -> None:
    subscriber = await operator.world.subscriber()
    first = events.subscription_created(**subscriber.names, status="trialing")
    sent = [*sorted(REQUIRED_TYPES), first["type"]]
    async with running_provider() as server:
        server.events = [first]
        provider = {
            "PROVIDER_API_BASE": server.url,
            "PROVIDER_SECRET_KEY": KEY,
            "BASE_URL": "https://api.example",
        }
        base = "backfill --since 2026-01-01T00:00:00Z"
        assert (
            await operator.runs(base, **provider)
        ).out == "0 events listed, 0 missed: nothing to do\n"
        server.endpoints = [
            endpoint(1, "https://api.example/api/v1/webhooks/payment-provider", sent)
        ]
        assert (await operator.runs(base, **provider)).out.endswith(
            "1 event listed, 1 missed: 1 applied\n"
        )
    assert await operator.world.provider.state(subscriber) == ("pro", "trialing")


async def test_backfill_warns_of_times_that_the_provider_no_longer_lists(
    operator: Operator,
) -> None:
    done = await operator.runs("backfill --since 2020-01-01T00:00:00Z")
    assert (done.code, done.out) == (0, "0 events listed, 0 missed: nothing to do\n")
    assert done.err.startswith("The provider lists events for 30 days: what was missed before ")


NO_ENDPOINTS: Final = Answer(200, {"object": "list", "data": [], "has_more": False})
COMMANDS: Final = ("reconcile", "backfill --since 2026-01-01T00:00:00Z --dry-run")


@pytest.mark.parametrize("command", COMMANDS)
async def test_rejected_key_exits_with_4(operator: Operator, command: str) -> None:
    await operator.world.subscriber("price_pro")
    done = await operator.runs(command, PROVIDER_SECRET_KEY=WRONG_KEY)
    assert (done.code, done.out) == (4, "")
    assert done.err.splitlines()[-1].endswith(
        "The payment provider does not accept this service's API key (PROVIDER_SECRET_KEY)."
    )


@pytest.mark.parametrize("command", COMMANDS)
async def test_rejected_request_exits_with_1(operator: Operator, command: str) -> None:
    await operator.world.subscriber("price_pro")
    async with running_provider() as server:
        server.answers.extend([refusal(400, code="parameter_unknown")] * 2)
        done = await operator.runs(command, PROVIDER_API_BASE=server.url, PROVIDER_SECRET_KEY=KEY)
    assert done.code == 1
    assert (
        "The payment provider refused the request (status 400, parameter_unknown, request req_"
        in done.err
    )


async def test_key_without_the_permission_exits_with_4(operator: Operator) -> None:
    async with running_provider() as server:
        server.answers.extend([refusal(403, code="insufficient_permissions")] * 2)
        done = await operator.runs(
            COMMANDS[1], PROVIDER_API_BASE=server.url, PROVIDER_SECRET_KEY=KEY
        )
    assert done.code == 4
    assert (
        "does not let this service's API key (PROVIDER_SECRET_KEY) do this: it lacks a permission"
        in done.err
    )


async def test_stopped_backfill_prints_the_command_that_continues_it(operator: Operator) -> None:
    subscriber = await operator.world.subscriber()
    listed = [
        events.updated(**subscriber.names, event_id=f"evt_{age:03}", created=events.NOW - age)
        for age in range(250)
    ]
    base = "backfill --since 2026-01-01T00:00:00Z"
    async with running_provider() as server:
        server.answers.append(NO_ENDPOINTS)
        server.answers.extend(
            Answer(200, {"object": "list", "data": listed[first : first + 100], "has_more": True})
            for first in (0, 100)
        )
        server.answers.append(refusal(500, type="api_error"))
        provider = {"PROVIDER_API_BASE": server.url, "PROVIDER_SECRET_KEY": KEY}
        stopped = await operator.runs(base, **provider)
        assert stopped.code == 6
        stop = (
            "Stopped after 100 events, at evt_099 of 2026-01-01T11:58:21Z: The payment provider is out of reach. Try "
            "again shortly.\n"
            "Events from the newest event back to then are done. Continue with: tenantry backfill --since "
            "2026-01-01T00:00:00Z --until 2026-01-01T11:58:21Z\n"
        )
        assert stopped.err.endswith(stop)
        server.answers.append(NO_ENDPOINTS)
        server.answers.append(
            Answer(200, {"object": "list", "data": listed[99:], "has_more": False})
        )
        done = await operator.runs(f"{base} --until 2026-01-01T11:58:21Z", **provider)
        assert (done.code, done.out.splitlines()[-1]) == (
            0,
            "151 events listed, 150 missed: 150 late",
        )
        asked = server.requests[-1].params
    assert (asked["created[gte]"], asked["created[lte]"]) == ("1767225600", str(events.NOW - 99))


async def test_stopped_backfill_with_failed_events_retries_them(
    conninfo: str, tmp_path: Path
) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute("ALTER TABLE billing_events ADD CHECK (id <> 'evt_007')")
    async with running_stage(conninfo) as stage, operating(stage, tmp_path) as operator:
        subscriber = await operator.world.subscriber()
        listed = [
            events.updated(**subscriber.names, event_id=f"evt_{age:03}", created=events.NOW - age)
            for age in range(150)
        ]
        async with running_provider() as server:
            server.answers.append(NO_ENDPOINTS)
            server.answers.extend(
                Answer(200, {"object": "list", "data": part, "has_more": True})
                for part in (listed[:100], listed[100:])
            )
            server.answers.append(refusal(500, type="api_error"))
            provider = {"PROVIDER_API_BASE": server.url, "PROVIDER_SECRET_KEY": KEY}
            stopped = await operator.runs("backfill --since 2026-01-01T00:00:00Z", **provider)
    assert stopped.code == 6
    assert stopped.err.endswith(
        "1 event could not be handled. Retry them and fetch the rest with: tenantry backfill --since "
        "2026-01-01T00:00:00Z\n"
    )


async def test_a_provider_out_of_reach_exits_with_6(operator: Operator) -> None:
    await operator.world.subscriber("price_pro")
    done = await operator.runs(
        "reconcile --json", PROVIDER_API_BASE=f"http://127.0.0.1:{free_port()}"
    )
    assert done.code == 6
    assert (
        json.loads(done.out)["stopped"]
        == "The payment provider is out of reach. Try again shortly."
    )
    assert (
        "Stopped after 0 tenants: The payment provider is out of reach. Try again shortly."
        in done.err
    )


async def test_a_database_out_of_reach_exits_with_6(tmp_path: Path) -> None:
    nowhere = f"postgresql://127.0.0.1:{free_port()}/nothing"
    done = await invoke_async(
        "reconcile", folder=tmp_path, DATABASE_URL=nowhere, PROVIDER_SECRET_KEY=SECRET_KEY
    )
    assert (done.code, done.out) == (6, "")
    assert done.err.startswith("DATABASE_URL: the database cannot be used: ")


@pytest.mark.parametrize("command", COMMANDS)
async def test_missing_key_is_named(tmp_path: Path, database_url: str, command: str) -> None:
    done = await invoke_async(*command.split(), folder=tmp_path, DATABASE_URL=database_url)
    assert done.code == 1
    assert done.err.endswith(UNSET)


WRONG_USE: Final = (
    "reconcile acme",
    "backfill",
    "backfill --since soon",
    "backfill --since 2999-01-01T00:00:00Z",
)


@pytest.mark.parametrize("arguments", WRONG_USE)
def test_wrong_use_exits_with_2(arguments: str) -> None:
    assert CliRunner().invoke(main, arguments.split()).exit_code == 2


async def test_events_are_resent_by_their_ids(operator: Operator) -> None:
    world = operator.world
    subscriber, moment, event_id = await lost_upgrade(world)
    event = f"{moment}  customer.subscription.updated  {event_id}"
    assert await operator.runs(f"admin fetch-events {event_id}") == Done(
        0, f"{event}  {subscriber.id}  applied\n", ""
    )
    assert await world.provider.state(subscriber) == ("business", "active")
    assert await operator.runs(f"admin fetch-events {event_id}") == Done(
        0, f"{event}  -  duplicate\n", ""
    )


async def test_resent_events_that_the_provider_does_not_have_are_named(operator: Operator) -> None:
    subscriber, moment, event_id = await lost_upgrade(operator.world)
    done = await operator.runs(f"admin fetch-events evt_missing {event_id} evt_missing --json")
    assert (done.code, done.err) == (5, "The payment provider has no event evt_missing.\n")
    assert json.loads(done.out) == {
        "events": [
            {
                "id": event_id,
                "type": "customer.subscription.updated",
                "created": moment,
                "tenantId": subscriber.id,
                "outcome": "applied",
            },
        ],
        "missing": ["evt_missing"],
    }


async def test_resend_of_a_type_that_is_not_handled_is_ignored(operator: Operator) -> None:
    operator.world.simulator.customer("cus_other")
    [created] = operator.world.simulator.events("customer.created")[-1:]
    done = await operator.runs(f"admin fetch-events {created.id}")
    assert (done.code, done.out.split()[1:]) == (
        0,
        ["customer.created", created.id, "-", "ignored"],
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "code", "problem"),
    [
        ({"PROVIDER_SECRET_KEY": ""}, 1, UNSET),
        ({"PROVIDER_SECRET_KEY": WRONG_KEY}, 4, "does not accept this service's API key"),
        (
            {"PROVIDER_API_BASE": f"http://127.0.0.1:{free_port()}"},
            6,
            "The payment provider is out of reach.",
        ),
    ],
)
async def test_resend_fails_without_the_provider(
    operator: Operator, settings: dict[str, str], code: int, problem: str
) -> None:
    done = await operator.runs("admin fetch-events evt_1", **settings)
    assert (done.code, done.out) == (code, "")
    assert problem in done.err


@cases("event_id", ["evt_/../customers", "cus_1", "evt_", "evt_1?x=y", "sk_test_MustNeverBeShown"])
def test_resend_takes_ids_of_events_only(event_id: str) -> None:
    assert CliRunner().invoke(main, ["admin", "fetch-events", event_id]).exit_code == 2
