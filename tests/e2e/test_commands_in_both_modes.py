"""Every operator command and format, with `SUBSCRIPTIONS=any` and with `each`.

Each mode has its own states, fields and names of fields, and a command shows all of them.
"""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tenantry.common.clock import system_clock
from tenantry.domain.billing.events import KNOWN_TYPES
from tenantry.domain.billing.state import BillingPolicy
from tenantry_devkit.simulator import SECRET_KEY, Subscription
from tests.sdk.sdk_support import serving
from tests.support.billing import Provider, Subscriber, rows
from tests.support.command_runner import invoke_async
from tests.support.commands import SECRETS, Done
from tests.support.events import updated
from tests.support.facts import ANY, EACH
from tests.support.truth import World, running_world

MODES: Final = {"any": ANY, "each": EACH}
PASSED: Final = 0
DIFFERS: Final = 3


class Scene(NamedTuple):
    """A tenant whose upgrade was lost, beside a subscription of no tenant; runs commands."""

    world: World
    subscriber: Subscriber
    upgraded: Subscription
    lost_event: str
    folder: Path
    settings: dict[str, str]

    async def runs(self, command: str, code: int = PASSED) -> str:
        """Run a command that ends with this exit code; return its stdout."""
        done: Done = await invoke_async(
            *command.format(**self.names).split(), folder=self.folder, **self.settings
        )
        assert done.code == code, (command, done)
        return done.out

    async def document(self, command: str, code: int = PASSED) -> dict[str, Any]:
        """Run a command that writes one JSON document."""
        found: dict[str, Any] = json.loads(await self.runs(f"{command} --json", code))
        return found

    async def lines(self, command: str) -> list[dict[str, Any]]:
        """Run a command that writes one line of JSON for each object."""
        return [json.loads(line) for line in (await self.runs(f"{command} --json")).splitlines()]

    @property
    def names(self) -> dict[str, str]:
        return {
            "org": self.subscriber.id,
            "customer": self.subscriber.customer,
            "event": self.lost_event,
        }

    async def lose_the_upgrade_again(self) -> None:
        """Change the subscription's plan at the provider while no event arrives."""
        world = self.world
        plan, _ = await world.provider.state(self.subscriber)
        price = "price_pro" if plan == "business" else "price_business"
        async with world.losing_deliveries():
            world.simulator.change_plan(self.upgraded, price)
        await world.passes(minutes=1)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """A value of SUBSCRIPTIONS."""
    return str(request.param)


@pytest.fixture
async def scene(
    conninfo: str, database_url: str, tmp_path: Path, mode: str
) -> AsyncIterator[Scene]:
    """The scene, at the present time: commands look at the clock."""
    policy: BillingPolicy = MODES[mode]
    began = system_clock() - timedelta(days=3)
    async with running_world(conninfo, policy=policy, now=began, types=KNOWN_TYPES) as world:
        subscriber = await world.subscriber("price_pro")
        upgraded = world.subscription(subscriber)
        world.simulator.subscribe(world.simulator.customer("cus_stranger"), "price_pro")
        await world.passes(minutes=1)
        async with world.losing_deliveries():
            world.simulator.change_plan(upgraded, "price_business")
        [lost] = world.lost(subscriber)
        await world.passes(minutes=1)
        settings = {
            **SECRETS,
            "DATABASE_URL": database_url,
            "SUBSCRIPTIONS": mode,
            "PROVIDER_SECRET_KEY": SECRET_KEY,
            "PROVIDER_API_BASE": world.simulator.url,
        }
        yield Scene(world, subscriber, upgraded, lost.id, tmp_path, settings)


async def test_what_a_reconcile_shows_and_repairs(scene: Scene, mode: str) -> None:
    drift = {"field": "plan", "ours": "pro", "provider": "business"}
    of_subscription = [{**drift, "field": f"{scene.upgraded.id}.plan"}] if mode == "each" else []
    for command in ("reconcile", "reconcile --org {org}"):
        for options, state in (("--dry-run", "has drifted"), ("", "repaired")):
            shown = await scene.runs(f"{command} {options}", DIFFERS)
            lines = [line.split() for line in shown.splitlines()]
            assert lines[0] == [f"{scene.subscriber.id}:", *state.split()]
            assert lines[1 : 2 + len(of_subscription)] == [
                [each["field"], "pro", "->", "business"] for each in [drift, *of_subscription]
            ]
        await _check_document(scene, command, [drift, *of_subscription])


async def _check_document(scene: Scene, command: str, fields: list[dict[str, str]]) -> None:
    """Let the upgrade back and forth be lost, and check the JSON of the comparison before, and
    after it is repaired.
    """
    await scene.lose_the_upgrade_again()
    before = fields[0]["provider"], fields[0]["ours"]
    expected = [{**each, "ours": before[0], "provider": before[1]} for each in fields]
    for options, repaired in (("--dry-run", 0), ("", 1)):
        found = await scene.document(f"{command} {options}", DIFFERS)
        assert (found["drifted"], found["repaired"]) == (1, repaired)
        [details] = found["details"]
        assert details["fields"] == expected
    assert (await scene.document(command))["drifted"] == 0
    await scene.lose_the_upgrade_again()


