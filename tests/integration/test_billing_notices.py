"""Billing notices in the outbox: one for each cause, whichever process handles which event, and
their delivery.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
import pytest

from tenantry.billing.grants import GrantService
from tenantry.billing.ingest import WebhookService
from tenantry.billing.replay import ReplayService, Selection
from tenantry.common.clock import system_clock
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.billing.ledger import ReceivedEvent
from tenantry.domain.billing.state import BillingPolicy, SubscriptionRule
from tenantry.domain.grants import GrantInput
from tenantry.domain.owner_mails import OwnerNotice
from tenantry.integrations.smtp import Mailer, parse_smtp_url
from tenantry.integrations.stripe.decode import decode_event
from tenantry.jobs.queue import JobQueue
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tenantry.notifications import mails_store as store
from tenantry.notifications.access_ends import mail_access_ends
from tenantry.notifications.mail_delivery import MailService
from tests.support import events, facts
from tests.support.billing import Provider, rows
from tests.support.events import NOW
from tests.support.logs import watched
from tests.support.patience import patient_database, patient_queue
from tests.support.service import ManualClock, running_service
from tests.support.smtp import MailServer, running

POLICY: Final = msgspec.structs.replace(facts.EACH, notices=frozenset(OwnerNotice))
GRACE: Final = 65 * 86_400
TENANT: Final = (
    "INSERT INTO tenants (id, name, owner_id, owner_email, stripe_customer_id) "
    "VALUES ('acme', 'Acme', 'usr_acme', 'owner@acme.example', 'cus_acme')"
)
CUSTOMER: Final = (
    "INSERT INTO customers (id, tenant_id, linked_by) VALUES ('cus_acme', 'acme', 'operator')"
)
DEFER: Final = (
    "SELECT procrastinate_defer_jobs_v1(ARRAY[ROW('maintenance', 'mail_access_ends', 0, NULL, NULL, "
    "'{\"timestamp\": 0}', NULL)]::procrastinate_job_to_defer_v1[])"
)
NOTIFICATIONS: Final = (
    "SELECT id, type, recipient_id, channels, data, cause, status FROM notifications"
)


class Process(NamedTuple):
    """A process that handles events and runs jobs."""

    database: Database
    queue: JobQueue
    webhooks: WebhookService
    clock: ManualClock

    async def receive(self, *given: dict[str, Any]) -> None:
        now = self.clock()
        received = []
        for event in given:
            decoded = decode_event(
                events.body(event), arrived=NOW, make_up_id=lambda: "evt_made_up"
            )
            received.append(self.webhooks.receive(ReceivedEvent(decoded, now)))
        await asyncio.gather(*received)

    async def mail_access_ends(self) -> int:
        return await mail_access_ends(self.database, Outbox(), POLICY, self.clock)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime.fromtimestamp(NOW, UTC))


@asynccontextmanager
async def process(conninfo: str, clock: ManualClock) -> AsyncIterator[Process]:
    database, queue = patient_database(conninfo, pool_size=2), patient_queue(conninfo)
    await database.open()
    webhooks = WebhookService([database.lane()], POLICY, Outbox(), clock)
    yield Process(database, queue, webhooks, clock)
    await webhooks.close()
    await database.close()


@pytest.fixture
async def one(emptied: str, clock: ManualClock) -> AsyncIterator[Process]:
    await rows(emptied, TENANT)
    await rows(emptied, CUSTOMER)
    async with process(emptied, clock) as made:
        yield made


@pytest.fixture
async def two(emptied: str, one: Process, clock: ManualClock) -> AsyncIterator[Process]:
    async with process(emptied, clock) as made:
        yield made


async def queued(conninfo: str) -> list[str]:
    """The types of all notifications, by age."""
    found = await rows(conninfo, f"{NOTIFICATIONS} ORDER BY created_at, type")
    return [row["type"].removeprefix("billing.") for row in found]


def will_end(**fields: Any) -> dict[str, Any]:
    thing = events.subscription(status="trialing") | {"trial_end": NOW + 3 * 86_400} | fields
    return events.event("customer.subscription.trial_will_end", thing)


def paid(**fields: Any) -> dict[str, Any]:
    return {**events.succeeded(**fields), "type": "invoice.paid"}


async def test_a_notice_is_a_notification_with_a_job(emptied: str, one: Process) -> None:
    await one.receive(events.updated())
    await one.receive(events.deleted(created=NOW + 1))
    [notice] = await rows(emptied, NOTIFICATIONS)
    [job] = await rows(emptied, "SELECT args->>'mail_id' AS id FROM procrastinate_jobs")
    assert job["id"] == str(notice.pop("id"))
    assert notice == {
        "type": "billing.subscription_ended",
        "recipient_id": "usr_acme",
        "channels": ["email"],
        "data": {"plan": "pro"},
        "cause": "billing.subscription_ended acme sub_acme",
        "status": "queued",
    }


async def test_both_events_of_a_payment_at_two_processes_make_one_notice(
    emptied: str, one: Process, two: Process
) -> None:
    await one.receive(events.updated())
    failure = events.failed(created=NOW + 1)
    await asyncio.gather(one.receive(failure), two.receive(failure))
    assert await queued(emptied) == ["payment_failed"]
    both = events.succeeded(created=NOW + 2), paid(created=NOW + 2)
    await asyncio.gather(
        *(each.receive(*pair) for each in (one, two) for pair in (both, both[::-1]))
    )
    assert await queued(emptied) == ["payment_failed", "payment_recovered"]


async def test_a_payment_and_its_failure_in_one_batch_make_a_notice_each(
    emptied: str, one: Process
) -> None:
    await one.receive(events.failed(), events.succeeded(created=NOW + 1))
    assert sorted(await queued(emptied)) == ["payment_failed", "payment_recovered"]


@pytest.mark.parametrize(
    "failure", [None, events.failed(invoice_id="in_other", event_id="evt_other")]
)
async def test_a_payment_whose_failure_was_not_mailed_makes_no_notice(
    emptied: str, one: Process, failure: dict[str, Any] | None
) -> None:
    await one.receive(events.updated())
    await one.receive(*([failure] if failure else []), events.succeeded(created=NOW + 1))
    assert await queued(emptied) == (["payment_failed"] if failure else [])


async def test_a_failure_that_comes_after_the_payment_makes_no_notice(
    emptied: str, one: Process
) -> None:
    await one.receive(events.succeeded(created=NOW + 1))
    await one.receive(events.failed())
    assert await queued(emptied) == []


UNNAMED: Final[dict[str, Any]] = {"subscription_id": None, "invoice_id": "in_manual"}


async def test_a_failed_invoice_without_a_subscription_is_mailed(
    emptied: str, one: Process
) -> None:
    await one.receive(events.failed(**UNNAMED))
    assert await queued(emptied) == ["payment_failed"]


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "in two batches"])
@pytest.mark.parametrize("seconds", [0, 1])
async def test_a_failed_invoice_without_a_subscription_is_not_mailed_after_its_payment(
    emptied: str, one: Process, seconds: int, *, together: bool
) -> None:
    pair = events.succeeded(**UNNAMED, created=NOW + seconds), events.failed(**UNNAMED)
    for batch in [pair] if together else [pair[:1], pair[1:]]:
        await one.receive(*batch)
    assert await queued(emptied) == []


async def test_a_failure_after_an_older_payment_of_its_invoice_is_mailed(
    emptied: str, one: Process
) -> None:
    await one.receive(events.succeeded(**UNNAMED))
    await one.receive(events.failed(**UNNAMED, created=NOW + 1))
    assert await queued(emptied) == ["payment_failed"]


@pytest.mark.parametrize(
    ("status", "is_paid", "mails"),
    [("active", False, 0), ("past_due", False, 1), ("past_due", True, 0)],
)
async def test_a_parked_invoice_without_a_subscription_is_mailed_if_the_tenant_ends_past_due(
    emptied: str, one: Process, status: str, mails: int, *, is_paid: bool
) -> None:
    await rows(emptied, "DELETE FROM customers")
    await rows(emptied, "UPDATE tenants SET stripe_customer_id = NULL")
    await one.receive(events.failed(**UNNAMED))
    if is_paid:
        await one.receive(events.succeeded(**UNNAMED, created=NOW + 1))
    await one.receive(events.updated(status=status, created=NOW + 2))
    assert await queued(emptied) == ["payment_failed"] * mails


async def test_a_trial_is_announced_once_for_each_end(
    emptied: str, one: Process, two: Process
) -> None:
    await asyncio.gather(one.receive(will_end()), two.receive(will_end()))
    assert await queued(emptied) == ["trial_ending"]
    await one.receive(will_end(trial_end=NOW + 10 * 86_400))
    assert await queued(emptied) == ["trial_ending"] * 2


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_the_end_of_a_subscription_is_mailed_once_in_any_order(
    emptied: str, one: Process, two: Process, order: tuple[int, int]
) -> None:
    both = [events.updated(status="unpaid"), events.deleted(created=NOW + 1)]
    for number in order:
        await asyncio.gather(one.receive(both[number]), two.receive(both[number]))
    assert await queued(emptied) == ["subscription_ended"]


ZETA: Final = TENANT.replace("acme", "zeta").replace("Acme", "Zeta")


def moved(**fields: Any) -> dict[str, Any]:
    """The subscription names another tenant."""
    previous = {"metadata": {"orgId": "acme"}}
    return events.updated(
        **{
            "org": "zeta",
            "customer": "cus_zeta",
            "created": NOW + 1,
            "previous": previous,
            **fields,
        }
    )


async def test_a_tenant_whose_subscription_moved_away_is_mailed_its_end_once(
    emptied: str, one: Process
) -> None:
    await rows(emptied, ZETA)
    await one.receive(events.updated())
    await one.receive(moved())
    await one.receive(moved(created=NOW + 2), moved(created=NOW + 3, org="acme", previous=None))
    await one.receive(moved(created=NOW + 4))
    statement = "SELECT tenant_id, recipient, type, cause, data FROM mails WHERE tenant_id = %s"
    [notice] = await rows(emptied, statement, "acme")
    assert notice == {
        "tenant_id": "acme",
        "recipient": "owner@acme.example",
        "type": "billing.subscription_ended",
        "cause": "billing.subscription_ended acme sub_acme",
        "data": {"plan": "pro"},
    }


async def test_a_tenant_that_learns_late_of_a_subscription_that_moved_before_is_not_mailed(
    emptied: str, one: Process
) -> None:
    await rows(emptied, ZETA)
    await one.receive(moved())
    await one.receive(events.updated())
    assert await queued(emptied) == []


async def test_a_tenant_with_another_subscription_is_not_mailed_that_one_moved_away(
    emptied: str, one: Process
) -> None:
    await rows(emptied, ZETA)
    await one.receive(events.updated(), events.updated(subscription_id="sub_other"))
    await one.receive(moved())
    assert await queued(emptied) == []


async def test_a_tenant_of_which_only_an_invoice_is_known_is_not_mailed_that_its_subscription_moved_away(
    emptied: str, one: Process
) -> None:
    await rows(emptied, ZETA)
    await one.receive(events.succeeded(created=NOW - 1))
    await one.receive(moved())
    assert await queued(emptied) == []


async def test_a_tenant_that_had_no_access_by_its_own_events_is_not_mailed_that_its_subscription_moved_away(
    emptied: str, one: Process
) -> None:
    """The failed payment is the next tenant's, and arrives before the event that says so."""
    await rows(emptied, ZETA)
    await one.receive(events.updated(status="incomplete"))
    await one.receive(events.failed(created=NOW + 2))
    await one.receive(moved())
    [notice] = await rows(emptied, "SELECT tenant_id, type FROM notifications")
    assert notice == {"tenant_id": "zeta", "type": "billing.payment_failed"}


