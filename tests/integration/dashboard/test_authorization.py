"""Authorization of every address of the dashboard, tried by users without the role."""

import re
from collections.abc import Iterable
from typing import Final

import pytest

from tests.support.dashboard import (
    ACME,
    ADAM,
    AT_ACME,
    AT_BETA,
    BERTA,
    MIA,
    OLIVIA,
    Dashboard,
    Person,
)
from tests.support.events import updated
from tests.support.routes import dashboard_addresses

ROLES: Final = ("member", "admin", "owner")
OF_ACME: Final = "Nightly export"
"""The name of acme's objects."""
TYPED: Final = re.compile(r'class="as-typed"[^>]*>[^<]*|type="hidden"[^>]*>')
"""What a page shows of a form that is not processed: its sender typed it."""
LOWEST: Final = {
    "GET /": "member",
    "GET /billing": "member",
    "GET /billing/back": "member",
    "POST /billing/checkout": "admin",
    "GET /billing/invoices": "member",
    "POST /billing/portal": "admin",
    "GET /events": "member",
    "GET /events/stream": "member",
    "GET /events/{event_id}": "member",
    "GET /projects": "member",
    "GET /projects/new": "member",
    "POST /projects/new": "member",
    "GET /projects/{project_id}": "member",
    "GET /projects/{project_id}/delete": "member",
    "POST /projects/{project_id}/delete": "member",
    "GET /projects/{project_id}/edit": "member",
    "POST /projects/{project_id}/edit": "member",
    "GET /search": "member",
    "GET /settings/api-keys": "admin",
    "GET /settings/api-keys/new": "admin",
    "POST /settings/api-keys/new": "admin",
    "GET /settings/api-keys/{key_id}": "admin",
    "GET /settings/api-keys/{key_id}/created": "admin",
    "GET /settings/api-keys/{key_id}/edit": "admin",
    "POST /settings/api-keys/{key_id}/edit": "admin",
    "POST /settings/api-keys/{key_id}/flags": "admin",
    "GET /settings/api-keys/{key_id}/first-use": "admin",
    "GET /settings/api-keys/{key_id}/revoke": "admin",
    "POST /settings/api-keys/{key_id}/revoke": "admin",
    "GET /settings/api-keys/{key_id}/rotate": "admin",
    "POST /settings/api-keys/{key_id}/rotate": "admin",
    "GET /settings/audit": "admin",
    "GET /settings/audit/export": "admin",
    "GET /settings/general": "member",
    "POST /settings/general": "admin",
    "POST /settings/general/billing-address": "admin",
    "POST /settings/general/key-mails": "admin",
    "GET /settings/general/delete": "owner",
    "POST /settings/general/delete": "owner",
    "GET /settings/members": "admin",
    "GET /settings/members/identity-provider": "admin",
    "GET /settings/members/invitations": "admin",
    "GET /settings/members/invitations/new": "admin",
    "POST /settings/members/invitations/new": "admin",
    "GET /settings/members/invitations/{invitation_id}": "admin",
    "POST /settings/members/invitations/{invitation_id}/resend": "admin",
    "GET /settings/members/invitations/{invitation_id}/withdraw": "admin",
    "POST /settings/members/invitations/{invitation_id}/withdraw": "admin",
    "GET /settings/members/new": "admin",
    "POST /settings/members/new": "admin",
    "GET /settings/members/{member_id}": "admin",
    "GET /settings/members/{member_id}/remove": "admin",
    "POST /settings/members/{member_id}/remove": "admin",
    "POST /settings/members/{member_id}/role": "admin",
    "GET /settings/transfer": "owner",
    "POST /settings/transfer": "owner",
    "POST /settings/owner-address/send-confirmation": "admin",
    "GET /usage": "admin",
    "GET /usage/export": "admin",
    "GET /usage/rejections": "admin",
}
"""The lowest role for each address of a tenant."""
FORM: Final = {
    "name": OF_ACME,
    "scope": "projects:read",
    "expiry": "90",
    "mode": "live",
    "word": OF_ACME,
    "overlap": "0",
    "userId": "other-user",
    "email": "other@acme.example",
    "role": "owner",
    "ownerEmail": "other@acme.example",
    "plan": "pro",
}
"""Valid values for all forms, so that only the sender is wrong."""


