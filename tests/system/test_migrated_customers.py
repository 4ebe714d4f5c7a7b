"""Two hundred customers of an account that was in use for months become tenants.

The operator does what `docs/tutorials/you-already-have-stripe-customers.md` says.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tenantry.common.clock import system_clock
from tenantry.domain.billing.events import KNOWN_TYPES
from tenantry.domain.billing.state import BillingPolicy
from tenantry_devkit.simulator import SECRET_KEY, Rules
from tests.support import events
from tests.support.account_in_use import SWITCH, Company, Result, account_in_use, newest
from tests.support.billing import rows
from tests.support.catalogs import catalog_file
from tests.support.command_runner import invoke_async
from tests.support.commands import Done
from tests.support.facts import ANY, EACH
from tests.support.postgres import as_url
from tests.support.service import TENANTS
from tests.support.truth import World, running_stage

OF_EACH_KIND: Final = 8
SETTINGS: Final = {"PROVIDER_LIVEMODE": "test", "PARKED_MAIL_HOURS": "0"}
CATALOG: Final = """
[[plans]]
id = "free"
stripe_price_id = "price_free"
[[plans]]
id = "pro"
stripe_price_id = ["price_pro", "price_legacy"]
[[plans]]
id = "business"
stripe_price_id = "price_business"
"""
"""The catalog of the service, with the price that it lacks."""


class Migration(NamedTuple):
    """The operator, with the vendor's table of companies."""

    world: World
    companies: Sequence[Company]
    folder: Path

    @property
    def tenants(self) -> list[Company]:
        """The companies that become tenants."""
        return [each for each in self.companies if each.kind.is_tenant]

    def of(self, name: str) -> list[Company]:
        """The companies of a kind."""
        return [each for each in self.companies if each.kind.name == name]

    def first(self, outcome: str) -> Counter[str]:
        """How many companies of each kind `reconcile` says this of at first."""
        return Counter(each.kind.name for each in self.companies if each.kind.first == outcome)

    def kinds(self, ids: Iterable[str]) -> Counter[str]:
        """How many of these tenants or customers are of each kind."""
        names = {company.id: company.kind.name for company in self.companies}
        return Counter(names[each.removeprefix("cus_")] for each in ids)

    async def runs(self, command: str, **values: str) -> Done:
        """What a command comes to."""
        settings = {
            "DATABASE_URL": as_url(self.world.service.conninfo),
            "PROVIDER_SECRET_KEY": SECRET_KEY,
            "PROVIDER_API_BASE": self.world.simulator.url,
            **SETTINGS,
            "SUBSCRIPTIONS": self.world.reconciler.policy.subscriptions.value,
        }
        return await invoke_async(*command.split(), folder=self.folder, **{**settings, **values})

    async def reconciles(self, options: str = "", **values: str) -> dict[str, Any]:
        """The document of a whole comparison."""
        done = await self.runs(f"reconcile --json {options}", **values)
        document: dict[str, Any] = json.loads(done.out)
        assert document["stopped"] is None
        return document

    async def creates(self, company: Company) -> None:
        """Create the tenant with each of its customers, unless another tenant has the customer."""
        customers: Sequence[str | None] = company.customers or [None]
        for customer in customers:
            is_free = await self._puts(company, customer)
            if not is_free:
                assert await self._puts(company, None)

    async def _puts(self, company: Company, customer: str | None) -> bool:
        body = {"name": company.id, "ownerEmail": "owner@x.example"}
        body |= {"stripeCustomerId": customer} if customer else {}
        answer = await self.world.service.operator.put(f"{TENANTS}/{company.id}", body)
        assert answer.status_code in (200, 201) or "customer_taken" in answer.text
        return answer.status_code != 409

    async def results(self) -> dict[str, Result]:
        """What each tenant has."""
        operator = self.world.service.operator
        found, cursor = dict[str, Result](), dict[str, str]()
        while True:
            answer = await operator.get("/api/v1/operator/tenants", limit=100, **cursor)
            page = answer.json()
            found |= {tenant["id"]: _result(tenant) for tenant in page["data"]}
            if page["nextCursor"] is None:
                return found
            cursor = {"cursor": page["nextCursor"]}

    def expected(self) -> dict[str, Result]:
        """What each tenant must have in the end."""
        is_each = self.world.reconciler.policy.is_each
        return {each.id: (is_each and each.kind.each) or each.kind.result for each in self.tenants}