async def test_a_move_of_long_ago_is_not_mailed(emptied: str, one: Process) -> None:
    await rows(emptied, ZETA)
    await one.receive(events.updated())
    one.clock.advance(seconds=72 * 3600 + 1)
    await one.receive(moved())
    assert await queued(emptied) == []


async def test_where_only_ended_access_is_mailed_a_subscription_that_moved_away_is(
    emptied: str, one: Process
) -> None:
    await rows(emptied, ZETA)
    policy = msgspec.structs.replace(POLICY, notices=frozenset({OwnerNotice.ACCESS_ENDED}))
    webhooks = WebhookService([one.database.lane()], policy, Outbox(), one.clock)
    other = one._replace(webhooks=webhooks)
    await other.receive(events.updated())
    await other.receive(moved())
    await webhooks.close()
    [notice] = await rows(emptied, NOTIFICATIONS)
    assert (notice["type"], notice["cause"]) == (
        "billing.access_ended",
        f"billing.access_ended acme {NOW + 1}",
    )


@pytest.mark.parametrize("late", [NOW + 1, NOW + 2])
async def test_an_older_subscription_that_ended_no_later_than_the_mailed_access_is_not_mailed(
    emptied: str, one: Process, late: int
) -> None:
    await one.receive(events.updated())
    await one.receive(events.updated(status="paused", created=NOW + 2))
    await one.receive(events.deleted(subscription_id="sub_older", created=late))
    assert await queued(emptied) == ["access_ended"]


