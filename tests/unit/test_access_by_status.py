"""The access of a tenant: by status, by time, and the limits that it gives."""

from typing import Final

import msgspec

from tenantry.domain.access import (
    NOTHING,
    AccessPhase,
    access_of_status,
    current_phase,
    end_reason,
    endings,
    limit_text,
    limits_of,
    phase_at,
    phase_of_status,
    plan_end,
    to_access,
)
from tenantry.domain.plans import LARGEST_LIMIT, AccessState, parse_catalog
from tests.support.cases import cases

PLANS: Final = """
[[plans]]
id = "free"
name = "Free"
[plans.limits]
projects = 3
[[plans]]
id = "pro"
name = "Pro"
[plans.limits]
projects = 50
api_keys = 100
[[addons]]
id = "more"
[addons.limits]
projects = 10
members = 5
"""
CATALOG: Final = parse_catalog(PLANS)
OVERRIDDEN: Final = parse_catalog(
    f'{PLANS}[access]\nactive = "grace"\npast_due = "none"\nunpaid = "full"\n'
)
UNTIL: Final = 2_000_000_000
GRACE: Final = AccessPhase("grace", "pro", "The subscription is past due.", UNTIL)
AFTER: Final = AccessPhase(
    "none", "free", "The subscription is past due. The grace period has ended."
)


@cases(
    ("status", "usual", "overridden"),
    [
        ("trialing", "full", "full"),
        ("active", "full", "grace"),
        ("past_due", "grace", "none"),
        ("unpaid", "none", "full"),
        ("incomplete", "none", "none"),
        ("paused", "none", "none"),
        ("a_status_of_2030", "none", "none"),
        ("incomplete_expired", None, None),
        ("canceled", None, None),
    ],
)
def test_access_by_status(
    status: str, usual: AccessState | None, overridden: AccessState | None
) -> None:
    assert access_of_status(status, CATALOG) == usual
    assert access_of_status(status, OVERRIDDEN) == overridden


@cases(
    ("plan", "status", "phase"),
    [
        ("free", "none", NOTHING),
        ("pro", "none", AccessPhase("full", "pro", "The plan needs no subscription.")),
        ("pro", "active", AccessPhase("full", "pro", "The subscription is active.")),
        ("free", "active", AccessPhase("full", "free", "The subscription is active.")),
        ("pro", "past_due", AccessPhase("grace", "pro", "The subscription is past due.")),
        ("pro", "unpaid", AccessPhase("none", "free", "The subscription is unpaid.")),
        ("free", "canceled", AccessPhase("none", "free", "The subscription has ended.")),
        ("pro", "incomplete_expired", AccessPhase("none", "free", "The subscription has ended.")),
    ],
)
def test_access_of_a_plan_and_status_alone(plan: str, status: str, phase: AccessPhase) -> None:
    assert phase_of_status(plan, status, CATALOG) == phase
    assert current_phase(None, plan, status, 0, CATALOG) == phase


@cases(("now", "phase"), [(UNTIL - 1, GRACE), (UNTIL - 0.001, GRACE), (UNTIL, AFTER), (9e9, AFTER)])
def test_phase_ends_at_its_second(now: float, phase: AccessPhase) -> None:
    assert phase_at((GRACE, AFTER), now) == phase
    stored = msgspec.json.encode((GRACE, AFTER)).decode()
    assert current_phase(stored, "pro", "past_due", now, CATALOG) == phase


def test_access_as_the_api_shows_it() -> None:
    shown = {
        "state": "grace",
        "plan": "pro",
        "until": "2033-05-18T03:33:20Z",
        "reason": GRACE.reason,
    }
    assert msgspec.to_builtins(to_access(GRACE)) == shown
    assert to_access(AFTER).until is None


@cases(
    ("phase", "projects", "api_keys", "members"),
    [
        (AccessPhase("full", "pro", ""), 50, 100, None),
        (AccessPhase("full", "pro", "", addons=(("more", 1),)), 60, 100, None),
        (AccessPhase("full", "pro", "", addons=(("more", 3), ("gone", 9))), 80, 100, None),
        (AccessPhase("full", "pro", "", addons=(("more", 10**12),)), LARGEST_LIMIT, 100, None),
        (AccessPhase("full", "gone", ""), 3, None, None),
        (AFTER, 3, None, None),
    ],
    ids=["plan", "add-on", "several units", "most", "plan that has left the catalog", "none"],
)
def test_limits_of_a_phase(
    phase: AccessPhase, projects: int, api_keys: int | None, members: int | None
) -> None:
    limits = limits_of(phase, CATALOG)
    assert (limits.projects, limits.api_keys, limits.members) == (projects, api_keys, members)


