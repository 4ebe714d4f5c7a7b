"""Seats that follow members: jobs that set the quantity at the simulated provider, over HTTP."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import pytest

from tenantry.billing.grants import GrantService
from tenantry.billing.seats import SeatService
from tenantry.common.clock import system_clock
from tenantry.common.secret import Secret
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.billing.state import BillingPolicy, SubscriptionRule
from tenantry.domain.errors import ProviderUnavailableError
from tenantry.domain.grants import GrantInput
from tenantry.domain.issuers import Issuers
from tenantry.domain.plans import parse_catalog
from tenantry.integrations.stripe.client import ProviderApi
from tenantry.jobs.queue import JobQueue
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry_devkit.serving import serving
from tenantry_devkit.simulator import SECRET_KEY, ItemChange, Simulator, Subscription
from tests.support.app import BASE_URL, WEBHOOK_SECRET
from tests.support.billing import rows
from tests.support.catalogs import catalog_file
from tests.support.emptying import SharedDatabase
from tests.support.issuer import NOW
from tests.support.members import add_member, join, remove_member
from tests.support.patience import patient_database, patient_queue
from tests.support.ports import free_port
from tests.support.service import Organization, Service, running_service
from tests.support.signing import PATH

ROOT: Final = Path(__file__).parents[2]
CATALOG: Final = """
[[plans]]
id = "free"
[[plans]]
id = "pro"
stripe_price_id = "price_pro"
seats = "members"
[[plans]]
id = "business"
stripe_price_id = "price_business"
[[addons]]
id = "storage"
stripe_price_id = "price_storage"
"""
JOBS: Final = (
    "SELECT args->>'tenant_id' AS tenant, status::text, attempts FROM procrastinate_jobs "
    "WHERE task_name = 'follow_seats' ORDER BY id"
)
AT_ONCE: Final = (
    "UPDATE procrastinate_jobs SET scheduled_at = now() - interval '1 second' WHERE status = 'todo'"
)
AUDIT: Final = """
SELECT actor_kind, target_id, before, after
  FROM audit_events
 WHERE action = 'billing.seats_changed'
 ORDER BY id
"""
_PATIENCE: Final = 10.0

Failure = Literal["500", "lost", "held"]


class FaultyProvider:
    """Passes requests on to a simulated provider; ``failures`` are used up by changes.

    ``500`` is an answer without a change, ``lost`` an answer that does not arrive after it. A
    ``held`` change is made and answered once it is ``released``.
    """

    def __init__(self) -> None:
        self.url = ""
        self.begin(Simulator())

    def begin(self, simulator: Simulator) -> None:
        """Begin anew with another provider."""
        self.simulator = simulator
        self.failures = deque[Failure]()
        self.keys: list[str] = []
        self.holding = asyncio.Event()
        self.released = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        failure = None
        if scope["type"] == "http" and scope["method"] == "POST":
            self.keys.append(dict(scope["headers"])[b"idempotency-key"].decode())
            failure = self.failures.popleft() if self.failures else None
        if failure == "held":
            self.holding.set()
            await self.released.wait()
        if failure in (None, "held"):
            await self.simulator(scope, receive, send)
        elif failure == "500":
            await _answer_500(send)
        else:
            await self.simulator(scope, receive, _nowhere)
            await _answer_500(send)


async def _answer_500(send: Send) -> None:
    headers = [(b"stripe-should-retry", b"false")]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


async def _nowhere(_message: Scope) -> None:
    """Lose a part of an answer."""


class Office(NamedTuple):
    """The service, its provider, and what sets the seats."""

    service: Service
    address: FaultyProvider
    simulator: Simulator
    database: Database
    seats: SeatService
    queue: JobQueue

    async def team(self, *members: str, quantity: int = 1, price: str = "price_pro") -> "Team":
        """A tenant with these active members and a subscription."""
        organization = await self.service.organization()
        for member in members:
            await join(self.service, organization, f"{member}-{organization.id}")
        customer = self.simulator.customer()
        subscription = self.simulator.subscribe(
            customer, [(price, quantity)], metadata={"orgId": organization.id}
        )
        await self.simulator.deliver()
        return Team(self, organization, subscription.id)

    @asynccontextmanager
    async def working(self, seats: SeatService | None = None) -> AsyncIterator[None]:
        """A worker, for the time of the block. Its hourly check, which the machine's clock may
        start at any time, defers no jobs.
        """
        await rows(self.service.conninfo, AT_ONCE)
        retention = RetentionService(self.database, timedelta(days=90), system_clock)
        work = Work(None, retention, seats=replace(seats or self.seats, outbox=Outbox()))
        task = asyncio.create_task(
            self.queue.run_worker(work, polling_interval=0.02, grace=_PATIENCE)
        )
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def jobs(self) -> list[dict[str, Any]]:
        return await rows(self.service.conninfo, JOBS)

    async def until_jobs(self, holds: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Return as soon as this holds of the jobs that set seats."""
        async with asyncio.timeout(_PATIENCE):
            while not holds(await self.jobs()):
                pass

    async def settle(self) -> None:
        """Run the jobs that wait, and deliver the events that follow."""
        async with self.working():
            await self.until_jobs(lambda jobs: not jobs)
        await self.simulator.deliver()


