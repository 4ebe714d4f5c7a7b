"""What pages show of a tenant's access, its end, seats and add-ons."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tenantry.domain.access import AccessPhase
from tests.support.dashboard import ACME, AT_ACME, Dashboard, Person, dashboard_of_file
from tests.support.postgres import PostgresServer

BILLING: Final = f"{AT_ACME}/billing"
EVENTS: Final = f"{AT_ACME}/events"
JULY_2033: Final = 2_004_000_000
JUNE_2033: Final = 2_001_500_000
CATALOG: Final = """
[[plans]]
id = "free"
name = "Free"
[plans.limits]
projects = 3
[[plans]]
id = "pro"
name = "Pro"
stripe_price_id = "price_pro"
[plans.limits]
projects = 50
[[addons]]
id = "more"
name = "Extra projects"
[addons.limits]
projects = 10
"""


@pytest.fixture(scope="module")
async def shared_dashboard(postgres: PostgresServer, people: Path) -> AsyncIterator[Dashboard]:
    async with dashboard_of_file(postgres, people, CATALOG) as dashboard:
        yield dashboard


@pytest.fixture
async def owner(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in()


async def subscribe(
    dashboard: Dashboard, status: str, *phases: AccessPhase, **columns: object
) -> None:
    """Give Acme the plan Pro with this status, stored access and further columns."""
    access = msgspec.json.encode(phases).decode() if phases else None
    values = {"plan": "pro", "subscription_status": status, "access": access, **columns}
    query: Any = f"UPDATE tenants SET {', '.join(f'{name} = %({name})s' for name in values)} WHERE id = %(org)s"  # noqa: S608
    await dashboard.execute(query, {**values, "org": ACME})


def lent(until: int, phases: tuple[AccessPhase, ...]) -> tuple[AccessPhase, ...]:
    """The same phases, with a limit that a grant gives until a second."""
    with_limit = msgspec.structs.replace(phases[0], until=until, limits=(("projects", 80),))
    return (with_limit, *phases)


def late(until: int) -> tuple[AccessPhase, AccessPhase]:
    return (
        AccessPhase("grace", "pro", "The subscription is past due.", until),
        AccessPhase("none", "free", "The subscription is past due. The grace period has ended."),
    )


@pytest.mark.parametrize(
    ("status", "phases", "text", "projects"),
    [
        (
            "active",
            (),
            "Access Full, with the limits of the plan Pro. The subscription is active.",
            "0 of 50",
        ),
        (
            "past_due",
            late(JULY_2033),
            "Access Grace period, with the limits of the plan Pro, until 3 Jul 2033, 10:40 UTC. The subscription",
            "0 of 50",
        ),
        (
            "past_due",
            lent(JUNE_2033, late(JULY_2033)),
            "Access Grace period, with the limits of the plan Pro, until 3 Jul 2033, 10:40 UTC. The subscription",
            "0 of 80",
        ),
        (
            "past_due",
            late(1),
            "Access None: the limits of the plan Free apply. The subscription is past due. The grace period has ended.",
            "0 of 3",
        ),
        (
            "unpaid",
            (),
            "Access None: the limits of the plan Free apply. The subscription is unpaid.",
            "0 of 3",
        ),
        (
            "active",
            (AccessPhase("full", "pro", "The subscription is active.", addons=(("more", 2),)),),
            "Access Full, with the limits of the plan Pro. The subscription is active.",
            "0 of 70",
        ),
    ],
    ids=[
        "full",
        "grace",
        "grace, and a grant that ends before",
        "grace that has ended",
        "none",
        "add-ons",
    ],
)
async def test_access_and_its_limits(
    dashboard: Dashboard,
    owner: Person,
    status: str,
    phases: tuple[AccessPhase, ...],
    text: str,
    projects: str,
) -> None:
    await subscribe(dashboard, status, *phases)
    page = (await owner.open(BILLING)).text
    assert text in page
    assert f"Projects {projects}" in page
    assert f"Projects {projects}" in (await owner.open(f"{AT_ACME}/")).text


@pytest.mark.parametrize(
    ("status", "phases", "text"),
    [
        ("past_due", late(JULY_2033), "You keep the plan Pro until 3 Jul 2033."),
        (
            "past_due",
            lent(JUNE_2033, late(JULY_2033)),
            "You keep the plan Pro until 3 Jul 2033.",
        ),
        ("past_due", (), "You keep the plan Pro for now."),
        ("past_due", late(1), "The limits of the plan Free apply until it is paid."),
        (
            "unpaid",
            (),
            "The subscription is unpaid. The limits of the plan Free apply.",
        ),
    ],
)
async def test_every_page_says_what_a_missing_payment_does(
    dashboard: Dashboard, owner: Person, status: str, phases: tuple[AccessPhase, ...], text: str
) -> None:
    await subscribe(dashboard, status, *phases)
    undated = text.replace("until 3 Jul 2033", "for now")
    for path, said in (("/", text), ("/projects", undated), ("/settings/api-keys", undated)):
        page = (await owner.open(AT_ACME + path)).text
        assert said in page, path
        assert ("A payment failed. The subscription is past due." in page) == (
            status == "past_due"
        ), path
    # the access is there instead
    assert (text in (await owner.open(BILLING)).text) == (status == "past_due")


async def test_no_notice_without_a_subscription(owner: Person) -> None:
    page = await owner.open(BILLING)
    assert "Free plan Subscription No subscription Limits 3 projects" in page.text
    assert "Access" not in page.text
    assert 'class="alert red"' not in page.html


@pytest.mark.parametrize(
    ("columns", "said", "in_short", "unsaid"),
    [
        (
            {"current_period_end": JUNE_2033},
            ["Period ends 4 Jun 2033. It renews automatically.", "Next payment 4 Jun 2033"],
            "Renews on 4 Jun 2033",
            ["Ends on"],
        ),
        (
            {"current_period_end": JUNE_2033, "cancel_at_period_end": True, "ends_at": JUNE_2033},
            [
                "Ends on 4 Jun 2033. Then the free plan applies.",
                "Next payment None. You won't be charged again.",
            ],
            "The subscription ends on 4 Jun 2033. You won't be charged again.",
            ["Period ends", "renews"],
        ),
        (
            {"current_period_end": JULY_2033, "cancel_at": JUNE_2033, "ends_at": JUNE_2033},
            [
                "Ends on 4 Jun 2033. Then the free plan applies.",
                "Next payment None. You won't be charged again.",
            ],
            "The subscription ends on 4 Jun 2033. You won't be charged again.",
            ["Period ends", "renews"],
        ),
        (
            {"current_period_end": JUNE_2033, "cancel_at": JULY_2033, "ends_at": JULY_2033},
            ["Ends on 3 Jul 2033", "Period ends 4 Jun 2033"],
            "The subscription ends on 3 Jul 2033.",
            ["renews", "charged again"],
        ),
    ],
    ids=["renews", "with the period", "before the period's end", "after the period"],
)
async def test_end_of_the_subscription(
    dashboard: Dashboard,
    owner: Person,
    columns: dict[str, object],
    said: list[str],
    in_short: str,
    unsaid: list[str],
) -> None:
    await subscribe(dashboard, "active", **columns)
    billing = (await owner.open(BILLING)).text
    overview = (await owner.open(f"{AT_ACME}/")).text
    assert [text for text in said if text not in billing] == []
    assert [text for text in unsaid if text in billing or text in overview] == []
    assert in_short in overview


async def test_subscription_that_has_ended_says_when(dashboard: Dashboard, owner: Person) -> None:
    await subscribe(dashboard, "canceled", plan="free", ends_at=1_700_000_000)
    assert "Ended on 14 Nov 2023" in (await owner.open(BILLING)).text


async def test_seats_and_addons(dashboard: Dashboard, owner: Person) -> None:
    phase = AccessPhase(
        "full", "pro", "The subscription is active.", addons=(("gone", 1), ("more", 1200))
    )
    await subscribe(dashboard, "active", phase, seats=2500)
    assert (
        "Seats 2,500 Add-ons gone (1), Extra projects (1,200)" in (await owner.open(BILLING)).text
    )


async def test_a_grant_has_words_of_its_own(dashboard: Dashboard, owner: Person) -> None:
    contract = {
        "plan": "pro",
        "limits": {"projects": 80},
        "reason": "Contract 2027-014",
        "until": "2099-01-01T00:00:00Z",
    }
    await dashboard.operate("PUT", "/tenants/acme/grants/contract-2027", contract)
    limit = {
        "limits": {"projects": 90},
        "reason": "A <b> until 2027-13-40 25:00:00 UTC",
        "until": "2098-01-01T00:00:00Z",
    }
    await dashboard.operate("PUT", "/tenants/acme/grants/more", limit)
    page = (await owner.open(BILLING)).text
    assert (
        "Access Full, with the limits of the plan Pro, until 1 Jan 2099, 00:00 UTC. "
        "By contract: Contract 2027-014." in page
    )
    assert "contract-2027 plan Pro, 80 projects 1 Jan 2099, 00:00 UTC Contract 2027-014" in page
    assert "more 90 projects 1 Jan 2098, 00:00 UTC A <b> until 2027-13-40 25:00:00 UTC" in page
    projects = (await owner.open(f"{AT_ACME}/projects")).text
    assert "0 of 90 of the plan Pro with your contract." in projects
    events = await owner.open(EVENTS)
    assert "Your contract more gives 90 projects until 1 Jan 2098." in events.text
    [of_more, of_contract] = [link for link in events.links if link.startswith(f"{EVENTS}/grant_")]
    event = (await owner.open(of_more)).text
    assert "Note A <b> until 2027-13-40 25:00:00 UTC Reference" in event
    unsaid = ("another subscription", "did not change", "Mode", "Payload", "tenantry.grant")
    assert [words for words in unsaid if words in event + events.text] == []
    assert "Your plan changed from Free to Pro." in (await owner.open(of_contract)).text


async def test_the_end_of_a_subscription_is_not_that_of_a_granted_plan(
    dashboard: Dashboard, owner: Person
) -> None:
    granted = AccessPhase("full", "pro", "By contract: Contract.", JULY_2033)
    free = AccessPhase("none", "free", "The contract contract has ended.")
    ends = {"cancel_at_period_end": True, "current_period_end": JUNE_2033, "ends_at": JUNE_2033}
    await subscribe(dashboard, "active", granted, free, **ends)
    kept = "The plan Pro stays: your contract or another subscription gives it."
    assert kept in (await owner.open(f"{AT_ACME}/")).text
    await subscribe(
        dashboard, "active", msgspec.structs.replace(granted, until=JUNE_2033), free, **ends
    )
    assert "Then the free plan applies." in (await owner.open(f"{AT_ACME}/")).text
