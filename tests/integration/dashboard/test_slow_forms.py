"""Every page authorizes a form as of the moment when its body is complete, and keeps it."""

from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from tenantry.dashboard.guards import OPERATOR_PAGES
from tests.support.dashboard import (
    ACME,
    ADAM,
    AT_ACME,
    OLGA,
    OLIVIA,
    Dashboard,
    Person,
    running_dashboard,
)
from tests.support.database_link import database_link
from tests.support.routes import form_addresses
from tests.support.service import SHORT_TIMEOUTS
from tests.support.slow_request import SlowRequest

NEW_PROJECT: Final = f"{AT_ACME}/projects/new"


async def begin(dashboard: Dashboard, person: Person, path: str, **fields: str) -> SlowRequest:
    """Send half of a form."""
    body = urlencode({"form_token": person.form_token(), "once": "x" * 22, **fields}).encode()
    headers = {
        "Cookie": "; ".join(f"{name}={value}" for name, value in person.client.cookies.items()),
        "Content-Type": "application/x-www-form-urlencoded",
        "Sec-Fetch-Site": "same-origin",
    }
    return await SlowRequest.begin(dashboard.url, "POST", path, body, headers)


async def test_ended_session_rejects_every_form(dashboard: Dashboard) -> None:
    addresses = sorted(form_addresses() - {"/sign-out", "/confirm-address"})  # need no session
    assert len(addresses) > 10
    olivia, olga = await dashboard.sign_in(), await dashboard.sign_in(OLGA)
    started = []
    for address in addresses:
        here = olga if address.startswith(OPERATOR_PAGES) else olivia
        request = await begin(dashboard, here, address.replace("{org_id}", ACME))
        started.append((address, request))
    for user in (OLIVIA, OLGA):
        await (await dashboard.sign_in(user)).force("/account/end-other-sessions")
    answers = []
    for address, request in started:
        answers.append((address, (await request.finish())[0]))
    assert answers == [(address, 401) for address in addresses]


async def test_ended_session_creates_no_project(dashboard: Dashboard) -> None:
    here, elsewhere = await dashboard.sign_in(), await dashboard.sign_in()
    request = await begin(dashboard, here, NEW_PROJECT, name="too late")
    await elsewhere.force("/account/end-other-sessions")
    assert (await request.finish())[0] == 401
    assert (await dashboard.call("GET", "/projects"))["data"] == []


async def test_demoted_member_changes_no_tenant(dashboard: Dashboard) -> None:
    member = (await dashboard.add_member(ADAM.sub, "admin")).rpartition("/")[2]
    adam = await dashboard.sign_in(ADAM)
    request = await begin(dashboard, adam, f"{AT_ACME}/billing/portal")
    await dashboard.call("PATCH", f"/members/{member}", {"role": "member"})
    assert (await request.finish())[0] == 403


async def test_removed_member_creates_no_project(dashboard: Dashboard) -> None:
    member = (await dashboard.add_member(ADAM.sub, "admin")).rpartition("/")[2]
    adam = await dashboard.sign_in(ADAM)
    request = await begin(dashboard, adam, NEW_PROJECT, name="too late")
    await dashboard.call("DELETE", f"/members/{member}")
    assert (await request.finish())[0] in (403, 404)
    assert (await dashboard.call("GET", "/projects"))["data"] == []


async def test_slow_form_of_an_authorized_user_is_processed(dashboard: Dashboard) -> None:
    request = await begin(dashboard, await dashboard.sign_in(), NEW_PROJECT, name="in time")
    assert (await request.finish())[0] == 303
    assert [one["name"] for one in (await dashboard.call("GET", "/projects"))["data"]] == [
        "in time"
    ]


async def test_slow_form_outlives_a_database_that_hangs(conninfo: str, people: Path) -> None:
    async with (
        database_link(conninfo) as link,
        running_dashboard(link.conninfo, people, SHORT_TIMEOUTS) as dashboard,
    ):
        person = await dashboard.sign_in()
        link.block()
        request = await begin(dashboard, person, NEW_PROJECT, name="Much thought")
        status, _, page = await request.finish()
        link.unblock()
    assert (status, b"Not saved yet" in page, b"Much thought" in page) == (503, True, True)