class Team(NamedTuple):
    """A tenant with a subscription."""

    office: Office
    organization: Organization
    subscription_id: str

    @property
    def subscription(self) -> Subscription:
        return self.office.simulator.subscriptions[self.subscription_id]

    @property
    def quantity(self) -> int | None:
        return self.subscription.items[0].quantity

    async def join(self, name: str) -> dict[str, Any]:
        member: dict[str, Any] = await join(
            self.office.service, self.organization, f"{name}-{self.organization.id}"
        )
        return member

    async def seats(self) -> int:
        """The seats in the tenant's record."""
        seats: int = (await self.organization.owner.get(self.organization.path)).json()["seats"]
        return seats

    async def audit(self) -> list[dict[str, Any]]:
        return await rows(self.office.service.conninfo, AUDIT)


class Floor(NamedTuple):
    """What the offices of the file share."""

    service: Service
    address: FaultyProvider
    database: Database
    seats: SeatService
    queue: JobQueue


@pytest.fixture(scope="module")
async def floor(shared_database: SharedDatabase) -> AsyncIterator[Floor]:
    conninfo = shared_database.conninfo
    async with AsyncExitStack() as stack:
        address = FaultyProvider()
        await stack.enter_async_context(serving(address))
        service = await stack.enter_async_context(
            running_service(
                conninfo,
                TENANTRY_PLANS=catalog_file(CATALOG),
                PROVIDER_SECRET_KEY=SECRET_KEY,
                PROVIDER_API_BASE=address.url,
            )
        )
        database, queue = patient_database(conninfo, pool_size=3), patient_queue(conninfo)
        await database.open()
        stack.push_async_callback(database.close)
        await queue.open()
        stack.push_async_callback(queue.close)
        provider = await stack.enter_async_context(
            aclosing(ProviderApi(Secret(SECRET_KEY), address.url, service.clock))
        )
        outbox = Outbox(asks_provider=True, follows_seats=True)
        policy = BillingPolicy(parse_catalog(CATALOG))
        issuers = Issuers(service.issuer.url)
        seats = SeatService(database, provider, policy, outbox, service.clock, issuers)
        yield Floor(service, address, database, seats, queue)


@pytest.fixture
def office(floor: Floor, emptied: str) -> Office:
    service, address = floor.service, floor.address
    clock = service.clock
    clock.now = NOW
    simulator = Simulator(client=service.client, wall_clock=clock, start=NOW)
    simulator.price("price_storage", 500)
    simulator.url = address.url
    simulator.add_endpoint(f"{BASE_URL}{PATH}", WEBHOOK_SECRET)
    address.begin(simulator)
    return Office(service, address, simulator, floor.database, floor.seats, floor.queue)


