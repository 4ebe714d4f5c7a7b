"""The dashboard as people meet it who have no script: they read pages and send forms."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import httpx2
import psycopg

from tenantry.db.database import Database
from tenantry.demo.identity_provider import DemoUser
from tenantry.domain.api_keys import Pepper
from tenantry.services.key_use import KeyUse
from tenantry.store.api_keys import Use
from tests.support.app import PEPPER
from tests.support.live_dashboard import ORG, Dashboard, running_dashboard

HOME: Final = f"/orgs/{ORG}"

Fields = Mapping[str, str | Sequence[str]]


class Form:
    """A form in a page, with what its fields hold."""

    def __init__(self, action: str) -> None:
        self.action = action
        self.fields: dict[str, list[str]] = {}


class Page(HTMLParser):
    """A page that was answered."""

    def __init__(self, answer: httpx2.Response) -> None:
        super().__init__()
        self.answer = answer
        self.status = answer.status_code
        self.path = answer.request.url.path
        self.html = answer.text
        self.forms: list[Form] = []
        self.links: list[str] = []
        self.focused = ""
        self._text: list[str] = []
        self.feed(self.html)
        self.close()

    @property
    def text(self) -> str:
        """What the page says, with single blanks."""
        return " ".join(" ".join(self._text).split())

    def form(self, action: str = "") -> Form:
        """The form that is sent to this path; without one, to the page's own address."""
        [found] = [form for form in self.forms if form.action == action]
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: text or "" for name, text in attrs}
        if tag == "form":
            self.forms.append(Form(named.get("action", "")))
        elif tag == "a":
            self.links.append(named.get("href", ""))
        elif tag == "input" and named.get("type") in ("checkbox", "radio") and "checked" not in named:
            pass
        elif tag == "input" and "name" in named:
            self.forms[-1].fields.setdefault(named["name"], []).append(named.get("value", ""))
        if "autofocus" in named:
            self.focused = named["id"]

    def handle_data(self, data: str) -> None:
        self._text.append(data)


class Person:
    """Somebody with a browser that runs no script. Redirects are followed."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.pages: list[Page] = []

    async def open(self, path: str) -> Page:
        """A page."""
        return self._keep(await self.client.get(path, follow_redirects=True))

    async def send(self, page: Page, action: str = "", fields: Fields | None = None) -> Page:
        """Send a form of a page, with these fields changed, and go where that leads."""
        form = page.form(action)
        return await self.post(form.action or page.path, {**form.fields, **(fields or {})})

    async def post(self, path: str, fields: Fields) -> Page:
        """Send what need not be a form of ours."""
        return self._keep(await self.client.post(path, data=dict(fields), follow_redirects=True))

    async def token(self) -> dict[str, list[str]]:
        """What every form of this person's session carries along."""
        page = await self.open(f"{HOME}")
        return {"form_token": page.form("/sign-out").fields["form_token"]}

    def _keep(self, answer: httpx2.Response) -> Page:
        page = Page(answer)
        self.pages.append(page)
        return page


class Pages:
    """The dashboard and the API behind it."""

    def __init__(self, dashboard: Dashboard, conninfo: str) -> None:
        self.dashboard = dashboard
        self.base_url = dashboard.url
        self._conninfo = conninfo

    async def sign_in(self, user: DemoUser) -> Person:
        """Somebody who has just signed in."""
        return Person((await self.dashboard.sign_in(user)).client)

    async def call(self, method: str, path: str, credential: str, json: Any = None) -> httpx2.Response:
        """A call of the API."""
        headers = {"Authorization": f"Bearer {credential}"}
        return await self.dashboard.api.request(method, f"/api/v1{path}", json=json, headers=headers)

    async def use(self, key_id: str, secret: str) -> None:
        """Use a key, and have that written down at once."""
        assert (await self.call("GET", "/auth/whoami", secret)).status_code == 200
        pepper = Pepper(PEPPER.encode())
        database = Database(self._conninfo, pool_size=1)
        await database.open()
        uses = KeyUse(database)
        uses.record(Use(key_id, datetime.now(UTC), "192.0.2.7", pepper.digest(secret.encode()), pepper.id))
        await uses.write()
        await database.close()

    async def forget_members(self) -> None:
        """Let nobody be a member: people are what their tokens claim, and only a key can make another OWNER key."""
        async with await psycopg.AsyncConnection.connect(self._conninfo) as connection:
            await connection.execute("DELETE FROM memberships")


@asynccontextmanager
async def running_pages(conninfo: str, folder: Path) -> AsyncIterator[Pages]:
    """The service on this database, beside an identity provider in ``folder``."""
    async with running_dashboard(conninfo, folder) as dashboard:
        yield Pages(dashboard, conninfo)
