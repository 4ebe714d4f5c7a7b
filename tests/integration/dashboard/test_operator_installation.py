"""The operator's pages of the installation: what needs attention, and what to do about it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tenantry import __version__
from tenantry.common.clock import Timeouts
from tenantry.common.encoding import new_id
from tests.integration.dashboard.operator_trails import check_trails
from tests.support import events
from tests.support.app import OPERATOR_TOKEN, PEPPER, WEBHOOK_SECRET
from tests.support.catalogs import catalog_file
from tests.support.dashboard import (
    ACME,
    AT_ACME,
    OLGA,
    OLIVIA,
    Dashboard,
    Person,
    dashboard_of_file,
    running_dashboard,
)
from tests.support.postgres import PostgresServer
from tests.support.webhook_endpoint import (
    SECRET,
    SILENT,
    WebhookServer,
    answer,
    running_webhook_server,
)

HOME: Final = "/operator/installation"
CHECKS: Final = f"{HOME}/checks"
LINK: Final = f"{HOME}/link"
APP: Final = f"{HOME}/webhooks/app"
CALM: Final = "All is well: nothing waits for you."
PROVIDER_KEY: Final = "sk_test_OfTheOperatorsPages0123"
MAIL_PASSWORD: Final = "mail-password-of-the-pages"
SETTINGS: Final = {
    "SMTP_URL": f"smtp://mailer:{MAIL_PASSWORD}@127.0.0.1:1",
    "MAIL_FROM": "billing@vendor.example",
    "PROVIDER_SECRET_KEY": PROVIDER_KEY,
    "PROVIDER_API_BASE": "http://127.0.0.1:1",
}
MARKUP: Final = "<b>x</b>"


def catalog_with(url: str) -> str:
    """A catalog whose endpoint ``app`` is at this address."""
    return f"""
[[plans]]
id = "free"

[[plans]]
id = "pro"
stripe_price_id = "price_pro"

[[webhooks]]
name = "app"
url = "{url}?token=query-secret"
types = ["tenant.*"]
secrets = ["{SECRET}"]
allow_private = true
"""


@pytest.fixture(scope="module")
async def shared_receiver() -> AsyncIterator[WebhookServer]:
    async with running_webhook_server() as server:
        yield server


@pytest.fixture
def receiver(shared_receiver: WebhookServer) -> WebhookServer:
    """The receiver of webhooks, which accepts everything again."""
    shared_receiver.response = answer(204)
    shared_receiver.responses.clear()
    shared_receiver.received.clear()
    return shared_receiver


@pytest.fixture(scope="module")
async def dashboard_with_webhooks(
    postgres: PostgresServer, people: Path, shared_receiver: WebhookServer
) -> AsyncIterator[Dashboard]:
    catalog = catalog_with(shared_receiver.url)
    async with dashboard_of_file(postgres, people, catalog, **SETTINGS) as dashboard:
        yield dashboard


@pytest.fixture
async def dashboard(
    dashboard_with_webhooks: Dashboard, receiver: WebhookServer
) -> AsyncIterator[Dashboard]:
    async with dashboard_with_webhooks.reset():
        yield dashboard_with_webhooks


@pytest.fixture
async def olga(dashboard: Dashboard) -> Person:
    return await dashboard.sign_in(OLGA)


def of_unknown_customer(customer: str = "cus_new", **fields: Any) -> dict[str, Any]:
    """An event of a subscription that names no tenant."""
    return events.subscription_created(
        org=None, customer=customer, subscription_id=new_id("sub"), **fields
    )


async def disable(dashboard: Dashboard) -> None:
    """Let the endpoint be disabled, with an event that is held."""
    await dashboard.execute(
        "INSERT INTO webhook_endpoints (name, epoch, xid, version, seen_at, disabled_at, disabled_reason) "
        "SELECT 'app', epoch, xid, version, now(), now(), 'the receiver answered 410 Gone' "
        "FROM outbound_events ORDER BY version LIMIT 1"
    )


async def acts(dashboard: Dashboard) -> list[tuple[Any, ...]]:
    """What operators did, and who."""
    return await dashboard.execute(
        "SELECT action, target_id, subject FROM operator_acts ORDER BY at"
    )


@asynccontextmanager
async def unrecordable(dashboard: Dashboard) -> AsyncIterator[None]:
    """Let the database reject each new entry of the operator's trail."""
    await dashboard.execute(
        "ALTER TABLE operator_acts ADD CONSTRAINT full_disk CHECK (false) NOT VALID"
    )
    try:
        yield
    finally:
        await dashboard.execute("ALTER TABLE operator_acts DROP CONSTRAINT full_disk")