async def test_quantity_follows_members_who_join_leave_and_come_back(office: Office) -> None:
    team = await office.team("ada", quantity=1)
    await office.settle()
    grace = await team.join("grace")
    await office.settle()
    assert (team.quantity, await team.seats()) == (2, 2)
    await remove_member(team.organization.owner, grace)
    await office.settle()
    assert (team.quantity, await team.seats()) == (1, 1)
    await team.join("grace")
    await office.settle()
    assert (team.quantity, await team.seats()) == (2, 2)


async def test_member_who_leaves_counts_no_more(office: Office) -> None:
    team = await office.team("ada", "grace", quantity=2)
    await office.settle()
    user_id = f"grace-{team.organization.id}"
    [own] = (await office.service.user(user_id).get("/api/v1/me/memberships")).json()["data"]
    left = await office.service.user(user_id).delete(f"/api/v1/me/memberships/{own['id']}")
    assert left.status_code == 204
    await office.settle()
    assert team.quantity == 1


async def test_owner_whom_the_operator_adds_takes_a_seat(office: Office) -> None:
    team = await office.team("ada", quantity=1)
    await office.settle()
    body = {"name": "Team", "ownerEmail": "owner@team.example", "ownerId": "grace"}
    changed = await office.service.operator.put(team.organization.path, body)
    assert changed.status_code == 200
    await office.settle()
    assert team.quantity == 2


async def test_invitations_and_roles_change_no_quantity(office: Office) -> None:
    team = await office.team("ada", quantity=1)
    await office.settle()
    invited = await add_member(team.organization.owner, "invited")
    await remove_member(team.organization.owner, invited)
    assert await office.jobs() == []


async def test_change_is_in_the_audit_trail(office: Office) -> None:
    team = await office.team("ada", "grace", quantity=5)
    await office.settle()
    assert await team.audit() == [
        {
            "actor_kind": "system",
            "target_id": team.subscription_id,
            "before": {"quantity": 5},
            "after": {"quantity": 2},
        }
    ]


async def test_tenant_without_members_keeps_one_seat(office: Office) -> None:
    team = await office.team(quantity=3)
    await office.seats.follow(team.organization.id, 1)
    assert team.quantity == 1


async def test_right_quantity_is_not_written_again(office: Office) -> None:
    team = await office.team("ada", "grace", quantity=2)
    await office.settle()
    assert office.address.keys == []
    assert await team.audit() == []


async def test_of_many_changes_one_job_sets_the_last_number(office: Office) -> None:
    team = await office.team("ada", "grace", "mary", quantity=1)
    assert [job["tenant"] for job in await office.jobs()] == [team.organization.id]
    await office.settle()
    assert team.quantity == 3
    assert len(office.address.keys) == 1


async def test_change_during_a_job_gets_a_job_of_its_own(office: Office) -> None:
    team = await office.team("ada", "grace", quantity=1)
    office.address.failures.append("held")
    async with office.working():
        await office.address.holding.wait()
        await team.join("mary")
        assert [job["status"] for job in await office.jobs()] == ["doing", "todo"]
        office.address.released.set()
        await office.until_jobs(lambda jobs: not jobs)
    assert team.quantity == 3


async def test_only_the_plan_item_is_set(office: Office) -> None:
    team = await office.team("ada", "grace", quantity=1)
    office.simulator.update_subscription(
        team.subscription, items=[ItemChange(price="price_storage", quantity=7)]
    )
    await office.settle()
    assert [item.quantity for item in team.subscription.items] == [2, 7]


async def test_item_is_the_one_that_the_provider_has_now(office: Office) -> None:
    team = await office.team("ada", "grace", quantity=1)
    [old] = team.subscription.items
    office.simulator.misbehave(drop=1.0)
    office.simulator.update_subscription(
        team.subscription,
        items=[ItemChange(old.id, deleted=True), ItemChange(price="price_pro", quantity=1)],
    )
    await office.settle()
    [new] = team.subscription.items
    assert (new.id != old.id, new.quantity) == (True, 2)


async def test_plan_with_seats_of_its_own_keeps_its_quantity(office: Office) -> None:
    team = await office.team("ada", "grace", quantity=9, price="price_business")
    await office.settle()
    assert (team.quantity, office.address.keys) == (9, [])


