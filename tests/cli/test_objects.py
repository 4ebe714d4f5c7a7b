"""Projects, tenants, members, events, plans and whoami, as tables and as JSON."""

import json
from typing import Any

from tests.cli.command_support import ANSI, Home, Workspace
from tests.sdk.sdk_support import serving
from tests.support import events
from tests.support.provider_api import KEY, running_provider
from tests.support.signing import deliver


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def test_project_is_created_shown_changed_and_deleted(workspace: Workspace) -> None:
    made = await workspace.run(
        "projects", "create", "--name", "Größe 日本", "--description", "what for"
    )
    project_id = made.out.strip()
    assert project_id.startswith("proj_")
    assert made.out == f"{project_id}\n"
    assert made.err == 'Made "Größe 日本" (live).\n'
    shown = await workspace.done("projects", "show", project_id)
    assert "Größe 日本" in shown
    assert "what for" in shown
    await workspace.done("projects", "update", project_id, "--name", "Neu", "--no-description")
    assert lines(await workspace.done("projects", "list", "--json"))[0]["description"] is None
    table = (await workspace.done("projects", "list")).splitlines()
    assert table[0].split() == ["ID", "NAME", "CREATED", "DESCRIPTION"]
    assert table[1].split()[:2] == [project_id, "Neu"]
    assert lines(await workspace.done("projects", "delete", project_id, "--yes", "--json")) == [
        {"id": project_id, "deleted": True}
    ]
    assert (await workspace.run("projects", "show", project_id)).code == 5


async def test_project_update_changes_only_the_given_fields(workspace: Workspace) -> None:
    project_id = (
        await workspace.done("projects", "create", "--name", "a", "--description", "b")
    ).strip()
    changed = json.loads(
        await workspace.done("projects", "update", project_id, "--name", "c", "--json")
    )
    assert (changed["name"], changed["description"]) == ("c", "b")
    for arguments in ([], ["--description", "x", "--no-description"]):
        assert (await workspace.run("projects", "update", project_id, *arguments)).code == 2


async def test_own_tenant_is_the_default(workspace: Workspace) -> None:
    own = workspace.organization.id
    assert json.loads(await workspace.done("tenants", "show", "--json"))["id"] == own
    assert "Free plan, no subscription" in await workspace.done("tenants", "show", own)
    assert [
        tenant["id"] for tenant in lines(await workspace.done("tenants", "list", "--json"))
    ] == [own]
    assert (await workspace.run("tenants", "show", "another")).code == 5


async def test_tenant_is_changed_by_field(workspace: Workspace) -> None:
    before = json.loads(await workspace.done("tenants", "show", "--json"))
    await workspace.done("tenants", "update", "--time-zone", "Asia/Tokyo")
    changed = json.loads(await workspace.done("tenants", "show", "--json"))
    assert (changed["name"], changed["timeZone"]) == (before["name"], "Asia/Tokyo")
    sent = await workspace.run("tenants", "update", "--owner-email", "new@x.example")
    assert "A mail to new@x.example has a link to confirm the address." in sent.err
    await workspace.done("tenants", "update", before["id"], "--name", "B", "--no-time-zone")
    last = json.loads(await workspace.done("tenants", "show", "--json"))
    assert (last["name"], last.get("timeZone")) == ("B", None)
    for arguments in ([], ["--time-zone", "Asia/Tokyo", "--no-time-zone"]):
        assert (await workspace.run("tenants", "update", *arguments)).code == 2


async def test_user_creates_transfers_and_deletes_an_organization(workspace: Workspace) -> None:
    service = workspace.served.service
    user = {"TENANTRY_API_KEY": str(service.user("cli_founder").credential)}
    made = await workspace.run(
        "tenants", "create", "--name", "Mine", "--owner-email", "me@x.example", **user
    )
    org = made.out.strip()
    assert (made.out, made.err) == (f"{org}\n", 'Created "Mine".\n')
    to = ("--to", "cli_founder", "--owner-email", "we@x.example")
    unsure = await workspace.run("tenants", "transfer", org, *to, **user)
    assert unsure.code == 2
    transferred = await workspace.run("tenants", "transfer", org, *to, "--yes", **user)
    assert transferred.err == '"Mine" belongs to cli_founder now.\n'
    assert (await workspace.run("tenants", "delete", org, **user)).code == 2
    gone = await workspace.run("tenants", "delete", org, "--yes", "--json", **user)
    assert lines(gone.out) == [{"id": org, "status": "ended"}]
    assert (await workspace.run("tenants", "show", org, **user)).code == 4


async def test_roles_are_listed_with_what_they_give(workspace: Workspace) -> None:
    title, *rows = (await workspace.done("members", "roles")).splitlines()
    assert title.split() == ["ID", "NAME", "SCOPES", "GIVES"]
    assert [row.split()[0] for row in rows] == ["owner", "admin", "member"]
    assert rows[1].split()[2:] == ["*:*", "admin,", "member"]
    listed = lines(await workspace.done("members", "roles", "--json"))
    assert listed[2] == {
        "id": "member",
        "name": "Member",
        "scopes": ["projects:*", "tenants:read", "billing:read"],
        "gives": [],
        "assignable": True,
    }


