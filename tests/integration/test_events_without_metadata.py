"""Subscription events that name no tenant follow their customer, whenever it is linked, moved or
unlinked.
"""

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import permutations
from typing import Any, Final

import psycopg
import pytest

from tenantry.billing.batch_store import lock_account
from tenantry.billing.customer_links import CustomerLinks
from tenantry.billing.ingest import WebhookService
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.outbox import Outbox
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.billing.events import INVOICE_TYPES, BillingEvent
from tenantry.domain.billing.ledger import LedgerEntry, ReceivedEvent
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.billing.tenant_record import BillingRecord
from tests.support import events
from tests.support.billing import Provider, rows, until_blocked
from tests.support.billing_scene import Scene, running_scene
from tests.support.events import NOW
from tests.support.facts import ANY, EACH, completed, deleted, failed, succeeded, updated
from tests.support.ledger import recorded
from tests.support.orders import in_batches
from tests.support.patience import patient_database
from tests.support.replays import replay_one
from tests.support.service import Service

AT: Final = datetime.fromtimestamp(10**6, UTC)
SEEDS: Final = 4
EVERY: Final = 5
"""One of so many orders is tried; `tests/system` tries all, and more seeds."""
CHANGES: Final = 6


@pytest.fixture
def provider(service: Service) -> Provider:
    return Provider(service)


async def test_a_moved_customer_takes_its_subscriptions_along(provider: Provider) -> None:
    former, present = await provider.subscriber(), await provider.subscriber(linked=False)
    event = events.updated(**{**former.names, "org": None})
    await provider.send(event)
    assert await provider.state(former) == ("pro", "active")
    async with patient_database(provider.service.conninfo, pool_size=1) as database:
        links = CustomerLinks(database, ANY, Outbox(asks_provider=True), lambda: AT)
        await links.unlink(BY_OPERATOR, former.customer)
        assert await provider.state(former) == ("free", "none")
        await links.link(BY_OPERATOR, former.customer, present.id)
    assert await provider.state(present) == ("pro", "active")
    assert list(await provider.ledger(present)) == [event["id"]]
    for subscriber in (former, present):
        assert (await replay_one(provider, subscriber)).is_right


async def test_a_removed_link_gives_a_subscription_back_to_the_tenant_that_it_named(
    emptied: str,
) -> None:
    """With `SUBSCRIPTIONS=each`, where the newest event decides which tenant has a subscription."""
    of_both = {"subscription_id": "sub_1", "customer_id": "cus_1"}
    async with running_scene(emptied, EACH, AT) as scene:
        await scene.create(acme="cus_acme", other="cus_other")
        await scene.links.link(BY_OPERATOR, "cus_1", "other")
        await scene.deliver(
            updated(100, "evt_1", **of_both), updated(200, "evt_2", **{**of_both, "org_id": None})
        )
        assert await scene.plans() == {"acme": "free", "other": "pro"}
        await scene.links.unlink(BY_OPERATOR, "cus_1")
        assert await scene.plans() == {"acme": "pro", "other": "free"}
        await scene.links.link(BY_OPERATOR, "cus_1", "other")
        assert await scene.plans() == {"acme": "free", "other": "pro"}


async def test_metadata_that_is_set_later_counts_from_then_on(provider: Provider) -> None:
    """The name in the metadata wins, event by event."""
    by_customer, named = await provider.subscriber(), await provider.subscriber(linked=False)
    names: dict[str, Any] = {
        "customer": by_customer.customer,
        "subscription_id": f"sub_{by_customer.id}",
    }
    await provider.send(
        events.updated(org=None, **names),
        events.updated(org=named.id, price="price_business", created=NOW + 5, **names),
    )
    assert (await provider.state(by_customer), await provider.state(named)) == (
        ("pro", "active"),
        ("business", "active"),
    )
    links = await rows(
        provider.service.conninfo,
        "SELECT tenant_id FROM customers WHERE id = %s",
        by_customer.customer,
    )
    assert [link["tenant_id"] for link in links] == [by_customer.id]