def canceled(office: Office, team: Team) -> None:
    office.simulator.cancel(team.subscription)


def canceled_later(office: Office, team: Team) -> None:
    office.simulator.cancel(team.subscription, at_period_end=True)


def changed_to_another_plan(office: Office, team: Team) -> None:
    office.simulator.change_plan(team.subscription, "price_business")


def given_to_another_tenant(office: Office, team: Team) -> None:
    office.simulator.set_metadata(team.subscription, {"orgId": "another"})


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "not told yet"])
async def test_subscriptions_that_must_not_be_changed(office: Office, is_told: bool) -> None:
    happenings = (canceled, canceled_later, changed_to_another_plan, given_to_another_tenant)
    teams = [await office.team("ada", "grace", quantity=5) for _ in happenings]
    if not is_told:
        office.simulator.misbehave(drop=1.0)
    for happens, team in zip(happenings, teams, strict=True):
        happens(office, team)
    await office.simulator.deliver()
    await office.settle()
    quantities = {
        happens.__name__: team.quantity for happens, team in zip(happenings, teams, strict=True)
    }
    assert set(quantities.values()) == {5}, quantities
    assert office.address.keys == []


async def test_ended_tenant_changes_no_subscription(office: Office) -> None:
    team = await office.team("ada", "grace", quantity=5)
    ended = await office.service.operator.delete(team.organization.path)
    assert ended.status_code == 204
    await office.settle()
    assert (team.quantity, office.address.keys) == (5, [])


async def test_each_subscription_has_the_highest_plans_item_set(office: Office) -> None:
    team = await office.team("ada", "grace", quantity=4)
    office.simulator.update_subscription(
        team.subscription, items=[ItemChange(price="price_business", quantity=1)]
    )
    policy = BillingPolicy(parse_catalog(CATALOG), subscriptions=SubscriptionRule.EACH)
    await replace(office.seats, policy=policy).follow(team.organization.id, 1)
    assert team.quantity == 4


def put_back(jobs: list[dict[str, Any]]) -> bool:
    return [job["attempts"] for job in jobs] == [1]


async def test_job_waits_for_a_provider_that_is_away(office: Office) -> None:
    team = await office.team("ada", "grace", quantity=1)
    nowhere = ProviderApi(Secret(SECRET_KEY), f"http://127.0.0.1:{free_port()}")
    async with aclosing(nowhere), office.working(replace(office.seats, provider=nowhere)):
        await office.until_jobs(put_back)
    assert team.quantity == 1
    await office.settle()
    assert team.quantity == 2


@pytest.mark.parametrize("failure", ["500", "lost"])
async def test_failed_change_is_repeated(office: Office, failure: Failure) -> None:
    team = await office.team("ada", "grace", quantity=1)
    office.address.failures.append(failure)
    async with office.working():
        await office.until_jobs(put_back)
    await office.settle()
    assert team.quantity == 2
    changes = office.simulator.events("customer.subscription.updated")
    assert sum(event.before is not None and quantity_of(event.before) == 1 for event in changes) > 0


def quantity_of(thing: Any) -> int | None:
    return thing.items[0].quantity if isinstance(thing, Subscription) else None


async def test_repeated_change_has_the_same_idempotency_key(office: Office) -> None:
    """A worker is killed while the provider has the request."""
    team = await office.team("ada", "grace", quantity=1)
    office.address.failures.append("held")
    first = asyncio.create_task(office.seats.follow(team.organization.id, 7))
    await office.address.holding.wait()
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    await office.seats.follow(team.organization.id, 7)
    office.address.released.set()
    assert team.quantity == 2
    assert len(office.address.keys) == 2
    assert len(set(office.address.keys)) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("is_made", [True, False], ids=["made", "not made"])