async def test_events_show_their_effect(workspace: Workspace) -> None:
    thing = events.subscription(
        org=workspace.organization.id, customer=None, subscription_id="sub_1"
    )
    event = events.event("customer.subscription.updated", thing)
    assert (await deliver(workspace.served.service.client, event)).text == "OK"
    table = (await workspace.done("events", "list")).splitlines()
    assert table[0].split()[:4] == ["AGE", "OUTCOME", "TYPE", "ID"]
    assert f"applied  customer.subscription.updated  {event['id']}  2026-01-01 12:00" in table[1]
    [row] = ANSI.sub("", (await workspace.at_terminal("", "events", "list")).out).splitlines()[1:]
    assert len(row.rstrip()) <= 80
    assert row.rstrip().endswith(event["id"])
    shown = await workspace.done("events", "show", event["id"])
    assert "free -> pro" in shown
    assert (
        json.loads(await workspace.done("events", "show", event["id"], "--json"))["after"]["plan"]
        == "pro"
    )
    assert (await workspace.run("events", "show", "evt_nobody")).code == 5


async def test_members_are_added_changed_and_removed(workspace: Workspace) -> None:
    added = await workspace.run("members", "add", "user_2", "--role", "admin")
    member_id = added.out.strip()
    assert added.err.splitlines() == [
        f"Invited user_2 as admin of {workspace.organization.id}.",
        f"They accept on the dashboard, or with: tenantry memberships accept {member_id}",
    ]
    refused = await workspace.run("members", "add", "grace@acme.example")
    assert refused.code != 0
    assert "is an e-mail address" in refused.err
    await workspace.done("members", "update", member_id, "--role", "member")
    assert (
        json.loads(await workspace.done("members", "show", member_id, "--json"))["role"] == "member"
    )
    assert "user_2" in await workspace.done("members", "list", "--role", "member")
    await workspace.done("members", "remove", member_id, "--yes")
    assert [
        one["id"]
        for one in lines(await workspace.done("members", "list", "--status", "removed", "--json"))
    ] == [member_id]


async def test_plans_are_listed_with_their_limits(workspace: Workspace) -> None:
    assert [plan["id"] for plan in lines(await workspace.done("plans", "--json"))] == [
        "free",
        "pro",
        "business",
    ]
    shown = await workspace.done("plans")
    assert "no limit" in shown
    assert "PRICES" not in shown


async def test_plans_are_listed_with_the_prices_that_the_service_knows(
    conninfo: str, home: Home
) -> None:
    async with running_provider() as provider:
        provider.prices = {
            "price_pro": {
                "active": True,
                "currency": "eur",
                "unit_amount": 2900,
                "recurring": {"interval": "month"},
            }
        }
        async with serving(
            conninfo, PROVIDER_SECRET_KEY=KEY, PROVIDER_API_BASE=provider.url
        ) as served:
            workspace = Workspace(served, await served.service.organization(), home)
            shown = ""
            while "PRICES" not in shown:
                shown = await workspace.done("plans")
    assert "29.00 EUR a month" in shown


async def test_whoami_shows_principal_service_and_expiry(workspace: Workspace) -> None:
    key_id, secret = await workspace.key("projects:read", expiresAt="2099-01-01T00:00:00Z")
    shown = await workspace.done("whoami", TENANTRY_API_KEY=secret)
    for said in (
        key_id,
        "projects:read",
        workspace.served.url,
        "TENANTRY_API_KEY",
        "2099-01-01T00:00:00Z",
    ):
        assert said in shown
    assert "Free plan, no subscription" in shown
    assert "3 projects, 10 API keys, 100 members, 6,000 requests a minute" in shown
    document = json.loads(await workspace.done("whoami", "--json", TENANTRY_API_KEY=secret))
    assert (document["id"], document["service"], document["credential"]) == (
        key_id,
        workspace.served.url,
        "TENANTRY_API_KEY",
    )


async def test_memberships_are_listed_accepted_and_left(workspace: Workspace) -> None:
    invited = (await workspace.done("members", "add", "user_3")).strip()
    user = {"TENANTRY_API_KEY": str(workspace.served.service.user("user_3").credential)}
    assert [
        one["status"]
        for one in lines(await workspace.done("memberships", "list", "--json", **user))
    ] == ["invited"]
    accepted = await workspace.run("memberships", "accept", invited, **user)
    assert accepted.err == f"You are now member of {workspace.organization.id}.\n"
    table = await workspace.done("memberships", "list", "--status", "active", **user)
    assert (invited in table, workspace.organization.id in table) == (True, True)
    asked = await workspace.run("memberships", "leave", invited, **user)
    assert (asked.code, "pass --yes" in asked.err) == (2, True)
    left = await workspace.run("memberships", "leave", invited, "--yes", **user)
    assert (left.code, left.err) == (0, f"Ended {invited}.\n")
    nothing = await workspace.run("memberships", "list", **user)
    assert nothing.err == "You have no such memberships.\n"
    late = await workspace.run("memberships", "accept", invited, **user)
    assert (late.code, "has ended" in late.err) == (1, True)
    by_key = await workspace.run("memberships", "list")
    assert (by_key.code, "user's" in by_key.err) == (4, True)