@pytest.fixture
async def past_due(emptied: str, one: Process) -> int:
    """The second at which the grace period of a tenant ends."""
    await one.receive(events.updated(status="past_due"))
    return NOW + GRACE


async def test_access_that_ends_by_time_is_mailed_once(
    emptied: str, one: Process, two: Process, past_due: int
) -> None:
    one.clock.advance(seconds=GRACE + 540)
    assert await one.mail_access_ends() == 0
    one.clock.advance(seconds=61)
    assert sum(await asyncio.gather(one.mail_access_ends(), two.mail_access_ends())) == 1
    assert await one.mail_access_ends() == 0
    await two.receive(events.updated(status="unpaid", created=past_due + 700))
    [notice] = await rows(emptied, NOTIFICATIONS)
    assert notice["cause"] == f"billing.access_ended acme {past_due}"
    assert notice["data"] == {"reason": "The subscription is past due. The grace period has ended."}
    assert len(await rows(emptied, "SELECT id FROM procrastinate_jobs")) == 1


async def test_the_end_of_a_grants_plan_is_mailed_and_that_of_its_features_is_not(
    emptied: str, one: Process
) -> None:
    """The plan ends a day before the features of another grant, which count without access."""
    grants = GrantService(one.database, POLICY, Outbox(), one.clock)
    plan_end = datetime.fromtimestamp(NOW + 86_400, UTC)
    plan = GrantInput("a contract", plan="pro", until=plan_end)
    more = GrantInput("more room", limits={"projects": 7}, until=plan_end + timedelta(days=1))
    await grants.put(BY_OPERATOR, "acme", "contract", plan)
    await grants.put(BY_OPERATOR, "acme", "more", more)
    one.clock.advance(days=1, minutes=11)
    assert await one.mail_access_ends() == 1
    one.clock.advance(days=1)
    assert await one.mail_access_ends() == 0
    [notice] = await rows(emptied, NOTIFICATIONS)
    assert notice["cause"] == f"billing.access_ended acme {NOW + 86_400}"
    assert notice["data"] == {"reason": "The contract contract has ended."}


