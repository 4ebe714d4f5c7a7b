"""The dry run of a replay, for owners."""

import asyncio
from pathlib import Path
from typing import Final

import msgspec
import psycopg
import pytest

from tenantry.billing.replay import MOST_AT_ONCE
from tenantry.common.clock import DEFAULT_TIMEOUTS
from tests.support.billing import until_blocked
from tests.support.dashboard import ACME, ADAM, AT_ACME, MIA, Dashboard, Person, running_dashboard
from tests.support.events import NOW, completed, updated
from tests.support.patience import PATIENT

REPLAY: Final = f"{AT_ACME}/events/replay"
BY_COMMAND: Final = f"tenantry events replay --dry-run --tenant {ACME}"
# Number 1 is the newest; each second has one event.
LEDGER: Final = """
INSERT INTO billing_events (id, arrival, type, created, received_at, tenant_id, customer_id, subscription_id,
                            outcome, document)
SELECT 'evt_' || n, %(rows)s - n, %(type)s, 2000000000 - n, now(), %(tenant)s, 'cus_acme', 'sub_1', 'applied',
       '{"status": "active", "price_id": "price_pro"}'
  FROM generate_series(1, %(rows)s) AS n
"""


@pytest.fixture
async def owner(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in()


async def run(conninfo: str, statement: str, **values: object) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        await connection.execute(statement, {"tenant": ACME, **values})


async def replay(owner: Person) -> str:
    """Run a replay; return the text of its page."""
    page = await owner.send(await owner.open(REPLAY))
    assert page.status == 200
    return page.text


async def test_opening_the_page_replays_nothing(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.deliver(updated())
    page = await owner.open(REPLAY)
    assert "Start dry run" in page.text
    assert "difference" not in page.text


async def test_replay_of_a_consistent_ledger_finds_no_difference(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(completed())
    await dashboard.deliver(updated())
    said = await replay(owner)
    assert "No difference. 1 event gives the stored state." in said
    assert BY_COMMAND not in said


async def test_replay_shows_drift_and_changes_nothing(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.deliver(updated())
    await run(
        dashboard.conninfo,
        "UPDATE tenants SET subscription_status = 'canceled' WHERE id = %(tenant)s",
    )
    for _ in range(2):
        said = await replay(owner)
        assert "Drift found" in said
        assert "Subscription Canceled Active" in said


async def test_replay_of_a_long_ledger_folds_the_newest_events(
    owner: Person, dashboard: Dashboard
) -> None:
    await run(
        dashboard.conninfo, LEDGER, rows=MOST_AT_ONCE + 1, type="customer.subscription.updated"
    )
    said = await replay(owner)
    assert f"The replay folded {MOST_AT_ONCE:,} events" in said
    assert "Subscription No subscription Active" in said
    assert (
        f"The ledger has more than {MOST_AT_ONCE:,} events, so the replay folded only those since"
        in said
    )
    assert BY_COMMAND in said


async def test_ledger_at_the_bound_is_folded_completely(
    owner: Person, dashboard: Dashboard
) -> None:
    await run(dashboard.conninfo, LEDGER, rows=MOST_AT_ONCE, type="customer.subscription.updated")
    said = await replay(owner)
    assert f"The replay folded {MOST_AT_ONCE:,} events" in said
    assert BY_COMMAND not in said


async def test_replay_compares_nothing_if_older_events_matter(
    owner: Person, dashboard: Dashboard
) -> None:
    await run(dashboard.conninfo, LEDGER, rows=MOST_AT_ONCE + 1, type="invoice.payment_succeeded")
    said = await replay(owner)
    assert "Not compared." in said
    assert "difference" not in said
    assert BY_COMMAND in said


async def test_replays_are_bounded_in_number_and_time(conninfo: str, people: Path) -> None:
    timeouts = msgspec.structs.replace(PATIENT, replay=DEFAULT_TIMEOUTS.replay)
    async with running_dashboard(conninfo, people, timeouts) as dashboard:
        await check_bounds(dashboard)


async def check_bounds(dashboard: Dashboard) -> None:
    owner = await dashboard.sign_in()
    await dashboard.deliver(updated())
    page = await owner.open(REPLAY)
    async with await psycopg.AsyncConnection.connect(dashboard.conninfo) as connection:
        await connection.execute("LOCK TABLE billing_events")
        first = asyncio.create_task(owner.send(page))
        await until_blocked(dashboard.conninfo)
        second = await owner.send(page)
        assert (second.status, second.headers["content-type"]) == (503, "text/html; charset=utf-8")
        assert "Another replay is under way. Try again in a moment." in second.text
        overdue = await first
        assert (overdue.status, overdue.headers["content-type"]) == (
            503,
            "text/html; charset=utf-8",
        )
        assert "The replay took too long." in overdue.text
    assert "No difference." in (await owner.send(overdue)).text


async def test_only_owners_see_the_link_to_the_replay(dashboard: Dashboard) -> None:
    for user in (ADAM, MIA):
        visitor = await dashboard.sign_in(user)
        assert "replay" not in (await visitor.open(f"{AT_ACME}/events")).html


async def test_moments_are_compared_by_the_second(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.deliver(updated(period_end=NOW))
    await run(dashboard.conninfo, "UPDATE tenants SET current_period_end = current_period_end + 7")
    said = await replay(owner)
    assert "1 Jan 2026, 12:00:07 UTC" in said
    assert "1 Jan 2026, 12:00:00 UTC" in said
