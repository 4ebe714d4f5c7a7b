"""The page after the form of a new key: it shows the secret once, in one session, for a minute
(decision 0028).
"""

import asyncio
import logging
import re
from collections import Counter
from datetime import timedelta

import httpx2
import psycopg
import pytest

from tenantry.dashboard.cookies import SECRET_LIFETIME
from tenantry.domain.sessions import FORM_GRACE, PROOF_GOOD_FOR
from tests.integration.dashboard.keys import CI, KEYS, NEW, SECRET
from tests.integration.dashboard.signing_in import Browser, at_provider

_ONCE = re.compile(r'name="once" value="([^"]+)"')


async def submit(browser: Browser, path: str = NEW, **fields: str) -> httpx2.Response:
    """Submit the form at ``path``; return the answer, which redirects."""
    page = await browser.client.get(path)
    [once] = set(_ONCE.findall(page.text))
    data = {
        **CI,
        **fields,
        "form_token": await browser.form_token(),
        "once": once,
        "expiry": "never",
    }
    answer = await browser.client.post(path, data=data)
    assert (answer.status_code, SECRET.findall(answer.text)) == (303, [])
    return answer


def cookie_of(path: str) -> str:
    """The name of the cookie for the page at ``path``."""
    return f"tenantry_secret_{path.split('/')[-2]}"


def secrets_in(answer: httpx2.Response) -> list[str]:
    assert answer.status_code == 200
    return sorted(set(SECRET.findall(answer.text)))


async def test_first_display_shows_the_secret_and_no_later_one_does(browser: Browser) -> None:
    await browser.sign_in()
    made = await submit(browser)
    cookies = dict(browser.client.cookies)
    path = made.headers["location"]
    assert len(secrets_in(await browser.client.get(path))) == 1
    reloaded = await browser.client.get(path)
    assert secrets_in(reloaded) == []
    assert "It can't be shown again" in reloaded.text
    assert f'href="{path.removesuffix("/created")}/rotate"' in reloaded.text
    browser.client.cookies = httpx2.Cookies(cookies)  # a copy of the cookie
    assert secrets_in(await browser.client.get(path)) == []


async def test_rotation_shows_its_secret_once(browser: Browser) -> None:
    await browser.sign_in()
    key_id = (await submit(browser)).headers["location"].split("/")[-2]
    path = (await submit(browser, f"{KEYS}/{key_id}/rotate", overlap="3600")).headers["location"]
    shown, reloaded = [await browser.client.get(path) for _ in range(2)]
    assert (len(secrets_in(shown)), secrets_in(reloaded)) == (1, [])
    assert all(
        "<h1>Key rotated</h1>" in page.text and "keeps working until" in page.text
        for page in (shown, reloaded)
    )


async def test_another_process_shows_the_secret_and_then_none_does(browser: Browser) -> None:
    await browser.sign_in()
    path = (await submit(browser)).headers["location"]
    async with browser.at_another_process() as other:
        cookies = dict(other.cookies)
        assert len(secrets_in(await other.get(path))) == 1
        other.cookies = httpx2.Cookies(cookies)
        assert secrets_in(await other.get(path)) == []
        assert secrets_in(await browser.client.get(path)) == []


async def test_concurrent_displays_show_the_secret_once(browser: Browser) -> None:
    await browser.sign_in()
    path = (await submit(browser)).headers["location"]
    async with browser.at_another_process() as other:
        pages = await asyncio.gather(
            *(client.get(path) for client in (browser.client, other) for _ in range(5))
        )
    assert Counter(len(secrets_in(page)) for page in pages) == {1: 1, 0: 9}


async def test_another_session_cannot_show_the_secret(browser: Browser) -> None:
    await browser.sign_in()
    path = (await submit(browser)).headers["location"]
    carried = browser.client.cookies.get(cookie_of(path))
    # without the first session, though the same user's
    async with browser.at_another_process() as browser.client:
        browser.client.cookies.clear()
        await browser.sign_in()
        assert secrets_in(await browser.client.get(path)) == []  # the address alone
        browser.client.cookies.set(
            cookie_of(path), carried or "", domain="tenantry.test", path=path
        )
        assert secrets_in(await browser.client.get(path)) == []