@pytest.mark.thorough
async def test_what_a_backfill_lists_and_ingests(scene: Scene) -> None:
    assert scene.lost_event in await scene.runs("backfill --since 7d --dry-run")
    assert (await scene.document("backfill --since 7d --dry-run"))["missed"] == 1
    assert scene.lost_event in await scene.runs("backfill --since 7d")
    assert await scene.world.provider.state(scene.subscriber) == ("business", "active")
    assert (await scene.document("backfill --since 7d"))["missed"] == 0


@pytest.mark.thorough
async def test_a_lost_event_is_sent_again(scene: Scene) -> None:
    assert "applied" in await scene.runs("admin fetch-events {event}")
    assert "duplicate" in json.dumps(await scene.document("admin fetch-events {event}"))
    assert scene.upgraded.id in await scene.runs("admin show-event-body {event}")
    assert await scene.world.provider.state(scene.subscriber) == ("business", "active")


@pytest.mark.thorough
async def test_what_a_rebuild_shows_and_repairs(scene: Scene) -> None:
    for command in (
        "admin rebuild-tenants {org}",
        "admin replay-events --org {org}",
        "admin replay-events --since 7d",
    ):
        assert (await scene.document(f"{command} --dry-run"))["dryRun"] is True
        await _damage(scene)
        assert "enterprise" in await scene.runs(f"{command} --dry-run", DIFFERS)
        document = json.dumps(await scene.document(f"{command} --dry-run", DIFFERS))
        assert '"stored": "enterprise"' in document
        assert '"folded": "pro"' in document
        assert "enterprise" in await scene.runs(command)
        assert await scene.world.provider.state(scene.subscriber) == ("pro", "active")
        await _damage(scene)
        assert '"stored": "enterprise"' in json.dumps(await scene.document(command))
        assert await scene.world.provider.state(scene.subscriber) == ("pro", "active")


async def _damage(scene: Scene) -> None:
    """Write another plan than the events say."""
    statement = "UPDATE tenants SET plan = 'enterprise' WHERE id = %s"
    await rows(scene.world.service.conninfo, f"{statement} RETURNING id", scene.subscriber.id)


@pytest.mark.thorough
async def test_what_explain_says_of_a_tenant(scene: Scene, mode: str) -> None:
    shown = await scene.runs("admin explain-tenant {org}")
    assert "pro" in shown
    document = await scene.document("admin explain-tenant {org} --limit 1")
    assert document["tenant"]["plan"] == "pro"
    assert (scene.upgraded.id in json.dumps(document.get("subscriptions"))) == (mode == "each")


@pytest.mark.thorough
async def test_what_support_commands_say_of_tenants_and_events(scene: Scene) -> None:
    org, customer = scene.subscriber.id, scene.subscriber.customer
    assert json.loads(await scene.runs("admin show-tenant {org} --json"))["plan"] == "pro"
    for command in (
        "admin list-tenants",
        "admin list-tenants --plan pro --status active --access full",
        "admin find {customer}",
    ):
        assert org in await scene.runs(command)
        assert org in json.dumps(await scene.lines(command))
    assert "cus_stranger" in await scene.runs("admin list-parked-events")
    assert {each["customerId"] for each in await scene.lines("admin list-parked-events")} == {
        "cus_stranger"
    }
    await scene.runs("admin suspend {org} --yes")
    await scene.runs("admin resume {org}")
    assert org in await scene.runs("admin export-audit")
    assert customer in await scene.runs("admin unlink {customer} --yes")


@pytest.mark.thorough
async def test_a_customers_link_is_changed(scene: Scene) -> None:
    moved = {
        "customerId": scene.subscriber.customer,
        "movedFrom": scene.subscriber.id,
        "movedTo": "globex",
    }
    await scene.runs(
        "admin create-tenant --id globex --name Globex --owner-email owner@globex.example"
    )
    await scene.runs(
        "admin create-tenant --id initech --name Initech --owner-email owner@initech.example"
    )
    assert json.loads(await scene.runs("admin move {customer} --org globex --yes --json")) == moved
    assert "initech" in await scene.runs("admin move {customer} --org initech --yes")
    assert (
        json.loads(await scene.runs("admin unlink {customer} --yes --json"))["movedFrom"]
        == "initech"
    )
    assert (
        json.loads(await scene.runs("admin link {customer} --org globex --json"))["movedTo"]
        == "globex"
    )
    assert "initech" in await scene.runs("admin link cus_stranger --org initech")
    assert await scene.lines("admin list-parked-events") == []


@pytest.mark.thorough
async def test_doctor_examines_the_installation(scene: Scene) -> None:
    for command in ("doctor", "doctor --json"):
        done = await invoke_async(*command.split(), folder=scene.folder, **scene.settings)
        assert done.code in (0, 1), done
        assert "billing ledger" in done.out


async def test_user_commands_show_the_tenant_and_its_events(
    conninfo: str, tmp_path: Path, mode: str
) -> None:
    async with serving(conninfo, SUBSCRIPTIONS=mode) as served:
        provider = Provider(served.service)
        subscriber = await provider.subscriber()
        await provider.send(event := updated(**subscriber.names))
        assert subscriber.organization is not None
        credential = str(subscriber.organization.owner.credential)
        values = {"TENANTRY_BASE_URL": served.url, "TENANTRY_API_KEY": credential}
        for command in (
            "status",
            "tenants show",
            "tenants list",
            "events list",
            f"events show {event['id']}",
            "plans",
        ):
            for options in ("", " --json"):
                done = await invoke_async(*f"{command}{options}".split(), folder=tmp_path, **values)
                assert (done.code, "pro" in done.out.lower()) == (PASSED, True), (command, done)
