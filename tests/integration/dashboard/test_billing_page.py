"""The page of billing, without a browser."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import events
from tests.support.events import INVOICE_URL, failed, succeeded, updated
from tests.support.live_dashboard import (
    ADMIN,
    CUSTOMER,
    MEMBER,
    ORG,
    STRANGER,
    Dashboard,
    Visitor,
    running_dashboard,
    text_of,
)
from tests.support.postgres import PostgresServer
from tests.support.provider_api import KEY, ProviderServer, running_provider

BILLING = f"/orgs/{ORG}/billing"
CHECKOUT = f"{BILLING}/checkout"
PORTAL = f"{BILLING}/portal"
PAGES = ["/", "/billing", "/events", "/events/replay", "/settings/api-keys"]


@pytest.fixture
async def provider() -> AsyncIterator[ProviderServer]:
    async with running_provider() as provider:
        yield provider


@pytest.fixture
async def dashboard(conninfo: str, tmp_path: Path, provider: ProviderServer) -> AsyncIterator[Dashboard]:
    async with running_dashboard(
        conninfo, tmp_path, PROVIDER_SECRET_KEY=KEY, PROVIDER_API_BASE=provider.url
    ) as dashboard:
        yield dashboard


@pytest.fixture
async def owner(dashboard: Dashboard) -> Visitor:
    return await dashboard.sign_in()


async def test_a_tenant_without_a_subscription_is_offered_plans(owner: Visitor) -> None:
    page = await owner.get(BILLING)
    assert page.status_code == 200
    assert "No subscription" in text_of(page)
    assert "Subscribe to Pro" in text_of(page)
    assert "Subscribe to Free" not in text_of(page)


async def test_the_present_plan_is_marked_and_use_is_beside_its_limits(owner: Visitor) -> None:
    said = text_of(await owner.get(BILLING))
    assert "Free your plan" in said
    assert "Projects 0 of 3" in said
    assert "API keys that work 0 of 10" in said
    assert "Requests in the last minute 0 of 6,000" in said


async def test_a_subscriber_is_led_to_the_portal_and_offered_no_second_subscription(
    dashboard: Dashboard, owner: Visitor
) -> None:
    await dashboard.deliver(updated())
    said = text_of(await owner.get(BILLING))
    assert "Subscribe to" not in said
    assert "Change or cancel the subscription" in said
    assert "It renews by itself" in said


async def test_a_cancelled_subscription_says_when_it_ends_and_that_nothing_is_charged_after(
    dashboard: Dashboard, owner: Visitor
) -> None:
    await dashboard.deliver(updated(cancel=True))
    assert re.search(r"Ends on 31 Jan 2026 \. Nothing is charged after", text_of(await owner.get(BILLING)))


async def test_every_page_tells_of_a_failed_payment_until_it_is_paid(dashboard: Dashboard, owner: Visitor) -> None:
    async def telling() -> list[str]:
        return [page for page in PAGES if 'class="notice red"' in (await owner.get(f"/orgs/{ORG}{page}")).text]

    await dashboard.deliver(updated(created=events.NOW - 3))
    assert await telling() == []
    await dashboard.deliver(failed(created=events.NOW - 2))
    assert await telling() == PAGES
    await dashboard.deliver(succeeded(created=events.NOW - 1))
    assert await telling() == []


async def test_the_failed_invoice_is_linked_with_its_amount(dashboard: Dashboard, owner: Visitor) -> None:
    await dashboard.deliver(failed())
    page = await owner.get(BILLING)
    assert "29.00 EUR could not be collected" in text_of(page)
    assert f'href="{INVOICE_URL.replace("&", "&amp;")}"' in page.text


async def test_an_invoice_address_that_is_a_script_is_no_link(dashboard: Dashboard, owner: Visitor) -> None:
    await dashboard.deliver(failed(url="javascript:alert(1)"))
    page = await owner.get(BILLING)
    assert "could not be collected" in text_of(page)
    assert "javascript:" not in page.text


async def test_a_checkout_leads_to_the_provider_by_a_page_that_redirects_nowhere(
    owner: Visitor, provider: ProviderServer, dashboard: Dashboard
) -> None:
    answer = await owner.send(CHECKOUT, {"plan": "pro", "once": "a" * 32})
    assert (answer.status_code, "location" in answer.headers) == (200, False)
    assert answer.headers["refresh"] == "0; url=https://checkout.provider.example/c/1"
    assert 'href="https://checkout.provider.example/c/1"' in answer.text
    assert provider.requests[-1].params["success_url"] == f"{dashboard.url}{BILLING}?from=checkout&plan=pro"


async def test_a_form_sent_twice_begins_one_checkout(owner: Visitor, provider: ProviderServer) -> None:
    first = await owner.send(CHECKOUT, {"plan": "pro", "once": "a" * 32})
    again = await owner.send(CHECKOUT, {"plan": "pro", "once": "a" * 32})
    assert first.headers["refresh"] == again.headers["refresh"]
    assert len(provider.requests) == 1


@pytest.mark.parametrize("plan", ["free", "nothing", "", "<b>"])
async def test_a_plan_that_cannot_be_bought_is_told_on_the_page(owner: Visitor, plan: str) -> None:
    answer = await owner.send(CHECKOUT, {"plan": plan, "once": "a" * 32})
    assert answer.status_code == 422
    assert "This plan cannot be subscribed to" in text_of(answer)
    assert "<b>" not in answer.text


async def test_the_portal_is_for_customers(owner: Visitor, provider: ProviderServer) -> None:
    answer = await owner.send(PORTAL, {"once": "a" * 32})
    assert answer.headers["refresh"] == "0; url=https://billing.provider.example/p/1"
    assert provider.requests[-1].params["customer"] == CUSTOMER


@pytest.mark.parametrize("path", [CHECKOUT, PORTAL])
async def test_members_neither_see_nor_send_what_costs_money(
    dashboard: Dashboard, provider: ProviderServer, path: str
) -> None:
    await dashboard.deliver(failed())
    member = await dashboard.sign_in(MEMBER)
    page = await member.get(BILLING)
    assert page.status_code == 200
    assert path not in page.text
    assert "Ask an owner or an admin" in text_of(page)
    assert (await member.send(path, {"plan": "pro", "once": "a" * 32})).status_code == 403
    assert provider.requests == []


async def test_an_admin_may_pay(dashboard: Dashboard) -> None:
    admin = await dashboard.sign_in(ADMIN)
    assert "refresh" in (await admin.send(CHECKOUT, {"plan": "pro", "once": "a" * 32})).headers


async def test_another_tenants_people_find_nothing(dashboard: Dashboard) -> None:
    stranger = await dashboard.sign_in(STRANGER)
    assert (await stranger.get(BILLING)).status_code == 404
    answer = await stranger.send(CHECKOUT, {"plan": "pro", "once": "a" * 32}, form_on="/orgs/other/")
    assert answer.status_code == 404


async def test_a_form_without_its_token_is_refused(owner: Visitor, provider: ProviderServer) -> None:
    answer = await owner.client.post(CHECKOUT, data={"plan": "pro", "once": "a" * 32})
    assert answer.status_code == 403
    assert provider.requests == []


async def test_a_refusal_of_the_provider_is_told_on_the_page(owner: Visitor, provider: ProviderServer) -> None:
    await provider.stop()
    answer = await owner.send(CHECKOUT, {"plan": "pro", "once": "a" * 32})
    assert answer.status_code in (502, 503)
    assert "Billing" in text_of(answer)
    assert 'role="alert"' in answer.text


async def test_after_a_checkout_the_page_waits_for_the_plan(dashboard: Dashboard, owner: Visitor) -> None:
    page = await owner.get(f"{BILLING}?from=checkout&plan=pro")
    assert "usually within seconds" in text_of(page)
    assert "data-poll" in page.text
    await dashboard.deliver(updated())
    page = await owner.get(f"{BILLING}?from=checkout&plan=pro")
    assert "The plan is Pro now" in text_of(page)
    assert "data-poll" not in page.text


async def test_without_the_providers_key_the_page_says_so(postgres: PostgresServer, tmp_path: Path) -> None:
    with postgres.database() as conninfo:
        async with running_dashboard(conninfo, tmp_path) as dashboard:
            owner = await dashboard.sign_in()
            page = await owner.get(BILLING)
            assert "PROVIDER_SECRET_KEY is unset" in text_of(page)
            assert CHECKOUT not in page.text
            answer = await owner.send(CHECKOUT, {"plan": "pro", "once": "a" * 32})
            assert answer.status_code == 501
            assert "is not set up here" in text_of(answer)