def _result(tenant: dict[str, Any]) -> Result:
    access = tenant["access"]
    return Result(tenant["plan"], tenant["subscriptionStatus"], access["state"], access["plan"])


@pytest.mark.parametrize("policy", [ANY, EACH], ids=["any", "each"])
async def test_each_of_two_hundred_customers_gets_its_plan_status_and_access(
    policy: BillingPolicy, conninfo: str, tmp_path: Path
) -> None:
    began = system_clock() - timedelta(days=SWITCH, hours=2)
    async with (
        running_stage(conninfo, policy, **SETTINGS) as stage,
        stage.world(began, KNOWN_TYPES, rules=Rules(when_retries_end="unpaid")) as world,
    ):
        migration = Migration(world, await account_in_use(world, OF_EACH_KIND), tmp_path)
        assert len(world.simulator.customers) > 200

        await events_arrive_meanwhile(migration)
        for company in (*migration.tenants, *migration.tenants):  # the second time changes nothing
            await migration.creates(company)

        before = await migration.results()
        first = await migration.reconciles("--dry-run")
        assert await migration.results() == before
        check_exceptions(migration, first)
        assert (await migration.reconciles())["repaired"] == first["drifted"]

        await place_exceptions(migration)
        await migration.reconciles()
        plans = {"TENANTRY_PLANS": catalog_file(CATALOG)}
        replay = await migration.runs("admin replay-events", **plans)
        assert replay.code == 0, replay
        assert await migration.results() == migration.expected()
        assert await rows(conninfo, "SELECT 1 FROM notifications") == []
        await nothing_is_left(migration, plans)
        await later_events_count(migration)


async def events_arrive_meanwhile(migration: Migration) -> None:
    """The endpoint is added before there is any tenant: what happens from now on waits for it."""
    world = migration.world
    for company in migration.companies:
        company.kind.meanwhile(world.simulator, company.id)
    await world.passes(minutes=1)
    for company in migration.of("customer of the other mode"):
        [customer] = company.customers
        event = events.updated(org=None, customer=customer) | {"livemode": True}
        await world.provider.send(event)


def check_exceptions(migration: Migration, document: dict[str, Any]) -> None:
    """What the first comparison cannot place or compare is named, and nothing else."""
    not_placed = [each["customerId"] for each in document["subscriptionsNotPlaced"]]
    assert migration.kinds(not_placed) == migration.first("not placed")
    troubled = [each["tenantId"] for each in document["details"] if each["trouble"]]
    assert migration.kinds(troubled) == migration.first("not compared")
    unknown = [each["tenantId"] for each in document["details"] if each["unknownPrices"]]
    assert migration.kinds(unknown) == Counter({"price in no plan": OF_EACH_KIND})


async def place_exceptions(migration: Migration) -> None:
    """What the page says of each kind that fits no rule."""
    simulator = migration.world.simulator
    for company in migration.of("neither table nor metadata"):
        linked = await migration.runs(f"admin link cus_{company.id} --org {company.id}")
        assert linked.code == 0, linked
    for company in migration.of("metadata name a former id"):
        simulator.set_metadata(newest(simulator, f"cus_{company.id}"), {"orgId": company.id})
    for company in migration.of("customer of the other mode"):
        unlinked = await migration.runs(f"admin unlink cus_{company.id} --yes")
        assert unlinked.code == 0, unlinked
    await migration.world.passes(minutes=1)


async def nothing_is_left(migration: Migration, plans: Mapping[str, str]) -> None:
    """A last comparison finds only customers of no tenant; folding the ledger gives the same."""
    document = await migration.reconciles(**plans)
    assert (document["drifted"], document["notCompared"]) == (0, 0)
    not_placed = [each["customerId"] for each in document["subscriptionsNotPlaced"]]
    assert migration.kinds(not_placed) == Counter({"no tenant's customer": OF_EACH_KIND})
    rebuilt = await migration.runs("admin replay-events --dry-run", **plans)
    assert rebuilt.code == 0, rebuilt.out


async def later_events_count(migration: Migration) -> None:
    """From now on the provider's events decide: every subscription ends."""
    world = migration.world
    for subscription in list(world.simulator.subscriptions.values()):
        if not subscription.has_ended:
            world.simulator.cancel(subscription)
    await world.passes(minutes=1)
    left = {result.status for result in (await migration.results()).values()}
    assert left == {"canceled", "none"}
