"""Projects, tenants, members, events, plans and the caller, for people and for machines."""

import json
from typing import Any

from tests.cli.support import ANSI, Place
from tests.support import events
from tests.support.signing import deliver


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def test_project_is_made_shown_changed_and_deleted(place: Place) -> None:
    made = await place.run("projects", "create", "--name", "Größe 日本", "--description", "what for")
    project_id = made.out.strip()
    assert project_id.startswith("proj_")
    assert made.out == f"{project_id}\n"
    assert made.err == 'Made "Größe 日本" (live).\n'
    shown = await place.done("projects", "show", project_id)
    assert "Größe 日本" in shown
    assert "what for" in shown
    await place.done("projects", "update", project_id, "--name", "Neu", "--no-description")
    assert lines(await place.done("projects", "list", "--json"))[0]["description"] is None
    table = (await place.done("projects", "list")).splitlines()
    assert table[0].split() == ["ID", "NAME", "CREATED", "DESCRIPTION"]
    assert table[1].split()[:2] == [project_id, "Neu"]
    assert lines(await place.done("projects", "delete", project_id, "--yes", "--json")) == [
        {"id": project_id, "deleted": True}
    ]
    assert (await place.run("projects", "show", project_id)).code == 5


async def test_project_is_changed_in_what_is_said(place: Place) -> None:
    project_id = (await place.done("projects", "create", "--name", "a", "--description", "b")).strip()
    changed = json.loads(await place.done("projects", "update", project_id, "--name", "c", "--json"))
    assert (changed["name"], changed["description"]) == ("c", "b")
    for arguments in ([], ["--description", "x", "--no-description"]):
        assert (await place.run("projects", "update", project_id, *arguments)).code == 2


async def test_tenant_is_the_own_one_unless_named(place: Place) -> None:
    own = place.organization.id
    assert json.loads(await place.done("tenants", "show", "--json"))["id"] == own
    assert (await place.done("tenants", "show", own)).splitlines()[2].split() == ["plan", "free"]
    assert [tenant["id"] for tenant in lines(await place.done("tenants", "list", "--json"))] == [own]
    assert (await place.run("tenants", "show", "another")).code == 5


async def test_an_ended_subscription_is_not_said_to_end(place: Place) -> None:
    names: dict[str, Any] = {"org": place.organization.id, "customer": None, "subscription_id": "sub_1", "cancel": True}
    for event, ends in ((events.updated(**names), True), (events.deleted(**names, created=events.NOW + 1), False)):
        assert (await deliver(place.served.service.client, event)).text == "OK"
        assert ("cancelled, ends then" in await place.done("tenants", "show")) is ends


async def test_events_tell_what_they_did(place: Place) -> None:
    thing = events.subscription(org=place.organization.id, customer=None, subscription_id="sub_1")
    event = events.event("customer.subscription.updated", thing)
    assert (await deliver(place.served.service.client, event)).text == "OK"
    table = (await place.done("events", "list")).splitlines()
    assert table[0].split()[:4] == ["AGE", "OUTCOME", "TYPE", "ID"]
    assert f"applied  customer.subscription.updated  {event['id']}  2026-01-01 12:00" in table[1]
    [row] = ANSI.sub("", (await place.at_terminal("", "events", "list")).out).splitlines()[1:]
    assert len(row.rstrip()) <= 80
    assert row.rstrip().endswith(event["id"])
    shown = await place.done("events", "show", event["id"])
    assert "free -> pro" in shown
    assert json.loads(await place.done("events", "show", event["id"], "--json"))["after"]["plan"] == "pro"
    assert (await place.run("events", "show", "evt_nobody")).code == 5


async def test_members_are_added_changed_and_removed(place: Place) -> None:
    added = await place.run("members", "add", "user_2", "--role", "admin")
    member_id = added.out.strip()
    assert added.err.splitlines() == [
        f"Invited user_2 as admin of {place.organization.id}.",
        f"They accept on the dashboard, or with: tenantry memberships accept {member_id}",
    ]
    refused = await place.run("members", "add", "grace@acme.example")
    assert refused.code != 0
    assert "is an e-mail address" in refused.err
    await place.done("members", "update", member_id, "--role", "member")
    assert json.loads(await place.done("members", "show", member_id, "--json"))["role"] == "member"
    assert "user_2" in await place.done("members", "list", "--role", "member")
    await place.done("members", "remove", member_id, "--yes")
    assert [one["id"] for one in lines(await place.done("members", "list", "--status", "removed", "--json"))] == [
        member_id
    ]


async def test_plans_are_listed_with_their_limits(place: Place) -> None:
    assert [plan["id"] for plan in lines(await place.done("plans", "--json"))] == ["free", "pro", "business"]
    assert "no limit" in await place.done("plans")


async def test_whoami_says_who_where_and_until_when(place: Place) -> None:
    key_id, secret = await place.key("projects:read", expiresAt="2099-01-01T00:00:00Z")
    shown = await place.done("whoami", TENANTRY_API_KEY=secret)
    for said in (key_id, "projects:read", place.served.url, "TENANTRY_API_KEY", "2099-01-01T00:00:00Z"):
        assert said in shown
    document = json.loads(await place.done("whoami", "--json", TENANTRY_API_KEY=secret))
    assert (document["id"], document["service"], document["credential"]) == (
        key_id, place.served.url, "TENANTRY_API_KEY",
    )  # fmt: skip


async def test_memberships_are_listed_accepted_and_left(place: Place) -> None:
    invited = (await place.done("members", "add", "user_3")).strip()
    user = {"TENANTRY_API_KEY": str(place.served.service.user("user_3").credential)}
    assert [one["status"] for one in lines(await place.done("memberships", "list", "--json", **user))] == ["invited"]
    accepted = await place.run("memberships", "accept", invited, **user)
    assert accepted.err == f"You are now member of {place.organization.id}.\n"
    table = await place.done("memberships", "list", "--status", "active", **user)
    assert (invited in table, place.organization.id in table) == (True, True)
    asked = await place.run("memberships", "leave", invited, **user)
    assert (asked.code, "pass --yes" in asked.err) == (2, True)
    left = await place.run("memberships", "leave", invited, "--yes", **user)
    assert (left.code, left.err) == (0, f"Ended {invited}.\n")
    nothing = await place.run("memberships", "list", **user)
    assert nothing.err == "You have no such memberships.\n"
    late = await place.run("memberships", "accept", invited, **user)
    assert (late.code, "has ended" in late.err) == (1, True)
    by_key = await place.run("memberships", "list")
    assert (by_key.code, "user's" in by_key.err) == (4, True)
