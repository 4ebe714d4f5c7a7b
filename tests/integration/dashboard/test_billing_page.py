"""The billing page, without a browser."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenantry.common.clock import Timeouts
from tests.support import events
from tests.support.dashboard import (
    ADAM,
    AT_ACME,
    CUSTOMER,
    MIA,
    OLIVIA,
    Dashboard,
    Person,
    dashboard_of_file,
    running_dashboard,
    settings_of,
)
from tests.support.events import INVOICE_URL, deleted, failed, succeeded, updated
from tests.support.postgres import PostgresServer
from tests.support.provider_api import Answer, ProviderServer, refusal, running_provider

BILLING = f"{AT_ACME}/billing"
CHECKOUT = f"{BILLING}/checkout"
PORTAL = f"{BILLING}/portal"
PAGES = ["/", "/billing", "/events", "/settings/api-keys"]


@pytest.fixture(scope="module")
async def shared_provider() -> AsyncIterator[ProviderServer]:
    async with running_provider() as provider:
        yield provider


@pytest.fixture
def provider(shared_provider: ProviderServer) -> ProviderServer:
    """The payment provider, reset for each test."""
    shared_provider.forget()
    return shared_provider


@pytest.fixture(scope="module")
async def dashboard_with_provider(
    postgres: PostgresServer, people: Path, shared_provider: ProviderServer
) -> AsyncIterator[Dashboard]:
    async with dashboard_of_file(postgres, people, **settings_of(shared_provider)) as dashboard:
        yield dashboard


@pytest.fixture
async def dashboard(
    dashboard_with_provider: Dashboard, provider: ProviderServer
) -> AsyncIterator[Dashboard]:
    async with dashboard_with_provider.reset():
        yield dashboard_with_provider


@pytest.fixture
async def owner(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in()


async def test_tenant_without_a_subscription_sees_plans(owner: Person) -> None:
    page = await owner.open(BILLING)
    assert page.status == 200
    assert "No subscription" in page.text
    assert "Subscribe to Pro" in page.text
    assert "Subscribe to Free" not in page.text


async def test_current_plan_is_marked_and_usage_is_shown(owner: Person) -> None:
    said = (await owner.open(BILLING)).text
    assert "Free your plan" in said
    assert "Projects 0 of 3" in said
    assert "Members and invitations 1 of 100" in said
    assert "Active keys 0 of 10" in said
    assert "Requests in the last minute 0 of 6,000" in said


async def test_subscriber_gets_the_portal_and_no_second_subscription(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(updated())
    said = (await owner.open(BILLING)).text
    assert "Subscribe to" not in said
    assert "Change or cancel the subscription" in said
    assert "It renews automatically" in said


async def test_checkout_of_a_subscriber_is_rejected_with_the_way_to_change_the_plan(
    dashboard: Dashboard, owner: Person, provider: ProviderServer
) -> None:
    await dashboard.deliver(updated())
    answer = await owner.force(CHECKOUT, plan="business", once="b" * 32)
    assert answer.status == 409
    assert (
        "has a subscription that has not ended. Change or cancel it in the customer portal."
        in answer.text
    )
    assert provider.requests == []


async def test_failed_payment_after_the_end_allows_a_new_subscription(
    dashboard: Dashboard, owner: Person, provider: ProviderServer
) -> None:
    await dashboard.deliver(updated(created=events.NOW - 3))
    await dashboard.deliver(deleted(created=events.NOW - 2))
    await dashboard.deliver(failed(created=events.NOW - 1))
    page = await owner.open(BILLING)
    assert "could not be collected" in page.text
    assert "Open the customer portal" in page.text
    assert "Subscribe to Business" in page.text
    assert (await owner.force(CHECKOUT, plan="business", once="c" * 32)).status == 200
    assert len(provider.requests) == 1


async def test_canceled_subscription_shows_its_end(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.deliver(updated(cancel=True))
    said = (await owner.open(BILLING)).text
    assert "Ends on 31 Jan 2026. Then the free plan applies." in said
    assert "Next payment None. You won't be charged again." in said


async def test_open_invoice_of_a_canceled_subscription_is_still_charged(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(updated(cancel=True, created=events.NOW))
    await dashboard.deliver(failed(created=events.NOW + 1))
    for path in ("/", "/billing"):
        assert "You won't be charged again" not in (await owner.open(AT_ACME + path)).text


async def test_every_page_shows_a_failed_payment_until_it_is_paid(
    dashboard: Dashboard, owner: Person
) -> None:
    async def telling() -> list[str]:
        return [
            page
            for page in PAGES
            if 'class="alert red"' in (await owner.open(f"{AT_ACME}{page}")).html
        ]

    await dashboard.deliver(updated(created=events.NOW - 3))
    assert await telling() == []
    await dashboard.deliver(failed(created=events.NOW - 2))
    assert await telling() == PAGES
    await dashboard.deliver(succeeded(created=events.NOW - 1))
    assert await telling() == []


async def test_the_failed_invoice_is_linked_with_its_amount(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(failed())
    page = await owner.open(BILLING)
    assert "29.00 EUR could not be collected" in page.text
    assert f'href="{INVOICE_URL.replace("&", "&amp;")}"' in page.html


async def test_an_invoice_address_that_is_a_script_is_no_link(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(failed(url="javascript:alert(1)"))
    page = await owner.open(BILLING)
    assert "could not be collected" in page.text
    assert "javascript:" not in page.html


async def test_checkout_opens_the_provider_from_an_intermediate_page(
    owner: Person, provider: ProviderServer, dashboard: Dashboard
) -> None:
    answer = await owner.force(CHECKOUT, plan="pro", once="a" * 32)
    assert (answer.status, answer.path) == (200, CHECKOUT)
    assert answer.headers["refresh"] == "0; url=https://checkout.provider.example/c/1"
    assert 'href="https://checkout.provider.example/c/1"' in answer.html
    back = f"{dashboard.url}{BILLING}/back?notice="
    assert provider.requests[-1].params["success_url"].startswith(f"{back}CHECKED_OUT.")
    assert provider.requests[-1].params["cancel_url"].startswith(f"{back}CHECKOUT_LEFT.")


async def test_form_submitted_twice_starts_one_checkout(
    owner: Person, provider: ProviderServer
) -> None:
    first = await owner.force(CHECKOUT, plan="pro", once="a" * 32)
    again = await owner.force(CHECKOUT, plan="pro", once="a" * 32)
    assert first.headers["refresh"] == again.headers["refresh"]
    assert len(provider.requests) == 1


async def test_form_resubmitted_in_flight_opens_the_same_checkout(
    owner: Person, provider: ProviderServer
) -> None:
    fields = {"form_token": owner.form_token(), "plan": "pro", "once": "a" * 32}
    provider.open.clear()
    async with asyncio.TaskGroup() as both:
        first = both.create_task(owner.client.post(CHECKOUT, data=fields))
        await provider.until_requested(1)
        second = both.create_task(owner.client.post(CHECKOUT, data=fields))
        await provider.until_requested(2)
        provider.open.set()
    assert first.result().headers["refresh"] == second.result().headers["refresh"]


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (refusal(409, code="idempotency_key_in_use"), "This form is still being processed."),
        (
            refusal(400, type="idempotency_error"),
            "This form was submitted before, and its details have changed since.",
        ),
    ],
)
async def test_provider_idempotency_errors_are_explained(
    owner: Person, provider: ProviderServer, refused: Answer, words: str
) -> None:
    provider.answers.extend([refused] * 30)
    answer = await owner.force(CHECKOUT, plan="pro", once="a" * 32)
    assert answer.status in (409, 422)
    assert words in answer.text
    assert "Idempotency-Key" not in answer.text


@pytest.mark.parametrize("plan", ["free", "nothing", "", "<b>"])
async def test_plan_that_cannot_be_bought_shows_an_error(owner: Person, plan: str) -> None:
    answer = await owner.force(CHECKOUT, plan=plan, once="a" * 32)
    assert answer.status == 422
    assert "You cannot subscribe to this plan" in answer.text
    assert "<b>" not in answer.html


async def test_the_portal_is_for_customers(owner: Person, provider: ProviderServer) -> None:
    answer = await owner.force(PORTAL, once="a" * 32)
    assert answer.headers["refresh"] == "0; url=https://billing.provider.example/p/1"
    assert provider.requests[-1].params["customer"] == CUSTOMER


@pytest.mark.parametrize("path", [CHECKOUT, PORTAL])
async def test_members_can_neither_see_nor_submit_paid_actions(
    dashboard: Dashboard, provider: ProviderServer, path: str
) -> None:
    await dashboard.deliver(failed())
    member = await dashboard.sign_in(MIA)
    page = await member.open(BILLING)
    assert page.status == 200
    assert path not in page.html
    assert "Ask an owner or admin" in page.text
    assert (await member.force(path, plan="pro", once="a" * 32)).status == 403
    assert provider.requests == []


async def test_an_admin_may_pay(dashboard: Dashboard) -> None:
    admin = await dashboard.sign_in(ADAM)
    assert "refresh" in (await admin.force(CHECKOUT, plan="pro", once="a" * 32)).headers


async def test_provider_error_is_shown_on_the_page(conninfo: str, people: Path) -> None:
    async with (
        running_provider() as provider,
        running_dashboard(conninfo, people, **settings_of(provider)) as dashboard,
    ):
        owner = await dashboard.sign_in()
        await provider.stop()
        answer = await owner.force(CHECKOUT, plan="pro", once="a" * 32)
    assert answer.status in (502, 503)
    assert "Billing" in answer.text
    assert 'tabindex="-1" autofocus role="alert"' in answer.html
    assert "<title>Error: Plan" in answer.html


async def test_provider_that_fails_or_is_slow_costs_one_line(conninfo: str, people: Path) -> None:
    async with (
        running_provider() as provider,
        running_dashboard(
            conninfo, people, Timeouts(billing_page=0.05), **settings_of(provider)
        ) as dashboard,
    ):
        owner = await dashboard.sign_in()
        provider.page_answer = refusal(500)
        pages = [await owner.open(BILLING)]
        # a failure is remembered until the tenant changes
        await dashboard.execute("UPDATE tenants SET updated_at = updated_at + interval '1 second'")
        asked = len(provider.page_requests)
        provider.open.clear()
        pages.append(await owner.open(BILLING))
        provider.open.set()
        assert len(provider.page_requests) > asked
    for page in pages:
        assert page.status == 200
        assert (
            "The payment method and the next payment's amount are not shown. Try again" in page.text
        )
        assert "Subscribe to Pro" in page.text


async def test_missing_permission_is_said_and_the_rest_shown(
    owner: Person, provider: ProviderServer
) -> None:
    provider.page_answer = refusal(403)
    page = await owner.open(BILLING)
    assert "Not available here: invoices, subscriptions, the payment method." in page.text
    assert "Subscribe to Pro" in page.text


async def test_no_page_without_a_customer_asks_the_provider(conninfo: str, people: Path) -> None:
    """Its provider serves no other test, whose late requests would count."""
    fields = {"name": "Acme", "ownerEmail": OLIVIA.email, "ownerId": OLIVIA.sub}
    async with (
        running_provider() as provider,
        running_dashboard(conninfo, people, **settings_of(provider)) as dashboard,
    ):
        await dashboard.operate("PUT", "/tenants/acme", {**fields, "stripeCustomerId": None})
        owner = await dashboard.sign_in()
        assert (await owner.open(BILLING)).status == 200
        assert provider.page_requests == []


async def test_after_a_checkout_the_page_waits_for_the_plan(
    dashboard: Dashboard, owner: Person, provider: ProviderServer
) -> None:
    await owner.force(CHECKOUT, plan="pro", once="a" * 32)
    page = await owner.open(provider.requests[-1].params["success_url"])
    assert page.path == BILLING
    assert "Checkout complete." in page.text
    assert (
        "The plan changes when the provider's event arrives, usually within seconds. Check again"
        in page.text
    )
    assert "data-poll" in page.html
    await dashboard.deliver(updated(price="price_business"))
    page = await owner.open(f"{BILLING}?awaits=pro")
    assert "The plan changes to Pro when the provider's event arrives. Check again" in page.text
    assert "stays" not in page.text
    await dashboard.deliver(updated(created=events.NOW + 1))
    [again] = [link for link in page.links if "awaits" in link]
    page = await owner.open(again)
    assert "Your plan is now Pro." in page.text
    assert "has taken the order" not in page.text
    assert "data-poll" not in page.html


async def test_result_of_a_checkout_is_shown_once(owner: Person, provider: ProviderServer) -> None:
    await owner.force(CHECKOUT, plan="pro", once="a" * 32)
    left = await owner.open(provider.requests[-1].params["cancel_url"])
    assert "Nothing was ordered." in left.text
    assert "data-poll" not in left.html
    await owner.force(PORTAL, once="b" * 32)
    assert (
        "Changes made at the provider"
        in (await owner.open(provider.requests[-1].params["return_url"])).text
    )
    assert "at the provider shows here" not in (await owner.open(BILLING)).text


async def test_return_address_shows_nothing_to_another_user(
    dashboard: Dashboard, owner: Person, provider: ProviderServer
) -> None:
    await owner.force(CHECKOUT, plan="pro", once="a" * 32)
    proved = provider.requests[-1].params["success_url"]
    admin = await dashboard.sign_in(ADAM)
    for address in (
        proved,
        f"{BILLING}/back?notice=CHECKED_OUT&plan=pro",
        f"{BILLING}?from=checkout&plan=pro",
    ):
        page = await admin.open(address)
        assert (page.status, page.path) == (200, BILLING)
        assert "order" not in page.text
        assert 'role="status"' not in page.html


async def test_missing_provider_key_is_said_in_words_of_customers(
    shared_dashboard: Dashboard,
) -> None:
    async with shared_dashboard.reset():
        owner = await shared_dashboard.sign_in()
        page = await owner.open(BILLING)
        assert "The plan and the payment method can't be changed here." in page.text
        invoices = await owner.open(f"{BILLING}/invoices")
        assert "They can't be shown here." in invoices.text
        assert "PROVIDER_SECRET_KEY" not in page.text + invoices.text
        assert f"{AT_ACME}/events" in invoices.links
        assert CHECKOUT not in page.html
        answer = await owner.force(CHECKOUT, plan="pro", once="a" * 32)
        assert answer.status == 501
        assert "is not set up here" in answer.text


# Ended subscriptions, and live updates


@pytest.mark.parametrize("path", ["/", "/billing"])
async def test_ended_subscription_does_not_announce_its_end(
    dashboard: Dashboard, owner: Person, path: str
) -> None:
    await dashboard.deliver(updated(cancel=True, created=events.NOW))
    going = (await owner.open(AT_ACME + path)).text
    assert "You won't be charged again." in going
    await dashboard.deliver(events.deleted(cancel=True, created=events.NOW + 1))
    over = (await owner.open(AT_ACME + path)).text
    assert "Canceled" in over
    assert "You won't be charged again." not in over
    assert "The subscription ends" not in over


async def test_subscription_without_a_first_payment_does_not_announce_its_end(
    dashboard: Dashboard, owner: Person
) -> None:
    await dashboard.deliver(updated(cancel=True, status="incomplete_expired"))
    assert "You won't be charged again." not in (await owner.open(BILLING)).text


async def test_open_page_subscribes_to_events(dashboard: Dashboard, owner: Person) -> None:
    await dashboard.deliver(updated(created=events.NOW))
    page = (await owner.open(BILLING)).html
    assert f'id="present" data-with-it data-live="{AT_ACME}/events/stream"' in page
    assert f'data-from="{BILLING}"' in page
    before = page.partition('data-after="')[2].partition('"')[0]
    await dashboard.deliver(failed(created=events.NOW + 1))
    after = (await owner.open(BILLING)).html.partition('data-after="')[2].partition('"')[0]
    assert int(after) > int(before)


async def test_page_with_an_error_does_not_update_itself(
    owner: Person, provider: ProviderServer
) -> None:
    provider.answers.append(refusal(400, code="parameter_unknown"))
    refused = await owner.force(CHECKOUT, plan="pro", once="b" * 32)
    assert "refused the request" in refused.text
    assert "data-live=" not in refused.html