async def test_killed_worker_leaves_the_last_number(office: Office, is_made: bool) -> None:
    """It is killed while the provider has its request, which the provider then makes or not."""
    team = await office.team("ada", "grace", quantity=1)
    office.address.failures.append("held")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.seat_worker",
        office.service.conninfo,
        office.address.url,
        office.service.issuer.url,
        CATALOG,
        cwd=ROOT,
    )
    try:
        async with asyncio.timeout(_PATIENCE):
            await office.address.holding.wait()
    finally:
        process.kill()
        await process.wait()
    assert [job["status"] for job in await office.jobs()] == ["doing"]
    if is_made:
        office.address.released.set()
    await team.join("mary")
    await office.queue.requeue_stalled(stalled_after=0)
    await office.settle()
    assert (team.quantity, await team.seats()) == (3, 3)


async def test_key_of_a_failed_change_is_used_for_an_hour(office: Office) -> None:
    """The provider repeats its own failure for each request with the key."""
    team = await office.team("ada", "grace", quantity=1)
    office.address.failures.extend(["500", "500"])
    for _ in range(2):
        with pytest.raises(ProviderUnavailableError):
            await office.seats.follow(team.organization.id, 7)
    office.service.clock.now += timedelta(hours=1)
    await office.seats.follow(team.organization.id, 7)
    first, second, third = office.address.keys
    assert (first == second, second == third) == (True, False)


async def test_every_change_has_an_idempotency_key_of_its_own(office: Office) -> None:
    """The provider would answer a change back to an earlier number without making it."""
    team = await office.team("ada", quantity=1)
    for number, quantity in enumerate((2, 3, 2, 3)):
        office.simulator.update_subscription(
            team.subscription,
            items=[ItemChange(team.subscription.items[0].id, quantity=quantity)],
        )
        await office.seats.follow(team.organization.id, number)
        assert team.quantity == 1
    assert len(set(office.address.keys)) == 4


async def test_hourly_check_finds_what_no_member_told(office: Office) -> None:
    """A quantity that was changed at the provider, and a cancellation that was revoked."""
    right = await office.team("ada", quantity=1)
    changed = await office.team("grace", quantity=1)
    revoked = await office.team("mary", quantity=1)
    await office.settle()
    for team, quantity in ((changed, 5), (revoked, 3)):
        item = team.subscription.items[0].id
        office.simulator.update_subscription(
            team.subscription, items=[ItemChange(item, quantity=quantity)]
        )
    office.simulator.cancel(revoked.subscription, at_period_end=True)
    await office.simulator.deliver()
    assert await office.seats.defer_drifted() == 1
    await office.settle()
    assert [team.quantity for team in (right, changed, revoked)] == [1, 1, 3]
    office.simulator.resume(revoked.subscription)
    await office.simulator.deliver()
    assert await office.seats.defer_drifted() == 1
    await office.settle()
    assert revoked.quantity == 1
    assert await office.seats.defer_drifted() == 0


async def test_hourly_check_finds_a_subscription_that_a_grant_hides_in_the_record(
    office: Office,
) -> None:
    team = await office.team("ada", quantity=5)
    policy = BillingPolicy(parse_catalog(CATALOG), subscriptions=SubscriptionRule.EACH)
    grants = GrantService(office.database, policy, Outbox(), office.service.clock)
    by_contract = GrantInput("a contract", plan="business")
    await grants.put(BY_OPERATOR, team.organization.id, "contract", by_contract)
    record = (await team.organization.owner.get(team.organization.path)).json()
    assert (record["plan"], record["seats"]) == ("business", None)
    assert await replace(office.seats, policy=policy).defer_drifted() == 1
    await office.settle()
    assert team.quantity == 1


async def test_service_without_a_key_defers_nothing(conninfo: str) -> None:
    async with running_service(conninfo, TENANTRY_PLANS=catalog_file(CATALOG)) as service:
        await join(service, await service.organization(), "ada")
        assert await rows(conninfo, JOBS) == []


async def test_catalog_without_such_plans_defers_nothing(conninfo: str) -> None:
    async with running_service(conninfo, PROVIDER_SECRET_KEY=SECRET_KEY) as service:
        await join(service, await service.organization(), "ada")
        assert await rows(conninfo, JOBS) == []
