"""Every link opens the page that its text names."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urljoin, urlsplit

import pytest

from tenantry_devkit.identity_tokens import DemoUser
from tests.integration.dashboard.keys import add_key
from tests.support.dashboard import ADAM, AT_ACME, MIA, OLIVIA, Dashboard, Person
from tests.support.dashboard_page import Page
from tests.support.events import INVOICE_URL, failed, updated

FILES: Final = ("/export", "/payload", "/openapi.json")
COUNT: Final = re.compile(r" [\d,]+$")
"""The number of rows behind a chip."""
BACK: Final = frozenset(
    {
        "Active",
        "All",
        "All requests",
        "Back",
        "By key",
        "By outcome",
        "Cancel",
        "Check again",
        "Check now in a new tab",
        "Clear",
        "Expired",
        "Expiring soon",
        "Last 24 hours",
        "Last 30 days",
        "Last 7 days",
        "Last 90 days",
        "Leaked",
        "Leave out what changed nothing",
        "Older",
        "Open the key",
        "Reload",
        "Replaced",
        "Revoked",
        "Show all",
        "Show also what changed nothing",
        "Show closed invitations",
        "Show open invitations",
    }
)
"""Links to the previous page, to the same page or list, or to more about the object of the page."""
NARROWS: Final = re.compile("[A-Z][a-z ]+ [0-9,]+")
"""Links that narrow a list to what they count, such as "Revoked 3"."""
LEADS_TO: Final = {
    "1 expiring": "API keys",
    "1 replaced": "API keys",
    "Active keys": "API keys",
    "All keys by requests": "API keys",
    "All refused requests": "Refused requests",
    "Compare plans": "Plans",
    "Create an API key": "Create key",
    "Delete": "Delete this project?",
    "Delete organization": "Delete this organization?",
    "Leave organization": "Leave Acme?",
    "Invite a colleague": "Invite member",
    "Overview": "Acme",
    "Requests, last 24 hours": "Usage",
    "Remove": "Remove this member?",
    "Payment failed": "The payment of 29.00 EUR failed.",
    "Revoke the old key now": "Revoke Rotated",
    "revoke it": "Revoke Rotated",
    "make another member an owner": "Members",
    "See it in the billing history": "The payment of 29.00 EUR failed.",
    "See the failed payment": "A payment failed",
    "See all by this actor": "Audit",
    "See all for this target": "Audit",
    "See the plan": "Plan",
    "Set a time zone": "General",
    "See billing": "Plan",
    "The old key": "Rotated",
    "See what this key changed": "Audit",
    "Show all changes": "Audit",
    "Subscription updated": "Your subscription started.",
    "Show changes": "Audit",
    "See the audit entries of this member": "Audit",
    "a key": "Owner key",
    "tenantry": "Acme",
    "a new key": "Rotated",
    "in_acme": "Billing history",
    "sub_acme": "Billing history",
}
"""The heading of the target, for links that do not name it."""


async def fill_every_page(dashboard: Dashboard, *, invoice: bool) -> None:
    """Create objects of every kind, so that every link appears on a page."""
    soon = (datetime.now(UTC) + timedelta(days=3)).isoformat()
    await add_key(dashboard, "Expiring", expiresAt=soon)
    rotated, _ = await add_key(dashboard, "Rotated")
    await dashboard.call("POST", f"/api-keys/{rotated}/rotate", {"overlapSeconds": 3600})
    _, leaked = await add_key(dashboard, "Leaked")
    await dashboard.api.post("/api/v1/api-keys/report-leak", json={"secret": leaked})
    for number in range(7):
        await add_key(dashboard, f"Worker {number}")
    _, owner = await add_key(dashboard, "Owner key", accessLevel="OWNER")
    made = await dashboard.request("POST", "/projects", owner, {"name": "Made by a key"})
    assert made.status_code == 201
    for number in range(2):
        await dashboard.call("POST", "/projects", {"name": f"Shop {number}"})
    await dashboard.add_member(ADAM.sub, "admin")
    await dashboard.add_member(MIA.sub)
    await dashboard.deliver(updated(price="price_unknown"))
    event = failed()
    if not invoice:
        del event["data"]["object"]["hosted_invoice_url"]
    await dashboard.deliver(event)


async def walk(dashboard: Dashboard, person: Person) -> set[tuple[str, str]]:
    """Return each link's text and the heading of its target."""
    pages: dict[str, Page] = {}
    found: set[tuple[str, str]] = set()
    waiting = [f"{AT_ACME}/"]
    while waiting:
        path = waiting.pop()
        if path in pages:
            continue
        page = pages[path] = await person.open(path)
        assert page.status == 200, path
        if not page.headers["content-type"].startswith("text/html") or path.startswith("/docs"):
            continue
        waiting += [
            target_of(path, href) for _, href in page.anchors if is_page(dashboard, path, href)
        ]
    for path, page in pages.items():
        if path.startswith("/docs"):
            continue
        for text, href in page.anchors:
            if is_page(dashboard, path, href) and not href.startswith(("/docs", "#content")):
                target = pages[target_of(path, href)]
                heading = target.heading(urlsplit(href).fragment)
                found.add((heading if is_shown_key(text, target) else text, heading))
    return found