async def test_page_of_another_key_does_not_show_the_secret(browser: Browser) -> None:
    await browser.sign_in()
    first, second = [
        (await submit(browser, name=name)).headers["location"] for name in ("One", "Two")
    ]
    [carried] = [cookie.value for cookie in browser.client.cookies.jar if cookie.path == second]
    browser.client.cookies.set(cookie_of(first), carried or "", domain="tenantry.test", path=first)
    assert secrets_in(await browser.client.get(first)) == []
    assert len(secrets_in(await browser.client.get(second))) == 1


async def test_cookie_of_another_host_does_not_hide_the_secret(browser: Browser) -> None:
    await browser.sign_in()
    first = await submit(browser, name="One")
    [seen] = [line.partition("=")[0] for line in first.headers.get_list("set-cookie")]
    path = (await submit(browser, name="Two")).headers["location"]
    sent = [
        f"{one.name}={one.value}" for one in browser.client.cookies.jar if path.startswith(one.path)
    ]
    cookies = "; ".join([*sent, f"{seen}=a"])  # browsers send those of longer paths first
    answer = await browser.client.get(path, headers={"Cookie": cookies})
    assert len(secrets_in(answer)) == 1


@pytest.mark.parametrize(("late", "shown"), [(timedelta(seconds=59), 1), (SECRET_LIFETIME, 0)])
async def test_secret_is_gone_after_a_minute(browser: Browser, late: timedelta, shown: int) -> None:
    await browser.sign_in()
    made = await submit(browser)
    assert "Max-Age=60" in made.headers["set-cookie"]
    browser.clock.now += late
    assert len(secrets_in(await browser.client.get(made.headers["location"]))) == shown


async def test_browser_sends_the_cookie_to_one_page_over_https(conninfo: str) -> None:
    async with at_provider(conninfo, base_url="https://tenantry.test") as browser, browser.reset():
        browser.client.base_url = httpx2.URL("https://tenantry.test")
        await browser.sign_in()
        made = await submit(browser)
        [line] = [line for line in made.headers.get_list("set-cookie") if "secret" in line]
        name, _, attributes = line.partition("=")
        assert name == f"__Secure-{cookie_of(made.headers['location'])}"
        expected = {
            "HttpOnly",
            "Secure",
            "SameSite=lax",
            "Max-Age=60",
            f"Path={made.headers['location']}",
        }
        assert expected <= set(attributes.split("; "))
        assert len(secrets_in(await browser.client.get(made.headers["location"]))) == 1


async def test_what_shows_no_page_does_not_use_the_display_up(browser: Browser) -> None:
    await browser.sign_in()
    path = (await submit(browser)).headers["location"]
    assert (await browser.client.head(path)).status_code == 200
    assert secrets_in(await browser.client.get(path, headers={"sec-fetch-mode": "cors"})) == []
    early = {"sec-fetch-mode": "navigate", "sec-purpose": "prefetch;prerender"}
    assert secrets_in(await browser.client.get(path, headers=early)) == []
    assert len(secrets_in(await browser.client.get(path))) == 1


async def test_form_within_its_grace_shows_the_secret(browser: Browser) -> None:
    await browser.sign_in()
    page = await browser.client.get(NEW)
    [once], token = set(_ONCE.findall(page.text)), await browser.form_token()
    browser.clock.now += PROOF_GOOD_FOR + FORM_GRACE - timedelta(seconds=1)
    made = await browser.client.post(
        NEW, data={**CI, "form_token": token, "once": once, "expiry": "never"}
    )
    assert len(secrets_in(await browser.client.get(made.headers["location"]))) == 1
    browser.clock.now += timedelta(seconds=1)
    assert (
        (await browser.client.get(made.headers["location"]))
        .headers["location"]
        .startswith("/sign-in/start")
    )


async def test_secret_is_in_no_address_log_or_table(
    browser: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await browser.sign_in()
    made = await submit(browser)
    [secret] = secrets_in(await browser.client.get(made.headers["location"]))
    random = secret.removeprefix("svc_live_")
    assert random not in str(made.headers)
    assert random not in caplog.text
    async with await psycopg.AsyncConnection.connect(browser.conninfo) as connection:
        query = (
            "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        )
        tables = [name for (name,) in await (await connection.execute(query)).fetchall()]
        for table in tables:
            found = await connection.execute(
                f'SELECT count(*) FROM "{table}" AS row WHERE row::text LIKE %s',  # noqa: S608  # a name of ours
                (f"%{random}%",),
            )
            assert await found.fetchone() == (0,), table
    assert "api_keys" in tables