class Gate(Outbox):
    """An outbox that stops a transaction just before its commit, until the gate is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def defer_mail(self, *_: object, **__: object) -> None:
        """Do nothing: no mail matters here."""

    async def defer_snapshots(self, *_: object) -> None:
        self.reached.set()
        await self.open.wait()


class ConcurrentBatches:
    """Two tenants, and a subscription whose oldest event waits for its customer; with
    `SUBSCRIPTIONS=each`. What links the customer stops at the gate.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._ungated = WebhookService([scene.database.lane()], EACH, None, lambda: AT)

    async def begin(self) -> None:
        await self._scene.create(acme="cus_acme", other="cus_other")
        waiting = updated(100, "evt_1", subscription_id="sub_1", customer_id="cus_1", org_id=None)
        await self._ungated.apply([ReceivedEvent(waiting, AT)])

    async def link(self, tenant: str, way: str) -> None:
        """Link the customer to a tenant, so that it gets the subscription's oldest event."""
        match way:
            case "link":
                await self._scene.links.link(BY_OPERATOR, "cus_1", tenant)
            case "tenant":
                await self._scene.put(tenant, "cus_1")
            case _:
                await self._scene.deliver(
                    completed(150, "evt_session", customer_id="cus_1", org_id=tenant)
                )

    async def name(self, tenant: str) -> None:
        """Let the subscription's newest event name a tenant."""
        newest = updated(200, "evt_2", subscription_id="sub_1", customer_id="cus_1", org_id=tenant)
        [entry] = await self._ungated.apply([ReceivedEvent(newest, AT)])
        assert isinstance(entry, LedgerEntry)


@pytest.mark.parametrize("way", ["link", "checkout"])
async def test_two_tenants_that_get_a_subscription_at_the_same_time_do_not_both_have_it(
    emptied: str, way: str
) -> None:
    gate = Gate()
    async with running_scene(emptied, EACH, AT, gate) as scene:
        rivals = ConcurrentBatches(scene)
        await rivals.begin()
        linking = asyncio.create_task(rivals.link("acme", way))
        await gate.reached.wait()
        naming, blocked = (
            asyncio.create_task(each) for each in (rivals.name("other"), until_blocked(emptied))
        )
        await asyncio.wait([naming, blocked], return_when=asyncio.FIRST_COMPLETED)
        gate.open.set()
        blocked.cancel()
        await asyncio.gather(linking, naming)
        assert await scene.plans() == {"acme": "free", "other": "pro"}


@pytest.mark.parametrize("way", ["link", "checkout", "tenant"])
async def test_a_linked_customer_brings_no_subscription_that_names_another_tenant_since(
    emptied: str, way: str
) -> None:
    gate = Gate()
    gate.open.set()
    async with running_scene(emptied, EACH, AT, gate) as scene:
        rivals = ConcurrentBatches(scene)
        await rivals.begin()
        await rivals.name("other")
        await rivals.link("acme", way)
        assert await scene.plans() == {"acme": "free", "other": "pro"}


async def test_a_tenant_is_locked_in_order_with_those_that_have_its_customers_subscription(
    emptied: str,
) -> None:
    """While a change of the tenant waits for the other one, another transaction can lock it: its id
    is greater.
    """
    lock = "SELECT FROM tenants WHERE id = %s FOR NO KEY UPDATE NOWAIT"
    async with running_scene(emptied, EACH, AT, Gate()) as scene:
        rivals = ConcurrentBatches(scene)
        await rivals.begin()
        await rivals.name("acme")
        async with await psycopg.AsyncConnection.connect(emptied) as opposing:
            await opposing.execute(lock, ("acme",))
            linking = asyncio.create_task(rivals.link("other", "tenant"))
            await until_blocked(emptied)
            await opposing.execute(lock, ("other",))
        await linking
        assert await scene.plans() == {"acme": "pro", "other": "free"}


@pytest.mark.parametrize("way", ["unlink", "link", "move"])
async def test_a_change_of_a_link_locks_no_tenant_of_another_customers_subscription(
    emptied: str, way: str
) -> None:
    """The tenants that it locks share a subscription of another customer with a tenant whose id
    comes before theirs.
    """
    lock = "SELECT FROM tenants WHERE id = %s FOR NO KEY UPDATE NOWAIT"
    gate = Gate()
    gate.open.set()
    async with running_scene(emptied, EACH, AT, gate) as scene:
        await scene.create(acme="cus_acme", mid="cus_mid", other="cus_other")
        of_both = {"subscription_id": "sub_1", "customer_id": "cus_1"}
        of_outsider = {"subscription_id": "sub_2", "customer_id": "cus_acme"}
        history = [
            updated(100, "evt_1", **of_both, org_id="mid"),
            updated(200, "evt_2", **of_both, org_id="other"),
            updated(300, "evt_3", **of_outsider, org_id="mid"),
            updated(400, "evt_4", **of_outsider, org_id="acme"),
        ]
        await scene.deliver(*history)
        if way != "link":
            await scene.links.link(BY_OPERATOR, "cus_1", "other")
        async with await psycopg.AsyncConnection.connect(emptied) as opposing:
            await opposing.execute(lock, ("acme",))
            changing = asyncio.create_task(_change(scene.links, way))
            blocked = asyncio.create_task(until_blocked(emptied))
            await asyncio.wait([changing, blocked], return_when=asyncio.FIRST_COMPLETED)
            blocked.cancel()
            # as a webhook about the other subscription does after "acme"
            for tenant in ("mid", "other"):
                await opposing.execute(lock, (tenant,))
        await changing
        assert await scene.plans() == {"acme": "pro", "mid": "free", "other": "pro"}


