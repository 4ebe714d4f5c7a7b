"""The sign-in of operators: what the identity provider says of them, and when (CONTRACT 11.2)."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

import httpx2
import pytest

from tests.integration.dashboard.signing_in import USER, Browser, at_provider
from tests.support.cases import cases
from tests.support.issuer import DISCOVERY, Answer

PAGE: Final = "/operator"
CONFIRMED: Final = "/operator/confirmed"
FORM: Final = "/operator/orgs/acme/projects/new"
ROLE: Final = {"OPERATOR_ROLE_CLAIM": "staff.roles", "OPERATOR_ROLE": "support"}
IN_ROLE: Final = {"staff": {"roles": ["support"]}}
HOUR: Final = 3600


@pytest.fixture(scope="module")
async def module_operators(postgres: Any) -> AsyncIterator[Browser]:
    settings = {"OPERATORS": f"{USER},kim@vendor.example", **ROLE}
    with postgres.database() as conninfo:
        async with at_provider(conninfo, **settings) as browser:
            yield browser


@pytest.fixture
async def operators(module_operators: Browser) -> AsyncIterator[Browser]:
    """A signed-out browser; `USER`, the verified address kim@vendor.example and a role are of
    operators.
    """
    async with module_operators.reset():
        yield module_operators


async def sign_in(browser: Browser, *, access: dict[str, Any] | None = None, **claims: Any) -> None:
    await browser.start(PAGE)
    browser.give(access={"sub": claims.get("sub", USER), **(access or {})}, **claims)
    assert (await browser.open_callback()).headers["location"] == PAGE


async def status_of(browser: Browser, path: str = PAGE) -> int:
    return (await browser.client.get(path, headers={"Accept": "text/html"})).status_code


async def submit(browser: Browser, name: str = "Of an operator") -> httpx2.Response:
    form = {"form_token": await browser.form_token(FORM), "once": "x" * 22, "name": name}
    return await browser.client.post(FORM, data=form, headers={"Sec-Fetch-Site": "same-origin"})


def seconds_ago(browser: Browser, seconds: float) -> int:
    return int(browser.clock.now.timestamp() - seconds)


@cases(
    "claims",
    [
        {"sub": USER},
        {"sub": "eve", "email": "kim@vendor.example", "email_verified": True},
        {"sub": "eve", **IN_ROLE},
        {"sub": "eve", "access": IN_ROLE},
    ],
)
async def test_named_users_and_those_with_the_role_are_operators(
    operators: Browser, claims: dict[str, Any]
) -> None:
    await sign_in(operators, **claims)
    assert await status_of(operators) == 200


@cases(
    "claims",
    [
        {"sub": USER.upper()},
        {"sub": "kim@vendor.example"},
        {"sub": "eve", "email": "kim@vendor.example", "email_verified": False},
        {"sub": "eve", "email": "kim@vendor.example"},
        {"sub": "eve", "email": "Kim@vendor.example", "email_verified": True},
        {"sub": "eve", "email": "kim+x@vendor.example", "email_verified": True},
        {"sub": "eve", "email": "\u212aim@vendor.example", "email_verified": True},
        {"sub": "eve", "preferred_username": USER, "name": "kim@vendor.example"},
        {"sub": "eve", "org_role": "support", "role": "support"},
        {"sub": "eve", "staff": "support"},
        {"sub": "eve", "access": {"org_role": "support"}},
    ],
)
async def test_other_users_are_no_operators(operators: Browser, claims: dict[str, Any]) -> None:
    await sign_in(operators, **claims)
    assert await status_of(operators) == 404


@cases(
    "changes",
    [
        {"OPERATORS": "else"},
        {"OPERATORS": "", "OPERATOR_ROLE_CLAIM": "", "OPERATOR_ROLE": ""},
        {"OPERATORS": "", "OPERATOR_ROLE_CLAIM": "roles"},
        {"OPERATORS": "", "OPERATOR_ROLE": "other"},
    ],
)
async def test_a_change_of_the_settings_ends_it_at_the_next_request(
    operators: Browser, changes: dict[str, str]
) -> None:
    await sign_in(operators, **(IN_ROLE if changes["OPERATORS"] == "" else {}))
    if changes == {"OPERATORS": "else"}:
        changes = {**changes, "OPERATOR_ROLE_CLAIM": "", "OPERATOR_ROLE": ""}
    assert await status_of(operators) == 200
    async with operators.at_another_process(**changes) as client:
        for path in (PAGE, FORM):
            answer = await client.get(path, headers={"Accept": "text/html"})
            assert answer.status_code == 404


async def test_a_role_lost_at_the_renewal_ends_it(operators: Browser) -> None:
    await sign_in(operators, sub="eve", **IN_ROLE)
    operators.clock.now += timedelta(hours=1)
    answer = await operators.client.get(PAGE)
    assert "silent=1" in answer.headers["location"]
    await operators.start(PAGE, silent="1")
    operators.give(access={"sub": "eve"}, sub="eve")
    assert (await operators.open_callback()).headers["location"] == PAGE
    assert await status_of(operators) == 404


async def test_the_same_subject_of_another_directory_is_no_operator(conninfo: str) -> None:
    async with at_provider(conninfo, directories=("vendor", "customer")) as browser:
        vendor = browser.origin()["iss"]
        async with browser.reset():
            found = {}
            for browser.directory in ("vendor", "customer"):
                await sign_in(browser)
                async with browser.at_another_process(OPERATORS=f"{vendor} {USER}") as client:
                    answer = await client.get(PAGE, headers={"Accept": "text/html"})
                    found[browser.directory] = answer.status_code
            assert found == {"vendor": 200, "customer": 404}


@cases("seconds, status", [(0, 303), (HOUR, 303), (HOUR + 1, 401), (10 * HOUR, 401)])
async def test_a_change_needs_an_auth_time_of_the_last_hour(
    operators: Browser, seconds: int, status: int
) -> None:
    await sign_in(operators, auth_time=seconds_ago(operators, seconds))
    assert (await submit(operators)).status_code == status


@cases(
    "auth_time",
    [None, "now", True, False, -1, 10**12, 10**400, 1e300, [1], {"a": 1}, "", float(0)],
)
async def test_no_other_auth_time_counts(operators: Browser, auth_time: object) -> None:
    if auth_time == "now":
        auth_time = str(seconds_ago(operators, 0))
    await sign_in(operators, auth_time=auth_time)
    assert await status_of(operators) == 200
    assert (await submit(operators)).status_code == 401


async def test_a_missing_auth_time_does_not_count(operators: Browser) -> None:
    await sign_in(operators)
    answer = await submit(operators)
    assert answer.status_code == 401
    assert "Of an operator" in answer.text
    assert "/sign-in/start?return_to=%2Foperator%2Fconfirmed&amp;again=1" in answer.text


async def test_an_auth_time_from_the_future_counts_no_longer(operators: Browser) -> None:
    await sign_in(operators, auth_time=seconds_ago(operators, -29))
    operators.clock.now += timedelta(hours=1, seconds=1)
    assert "silent=1" in (await operators.client.get(FORM)).headers["location"]
    await renew(operators)
    assert (await submit(operators)).status_code == 401
    await sign_in(operators, auth_time=seconds_ago(operators, -31))
    assert (await submit(operators)).status_code == 401


async def renew(browser: Browser) -> None:
    """Renew the session silently; the provider says that the user has just authenticated."""
    await browser.start(PAGE, silent="1", again="1")
    browser.give(auth_time=seconds_ago(browser, 0))
    assert (await browser.open_callback()).headers["location"] == PAGE


async def test_a_silent_renewal_does_not_count(operators: Browser) -> None:
    await sign_in(operators, auth_time=seconds_ago(operators, 2))
    operators.clock.now += timedelta(hours=1)
    await renew(operators)
    assert await status_of(operators) == 200
    assert (await submit(operators)).status_code == 401


async def test_the_grace_of_forms_does_not_count(operators: Browser) -> None:
    await sign_in(operators, auth_time=seconds_ago(operators, 0))
    token = await operators.form_token(FORM)
    operators.clock.now += timedelta(hours=1, minutes=1)
    form = {"form_token": token, "once": "x" * 22, "name": "Late"}
    assert (await operators.client.post(FORM, data=form)).status_code == 401


async def test_the_grace_while_the_provider_is_away_does_not_count(operators: Browser) -> None:
    await sign_in(operators, auth_time=seconds_ago(operators, 0))
    token = await operators.form_token(FORM)
    operators.issuer.answers[DISCOVERY] = Answer(503, b"")
    operators.clock.now += timedelta(hours=1, minutes=1)
    form = {"form_token": token, "once": "x" * 22, "name": "Late"}
    assert (await operators.client.post(FORM, data=form)).status_code == 401


async def test_the_confirmation_asks_for_an_age_of_an_hour(operators: Browser) -> None:
    await sign_in(operators)
    await operators.start(CONFIRMED, again="1")
    assert operators.asked["max_age"] == str(HOUR)
    await operators.start(CONFIRMED)
    assert "max_age" not in operators.asked


async def test_the_confirmed_page_says_whether_it_is_so(operators: Browser) -> None:
    await sign_in(operators)
    assert await status_of(operators, CONFIRMED) == 403
    await operators.start(CONFIRMED, again="1")
    operators.give(auth_time=seconds_ago(operators, 5))
    assert (await operators.open_callback()).headers["location"] == CONFIRMED
    assert await status_of(operators, CONFIRMED) == 200
    assert (await submit(operators)).status_code == 303


@cases("auth_time", [None, 2 * HOUR])
async def test_a_provider_that_ignores_the_age_confirms_nobody(
    operators: Browser, auth_time: int | None
) -> None:
    await sign_in(operators)
    await operators.start(CONFIRMED, again="1")
    operators.give(auth_time=auth_time and seconds_ago(operators, auth_time))
    await operators.open_callback()
    page = await operators.client.get(CONFIRMED)
    assert page.status_code == 403
    assert "You are not confirmed" in page.text
    assert "auth_time" in page.text
    assert (await submit(operators)).status_code == 401


@cases("query", [{}, {"again": ""}, {"silent": "1"}])
async def test_leaving_the_age_out_confirms_nobody(
    operators: Browser, query: dict[str, str]
) -> None:
    old = seconds_ago(operators, 2 * HOUR)
    await sign_in(operators, auth_time=old)
    await operators.start(CONFIRMED, **query)
    operators.give(auth_time=old)
    await operators.open_callback()
    assert await status_of(operators, CONFIRMED) == 403
    assert (await submit(operators)).status_code == 401


async def test_an_age_edited_away_at_the_provider_confirms_nobody(operators: Browser) -> None:
    old = seconds_ago(operators, 2 * HOUR)
    await sign_in(operators, auth_time=old)
    await operators.start(CONFIRMED, again="1")
    operators.give(auth_time=old)  # the provider never saw `max_age`
    await operators.open_callback()
    assert (await submit(operators)).status_code == 401


async def test_who_signs_in_as_another_is_no_operator_for_it(operators: Browser) -> None:
    await sign_in(operators, auth_time=seconds_ago(operators, 0))
    kept = await operators.form_token(FORM)
    await operators.start(CONFIRMED, again="1")
    operators.give(access={"sub": "eve"}, sub="eve", auth_time=seconds_ago(operators, 0))
    await operators.open_callback()
    assert await status_of(operators, CONFIRMED) == 404
    form = {"form_token": kept, "once": "x" * 22, "name": "Of Eve"}
    assert (await operators.client.post(FORM, data=form)).status_code == 404
