"""Replays and reconciliations of one tenant that operators start on pages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import psycopg
import pytest

from tenantry.domain.billing.explanation import FieldComparison
from tenantry.domain.billing.tenant_runs import (
    MOST_LISTED,
    MOST_STARTS,
    RunKind,
    RunResult,
    RunStatus,
    listed_fields,
)
from tenantry.domain.errors import ProviderNotConfiguredError
from tests.support.billing import Provider, Subscriber, rows, until_blocked
from tests.support.billing_scene import running_scene
from tests.support.facts import ANY, EACH, updated
from tests.support.ports import free_port
from tests.support.replays import LATER, corrupt, with_history
from tests.support.service import Service
from tests.support.tenant_runs import OLGA, Operators, jobs, operators, trails
from tests.support.truth import World, reconciling, running_world

STATE: Final = (
    "SELECT plan, subscription_status, access::text, folds::text FROM tenants WHERE id = %s"
)


@pytest.fixture
def provider(service: Service) -> Provider:
    return Provider(service)


@pytest.fixture
async def desk(service: Service) -> AsyncIterator[Operators]:
    async with operators(service.conninfo) as desk:
        yield desk


@pytest.fixture
async def broken(provider: Provider) -> Subscriber:
    """A tenant on Business whose stored plan was changed by hand."""
    subscriber = await with_history(provider)
    await corrupt(provider, subscriber, "plan = 'free'")
    return subscriber


async def state(provider: Provider, subscriber: Subscriber) -> dict[str, object]:
    [found] = await rows(provider.service.conninfo, STATE, subscriber.id)
    return found


async def test_a_dry_run_shows_what_would_change_and_changes_nothing(
    provider: Provider, desk: Operators, broken: Subscriber
) -> None:
    before = await state(provider, broken)
    run = await desk.check(broken.id)
    assert run.status is RunStatus.DONE
    assert run.result is not None
    assert [(one.field, one.stored, one.folded) for one in run.result.fields] == [
        ("plan", "free", "business")
    ]
    assert (run.seen, run.result.folded) == (4, 4)
    assert await state(provider, broken) == before
    entries, acts = await trails(provider.service.conninfo, broken.id)
    assert entries == []
    assert acts == [("ledger.checked", "replay", "olga", None)]


async def test_a_repair_is_in_both_trails(
    provider: Provider, desk: Operators, broken: Subscriber
) -> None:
    checked = await desk.check(broken.id)
    run = await desk.repair(checked, OLGA.because("Ticket 7"))
    assert (run.status, run.repairs, run.may_repair) == (RunStatus.DONE, True, False)
    assert await provider.state(broken) == ("business", "past_due")
    entries, acts = await trails(provider.service.conninfo, broken.id)
    assert entries == [
        {
            "actor_kind": "operator",
            "reason": "Ticket 7",
            "before": {"repairedFrom": None, "plan": "free"},
            "after": {"repairedFrom": "events", "plan": "business"},
        }
    ]
    assert acts[1:] == [
        ("ledger.repair_started", "replay", "olga", "Ticket 7"),
        ("billing.repaired", broken.id, "olga", "Ticket 7"),
    ]


async def test_who_starts_a_repair_is_in_the_trail_before_it_runs(
    provider: Provider, desk: Operators, broken: Subscriber
) -> None:
    checked = await desk.check(broken.id)
    author = OLGA.because("Ticket 7")
    assert await desk.runs.repair(author, broken.id, checked.id)
    assert not await desk.runs.repair(author, broken.id, checked.id)
    entries, acts = await trails(provider.service.conninfo, broken.id)
    assert entries == []
    assert acts[1:] == [("ledger.repair_started", "replay", "olga", "Ticket 7")]


async def test_a_repair_of_what_is_right_by_then_is_no_change_of_the_tenant(
    provider: Provider, desk: Operators, broken: Subscriber
) -> None:
    checked = await desk.check(broken.id)
    await corrupt(provider, broken, "plan = 'business'")
    run = await desk.repair(checked)
    assert run.result is not None
    assert not run.result.changes_something
    entries, acts = await trails(provider.service.conninfo, broken.id)
    assert entries == []
    assert acts == [
        ("ledger.checked", "replay", "olga", None),
        ("ledger.repair_started", "replay", "olga", None),
    ]


async def test_operators_who_start_at_once_share_one_run(
    provider: Provider, desk: Operators, broken: Subscriber
) -> None:
    conninfo = provider.service.conninfo
    starts = [desk.runs.check(OLGA, broken.id, RunKind.REPLAY) for _ in range(3)]
    assert sorted(await asyncio.gather(*starts)) == [False, False, True]
    assert len(await jobs(conninfo, broken.id)) == 1
    _, acts = await trails(conninfo, broken.id)
    assert len(acts) == 1
    checked = await desk.done(broken.id)
    repairs = [desk.runs.repair(OLGA, broken.id, checked.id) for _ in range(2)]
    assert sorted(await asyncio.gather(*repairs)) == [False, True]
    await desk.done(broken.id)
    assert not await desk.runs.repair(OLGA, broken.id, checked.id)
    entries, _ = await trails(conninfo, broken.id)
    assert len(entries) == 1


async def test_only_the_last_dry_run_that_succeeded_can_be_repaired(
    desk: Operators, broken: Subscriber
) -> None:
    assert not await desk.runs.repair(OLGA, broken.id, "run_none")
    former = await desk.check(broken.id)
    last = await desk.check(broken.id)
    assert not await desk.runs.repair(OLGA, broken.id, former.id)
    assert await desk.runs.repair(OLGA, broken.id, last.id)


async def test_a_worker_does_what_waits_and_a_joined_run_has_a_job_again(
    provider: Provider, desk: Operators, broken: Subscriber
) -> None:
    conninfo = provider.service.conninfo
    await desk.runs.check(OLGA, broken.id, RunKind.REPLAY)
    assert (await desk.found(broken.id)).status is RunStatus.QUEUED
    # as after a crash of the database
    await rows(conninfo, "DELETE FROM procrastinate_jobs WHERE args->>'tenant_id' = %s", broken.id)
    assert not await desk.runs.check(OLGA, broken.id, RunKind.REPLAY)
    async with desk.working():
        run = await desk.until_ended(broken.id)
    assert run.status is RunStatus.DONE
    assert await jobs(conninfo, broken.id) == []


async def test_a_run_that_its_worker_left_is_taken_up_again(
    provider: Provider, desk: Operators, broken: Subscriber
) -> None:
    conninfo = provider.service.conninfo
    checked = await desk.check(broken.id)
    await desk.runs.repair(OLGA, broken.id, checked.id)
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute("SELECT FROM tenants WHERE id = %s FOR UPDATE", (broken.id,))
        async with desk.working(grace=0):
            await until_blocked(conninfo)
        left = await desk.found(broken.id)
        assert (left.status, left.starts) == (RunStatus.RUNNING, 1)
        assert await jobs(conninfo, broken.id) == ["todo"]
    async with desk.working():
        run = await desk.until_ended(broken.id)
    assert (run.status, run.was_interrupted) == (RunStatus.DONE, True)
    assert await provider.state(broken) == ("business", "past_due")


async def test_one_run_at_a_time_leaves_the_worker_to_other_jobs(
    provider: Provider, desk: Operators, broken: Subscriber
) -> None:
    conninfo = provider.service.conninfo
    others = [await provider.subscriber() for _ in range(4)]
    checked = await desk.check(broken.id)
    await desk.runs.repair(OLGA, broken.id, checked.id)
    for other in others:
        await desk.runs.check(OLGA, other.id, RunKind.REPLAY)
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute("SELECT FROM tenants WHERE id = %s FOR UPDATE", (broken.id,))
        async with desk.working():
            await until_blocked(conninfo)
            await desk.until_another_job_is_done(conninfo)
            assert [(await desk.found(other.id)).status for other in others] == [
                RunStatus.QUEUED
            ] * 4
            await connection.rollback()
            for other in others:
                assert (await desk.until_ended(other.id)).status is RunStatus.DONE


async def test_a_run_that_takes_too_long_fails(
    provider: Provider, desk: Operators, broken: Subscriber
) -> None:
    conninfo = provider.service.conninfo
    checked = await desk.check(broken.id)
    await desk.runs.repair(OLGA, broken.id, checked.id)
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        lock = "SELECT FROM tenants WHERE id = %s FOR NO KEY UPDATE"
        await connection.execute(lock, (broken.id,))
        await replace(desk.runner, longest=0.1).run(broken.id)
    run = await desk.found(broken.id)
    assert (run.status, run.result) == (RunStatus.FAILED, None)
    assert "took too long" in (run.failure or "")
    entries, _ = await trails(conninfo, broken.id)
    assert len(entries) == 1, "it may have changed the tenant"


async def test_other_tenants_of_a_subscription_that_a_replay_changes_are_shown_and_audited(
    emptied: str,
) -> None:
    shared = {"subscription_id": "sub_1", "customer_id": "cus_1"}
    async with running_scene(emptied, EACH, LATER) as scene:
        await scene.create("former", present="cus_1")
        await scene.deliver(
            updated(100, "evt_1", **shared, org_id="former"),
            updated(200, "evt_2", **shared, org_id="present"),
        )
    await rows(
        emptied,
        "UPDATE tenants SET plan = 'pro', folds = folds::jsonb #- '{sub_1,moved_at}' WHERE id = 'former'",
    )
    async with operators(emptied, policy=EACH) as desk:
        checked = await desk.check("present")
        assert checked.result is not None
        assert (checked.result.fields, checked.result.others) == ((), ("former",))
        assert checked.may_repair
        entries, _ = await trails(emptied, "former")
        assert entries == []
        run = await desk.repair(checked)
        assert run.result is not None
        assert run.result.others == ("former",)
        entries, acts = await trails(emptied, "former")
        assert [entry["after"]["repairedFrom"] for entry in entries] == ["events"]
        assert acts == [("billing.repaired", "former", "olga", None)]
        again = await desk.check("present")
        assert again.result is not None
        assert again.result.others == ()


async def test_a_repair_whose_end_was_not_recorded_is_in_the_audit_trail(
    provider: Provider, desk: Operators, broken: Subscriber
) -> None:
    checked = await desk.check(broken.id)
    await desk.repair(checked)
    await rows(
        provider.service.conninfo,
        "UPDATE ledger_runs SET ended_at = NULL, result = NULL WHERE tenant_id = %s",
        broken.id,
    )
    run = await desk.done(broken.id)
    assert run.was_interrupted
    entries, _ = await trails(provider.service.conninfo, broken.id)
    assert entries[1]["after"] == {"repairedFrom": "events"}


async def test_a_run_that_was_interrupted_often_is_given_up(
    provider: Provider, desk: Operators, broken: Subscriber
) -> None:
    await desk.runs.check(OLGA, broken.id, RunKind.REPLAY)
    await rows(
        provider.service.conninfo,
        "UPDATE ledger_runs SET starts = %s WHERE tenant_id = %s",
        MOST_STARTS,
        broken.id,
    )
    run = await desk.done(broken.id)
    assert (run.status, run.result) == (RunStatus.FAILED, None)
    assert "interrupted" in (run.failure or "")


async def test_a_tenant_that_ends_meanwhile_is_not_repaired(
    provider: Provider, desk: Operators, broken: Subscriber
) -> None:
    checked = await desk.check(broken.id)
    await desk.runs.repair(OLGA, broken.id, checked.id)
    await provider.service.operator.delete(f"/api/v1/tenants/{broken.id}")
    before = await state(provider, broken)
    run = await desk.done(broken.id)
    assert run.status is RunStatus.FAILED
    assert await state(provider, broken) == before
    entries, _ = await trails(provider.service.conninfo, broken.id)
    assert entries == []


async def test_a_run_ends_with_its_tenant(
    provider: Provider, desk: Operators, broken: Subscriber
) -> None:
    await desk.runs.check(OLGA, broken.id, RunKind.REPLAY)
    await rows(provider.service.conninfo, "DELETE FROM ledger_runs WHERE tenant_id = %s", broken.id)
    await desk.runner.run(broken.id)
    assert await desk.runs.find(broken.id) is None


async def test_what_is_stored_of_a_run_is_bounded() -> None:
    fields = [FieldComparison("details", "x" * 10_000, None)] * (MOST_LISTED + 1)
    shown = listed_fields(fields)
    assert len(shown) == MOST_LISTED
    assert len(shown[0].stored) < 1000


# With the payment provider


@pytest.fixture
async def world(conninfo: str) -> AsyncIterator[World]:
    async with running_world(conninfo) as world:
        yield world


@asynccontextmanager
async def at_provider(world: World) -> AsyncIterator[Operators]:
    service = world.service
    async with operators(
        service.conninfo, world.reconciler, policy=ANY, clock=service.clock
    ) as desk:
        yield desk


async def drifted(world: World) -> Subscriber:
    """A tenant whose upgrade was lost."""
    subscriber = await world.subscriber("price_pro")
    async with world.losing_deliveries():
        world.simulator.change_plan(world.subscription(subscriber).id, "price_business")
    await world.passes(minutes=1)
    return subscriber


async def test_a_reconciliation_shows_drift_then_repairs_it(world: World) -> None:
    subscriber = await drifted(world)
    async with at_provider(world) as desk:
        checked = await desk.check(subscriber.id, RunKind.RECONCILE)
        assert checked.result is not None
        assert ("plan", "pro", "business") in [
            (one.field, one.stored, one.folded) for one in checked.result.fields
        ]
        assert checked.result.event_count > 0
        assert (await world.record(subscriber)).plan == "pro"
        run = await desk.repair(checked)
    assert (run.status, run.failure) == (RunStatus.DONE, None)
    assert await world.record(subscriber) == world.truth(subscriber)
    entries, acts = await trails(world.service.conninfo, subscriber.id)
    assert [entry["after"]["repairedFrom"] for entry in entries] == ["provider"]
    assert [act[:2] for act in acts] == [
        ("ledger.checked", "reconcile"),
        ("ledger.repair_started", "reconcile"),
        ("billing.repaired", subscriber.id),
    ]


async def test_missed_events_are_fetched_after_a_repair_that_was_interrupted_before(
    world: World,
) -> None:
    subscriber = await drifted(world)
    conninfo = world.service.conninfo
    async with at_provider(world) as desk:
        checked = await desk.check(subscriber.id, RunKind.RECONCILE)
        await desk.runs.repair(OLGA, subscriber.id, checked.id)
        await world.reconciler.fetch_snapshot(subscriber.id)  # what the first attempt came to
        await rows(conninfo, "UPDATE ledger_runs SET started_at = now(), starts = 1")
        assert world.lost(subscriber)
        run = await desk.done(subscriber.id)
    assert (run.status, run.was_interrupted) == (RunStatus.DONE, True)
    known = await rows(conninfo, "SELECT id FROM billing_events")
    assert {event.id for event in world.lost(subscriber)} <= {row["id"] for row in known}


async def test_the_provider_out_of_reach_is_the_failure_of_a_run(world: World) -> None:
    subscriber = await drifted(world)
    service = world.service
    nowhere = f"http://127.0.0.1:{free_port()}"
    async with (
        reconciling(service.conninfo, nowhere, clock=service.clock) as away,
        operators(service.conninfo, away.reconciler, policy=ANY, clock=service.clock) as desk,
    ):
        await desk.runs.check(OLGA, subscriber.id, RunKind.RECONCILE)
        async with desk.working():
            run = await desk.until_ended(subscriber.id)
    assert run.status is RunStatus.FAILED
    assert run.failure
    assert not run.may_repair
    assert await jobs(service.conninfo, subscriber.id) == []


async def test_a_reconciliation_needs_the_key_on_pages_and_in_the_worker(
    provider: Provider, desk: Operators, broken: Subscriber
) -> None:
    with pytest.raises(ProviderNotConfiguredError):
        await desk.runs.check(OLGA, broken.id, RunKind.RECONCILE)
    assert await desk.runs.find(broken.id) is None
    others = replace(desk.runs, asks_provider=True)
    await others.check(OLGA, broken.id, RunKind.RECONCILE)
    run = await desk.done(broken.id)
    assert (run.status, run.result) == (RunStatus.FAILED, RunResult())
    assert "PROVIDER_SECRET_KEY" in (run.failure or "")