async def _change(links: CustomerLinks, way: str) -> None:
    """Change the link of the customer whose subscription the two later tenants have."""
    match way:
        case "unlink":
            await links.unlink(BY_OPERATOR, "cus_1")
        case "link":
            await links.link(BY_OPERATOR, "cus_1", "other")
        case _:
            await links.move(BY_OPERATOR, "cus_1", "mid")


END: Final = "its tenant ends"
CHECKOUT: Final = "another tenant's checkout"
CREATION: Final = "the other tenant is created"
STEPS: Final = ("subscription", "invoice", END, CHECKOUT, CREATION)


def _is_possible(steps: Sequence[str]) -> bool:
    """A checkout takes a customer over from an ended tenant only, and counts once its own tenant is
    there.
    """
    return steps.index(END) < max(steps.index(CHECKOUT), steps.index(CREATION))


@pytest.mark.parametrize("policy", [ANY, EACH], ids=["any", "each"])
async def test_a_customer_of_an_ended_tenant_brings_all_its_events_in_every_order(
    emptied: str, policy: BillingPolicy
) -> None:
    await check_orders_of_an_ended_tenant(emptied, policy, EVERY)


async def check_orders_of_an_ended_tenant(conninfo: str, policy: BillingPolicy, every: int) -> None:
    """Assert that one of ``every`` orders ends with the events at the customer's new tenant."""
    async with running_scene(conninfo, policy, AT) as scene:
        orders = [steps for steps in permutations(STEPS) if _is_possible(steps)][::every]
        cases = [EndedTenant(number) for number in range(len(orders))]
        await scene.create(**{case.former: case.customer for case in cases})
        for turn in zip(*orders, strict=True):
            for case, step in zip(cases, turn, strict=True):
                if step == END:
                    await scene.tenants.delete(BY_OPERATOR, case.former)
                elif step == CREATION:
                    await scene.put(case.present)
            happened = [case.events.get(step) for case, step in zip(cases, turn, strict=True)]
            await scene.deliver(*(event for event in happened if event is not None))
        statuses = await scene.statuses()
        ends = {
            steps: (statuses[case.former], statuses[case.present])
            for steps, case in zip(orders, cases, strict=True)
        }
        assert ends == dict.fromkeys(orders, ("none", "past_due"))
        assert await scene.rebuild(dry_run=True) == []


class EndedTenant:
    """A customer of a tenant that ends, with what happens to it, and the tenant that is to have it
    next.
    """

    def __init__(self, number: int) -> None:
        self.former, self.present = f"former-{number}", f"present-{number}"
        self.customer = f"cus-{number}"
        of_both = {"customer_id": self.customer, "subscription_id": f"sub-{number}"}
        self.events = {
            "subscription": updated(100, f"evt-{number}-1", org_id=None, **of_both),
            "invoice": failed(110, f"evt-{number}-2", **of_both),
            CHECKOUT: completed(
                120, f"evt-{number}-3", org_id=self.present, customer_id=self.customer
            ),
        }


@pytest.mark.parametrize("policy", [ANY, EACH], ids=["any", "each"])
async def test_a_batch_may_take_a_customer_over_from_an_ended_tenant(
    emptied: str, policy: BillingPolicy
) -> None:
    """The events that name no tenant come before the checkout, in one batch with it."""
    case = EndedTenant(1)
    async with running_scene(emptied, policy, AT) as scene:
        await scene.create(case.present, **{case.former: case.customer})
        await scene.tenants.delete(BY_OPERATOR, case.former)
        assert await scene.deliver(*case.events.values()) == [case.present] * 3
        assert await scene.statuses() == {case.former: "none", case.present: "past_due"}


