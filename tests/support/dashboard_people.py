"""The dashboard of two tenants at an address, and people with browsers that run no script."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import httpx2
import uvicorn

from tenantry.demo.companion import Companion
from tenantry.demo.identity_provider import DemoUser, mint_access_token
from tenantry.kit.secret import Secret
from tenantry.main import build_app
from tests.support.app import OPERATOR_TOKEN, make_settings
from tests.support.browser import LOOPBACK
from tests.support.service import JsonObject
from tests.support.sign_in import AUDIENCE, CLIENT_ID

ACME: Final = "acme"
BETA: Final = "beta"
AT_ACME: Final = f"/orgs/{ACME}"
OLIVIA: Final = DemoUser("olivia", "Olivia Owner", "olivia@acme.example", ACME, "owner")
ADAM: Final = DemoUser("adam", "Adam Admin", "adam@acme.example", ACME, "admin")
MIA: Final = DemoUser("mia", "Mia <i>Member</i>", "mia@acme.example", ACME, "member")
BERTA: Final = DemoUser("berta", "Berta Beta", "berta@beta.example", BETA, "owner")
_CLIENT_SECRET: Final = "client-secret-of-the-tests-0123456789"
_USERS: Final = (OLIVIA, ADAM, MIA, BERTA)
_INLINE: Final = ("a", "b", "bdi", "code", "i", "span", "strong", "time")
_CONTROLS: Final = ("input", "textarea", "select")


class Page(HTMLParser):
    """A page as it was answered: what it says, where its links lead, and what its forms hold."""

    def __init__(self, answer: httpx2.Response) -> None:
        super().__init__()
        self.status = answer.status_code
        self.path = answer.request.url.path
        self.html = answer.text
        self.links: list[str] = []
        self.forms: dict[str, dict[str, str]] = {}
        self.tags: list[str] = []
        self.focused: list[str] = []
        self._words: list[str] = []
        self._fields: dict[str, str] = {}
        self._control = ""
        self.feed(self.html)
        self.close()

    @property
    def text(self) -> str:
        """What it says, with single blanks."""
        return " ".join("".join(self._words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: text or "" for name, text in attrs}
        self.tags.append(tag)
        if tag not in _INLINE:
            self._words.append(" ")
        if tag == "a":
            self.links.append(named.get("href", ""))
        elif tag == "form":
            self._fields = self.forms.setdefault(named.get("action", self.path), {})
        elif tag in _CONTROLS and "name" in named:
            self._control = named["name"]
            if named.get("type") != "checkbox":
                self._fields[self._control] = named.get("value", "")
        elif tag == "option" and "selected" in named:
            self._fields[self._control] = named["value"]
        if "autofocus" in named and "hidden" not in named:
            self.focused.append(named.get("id", ""))

    def handle_data(self, data: str) -> None:
        self._words.append(data)


class Person:
    """Somebody who is signed in. Redirects are followed, as a browser does."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def open(self, path: str) -> Page:
        """A page."""
        return Page(await self.client.get(path))

    async def send(self, page: Page, action: str = "", **changes: str) -> Page:
        """One of a page's forms, with these fields as somebody filled them in."""
        action = action or page.path
        return Page(await self.client.post(action, data={**page.forms[action], **changes}))

    async def force(self, path: str, **fields: str) -> Page:
        """A form that no page offered, made by hand with the session's own token."""
        token = (await self.open("/")).forms["/sign-out"]["form_token"]
        return Page(await self.client.post(path, data={"form_token": token, "once": "x" * 22, **fields}))