@cases(
    ("phase", "projects", "api_keys", "members"),
    [
        (AccessPhase("full", "pro", "", limits=(("projects", 49),)), 50, 100, None),
        (AccessPhase("full", "pro", "", limits=(("projects", 51),)), 51, 100, None),
        (
            AccessPhase("full", "pro", "", addons=(("more", 2),), limits=(("projects", 60),)),
            70,
            100,
            None,
        ),
        (AccessPhase("full", "pro", "", limits=(("members", 5), ("api_keys", 101))), 50, 101, None),
        (AccessPhase("none", "free", "", limits=(("projects", 4),)), 4, None, None),
    ],
    ids=["lower", "higher", "lower than with add-ons", "unlimited and higher", "without access"],
)
def test_grant_raises_a_limit_and_never_lowers_one(
    phase: AccessPhase, projects: int, api_keys: int | None, members: int | None
) -> None:
    limits = limits_of(phase, CATALOG)
    assert (limits.projects, limits.api_keys, limits.members) == (projects, api_keys, members)


FEATURES: Final = (("sso", None),)


@cases(
    ("before", "after", "reason"),
    [
        (
            AccessPhase("full", "pro", "", 9),
            AccessPhase("none", "free", "Why."),
            "Access to plan pro has ended. Why.",
        ),
        (
            AccessPhase("full", "pro", "", 9),
            AccessPhase("full", "free", "Why."),
            "Access to plan pro has ended, and that to plan free counts. Why.",
        ),
        (
            AccessPhase("full", "pro", "", 9, (("more", 1),)),
            AccessPhase("full", "pro", "Why."),
            "Add-ons have ended. Why.",
        ),
        (
            AccessPhase("none", "free", "", 9, features=FEATURES),
            AccessPhase("none", "free", "Why."),
            "Granted features or limits have ended. Why.",
        ),
    ],
    ids=["access", "plan", "add-ons", "features"],
)
def test_reason_of_an_end_says_what_ended(
    before: AccessPhase, after: AccessPhase, reason: str
) -> None:
    assert end_reason((before, after), 9) == reason


def test_an_ending_says_what_ends_and_whether_the_plan_does() -> None:
    more = (("projects", 80),)
    phases = (
        AccessPhase("full", "pro", "Granted.", 10, limits=more),
        AccessPhase("full", "pro", "Granted.", 20),
        AccessPhase("grace", "pro", "Past due.", 30),
        AccessPhase("none", "free", "Past due.", 40, limits=more),
        AccessPhase("none", "free", "Past due."),
    )
    stored = msgspec.json.encode(phases).decode()
    assert [(each.second, each.words) for each in endings(stored, 0)] == [
        (10, "granted features or limits end"),
        (20, "full access to plan pro ends, then a grace period counts"),
        (30, "the grace period of plan pro ends, then the limits of plan free count"),
        (40, "granted features or limits end"),
    ]
    ends = [plan_end(endings(stored, now)) for now in (0, 10, 30)]
    assert [end and end.second for end in ends] == [30, 30, None]
    assert endings(None, 0) == []


@cases(
    ("phase", "plan", "text"),
    [
        (GRACE, "pro", "The plan Pro allows 50 projects."),
        (
            AFTER,
            "pro",
            "The plan Free allows 50 projects. The subscription is past due. The grace period has ended.",
        ),
        (NOTHING, "free", "The plan Free allows 50 projects."),
        (
            AccessPhase("full", "pro", "", limits=(("projects", 50),)),
            "pro",
            "The plan Pro with your contract allows 50 projects.",
        ),
    ],
)
def test_text_of_a_limit_says_why_there_is_no_access(
    phase: AccessPhase, plan: str, text: str
) -> None:
    assert limit_text(phase, plan, CATALOG, "50 projects") == text
