"""Why requests were refused: on the usage page, on a key's page, and in the list of all."""

from typing import Final

import pytest

from tenantry.dashboard.labels import labels
from tenantry.domain.rejections import RefusedRequest
from tenantry.server.problems import STATUS_OF
from tests.integration.dashboard.keys import KEYS, add_key
from tests.integration.dashboard.signing_in import Browser
from tests.support.cases import cases
from tests.support.dashboard import ACME, AT_ACME, MIA, OLIVIA, Dashboard, Person
from tests.support.dashboard_page import Page

USAGE: Final = f"{AT_ACME}/usage"
ALL: Final = f"{USAGE}/rejections"
ADD: Final = """
INSERT INTO rejections (id, org_id, kind, principal, mode, minute, code, needed, route, status, at, request_id,
                        address, counted)
VALUES ('rejection_' || %(id)s, %(org)s, %(kind)s, %(principal)s, %(mode)s, now() - %(id)s * interval '1 minute',
        %(code)s, %(needed)s, %(route)s, 403, now() - %(id)s * interval '1 minute', 'req-' || %(id)s, '203.0.113.7',
        %(counted)s)
"""
WITHOUT_SENDER: Final = {"invalid_credential", "missing_credential", "token_expired"}
"""Codes of requests whose tenant is not known."""


async def refuse(
    dashboard: Dashboard,
    number: int,
    principal: str,
    code: str = "insufficient_scope",
    **others: object,
) -> None:
    """Record rejections of a key, this many minutes ago."""
    values = {
        "id": number,
        "org": ACME,
        "kind": "api_key",
        "principal": principal,
        "mode": "live",
        "code": code,
        "needed": "",
        "route": "/api/v1/projects",
        "counted": 1,
        **others,
    }
    await dashboard.execute(ADD, values)


@pytest.fixture
async def olivia(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in(OLIVIA)


def test_every_code_that_is_recorded_has_words() -> None:
    recorded = {
        code
        for code, status in STATUS_OF.items()
        if RefusedRequest(status, code, None, None, "", None).is_recorded
    }
    assert set(labels().rejection_codes) == recorded - WITHOUT_SENDER


async def test_a_row_says_why_whose_which_and_how_often(
    dashboard: Dashboard, olivia: Person
) -> None:
    key_id, _ = await add_key(dashboard, "Storefront")
    await refuse(dashboard, 1, key_id, needed="projects:write", counted=1200)
    page = await olivia.open(ALL)
    assert (
        "Scope missing insufficient_scope projects:write: Create, change and delete projects "
        "Storefront req-1 Copy request id /api/v1/projects from 203.0.113.7 1,200"
    ) in page.text
    assert f"{KEYS}/{key_id}" in page.links


@cases(
    ("code", "needed", "words"),
    [
        ("quota_exceeded", "exports", "Quota used up quota_exceeded Feature: exports"),
        (
            "rate_limited",
            "tenant",
            "rate_limited Limit: requests of the organization in a minute",
        ),
        ("plan_limit_reached", "projects", "plan_limit_reached Limit: projects"),
        ("api_key_expired", "", "Key expired api_key_expired The key's expiry has passed."),
        ("insufficient_scope", "reports:read", "insufficient_scope reports:read key_"),
        ("of_a_newer_release", "", "of_a_newer_release"),
    ],
)
async def test_what_was_missing_is_in_words(
    dashboard: Dashboard, code: str, needed: str, words: str
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    await dashboard.execute("DELETE FROM rejections")
    await refuse(dashboard, 1, "key_1", code, needed=needed)
    assert words in (await olivia.open(ALL)).text


async def test_a_user_is_named(dashboard: Dashboard, olivia: Person) -> None:
    await refuse(dashboard, 1, OLIVIA.sub, kind="user")
    await refuse(dashboard, 2, "unknown-user", kind="user")
    await dashboard.execute(
        "INSERT INTO user_profiles (org_id, issuer, subject, name, seen_at) "
        "SELECT %s, issuer, subject, 'Olivia Owner', now() FROM memberships WHERE subject = %s "
        "ON CONFLICT DO NOTHING",
        (ACME, OLIVIA.sub),
    )
    page = await olivia.open(ALL)
    assert "Olivia Owner req-1" in page.text
    assert "unknown-user req-2" in page.text


async def test_the_list_has_pages_and_filters(dashboard: Dashboard, olivia: Person) -> None:
    first, second = [(await add_key(dashboard, name))[0] for name in ("First", "Second")]
    for number in range(26):
        await refuse(dashboard, number, first)
    await refuse(dashboard, 26, second, "api_key_revoked")
    page = await olivia.open(ALL)
    assert page.text.count("req-") == 25
    assert "1\N{EN DASH}25 of 27 refused requests" in page.text
    [older] = {link for text, link in page.anchors if text == "Next"}
    assert (await olivia.open(older)).text.count("req-") == 2
    of_second = await olivia.open(f"{ALL}?key={second}")
    assert of_second.text.count("req-") == 1
    revoked = await olivia.open(f"{ALL}?code=api_key_revoked")
    assert revoked.text.count("req-") == 1
    neither = await olivia.open(f"{ALL}?code=api_key_revoked&key={first}")
    assert "No refused request matches" in neither.text


async def test_usage_page_has_the_latest_twenty(dashboard: Dashboard, olivia: Person) -> None:
    for number in range(21):
        await refuse(dashboard, number, "key_1", mode="test")
    page = await olivia.open(USAGE)
    assert page.text.count("req-") == 20
    assert "req-20 " not in page.text
    assert ALL in page.links


async def test_page_of_a_key_has_its_latest_five(dashboard: Dashboard, olivia: Person) -> None:
    key_id, _ = await add_key(dashboard, "Storefront")
    for number in range(6):
        await refuse(dashboard, number, key_id)
    await refuse(dashboard, 7, "key_other", "api_key_revoked")
    page = await olivia.open(f"{KEYS}/{key_id}")
    assert page.text.count("req-") == 5
    assert "api_key_revoked" not in page.text
    assert f"{ALL}?key={key_id}" in page.links


async def test_without_rejections_pages_say_what_would_be_there(
    dashboard: Dashboard, olivia: Person
) -> None:
    key_id, _ = await add_key(dashboard)
    await refuse(dashboard, 1, "key_1", org="beta")
    for path in (ALL, USAGE):
        assert "No refused requests in 7 days" in (await olivia.open(path)).text
    assert "None in 7 days." in (await olivia.open(f"{KEYS}/{key_id}")).text


async def test_who_may_not_read_the_audit_trail_sees_no_rejections(browser: Browser) -> None:
    await browser.start()
    browser.give(access={"scope": "usage:read api-keys:read"})
    await browser.open_callback()
    page = Page(await browser.client.get(USAGE))
    assert page.status == 200
    assert "efused requests" not in page.text
    assert Page(await browser.client.get(ALL)).status == 403


async def test_members_see_no_rejections(dashboard: Dashboard) -> None:
    assert (await (await dashboard.sign_in(MIA)).open(ALL)).status == 403