class Dashboard:
    """The service at ``url`` with the tenants acme, of Olivia, and beta, of Berta."""

    def __init__(self, url: str, companion: Companion, api: httpx2.AsyncClient, stack: AsyncExitStack) -> None:
        self.url = url
        self.beside = companion.http_url
        """Where the identity provider's pages and the inbox are."""
        self._companion = companion
        self._api = api
        self._stack = stack

    async def sign_in(self, user: DemoUser, agent: str = "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0") -> Person:
        """A new browser in which a user has signed in."""
        client = httpx2.AsyncClient(
            base_url=self.url, trust_env=False, timeout=30, follow_redirects=True, headers={"User-Agent": agent}
        )
        answer = await (await self._stack.enter_async_context(client)).get(self.start_of(user))
        assert answer.status_code == 200, answer.text
        return Person(client)

    def start_of(self, user: DemoUser, return_to: str = "/") -> str:
        """Where a browser signs a user in without a question."""
        return f"{self.url}/sign-in/start?hint={user.sub}&return_to={return_to}"

    async def call(self, method: str, path: str, json: object = None, user: DemoUser = OLIVIA) -> JsonObject:
        """A call of the API with a token of a user's; returns what it answers."""
        token = mint_access_token(
            self._companion.signing_key,
            issuer=self._companion.issuer,
            audience=AUDIENCE,
            client_id=CLIENT_ID,
            user=user,
            scope="openid",
            lifetime=timedelta(hours=1),
        )
        return await self._call(method, path, json, token)

    async def operate(self, method: str, path: str, json: object = None) -> JsonObject:
        """A call of the API with the operator's token."""
        return await self._call(method, path, json, OPERATOR_TOKEN)

    async def add_member(self, user_id: str, role: str = "member") -> str:
        """A user made a member of acme; returns where their page is."""
        made = await self.call("POST", "/members", {"userId": user_id, "role": role})
        return f"{AT_ACME}/settings/members/{made['id']}"

    async def page_of(self, user_id: str) -> str:
        """Where the page of an active member of acme is."""
        found: list[JsonObject] = (await self.call("GET", f"/members?userId={user_id}"))["data"]
        return f"{AT_ACME}/settings/members/{found[0]['id']}"

    async def _call(self, method: str, path: str, json: object, credential: str) -> JsonObject:
        headers = {"Authorization": f"Bearer {credential}"}
        answer = await self._api.request(method, f"/api/v1{path}", json=json, headers=headers)
        assert answer.is_success, answer.text
        answered: JsonObject = answer.json() if answer.content else {}
        return answered


@asynccontextmanager
async def running_dashboard(conninfo: str, directory: Path, **values: str) -> AsyncIterator[Dashboard]:
    """The service on this database, beside an identity provider in ``directory``; ``values`` are settings."""
    async with AsyncExitStack() as stack:
        companion = stack.enter_context(
            Companion(
                directory,
                users=_USERS,
                audience=AUDIENCE,
                client_id=CLIENT_ID,
                client_secret=Secret(_CLIENT_SECRET),
            )
        )
        listener = stack.enter_context(socket.create_server((LOOPBACK, 0)))
        url = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        settings = make_settings(
            BASE_URL=url,
            OIDC_ISSUER=companion.issuer,
            OIDC_AUDIENCE=AUDIENCE,
            OIDC_CLIENT_ID=CLIENT_ID,
            OIDC_CLIENT_SECRET=_CLIENT_SECRET,
            **values,
        )
        config = uvicorn.Config(
            build_app(settings, conninfo), lifespan="on", log_config=None, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        stack.push_async_callback(_ended, server, asyncio.create_task(server.serve(sockets=[listener])))
        api = await stack.enter_async_context(httpx2.AsyncClient(base_url=url, trust_env=False, timeout=30))
        dashboard = Dashboard(url, companion, api, stack)
        for tenant_id, name, owner in ((ACME, "Acme", OLIVIA), (BETA, "Beta", BERTA)):
            wishes = {"name": name, "ownerEmail": owner.email, "ownerId": owner.sub}
            await dashboard.operate("PUT", f"/tenants/{tenant_id}", wishes)
        yield dashboard


async def _ended(server: uvicorn.Server, running: "asyncio.Task[None]") -> None:
    server.should_exit = True
    await running
