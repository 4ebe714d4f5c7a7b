"""The ledger of one customer on the operator's pages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import events
from tests.support.dashboard import (
    ACME,
    AT_ACME,
    AT_BETA,
    OLGA,
    OLIVIA,
    Dashboard,
    Person,
    running_with_provider,
)
from tests.support.events import failed, updated
from tests.support.replays import POLICY
from tests.support.tenant_runs import Operators, jobs, operators

LEDGER: Final = f"/operator{AT_ACME}/events"
CHECK: Final = f"{LEDGER}/check"
REPAIR: Final = f"{LEDGER}/repair"
MARKUP: Final = "<img src=x onerror=alert(1)>&quot;'"


@pytest.fixture
async def olga(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in(OLGA)


@asynccontextmanager
async def worker(dashboard: Dashboard) -> AsyncIterator[Operators]:
    async with operators(dashboard.conninfo, policy=POLICY) as desk:
        yield desk


async def broken(dashboard: Dashboard) -> None:
    """Change the plan of acme by hand, which its events say is Pro."""
    await dashboard.deliver(updated(created=events.NOW))
    await dashboard.execute("UPDATE tenants SET plan = 'business' WHERE id = %s", (ACME,))


# Events


async def test_the_list_has_type_outcome_change_anomaly_subscription_and_id(
    dashboard: Dashboard, olga: Person
) -> None:
    await dashboard.deliver(updated(event_id="evt_new", created=events.NOW, price="price_unknown"))
    await dashboard.deliver(updated(event_id="evt_pro", created=events.NOW + 1))
    page = await olga.open(LEDGER)
    assert page.status == 200
    for text in (
        "Subscription updated Plan",
        "Plan Free →, then Pro",
        "Applied",
        "Unknown price",
        "sub_acme",
    ):
        assert text in page.text
    assert page.heading() == "Ledger"
    assert {f"{LEDGER}/evt_new", f"{LEDGER}/evt_pro"} < set(page.links)
    assert "evt_new" not in (await olga.open(f"{LEDGER}?search=evt_pro")).html
    assert "No event matches." in (await olga.open(f"{LEDGER}?outcome=parked")).text
    assert "evt_new" in (await olga.open(f"{LEDGER}?outcome=nonsense&day=x&page=%00")).html


async def test_the_list_has_numbered_pages(dashboard: Dashboard, olga: Person) -> None:
    for number in range(26):
        await dashboard.deliver(updated(event_id=f"evt_{number}", created=events.NOW + number))
    page = await olga.open(LEDGER)
    assert f"{LEDGER}/evt_25" in page.links
    assert f"{LEDGER}/evt_0" not in page.links
    assert f"{LEDGER}/evt_0" in (await olga.open(f"{LEDGER}?page=last")).links


async def test_an_event_shows_its_facts_reason_changes_and_raw_body(
    dashboard: Dashboard, olga: Person
) -> None:
    await dashboard.deliver(updated(event_id="evt_1", created=events.NOW))
    page = await olga.open(f"{LEDGER}/evt_1")
    for text in ("price price_pro means plan pro", "sub_acme", '"id": "evt_1"'):
        assert text in page.text
    await dashboard.execute("DELETE FROM billing_bodies")
    assert "It is not stored" in (await olga.open(f"{LEDGER}/evt_1")).text


async def test_events_of_other_customers_have_no_page(dashboard: Dashboard, olga: Person) -> None:
    await dashboard.deliver(updated(event_id="evt_1"))
    assert (await olga.open(f"/operator{AT_BETA}/events/evt_1")).status == 404
    assert (await olga.open(f"{LEDGER}/evt_none")).status == 404
    assert (await olga.open("/operator/orgs/nobody/events")).status == 404


async def test_hostile_contents_of_events_are_text(dashboard: Dashboard, olga: Person) -> None:
    event = failed(event_id=f"evt_{MARKUP}", created=events.NOW)
    event["data"]["object"] |= {"id": f"in_{MARKUP}", "hosted_invoice_url": "javascript:alert(1)"}
    event["note"] = f"</code>{MARKUP}\u202e"
    await dashboard.deliver(event)
    pages = [await olga.open(LEDGER)]
    pages.append(await olga.open(next(href for _, href in pages[0].anchors if "evt_%3C" in href)))
    for page in pages:
        assert page.status == 200
        assert "<img" not in page.html
        assert 'href="javascript' not in page.html
        assert "\u202e" not in page.html
    assert "in_&lt;img" in pages[1].html


# Replay and reconcile


async def test_a_dry_run_then_a_repair(dashboard: Dashboard, olga: Person) -> None:
    await broken(dashboard)
    page = await olga.send(await olga.open(CHECK), CHECK, kind="replay")
    assert "It waits for a worker. Customers' runs are done one at a time." in page.text
    assert "data-poll" in page.html
    assert "Start dry run" not in page.text
    async with worker(dashboard) as desk:
        await desk.done(ACME)
        page = await olga.open(CHECK)
        assert "1 field of the stored state differs from what its 1 event gives." in page.text
        assert "data-poll" not in page.html
        page = await olga.send(page, REPAIR, reason="Ticket 7")
        assert "Replay and repair Queued" in page.text
        await desk.done(ACME)
    page = await olga.open(CHECK)
    assert "1 field was repaired from its 1 event." in page.text
    for text in (OLGA.name, "Ticket 7", "Business", "Pro"):
        assert text in page.text
    assert REPAIR not in page.html
    assert [
        row[0] for row in await dashboard.execute("SELECT plan FROM tenants WHERE id = 'acme'")
    ] == ["pro"]
    olivia = await dashboard.sign_in(OLIVIA)
    trail = await olivia.open(f"{AT_ACME}/settings/audit")
    assert "The operator repaired the billing state" in trail.text
    assert OLGA.name not in trail.html


async def test_a_second_click_joins_the_run(dashboard: Dashboard, olga: Person) -> None:
    await broken(dashboard)
    first = await olga.open(CHECK)
    await olga.send(first, CHECK, kind="replay")
    page = await olga.send(first, CHECK, kind="replay")
    assert "No second run was started" in page.text
    assert await jobs(dashboard.conninfo, ACME) == ["todo"]


async def test_a_state_that_is_right_can_not_be_repaired(
    dashboard: Dashboard, olga: Person
) -> None:
    await dashboard.deliver(updated(created=events.NOW))
    await olga.send(await olga.open(CHECK), CHECK, kind="replay")
    async with worker(dashboard) as desk:
        run = await desk.done(ACME)
    page = await olga.open(CHECK)
    assert "The stored state is what its 1 event gives." in page.text
    assert "only the newest 1,000 of all customers are read again" in page.text
    assert REPAIR not in page.html
    page = await olga.force(REPAIR, run=run.id)
    assert await jobs(dashboard.conninfo, ACME) == ["todo"]


async def test_a_bad_reason_starts_nothing(dashboard: Dashboard, olga: Person) -> None:
    await broken(dashboard)
    await olga.send(await olga.open(CHECK), CHECK, kind="replay")
    async with worker(dashboard) as desk:
        await desk.done(ACME)
    page = await olga.send(await olga.open(CHECK), REPAIR, reason="x" * 501)
    assert page.status == 422
    assert await dashboard.execute("SELECT repairs FROM ledger_runs") == [(False,)]


async def test_a_reconciliation_without_the_key_says_why_it_can_not_start(
    dashboard: Dashboard, olga: Person
) -> None:
    page = await olga.open(CHECK)
    assert "PROVIDER_SECRET_KEY is not set" in page.text
    assert "Start dry run of a reconciliation" not in page.text
    page = await olga.force(CHECK, kind="reconcile")
    assert page.status == 501
    assert await dashboard.execute("SELECT 1 FROM ledger_runs") == []


async def test_a_reconciliation_can_start_with_the_key(conninfo: str, people: Path) -> None:
    async with running_with_provider(conninfo, people) as dashboard:
        olga = await dashboard.sign_in(OLGA)
        page = await olga.open(CHECK)
        assert "it reads all subscriptions of the provider's account" in page.text
        page = await olga.force(CHECK, kind="reconcile")
        assert "Reconciliation, dry run Queued" in page.text


async def test_hostile_results_are_text(dashboard: Dashboard, olga: Person) -> None:
    await broken(dashboard)
    await dashboard.execute("UPDATE tenants SET subscription_status = %s", (MARKUP,))
    await olga.send(await olga.open(CHECK), CHECK, kind="replay")
    async with worker(dashboard) as desk:
        await desk.done(ACME)
    page = await olga.open(CHECK)
    assert MARKUP in page.text
    assert "<img" not in page.html


@pytest.mark.parametrize("path", [LEDGER, f"{LEDGER}/evt_1", CHECK, f"{AT_ACME}/events/check"])
async def test_customers_find_no_page(dashboard: Dashboard, path: str) -> None:
    await dashboard.deliver(updated(event_id="evt_1"))
    olivia = await dashboard.sign_in(OLIVIA)
    assert (await olivia.open(path)).status == 404


@pytest.mark.parametrize("path", [CHECK, REPAIR])
async def test_customers_and_operators_without_a_fresh_sign_in_start_nothing(
    dashboard: Dashboard, path: str
) -> None:
    stale = await dashboard.sign_in(OLGA, authenticated=timedelta(hours=1, seconds=1))
    fields: dict[str, Any] = {"kind": "replay", "run": "run_1"}
    assert (await stale.force(path, **fields)).status == 401
    olivia = await dashboard.sign_in(OLIVIA)
    for address in (path, path.removeprefix("/operator")):
        assert (await olivia.force(address, **fields)).status in (404, 405)
    assert await dashboard.execute("SELECT 1 FROM ledger_runs") == []
