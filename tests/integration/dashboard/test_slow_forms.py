"""Every page authorizes a form as of the moment when its body is complete."""

from typing import Final
from urllib.parse import urlencode

from tests.support.dashboard import ACME, ADAM, AT_ACME, Dashboard, Person
from tests.support.routes import form_addresses
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
    here, elsewhere = await dashboard.sign_in(), await dashboard.sign_in()
    addresses = sorted(form_addresses() - {"/sign-out", "/confirm-address"})  # need no session
    assert len(addresses) > 10
    started = [
        (address, await begin(dashboard, here, address.replace("{org_id}", ACME)))
        for address in addresses
    ]
    await elsewhere.force("/account/end-other-sessions")
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