@pytest.mark.parametrize("mode", SubscriptionRule)
async def test_a_grant_that_the_operator_ends_is_mailed_if_it_ends_the_access(
    emptied: str, one: Process, mode: SubscriptionRule
) -> None:
    policy = BillingPolicy(POLICY.catalog, mode, notices=POLICY.notices)
    grants = GrantService(one.database, policy, Outbox(), one.clock)
    for name in ("first", "second"):
        await grants.put(BY_OPERATOR, "acme", name, GrantInput("a contract", plan="pro"))
    await grants.end(BY_OPERATOR, "acme", "first")
    assert await rows(emptied, NOTIFICATIONS) == []
    await grants.end(BY_OPERATOR, "acme", "second")
    [notice] = await rows(emptied, NOTIFICATIONS)
    assert notice["type"] == "billing.access_ended"


async def test_the_end_of_access_between_other_ends_of_grants_is_mailed(
    emptied: str, one: Process
) -> None:
    grants = GrantService(one.database, POLICY, Outbox(), one.clock)
    ends = [datetime.fromtimestamp(NOW + 86_400 * day, UTC) for day in (1, 2, 3)]
    better = GrantInput("a contract", plan="business", until=ends[0])
    plan = GrantInput("a contract", plan="pro", until=ends[1])
    more = GrantInput("more room", limits={"projects": 7}, until=ends[2])
    for number, wanted in enumerate((better, plan, more)):
        await grants.put(BY_OPERATOR, "acme", f"grant-{number}", wanted)
    mailed = []
    for _ in ends:
        one.clock.advance(days=1, minutes=11)
        mailed.append(await one.mail_access_ends())
    assert mailed == [0, 1, 0]
    [notice] = await rows(emptied, NOTIFICATIONS)
    assert notice["cause"] == f"billing.access_ended acme {NOW + 2 * 86_400}"


