"""A sign-in's state is good for one answer of the provider, at every process; few codes are redeemed at once."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.db.database import Database
from tenantry.integrations.oidc.sign_in import MOST_REDEMPTIONS
from tenantry.jobs.retention import RetentionService
from tests.integration.dashboard.signing_in import CALLBACK, TOKEN, Browser
from tests.integration.dashboard.test_sign_in import refused
from tests.support.app import BASE_URL, client_of, lifespan, make_app
from tests.support.issuer import AUDIENCE, CLIENT_ID


async def test_state_that_was_used_signs_nobody_in_again(browser: Browser) -> None:
    await browser.start()
    begun = dict(browser.client.cookies)
    browser.give()
    assert (await browser.come_back()).status_code == 303
    browser.client.cookies.clear()
    browser.client.cookies.update(begun)
    assert refused(await browser.come_back())
    assert browser.issuer.fetches[TOKEN] == 1


async def test_state_that_failed_is_used_too(browser: Browser) -> None:
    await browser.start()
    begun = dict(browser.client.cookies)
    browser.give()
    assert refused(await browser.come_back(code="", error="access_denied"))
    browser.client.cookies.update(begun)
    assert refused(await browser.come_back())
    assert browser.issuer.fetches[TOKEN] == 0


async def test_answers_that_come_at_once_sign_in_one_browser(browser: Browser) -> None:
    await browser.start()
    browser.give()
    begun = dict(browser.client.cookies)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_of(browser._app)) for _ in range(5)]
        for client in clients:
            client.cookies.update(begun)
        query = {"code": "a-code", "state": browser.asked["state"], "iss": browser.issuer.url}
        answers = await asyncio.gather(*[client.get(CALLBACK, params=query) for client in clients])
    assert sorted(answer.status_code for answer in answers) == [303, 400, 400, 400, 400]
    assert browser.issuer.fetches[TOKEN] == 1


async def test_state_counts_once_for_all_processes(browser: Browser) -> None:
    await browser.start()
    begun = dict(browser.client.cookies)
    browser.give()
    identity = {"OIDC_ISSUER": browser.issuer.url, "OIDC_AUDIENCE": AUDIENCE, "OIDC_CLIENT_ID": CLIENT_ID}
    another = make_app(browser.conninfo, browser.clock, DEFAULT_TIMEOUTS, BASE_URL=BASE_URL, **identity)
    async with lifespan(another), client_of(another) as client:
        client.cookies.update(begun)
        query = {"code": "a-code", "state": browser.asked["state"], "iss": browser.issuer.url}
        assert (await client.get(CALLBACK, params=query)).status_code == 303
    assert refused(await browser.come_back())
    assert browser.issuer.fetches[TOKEN] == 1


async def test_more_redemptions_than_a_process_makes_at_once_are_told_to_come_again(browser: Browser) -> None:
    async with AsyncExitStack() as stack:
        begun = []
        for _ in range(MOST_REDEMPTIONS + 1):
            browser.client = await stack.enter_async_context(client_of(browser._app))
            await browser.start()
            query = {"code": "a-code", "state": browser.asked["state"], "iss": browser.issuer.url}
            begun.append((browser.client, query))
        client, query = begun.pop()
        browser.issuer.open.clear()
        waiting = [asyncio.ensure_future(one.get(CALLBACK, params=sent)) for one, sent in begun]
        await browser.issuer.until_fetched(TOKEN, MOST_REDEMPTIONS)
        busy = await client.get(CALLBACK, params=query)
        assert refused(busy, 503)
        assert busy.headers["retry-after"] == "1"
        browser.give()
        browser.issuer.open.set()
        await asyncio.gather(*waiting)
        assert (await client.get(CALLBACK, params=query)).status_code == 303  # its state was not used
    assert browser.issuer.fetches[TOKEN] == MOST_REDEMPTIONS + 1


async def test_used_states_are_deleted_once_their_sign_ins_have_ended(browser: Browser) -> None:
    await browser.sign_in()
    database = Database(browser.conninfo, pool_size=1)
    await database.open()
    retention = RetentionService(database, timedelta(days=90), browser.clock)
    browser.clock.now += timedelta(minutes=10)
    assert (await retention.run())["idempotency keys"] == 0
    browser.clock.now += timedelta(hours=1)
    assert (await retention.run())["idempotency keys"] == 1
    await database.close()