@pytest.fixture
async def ids(dashboard: Dashboard) -> dict[str, str]:
    """The id of one object of each kind in acme, by path parameter."""
    await dashboard.deliver(updated(event_id="evt_1"))
    project = await dashboard.call("POST", "/projects", {"name": OF_ACME})
    key = await dashboard.call(
        "POST",
        "/api-keys",
        {"orgId": ACME, "name": OF_ACME, "scopes": ["projects:read"], "expiresAt": None},
    )
    member = await dashboard.call("POST", "/members", {"userId": "gone", "role": "member"})
    return {
        "event_id": "evt_1",
        "project_id": project["id"],
        "key_id": key["id"],
        "member_id": member["id"],
        "invitation_id": "inv_01975c3a5b3ef0a1b2c3d4e5f6071829",
    }


def test_every_address_of_a_tenant_is_listed_here() -> None:
    assert dashboard_addresses() == set(LOWEST)


async def test_member_cannot_reach_admin_addresses(
    dashboard: Dashboard, ids: dict[str, str]
) -> None:
    await refused(dashboard, await dashboard.sign_in(MIA), ids, {"admin", "owner"}, 403)


async def test_admin_cannot_reach_owner_addresses(
    dashboard: Dashboard, ids: dict[str, str]
) -> None:
    await refused(dashboard, await dashboard.sign_in(ADAM), ids, {"owner"}, 403)


async def test_owner_of_another_tenant_gets_404_everywhere(
    dashboard: Dashboard, ids: dict[str, str]
) -> None:
    await refused(dashboard, await dashboard.sign_in(BERTA), ids, set(ROLES), 404)


async def test_objects_of_another_tenant_are_not_found_at_the_own_one(
    dashboard: Dashboard, ids: dict[str, str]
) -> None:
    # invitations are off here: test_member_invitation_pages has theirs
    of_objects = [each for each in LOWEST if "{" in each and "{invitation_id}" not in each]
    await refused(
        dashboard, await dashboard.sign_in(BERTA), ids, set(ROLES), 404, AT_BETA, of_objects
    )


async def refused(
    dashboard: Dashboard,
    person: Person,
    ids: dict[str, str],
    roles: set[str],
    status: int,
    tenant: str = AT_ACME,
    addresses: Iterable[str] = LOWEST,
) -> None:
    """Check that every address for these roles answers a person with this status, tells nothing of
    acme's objects and changes nothing.
    """
    before = await state(dashboard)
    answers = {}
    for address in addresses:
        if LOWEST[address] in roles:
            method, path = address.split(" ")
            at = tenant + path.format_map(ids)
            page = await (person.open(at) if method == "GET" else person.force(at, **FORM))
            answers[address] = page.status
            assert OF_ACME not in TYPED.sub("", page.html), address
    assert answers == dict.fromkeys(answers, status)
    assert await state(dashboard) == before


async def test_no_address_works_without_a_session(
    dashboard: Dashboard, ids: dict[str, str]
) -> None:
    before = await state(dashboard)
    answers = {}
    for address in LOWEST:
        method, path = address.split(" ")
        answer = await dashboard.api.request(
            method, AT_ACME + path.format_map(ids), data=FORM if method == "POST" else None
        )
        answers[address] = answer.status_code
    # the script that opens the stream could not follow a redirect to the sign-in
    assert answers == {
        each: 303 if each.startswith("GET") and each != "GET /events/stream" else 401
        for each in answers
    }
    assert await state(dashboard) == before


async def test_no_form_is_accepted_without_its_token(
    dashboard: Dashboard, ids: dict[str, str]
) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    before = await state(dashboard)
    answers = {}
    for address in LOWEST:
        method, path = address.split(" ")
        if method == "POST":
            answers[address] = (
                await olivia.client.post(AT_ACME + path.format_map(ids), data=FORM)
            ).status_code
    assert answers == dict.fromkeys(answers, 403)
    assert await state(dashboard) == before


async def state(dashboard: Dashboard) -> list[object]:
    """Return everything that a form could change."""
    trail = await dashboard.call("GET", "/audit-events")
    projects = await dashboard.call("GET", "/projects")
    return [trail["data"], projects["data"], await dashboard.call("GET", f"/tenants/{ACME}")]
