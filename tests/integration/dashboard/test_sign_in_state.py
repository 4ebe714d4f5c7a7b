"""The state of a sign-in works once across processes; concurrent redemptions are bounded."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

from tenantry.integrations.oidc.sign_in import MOST_REDEMPTIONS
from tenantry.jobs.retention import RetentionService
from tests.integration.dashboard.signing_in import CALLBACK, TOKEN, Browser
from tests.integration.dashboard.test_sign_in import refused
from tests.support.app import BASE_URL, client_of, lifespan, make_app
from tests.support.issuer import AUDIENCE, CLIENT_ID
from tests.support.patience import PATIENT, patient_database


async def test_used_state_is_rejected(browser: Browser) -> None:
    await browser.start()
    pending = dict(browser.client.cookies)
    browser.give()
    assert (await browser.open_callback()).status_code == 303
    browser.client.cookies.clear()
    browser.client.cookies.update(pending)
    assert refused(await browser.open_callback())
    assert browser.issuer.fetches[TOKEN] == 1


async def test_state_of_a_failed_sign_in_is_used_up(browser: Browser) -> None:
    await browser.start()
    pending = dict(browser.client.cookies)
    browser.give()
    assert refused(await browser.open_callback(code="", error="access_denied"))
    browser.client.cookies.update(pending)
    assert refused(await browser.open_callback())
    assert browser.issuer.fetches[TOKEN] == 0


async def test_concurrent_callbacks_sign_in_one_browser(browser: Browser) -> None:
    await browser.start()
    browser.give()
    pending = dict(browser.client.cookies)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_of(browser.app)) for _ in range(5)]
        for client in clients:
            client.cookies.update(pending)
        query = {"code": "a-code", "state": browser.asked["state"], "iss": browser.issuer.url}
        answers = await asyncio.gather(*[client.get(CALLBACK, params=query) for client in clients])
    assert sorted(answer.status_code for answer in answers) == [303, 400, 400, 400, 400]
    assert browser.issuer.fetches[TOKEN] == 1


async def test_state_works_once_across_processes(browser: Browser) -> None:
    await browser.start()
    pending = dict(browser.client.cookies)
    browser.give()
    identity = {
        "OIDC_ISSUER": browser.issuer.url,
        "OIDC_AUDIENCE": AUDIENCE,
        "OIDC_CLIENT_ID": CLIENT_ID,
    }
    another = make_app(browser.conninfo, browser.clock, PATIENT, BASE_URL=BASE_URL, **identity)
    async with lifespan(another), client_of(another) as client:
        client.cookies.update(pending)
        query = {"code": "a-code", "state": browser.asked["state"], "iss": browser.issuer.url}
        assert (await client.get(CALLBACK, params=query)).status_code == 303
    assert refused(await browser.open_callback())
    assert browser.issuer.fetches[TOKEN] == 1


async def test_too_many_concurrent_redemptions_are_asked_to_retry(browser: Browser) -> None:
    async with AsyncExitStack() as stack:
        pending = []
        for _ in range(MOST_REDEMPTIONS + 1):
            browser.client = await stack.enter_async_context(client_of(browser.app))
            await browser.start()
            query = {"code": "a-code", "state": browser.asked["state"], "iss": browser.issuer.url}
            pending.append((browser.client, query))
        client, query = pending.pop()
        browser.issuer.open.clear()
        waiting = [asyncio.ensure_future(one.get(CALLBACK, params=sent)) for one, sent in pending]
        await browser.issuer.until_fetched(TOKEN, MOST_REDEMPTIONS)
        busy = await client.get(CALLBACK, params=query)
        assert refused(busy, 503)
        assert busy.headers["retry-after"] == "1"
        browser.give()
        browser.issuer.open.set()
        await asyncio.gather(*waiting)
        # its state is still unused
        assert (await client.get(CALLBACK, params=query)).status_code == 303
    assert browser.issuer.fetches[TOKEN] == MOST_REDEMPTIONS + 1


async def test_used_states_are_deleted_once_their_sign_ins_have_ended(browser: Browser) -> None:
    await browser.sign_in()
    database = patient_database(browser.conninfo, pool_size=1)
    await database.open()
    retention = RetentionService(database, timedelta(days=90), browser.clock)
    browser.clock.now += timedelta(minutes=10)
    assert (await retention.run())["idempotency keys"] == 0
    browser.clock.now += timedelta(hours=1)
    assert (await retention.run())["idempotency keys"] == 1
    await database.close()