async def test_a_worker_mails_access_that_ended_by_time(
    emptied: str, one: Process, past_due: int
) -> None:
    one.clock.advance(seconds=past_due - NOW + 600)
    retention = RetentionService(one.database, timedelta(days=90), system_clock)
    work = Work(None, retention, mail_access_ends=one.mail_access_ends)
    await rows(emptied, DEFER)
    await one.queue.open()
    with watched("procrastinate") as log:
        worker = asyncio.create_task(one.queue.run_worker(work, polling_interval=0.02))
        await log.until("(timestamp=0) ended with status: Success")
        worker.cancel()
        await asyncio.wait({worker})
    await one.queue.close()
    assert await queued(emptied) == ["access_ended"]


async def test_access_that_ends_by_time_just_before_an_event_is_mailed_once(
    emptied: str, one: Process, past_due: int
) -> None:
    one.clock.advance(seconds=GRACE + 60)
    await one.receive(events.updated(status="unpaid", created=past_due + 60))
    one.clock.advance(seconds=600)
    assert await one.mail_access_ends() == 0
    [notice] = await rows(emptied, NOTIFICATIONS)
    assert notice["cause"] == f"billing.access_ended acme {past_due}"


async def test_access_that_a_payment_restores_in_time_is_not_mailed(
    emptied: str, one: Process, past_due: int
) -> None:
    one.clock.advance(seconds=GRACE + 60)
    await one.receive(events.updated(created=past_due + 60))
    one.clock.advance(seconds=600)
    assert await one.mail_access_ends() == 0
    assert await queued(emptied) == []


async def test_an_end_of_access_that_a_late_event_moves_is_mailed_once(
    emptied: str, one: Process, past_due: int
) -> None:
    one.clock.advance(seconds=GRACE + 601)
    assert await one.mail_access_ends() == 1
    # the end was an hour earlier
    await one.receive(events.updated(status="past_due", created=NOW - 3600))
    assert await one.mail_access_ends() == 0
    await one.receive(
        events.updated(created=past_due - 7200),
        events.updated(status="past_due", created=past_due - 3600),
    )
    one.clock.advance(seconds=GRACE)
    assert await one.mail_access_ends() == 0
    assert await queued(emptied) == ["access_ended"]


