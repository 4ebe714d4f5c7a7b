"""``tenantry open``."""

import asyncio
import json
import os
import sys
from typing import Final

import httpx2

from tests.cli.command_support import DEMO_KEY, Home, Workspace, on_terminal
from tests.cli.test_completion import offered
from tests.support import events
from tests.support.billing import Provider
from tests.support.cases import cases
from tests.support.commands import Done

# A fake browser that tells the test its address.
BROWSER: Final = (
    "import pathlib, sys; pathlib.Path(__file__).with_name('opened').write_text(sys.argv[1])"
)


async def address_of(workspace: Workspace, *arguments: str, **values: str) -> str:
    """The path that the command prints."""
    printed = (await workspace.done("open", *arguments, "--print", **values)).removesuffix("\n")
    assert printed.startswith(workspace.served.url)
    return printed.removeprefix(workspace.served.url)


async def test_pages_of_the_organization(workspace: Workspace) -> None:
    base = f"/orgs/{workspace.organization.id}"
    assert {
        page: await address_of(workspace, page) for page in ("keys", "members", "audit", "projects")
    } == {
        "keys": f"{base}/settings/api-keys",
        "members": f"{base}/settings/members",
        "audit": f"{base}/settings/audit",
        "projects": f"{base}/projects",
    }
    assert [await address_of(workspace, page) for page in ("billing", "events")] == [
        f"{base}/billing",
        f"{base}/events",
    ]


async def test_every_page_exists(workspace: Workspace) -> None:
    key_id, _ = await workspace.key("a:b")
    async with httpx2.AsyncClient(verify=False, trust_env=False) as client:
        for page in (
            "dashboard",
            "keys",
            "members",
            "audit",
            "projects",
            "billing",
            "events",
            key_id,
        ):
            answer = await client.get(workspace.served.url + await address_of(workspace, page))
            assert answer.headers["location"].startswith("/sign-in"), page
        assert (
            await client.get(workspace.served.url + await address_of(workspace, "docs"))
        ).status_code == 200


async def test_pages_of_objects(workspace: Workspace) -> None:
    base = f"/orgs/{workspace.organization.id}"
    key_id, _ = await workspace.key("a:b")
    project_id = (await workspace.done("projects", "create", "--name", "a")).strip()
    provider = Provider(workspace.served.service)
    event = events.updated(org=workspace.organization.id)
    await provider.send(event)
    assert await address_of(workspace, key_id) == f"{base}/settings/api-keys/{key_id}"
    assert await address_of(workspace, project_id) == f"{base}/projects/{project_id}"
    assert await address_of(workspace, event["id"]) == f"{base}/events/{event['id']}"


async def test_object_of_another_organization_is_not_found(workspace: Workspace) -> None:
    other = await workspace.served.service.organization()
    key = await workspace.served.service.key(other.owner, other.id, "a:b")
    for missing in (key.id, "proj_nobody", "mbr_nobody", "evt_nobody"):
        done = await workspace.run("open", missing)
        assert (done.code, done.out) == (5, "")


async def test_project_of_test_mode_has_no_page(workspace: Workspace) -> None:
    _, secret = await workspace.key("*:*", mode="test")
    project_id = (
        await workspace.done("projects", "create", "--name", "a", TENANTRY_API_KEY=secret)
    ).strip()
    done = await workspace.run("open", project_id, TENANTRY_API_KEY=secret)
    assert (done.code, "live mode only" in done.err) == (1, True)


async def test_public_pages_need_no_credential(home: Home) -> None:
    values = {"TENANTRY_BASE_URL": "https://accounts.example.com/"}
    assert await home.run("open", "docs", **values) == Done(
        0, "https://accounts.example.com/docs\n", ""
    )
    assert await home.run("open", "--json", **values) == Done(
        0, '{\n  "url": "https://accounts.example.com/"\n}\n', ""
    )
    named = await home.run("open", "billing", "--organization", "acme", **values)
    assert named == Done(0, "https://accounts.example.com/orgs/acme/billing\n", "")
    assert (await home.run("open", "billing", **values)).code == 4


@cases(
    "text",
    [DEMO_KEY, "sk_live_abcdefgh", "nonsense", "key_", "../docs", "https://evil.example", ""],
)
async def test_other_texts_are_usage_errors_and_not_repeated(home: Home, text: str) -> None:
    done = await home.run("open", text, TENANTRY_BASE_URL="https://accounts.example.com")
    assert (done.code, done.out) == (2, "")
    assert len(text) < 8 or text not in done.err


async def test_credential_in_the_address_is_rejected(home: Home) -> None:
    done = await home.run("open", TENANTRY_BASE_URL="https://user:password@accounts.example.com")
    assert (done.code, done.out, "password@" in done.err) == (2, "", False)


async def test_browser_is_opened_on_a_terminal(home: Home) -> None:
    browser = home.folder / "browser.py"
    browser.write_text(BROWSER)
    os.mkfifo(home.folder / "opened")
    values = {
        "TENANTRY_BASE_URL": "https://accounts.example.com",
        "BROWSER": f"{sys.executable} {browser} %s",
    }
    shown = await on_terminal(home, values, "open", "docs")
    assert (shown.code, shown.text) == (0, "Opening https://accounts.example.com/docs\n")
    assert (
        await asyncio.to_thread((home.folder / "opened").read_text)
        == "https://accounts.example.com/docs"
    )


async def test_without_a_browser_or_a_terminal_the_address_is_printed(home: Home) -> None:
    values = {"TENANTRY_BASE_URL": "https://accounts.example.com"}
    assert (await home.at_terminal("", "open", **values)).out == "https://accounts.example.com/\n"
    assert (await home.run("open", DISPLAY=":0", **values)).out == "https://accounts.example.com/\n"


async def test_pages_and_ids_are_completed(workspace: Workspace) -> None:
    key_id, _ = await workspace.key("a:b")
    assert await offered(workspace.home, "open", "d") == ["dashboard", "docs"]
    assert await offered(workspace.home, "open", key_id[:-3], **workspace.values) == [key_id]


async def test_address_as_json_holds_no_secret(workspace: Workspace) -> None:
    url = json.loads(await workspace.done("open", "keys", "--json"))["url"]
    assert str(workspace.organization.owner.credential) not in url