async def test_an_invoice_without_a_customer_keeps_its_tenant_beside_a_customer_of_an_ended_one(
    emptied: str,
) -> None:
    """With `SUBSCRIPTIONS=any`, where the subscription alone gives such an invoice its tenant."""
    async with running_scene(emptied, ANY, AT) as scene:
        await scene.create("present", payer="cus_payer", former="cus_1")
        known = {"customer_id": "cus_payer", "subscription_id": "sub_payer"}
        await scene.deliver(updated(100, "evt_1", org_id="payer", **known))
        await scene.tenants.delete(BY_OPERATOR, "former")
        placed = await scene.deliver(
            failed(110, "evt_2", customer_id=None, subscription_id="sub_payer"),
            completed(120, "evt_3", org_id="present", customer_id="cus_1"),
        )
        assert placed == ["payer", "present"]
        assert (await scene.statuses())["payer"] == "past_due"


@pytest.mark.parametrize("policy", [ANY, EACH], ids=["any", "each"])
async def test_events_and_final_links_alone_decide_the_state(
    emptied: str, policy: BillingPolicy
) -> None:
    """Both tenants end as if the last link of their shared customer had always been, whatever came
    in which order.
    """
    await check_changes_of_links(emptied, policy, range(SEEDS))


async def check_changes_of_links(conninfo: str, policy: BillingPolicy, seeds: range) -> None:
    """Assert that random events and links end as the last link says."""
    async with running_scene(conninfo, policy, AT) as scene:
        for seed in seeds:
            await _Case(seed, scene).check()


class _Case:
    """Two tenants, and a customer that is linked to one of them or none."""

    def __init__(self, seed: int, scene: Scene) -> None:
        self._rng = random.Random(seed)  # noqa: S311  # a sample that can be repeated
        self._seed = seed
        self._scene = scene
        self._tenants = f"one-{seed}", f"two-{seed}"
        self._customer = f"cus-{seed}"
        self._holder: str | None = None
        self._with_subscription: set[str | None] = set()
        """The tenants that an event of a subscription names."""

    async def check(self) -> None:
        """Let it all happen, and assert what the tenants' records are."""
        # no event links a tenant that has its own customer
        await self._scene.create(**{each: f"{self._customer}-{each}" for each in self._tenants})
        happened = self._history()
        stream = self._rng.sample(happened, len(happened))
        for batch in in_batches(self._rng, stream):
            await self._scene.deliver(*batch)
            if self._rng.random() < CHANGES / len(happened):
                await self._relink()
        await self._relink()
        for tenant in self._tenants:
            own = [event for event in happened if self._tenant_of(event) == tenant]
            assert await self._record(tenant) == recorded(own, self._scene.policy), (
                self._seed,
                tenant,
            )
        assert await self._scene.rebuild(self._tenants, dry_run=True) == []

    def _history(self) -> list[BillingEvent]:
        return [self._event(100 + number) for number in range(self._rng.randint(4, 16))]

    def _event(self, created: int) -> BillingEvent:
        """An event of the subscription without metadata, or of one that names a tenant, or an
        invoice of either.
        """
        named = self._rng.choice((None, None, *self._tenants))
        facts = {
            "customer_id": self._customer,
            "subscription_id": f"sub-{self._seed}-{named}",
            "event_id": f"evt-{self._seed}-{created}",
        }
        kind = self._rng.choice((updated, updated, updated, deleted, failed, succeeded))
        if kind in (failed, succeeded):
            return kind(created, invoice_id=f"in-{created}", **facts)
        status = (
            self._rng.choice(("active", "trialing", "past_due")) if kind is updated else "canceled"
        )
        price = self._rng.choice(("price_pro", "price_business"))
        self._with_subscription.add(named)
        return kind(created, org_id=named, status=status, price_id=price, **facts)

    async def _relink(self) -> None:
        target = self._rng.choice((None, *self._tenants))
        if target is not None:
            await self._scene.links.move(BY_OPERATOR, self._customer, target)
        elif self._holder is not None:
            await self._scene.links.unlink(BY_OPERATOR, self._customer)
        self._holder = target

    def _tenant_of(self, event: BillingEvent) -> str | None:
        """The tenant that CONTRACT 6 and 8 give an event."""
        by_name = next(
            (tenant for tenant in self._tenants if f"{event.subscription_id}".endswith(tenant)),
            None,
        )
        follows_subscription = self._scene.policy.is_each and by_name in self._with_subscription
        is_by_customer = event.type in INVOICE_TYPES and not follows_subscription
        return self._holder if by_name is None or is_by_customer else by_name

    async def _record(self, tenant: str) -> BillingRecord:
        async with self._scene.database.transaction(ACROSS_TENANTS) as connection:
            account = await lock_account(connection, tenant, self._scene.policy)
        assert account is not None
        return account.record
