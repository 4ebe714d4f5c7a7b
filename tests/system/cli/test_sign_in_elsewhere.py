"""Sign-in at another OpenID provider than the demo's, with a real browser, in both flows."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx2
from playwright.async_api import Browser, Page

from tenantry.app import build_app
from tests.cli.command_support import Home
from tests.cli.sign_in_support import ADDRESS, USER_CODE
from tests.support.app import OPERATOR_TOKEN, make_settings
from tests.support.command_runner import Command
from tests.support.node_provider import AUDIENCE, NodeProvider, node_provider
from tests.support.serving import served

CLIENT: Final = "tenantry-cli"


@asynccontextmanager
async def entered(conninfo: str, home: Home) -> AsyncIterator[NodeProvider]:
    """The provider, a service that trusts it with a tenant that ann owns, and a home that names
    both.
    """
    async with node_provider() as provider:
        settings = make_settings(
            OIDC_ISSUER=provider.issuer, OIDC_AUDIENCE=AUDIENCE, OIDC_CLIENT_ID="dashboard"
        )
        async with (
            served(build_app(settings, conninfo)) as url,
            httpx2.AsyncClient(trust_env=False, verify=False) as client,
        ):
            body = {"name": "Acme", "ownerEmail": "ann@acme.example", "ownerId": "ann"}
            operator = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
            assert (
                await client.put(f"{url}/api/v1/tenants/acme", json=body, headers=operator)
            ).status_code == 201
            home.configure(
                f'[profiles.default]\nbase_url = "{url}"\nissuer = "{provider.issuer}"\nclient_id = "{CLIENT}"\n'
                'audience = "urn:tenantry:ES256"\n'
            )
            yield provider


async def found(command: Command, pattern: re.Pattern[str], until: str) -> str:
    """Wait for a pattern in the command's output."""
    await command.until(until, "err")
    match = pattern.search(command.text["err"])
    assert match is not None, command.text
    return match[1]


async def sign_in_as_ann(page: Page) -> None:
    """Sign in and consent on the provider's pages."""
    await page.fill("input[name=login]", "ann")
    await page.fill("input[name=password]", "any")
    await page.click("button[type=submit]")
    await page.click("button[type=submit]")


async def is_signed_in(home: Home) -> bool:
    """Check that commands act as ann, also after the token has expired."""
    tokens = home.token_folder / "default" / "token.json"
    tokens.write_text(json.dumps({**json.loads(tokens.read_text()), "expires_at": 1}))
    done = await home.run("whoami")
    assert done.code == 0, done
    return "ann (user)" in done.out


async def test_browser(conninfo: str, home: Home, browser: Browser) -> None:
    async with (
        entered(conninfo, home),
        await browser.new_context() as context,
        home.running("login", "--timeout", "60", "--no-browser") as command,
    ):
        page = await context.new_page()
        await page.goto(await found(command, ADDRESS, "\n\n"))
        await sign_in_as_ann(page)
        await page.wait_for_selector("text=Go back to the terminal")
        assert await command.wait() == 0, command.text
        assert await is_signed_in(home)
        assert (await home.run("logout")).code == 0


async def test_device(conninfo: str, home: Home, browser: Browser) -> None:
    async with entered(conninfo, home) as provider, await browser.new_context() as context:
        async with home.running("login", "--timeout", "60", "--device") as command:
            code = await found(command, USER_CODE, "Waiting ...")
            page = await context.new_page()
            await page.goto(f"{provider.issuer}/device?user_code={code}")
            await page.click("button[type=submit]")
            await sign_in_as_ann(page)
            assert await command.wait() == 0, command.text
        assert await is_signed_in(home)