def is_shown_key(text: str, target: Page) -> bool:
    """Whether a link shows a part of a secret that its target shows too."""
    return text.startswith("svc_") and text in target.text


def is_page(dashboard: Dashboard, path: str, href: str) -> bool:
    """Whether a link opens a page of the dashboard."""
    address = urlsplit(urljoin(dashboard.url + path, href))
    return f"{address.scheme}://{address.netloc}" == dashboard.url and not address.path.endswith(
        FILES
    )


def target_of(path: str, href: str) -> str:
    """Return the address of a link on the page at ``path``, without its fragment."""
    address = urlsplit(urljoin(path, href))
    return address.path + (f"?{address.query}" if address.query else "")


@pytest.mark.parametrize(
    ("user", "invoice"),
    [
        (OLIVIA, True),
        (MIA, False),
        pytest.param(OLIVIA, False, marks=pytest.mark.thorough),
        pytest.param(ADAM, True, marks=pytest.mark.thorough),
    ],
    ids=lambda value: getattr(value, "sub", value),
)
async def test_links_open_the_page_that_they_name(
    dashboard: Dashboard, user: DemoUser, *, invoice: bool
) -> None:
    await fill_every_page(dashboard, invoice=invoice)
    found = await walk(dashboard, await dashboard.sign_in(user))
    misleading = {
        (text, heading)
        for text, heading in found
        if COUNT.sub("", text) not in BACK
        and NARROWS.fullmatch(text) is None
        and heading != LEADS_TO.get(text, heading if names(text, heading) else None)
    }
    assert not misleading
    assert ("See the failed payment", "A payment failed") in found


async def test_invoice_is_linked_if_there_is_one(dashboard: Dashboard) -> None:
    await dashboard.deliver(updated())
    await dashboard.deliver(failed())
    olivia = await dashboard.sign_in(OLIVIA)
    assert ("Pay the invoice", INVOICE_URL) in (await olivia.open(f"{AT_ACME}/")).anchors
    assert ("Pay 29.00 EUR", INVOICE_URL) in (await olivia.open(f"{AT_ACME}/billing")).anchors


async def test_link_about_expiring_keys_filters_the_list(dashboard: Dashboard) -> None:
    soon = (datetime.now(UTC) + timedelta(days=3)).isoformat()
    await add_key(dashboard, "Expiring", expiresAt=soon)
    await add_key(dashboard, "Lasting", expiresAt=None)
    olivia = await dashboard.sign_in(OLIVIA)
    overview = await olivia.open(f"{AT_ACME}/")
    page = await olivia.open(dict(overview.anchors)["1 expiring"])
    assert "Expiring soon 1" in page.text
    assert page.html.count('<th scope="row">') == 1
    assert "Expiring svc_live_" in page.text


def names(text: str, heading: str) -> bool:
    """Whether the link's text contains the heading of its target, or vice versa."""
    return text.casefold() in heading.casefold() or heading.casefold() in text.casefold()