async def test_the_end_of_a_later_grace_period_is_mailed_too(
    emptied: str, one: Process, past_due: int
) -> None:
    one.clock.advance(seconds=GRACE + 601)
    assert await one.mail_access_ends() == 1
    await one.receive(events.updated(created=past_due + 700))
    await one.receive(events.updated(status="past_due", created=past_due + 800))
    one.clock.advance(seconds=GRACE + 800)
    assert await one.mail_access_ends() == 1


async def test_an_end_of_access_by_time_that_a_late_event_turns_into_one_by_an_event_is_mailed_once(
    emptied: str, one: Process, past_due: int
) -> None:
    one.clock.advance(seconds=GRACE + 601)
    assert await one.mail_access_ends() == 1
    await one.receive(events.updated(created=past_due - 60))
    await one.receive(events.updated(status="unpaid", created=past_due - 30))
    assert await queued(emptied) == ["access_ended"]


async def test_the_late_event_of_an_end_that_was_mailed_by_time_is_not_mailed(
    emptied: str, one: Process, past_due: int
) -> None:
    one.clock.advance(seconds=GRACE + 601)
    assert await one.mail_access_ends() == 1
    await one.receive(events.deleted(created=past_due - 60))
    assert await queued(emptied) == ["access_ended"]


async def test_a_subscription_that_ends_after_its_access_is_mailed_too(
    emptied: str, one: Process, past_due: int
) -> None:
    one.clock.advance(seconds=GRACE + 601)
    assert await one.mail_access_ends() == 1
    await one.receive(events.deleted(created=past_due + 60))
    assert await queued(emptied) == ["access_ended", "subscription_ended"]


FAILED_UNPAID: Final = (
    events.updated(created=NOW - 60),
    events.failed(),
    events.updated(status="unpaid", created=NOW + 1),
)


@pytest.mark.parametrize(
    "order", [(0, 1), (1, 0)], ids=["the invoice first", "the subscription first"]
)
async def test_an_unpaid_subscription_that_recovers_is_mailed_once(
    emptied: str, one: Process, order: tuple[int, int]
) -> None:
    await one.receive(*FAILED_UNPAID)
    recovery = [paid(created=NOW + 2), events.updated(created=NOW + 3)]
    for number in order:
        await one.receive(recovery[number])
    assert (await queued(emptied)).count("payment_recovered") == 1
    await one.receive(events.succeeded(created=NOW + 2))
    [notice] = await rows(emptied, f"{NOTIFICATIONS} WHERE type = 'billing.payment_recovered'")
    assert notice["cause"] == "billing.payment_recovered acme in_acme"
    assert notice["data"] == {"invoiceUrl": events.INVOICE_URL}


async def test_an_unpaid_subscription_that_recovers_without_a_payment_is_not_mailed(
    emptied: str, one: Process
) -> None:
    await one.receive(*FAILED_UNPAID)
    before = await queued(emptied)
    await one.receive(events.updated(created=NOW + 3))
    assert await queued(emptied) == before


async def test_an_unpaid_subscription_whose_payment_came_first_is_mailed_as_recovered_alone(
    emptied: str, one: Process
) -> None:
    working, failure, unpaid = FAILED_UNPAID
    for event in (working, failure, paid(created=NOW + 2), unpaid, events.updated(created=NOW + 3)):
        await one.receive(event)
    assert await queued(emptied) == ["payment_failed", "payment_recovered"]


@pytest.mark.parametrize("days", [66, 68])
async def test_the_job_leaves_ended_tenants_and_old_ends_alone(
    emptied: str, one: Process, past_due: int, days: int
) -> None:
    if days == 66:
        await rows(emptied, "UPDATE tenants SET deleted_at = now()")
    one.clock.advance(days=days, minutes=1)
    assert await one.mail_access_ends() == 0


