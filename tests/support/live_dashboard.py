"""The dashboard on a real server, people who sign in to it, and a payment provider that sends events.

Streams need a server: they go on while other requests are answered.
"""

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any, Final

import httpx2
import uvicorn

from tenantry.demo.companion import Companion
from tenantry.demo.identity_provider import DemoUser
from tenantry.http.shedding import SheddingProtocol
from tenantry.kit.secret import Secret
from tenantry.main import build_app
from tests.support import signing
from tests.support.app import OPERATOR_TOKEN, make_settings
from tests.support.browser import LOOPBACK

ORG: Final = "acme"
CUSTOMER: Final = "cus_acme"
OTHER: Final = "other"
OWNER: Final = DemoUser("olivia", "Olivia Owner", "olivia@acme.example", ORG, "owner")
ADMIN: Final = DemoUser("adam", "Adam Admin", "adam@acme.example", ORG, "admin")
MEMBER: Final = DemoUser("mia", "Mia Member", "mia@acme.example", ORG, "member")
STRANGER: Final = DemoUser("eve", "Eve Elsewhere", "eve@other.example", OTHER, "owner")
USERS: Final = (OWNER, ADMIN, MEMBER, STRANGER)
_AUDIENCE: Final = "tenantry-api"
_CLIENT_ID: Final = "dashboard"
_CLIENT_SECRET: Final = "a-client-secret-of-the-tests-0123456789"
_FORM_TOKEN: Final = re.compile(r'name="form_token" value="([^"]+)"')


class Visitor:
    """Somebody who is signed in, without a browser."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        return await self.client.get(path, headers=headers)

    async def send(self, path: str, fields: Mapping[str, str], *, form_on: str = f"/orgs/{ORG}/") -> httpx2.Response:
        """A form sent with the token of a page that this session may see."""
        found = _FORM_TOKEN.search((await self.client.get(form_on)).text)
        assert found
        return await self.client.post(path, data={"form_token": found[1], **fields})


class Dashboard:
    """The whole service at ``url``, with the tenants acme and other."""

    def __init__(self, url: str, server: uvicorn.Server, api: httpx2.AsyncClient, stack: AsyncExitStack) -> None:
        self.url = url
        self.server = server
        self.api = api
        """A client without a credential."""
        self._stack = stack

    async def sign_in(self, user: DemoUser = OWNER) -> Visitor:
        """Sign a user in."""
        client = await self._stack.enter_async_context(
            httpx2.AsyncClient(base_url=self.url, trust_env=False, timeout=30)
        )
        answer = await client.get(self.start_of(user), follow_redirects=True)
        assert answer.status_code == 200, answer.text
        return Visitor(client)

    def start_of(self, user: DemoUser, return_to: str = "/") -> str:
        """Where a browser signs a user in without a question."""
        return f"{self.url}/sign-in/start?hint={user.sub}&return_to={return_to}"

    async def deliver(self, event: dict[str, Any]) -> None:
        """An event of the payment provider, signed."""
        answer = await signing.deliver(self.api, event, at=int(time.time()))
        assert (answer.status_code, answer.text) == (200, "OK")

    async def operate(self, method: str, path: str, json: object = None) -> httpx2.Response:
        """A request of the operator."""
        headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
        answer = await self.api.request(method, f"/api/v1/{path}", json=json, headers=headers)
        assert answer.is_success, answer.text
        return answer


@asynccontextmanager
async def running_dashboard(conninfo: str, folder: Path, **values: str) -> AsyncIterator[Dashboard]:
    """The service on this database, beside an identity provider in ``folder``; ``values`` are settings."""
    async with AsyncExitStack() as stack:
        companion = stack.enter_context(
            Companion(
                folder,
                users=USERS,
                audience=_AUDIENCE,
                client_id=_CLIENT_ID,
                client_secret=Secret(_CLIENT_SECRET),
            )
        )
        listener = stack.enter_context(socket.create_server((LOOPBACK, 0)))
        url = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        identity = {
            "OIDC_ISSUER": companion.issuer,
            "OIDC_AUDIENCE": _AUDIENCE,
            "OIDC_CLIENT_ID": _CLIENT_ID,
            "OIDC_CLIENT_SECRET": _CLIENT_SECRET,
        }
        app = build_app(make_settings(BASE_URL=url, **{**identity, **values}), conninfo)
        config = uvicorn.Config(app, http=SheddingProtocol, lifespan="on", log_config=None, timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        stack.push_async_callback(_ended, server, running)
        api = await stack.enter_async_context(httpx2.AsyncClient(base_url=url, trust_env=False, timeout=30))
        dashboard = Dashboard(url, server, api, stack)
        tenants = ((ORG, "Acme", CUSTOMER, OWNER), (OTHER, "Other", "cus_other", STRANGER))
        for tenant_id, name, customer, owner in tenants:
            wishes = {"name": name, "ownerEmail": owner.email, "ownerId": owner.sub, "stripeCustomerId": customer}
            await dashboard.operate("PUT", f"tenants/{tenant_id}", wishes)
        yield dashboard


async def _ended(server: uvicorn.Server, running: "asyncio.Task[None]") -> None:
    server.should_exit = True
    await running


def text_of(page: httpx2.Response) -> str:
    """What a page says, its blanks joined."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page.text)).split())