# What the page shows


async def test_all_well_is_one_calm_line(olga: Person) -> None:
    page = await olga.open(HOME)
    assert page.status == 200
    assert CALM in page.text
    for heading in ("Needs attention", "Events without an organization", "Mails that failed"):
        assert heading not in page.text
    assert f"tenantry {__version__}" in page.text
    assert "Change feed Up to date" in page.text


async def test_customers_have_no_such_page(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    for path in (HOME, f"{HOME}/events", LINK, APP):
        assert (await olivia.open(path)).status == 404
    for path in (CHECKS, LINK, f"{APP}/test", f"{APP}/enable", f"{APP}/resend"):
        assert (await olivia.force(path)).status == 404


async def test_parked_event_has_the_link_that_places_it(dashboard: Dashboard, olga: Person) -> None:
    await dashboard.deliver(of_unknown_customer())
    page = await olga.open(HOME)
    assert CALM not in page.text
    assert page.heading("events") == "Events without an organization"
    assert f"{LINK}?customer=cus_new" in page.links
    assert ("Place each event", f"{HOME}#events") in page.anchors


async def test_event_of_a_tenant_to_be_created_has_its_command(
    dashboard: Dashboard, olga: Person
) -> None:
    await dashboard.deliver(events.subscription_created(org="later", customer="cus_later"))
    page = await olga.open(HOME)
    assert "tenantry admin create-tenant --id later" in page.text


async def test_many_events_have_pages_of_their_own(dashboard: Dashboard, olga: Person) -> None:
    for number in range(11):
        await dashboard.deliver(of_unknown_customer(f"cus_{number}"))
    page = await olga.open(HOME)
    assert f"{LINK}?customer=cus_0" not in page.links
    assert f"{HOME}/events" in page.links
    assert f"{LINK}?customer=cus_0" in (await olga.open(f"{HOME}/events")).links


async def test_anomaly_names_its_customers(dashboard: Dashboard, olga: Person) -> None:
    await dashboard.deliver(events.subscription_created(org=ACME, price="price_unknown"))
    page = await olga.open(HOME)
    assert "prices of subscription events" in page.text
    assert (ACME, f"/operator{AT_ACME}/") in page.anchors


async def test_failed_mail_is_listed_with_its_error(dashboard: Dashboard, olga: Person) -> None:
    await dashboard.execute(
        "INSERT INTO mails (id, type, tenant_id, cause, recipient, data, status, created_at, due_at, last_error) "
        "VALUES (gen_random_uuid(), 'billing.payment_failed', 'acme', 'x', 'a@b.example', '{}', 'failed', "
        "now(), now(), 'the mail server rejected the recipient')"
    )
    page = await olga.open(HOME)
    assert "mails that were given up in the last 30 days: 1" in page.text
    assert page.heading("mails") == "Mails that failed or wait"
    assert "the mail server rejected the recipient" in page.text


async def test_refusals_of_the_provider_are_shown(dashboard: Dashboard, olga: Person) -> None:
    await dashboard.execute(
        "INSERT INTO provider_refusals (operation, code, message, number, first_at, last_at, last_tenant) "
        "VALUES ('checkout', 'resource_missing', %s, 3, now(), now(), 'acme')",
        (f"No such price {MARKUP} {PROVIDER_KEY}",),
    )
    page = await olga.open(HOME)
    assert f"No such price {MARKUP} [redacted]" in page.text


async def test_disabled_endpoint_says_why(dashboard: Dashboard, olga: Person) -> None:
    await disable(dashboard)
    page = await olga.open(HOME)
    assert "the receiver answered 410 Gone" in page.text
    assert APP in page.links


async def test_many_held_events_are_not_all_counted(dashboard: Dashboard, olga: Person) -> None:
    await disable(dashboard)
    await dashboard.execute(
        "INSERT INTO webhook_deliveries (endpoint, epoch, xid, version, status, created_at) "
        "SELECT 'app', epoch, xid, 1000000 + n, 'held', now() "
        "FROM webhook_endpoints, generate_series(1, 501) AS n"
    )
    for page in (await olga.open(HOME), await olga.open(APP)):
        assert "500 or more" in page.text


async def test_texts_of_events_are_escaped(dashboard: Dashboard, olga: Person) -> None:
    await dashboard.deliver(of_unknown_customer(f'cus_"{MARKUP}&amp;'))
    pages = [await olga.open(path) for path in (HOME, f"{HOME}/events")]
    for page in pages:
        assert MARKUP in page.text
        assert MARKUP not in page.html
    [link] = [each for each in pages[0].links if each.startswith(LINK)]
    form = await olga.open(link)
    assert form.form().fields["customer"] == [f'cus_"{MARKUP}&amp;']
    assert MARKUP not in form.html
    refused = await olga.send(form, orgId=ACME)
    assert refused.status == 422


async def test_no_page_shows_a_secret(dashboard: Dashboard, olga: Person) -> None:
    await dashboard.deliver(of_unknown_customer())
    await disable(dashboard)
    pages = [await olga.open(path) for path in (HOME, f"{HOME}/events", LINK, APP)]
    for page in (*pages, await olga.send(pages[0], CHECKS)):
        assert page.status == 200
        for secret in (
            SECRET,
            "query-secret",
            MAIL_PASSWORD,
            PROVIDER_KEY,
            PEPPER,
            OPERATOR_TOKEN,
            WEBHOOK_SECRET,
        ):
            assert secret not in page.html


async def test_check_asks_the_other_services(olga: Person) -> None:
    home = await olga.open(HOME)
    assert "of reach" not in home.text
    page = await olga.send(home, CHECKS)
    assert page.status == 200
    assert "the mail server 127.0.0.1:1 cannot be reached" in page.text
    assert "publishes its keys" in page.text
    assert "The payment provider is out of reach." in page.text
    assert (await olga.send(page, CHECKS)).status == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_nothing_is_checked_without_a_form(olga: Person, method: str) -> None:
    """As by a browser that prefetches, or a reload."""
    answer = await olga.client.request(method, CHECKS)
    assert answer.status_code == 405


# Placing an event


async def test_linked_customers_event_moves_into_the_ledger(
    dashboard: Dashboard, olga: Person
) -> None:
    await dashboard.deliver(of_unknown_customer())
    form = await olga.open(f"{LINK}?customer=cus_new")
    page = await olga.send(form, orgId="beta")
    assert (page.path, page.status) == (HOME, 200)
    assert "Customer linked." in page.text
    assert CALM in page.text
    [(tenant, outcome)] = await dashboard.execute(
        "SELECT tenant_id, outcome FROM billing_events WHERE customer_id = 'cus_new'"
    )
    assert (tenant, outcome) == ("beta", "applied")
    assert await acts(dashboard) == [("customer.linked", "cus_new", OLGA.sub)]
    [(kind, changed)] = await dashboard.execute(
        "SELECT actor_kind, after FROM audit_events WHERE org_id = 'beta' AND action = 'tenant.updated'"
    )
    assert (kind, changed) == ("operator", {"customers": ["cus_beta", "cus_new"]})


async def test_link_sent_twice_has_one_effect(dashboard: Dashboard, olga: Person) -> None:
    await dashboard.deliver(of_unknown_customer())
    form = await olga.open(f"{LINK}?customer=cus_new")
    for _ in range(2):
        assert (await olga.send(form, orgId="beta")).path == HOME
    assert len(await acts(dashboard)) == 1


@pytest.mark.parametrize(
    ("customer", "org", "said"),
    [
        ("cus_new", "unknown", "There is no organization with this id."),
        ("cus_new", "", "Fill in this field."),
        ("cus_new", "a b", "Use letters, digits, _ and -."),
        ("", ACME, "Fill in this field."),
        ("cus_beta", ACME, "It belongs to the organization beta."),
    ],
)
async def test_link_that_cannot_be_made_keeps_the_form(
    dashboard: Dashboard, olga: Person, customer: str, org: str, said: str
) -> None:
    form = await olga.open(LINK)
    page = await olga.send(form, customer=customer, orgId=org)
    assert page.status == 422
    assert said in page.text
    assert page.form().fields["orgId"] == [org]
    assert await acts(dashboard) == []


async def test_customer_of_another_tenant_is_moved_only_if_the_operator_says_so(
    dashboard: Dashboard, olga: Person
) -> None:
    page = await olga.send(await olga.open(LINK), customer="cus_beta", orgId=ACME)
    page = await olga.send(page, takenFrom="beta", reason="They merged")
    assert page.path == HOME
    await check_trails(dashboard, "tenant.updated", "They merged")
    await check_trails(dashboard, "tenant.updated", "They merged", "beta")


# Webhooks


async def test_test_message_is_sent_and_recorded(
    dashboard: Dashboard, olga: Person, receiver: WebhookServer
) -> None:
    page = await olga.open(APP)
    page = await olga.send(page, f"{APP}/test")
    assert "The receiver accepted the message (status 204)." in page.text
    assert json.loads(receiver.received[-1].body)["type"] == "webhook.test"
    assert await acts(dashboard) == [("webhook.tested", "app", OLGA.sub)]


async def test_receiver_that_refuses_is_named(olga: Person, receiver: WebhookServer) -> None:
    receiver.response = answer(401, body=MARKUP.encode())
    page = await olga.send(await olga.open(APP), f"{APP}/test")
    assert "it answered 401" in page.text
    assert MARKUP not in page.html


async def test_receiver_that_is_away_is_named(conninfo: str, people: Path) -> None:
    catalog = catalog_file(catalog_with("http://127.0.0.1:1/"))
    async with running_dashboard(conninfo, people, TENANTRY_PLANS=catalog) as dashboard:
        olga = await dashboard.sign_in(OLGA)
        page = await olga.send(await olga.open(APP), f"{APP}/test")
        assert "The receiver did not answer: no connection." in page.text


@pytest.mark.thorough
async def test_receiver_that_is_silent_is_awaited_for_longer_than_the_database(
    conninfo: str, people: Path, receiver: WebhookServer
) -> None:
    receiver.responses.append(SILENT)
    catalog = catalog_file(catalog_with(receiver.url))
    async with running_dashboard(conninfo, people, Timeouts(), TENANTRY_PLANS=catalog) as dashboard:
        olga = await dashboard.sign_in(OLGA)
        page = await olga.send(await olga.open(APP), f"{APP}/test")
        assert page.status == 200
        assert "The receiver did not answer: " in page.text


async def test_enabled_endpoint_gets_what_is_held(dashboard: Dashboard, olga: Person) -> None:
    await disable(dashboard)
    page = await olga.send(await olga.open(APP), f"{APP}/enable")
    assert page.path == APP
    assert "Endpoint enabled." in page.text
    assert f"{APP}/enable" not in [form.action for form in page.forms]
    assert CALM in (await olga.open(HOME)).text
    assert await acts(dashboard) == [("webhook.enabled", "app", OLGA.sub)]


async def test_events_are_sent_again_once(dashboard: Dashboard, olga: Person) -> None:
    await disable(dashboard)
    await olga.send(await olga.open(APP), f"{APP}/enable")
    form = await olga.open(APP)
    for _ in range(2):
        page = await olga.send(form, f"{APP}/resend", which="since", since="2026-01-01")
        assert page.path == APP
        assert "A worker sends these events again" in page.text
    assert [act[0] for act in await acts(dashboard)] == ["webhook.enabled", "webhook.resent"]


async def test_events_are_sent_again_once_for_submissions_at_the_same_time(
    dashboard: Dashboard, olga: Person
) -> None:
    await disable(dashboard)
    await olga.send(await olga.open(APP), f"{APP}/enable")
    form = await olga.open(APP)
    sent = (olga.send(form, f"{APP}/resend", which="since", since="2026-01-01") for _ in range(4))
    pages = await asyncio.gather(*sent)
    assert [(page.path, page.status) for page in pages] == [(APP, 200)] * 4
    assert [act[0] for act in await acts(dashboard)] == ["webhook.enabled", "webhook.resent"]


async def test_what_cannot_be_recorded_is_not_done(
    dashboard: Dashboard, olga: Person, receiver: WebhookServer
) -> None:
    await disable(dashboard)
    page = await olga.open(APP)
    async with unrecordable(dashboard):
        for act in ("test", "enable", "resend"):
            answered = await olga.send(page, f"{APP}/{act}", which="since", since="2026-01-01")
            assert answered.status == 500
    assert receiver.received == []
    assert await dashboard.execute(
        "SELECT disabled_at IS NULL, (SELECT count(*) FROM webhook_deliveries) FROM webhook_endpoints"
    ) == [(False, 0)]


async def test_resend_that_failed_can_be_sent_again(dashboard: Dashboard, olga: Person) -> None:
    await disable(dashboard)
    page = await olga.open(APP)
    async with unrecordable(dashboard):
        await olga.send(page, f"{APP}/resend", which="since", since="2026-01-01")
    again = await olga.send(page, f"{APP}/resend", which="since", since="2026-01-01")
    assert (again.path, again.status) == (APP, 200)
    assert [act[0] for act in await acts(dashboard)] == ["webhook.resent"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"which": "event"}, "Enter the id of an event."),
        ({"which": "event", "event": f"evt_{MARKUP}"}, "This endpoint has no such event."),
        ({"which": "since", "since": "yesterday"}, "Enter a day"),
        ({"which": "since", "since": "99999-01-01"}, "too far ahead"),
    ],
)
async def test_faulty_choice_keeps_the_form(
    dashboard: Dashboard, olga: Person, fields: dict[str, str], said: str
) -> None:
    page = await olga.send(await olga.open(APP), f"{APP}/resend", **fields)
    assert page.status == 422
    assert said in page.text
    assert MARKUP not in page.html
    assert await acts(dashboard) == []


async def test_unknown_endpoint_is_not_found(dashboard: Dashboard, olga: Person) -> None:
    gone = f"{HOME}/webhooks/gone"
    assert (await olga.open(gone)).status == 404
    for act in ("test", "enable", "resend"):
        assert (await olga.force(f"{gone}/{act}", which="undelivered")).status == 404
    assert await acts(dashboard) == []


async def test_acts_need_a_recent_sign_in(dashboard: Dashboard, receiver: WebhookServer) -> None:
    olga = await dashboard.sign_in(OLGA, authenticated=timedelta(hours=2))
    for path in (CHECKS, LINK, f"{APP}/test", f"{APP}/enable", f"{APP}/resend"):
        page = await olga.force(path, customer="cus_new", orgId=ACME, which="undelivered")
        assert page.status == 401
    assert receiver.received == []
    assert await acts(dashboard) == []