async def test_the_job_finds_tenants_by_an_index(emptied: str, one: Process) -> None:
    values = "'x'", "2000000000", "1000000000", "10", "1", "1"
    names = "%(type)s", "%(until)s", "%(since)s", "%(most)s", "%(grace)s", "%(other)s"
    statement = store.ACCESS_ENDS
    for name, value in zip(names, values, strict=True):
        statement = statement.replace(name, value)
    await rows(
        emptied,
        "INSERT INTO tenants (id, name, owner_id, owner_email) "
        "SELECT number, '', '', '' FROM generate_series(1, 2000) AS number",
    )
    await rows(emptied, "ANALYZE tenants")  # of an empty table all plans cost the same
    plan = await rows(f"{emptied} options='-c enable_seqscan=off'", f"EXPLAIN {statement}")
    for name in (
        "tenants_by_first_access_end",
        "tenants_by_last_access_end",
        "tenants_by_more_access_ends",
    ):
        assert name in str(plan)


async def test_a_replay_queues_no_notice(emptied: str, one: Process) -> None:
    await one.receive(events.updated())
    await one.receive(events.updated(status="unpaid", created=NOW + 1))
    await rows(emptied, "DELETE FROM notifications")
    folds = "replace(folds::text, '\"unpaid\"', '\"active\"')::json"
    await rows(emptied, f"UPDATE tenants SET folds = {folds}")  # noqa: S608  # the test's own words
    await rows(emptied, "UPDATE tenants SET subscription_status = 'active'")
    replay = ReplayService(one.database, POLICY, one.clock)
    [checked] = [
        each
        async for chunk in replay.run(Selection(("acme",)), dry_run=False)
        for each in chunk.checked
    ]
    assert not checked.is_right
    assert await queued(emptied) == []


async def test_owners_get_the_mails(emptied: str, one: Process) -> None:
    await one.receive(will_end())
    await one.receive(events.failed(created=NOW + 1), events.succeeded(created=NOW + 2))
    await one.receive(events.updated(created=NOW + 3))
    await one.receive(events.updated(status="paused", created=NOW + 4))
    await one.receive(events.updated(created=NOW + 5))
    await one.receive(events.deleted(created=NOW + 6))
    async with running(MailServer()) as server:
        config = parse_smtp_url(f"smtp://127.0.0.1:{server.port}", "billing@example.com")
        mail = MailService(
            one.database, Mailer(config), one.clock, base_url="https://tenantry.example"
        )
        ids: list[UUID] = [
            row["id"] for row in await rows(emptied, f"{NOTIFICATIONS} ORDER BY created_at, type")
        ]
        for mail_id in [*ids, *ids]:
            await mail.deliver(mail_id)
    assert [mail.message["Subject"] for mail in server.received] == [
        "Your trial ends soon",
        "Payment failed",
        "Payment received",
        "Your access to your plan has ended",
        "Your subscription has ended",
    ]
    assert [mail.message["Message-ID"] for mail in server.received] == [
        f"<{each}@example.com>" for each in ids
    ]
    assert {tuple(mail.recipients) for mail in server.received} == {("owner@acme.example",)}
    assert "https://tenantry.example/orgs/acme/billing" in server.received[-1].part("plain")


@pytest.mark.parametrize("setting", ["", "subscription_ended"])
async def test_the_setting_turns_a_notice_on(emptied: str, setting: str) -> None:
    async with running_service(emptied, OWNER_NOTICES=setting, SUBSCRIPTIONS="each") as service:
        provider = Provider(service)
        subscriber = provider.unlinked()
        await provider.arrives(subscriber)
        await provider.send(
            events.updated(**subscriber.names), events.deleted(**subscriber.names, created=NOW + 1)
        )
    assert await queued(emptied) == ([setting] if setting else [])
