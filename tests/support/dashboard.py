"""The dashboard of two tenants, and users with browsers that run no JavaScript.

It is a real server: streams continue while other requests are answered.
"""

import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, LiteralString
from urllib.parse import urlsplit

import httpx2
import msgspec
import psycopg
import uvicorn
from psycopg.rows import TupleRow
from psycopg.sql import Composed

from tenantry.app import build_app
from tenantry.auth.api_keys_store import KeyUse, record_uses
from tenantry.auth.sessions import SessionService
from tenantry.common.clock import Timeouts, system_clock
from tenantry.common.secret import Secret
from tenantry.db.database import Database
from tenantry.db.write_behind import WriteBehind
from tenantry.domain.api_keys import Pepper
from tenantry.domain.sessions import SessionSecret
from tenantry.integrations.oidc.claims import Claims
from tenantry.server.load_shedding import LoadSheddingProtocol
from tenantry_devkit.demo.companion import Companion
from tenantry_devkit.identity_tokens import DemoUser
from tests.support import signing
from tests.support.app import OPERATOR_TOKEN, PEPPER, make_settings
from tests.support.catalogs import catalog_file
from tests.support.dashboard_page import Form, Page
from tests.support.emptying import connected, refilling
from tests.support.patience import PATIENT, patient_database
from tests.support.postgres import PostgresServer
from tests.support.provider_api import KEY, ProviderServer, running_provider
from tests.support.service import JsonObject
from tests.support.serving import LOOPBACK, serving, url_of
from tests.support.sign_in import AUDIENCE, CLIENT_ID

ACME: Final = "acme"
BETA: Final = "beta"
AT_ACME: Final = f"/orgs/{ACME}"
AT_BETA: Final = f"/orgs/{BETA}"
CUSTOMER: Final = "cus_acme"
OLIVIA: Final = DemoUser("olivia", "Olivia Owner", "olivia@acme.example", ACME, "owner")
ADAM: Final = DemoUser("adam", "Adam Admin", "adam@acme.example", ACME, "admin")
MIA: Final = DemoUser("mia", "Mia <i>Member</i>", "mia@acme.example", ACME, "member")
BERTA: Final = DemoUser("berta", "Berta Beta", "berta@beta.example", BETA, "owner")
NOA: Final = DemoUser("nobody", "Noa Newcomer", "noa@x.example")
"""A user whose tokens name no organization."""
OLGA: Final = DemoUser("olga", "Olga Operator", "olga@vendor.example")
"""A user of the operator."""
NELL: Final = DemoUser("nell", "Nell Noaddress", None)
"""A user of whom the identity provider verifies no address."""
_USERS: Final = (OLIVIA, ADAM, MIA, BERTA, NOA, NELL, OLGA)
_TENANTS: Final = ((ACME, "Acme", CUSTOMER, OLIVIA), (BETA, "Beta", "cus_beta", BERTA))
SESSION_COOKIE: Final = "tenantry_session"
_SECRET: Final = SessionSecret(make_settings().session_secret.reveal())
_CLIENT_SECRET: Final = "client-secret-of-the-tests-0123456789"
_FIREFOX: Final = "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0"


Fields = Mapping[str, str | Sequence[str]]


class Person:
    """A signed-in user. Like a browser it follows redirects, except in `get`."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.pages: list[Page] = []
        """All pages that this user has seen."""

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        """Return the answer to a request, without following redirects."""
        return await self.client.get(path, headers=headers)

    async def open(self, path: str) -> Page:
        """A page."""
        return self._seen(await self.client.get(path, follow_redirects=True))

    async def send(self, page: Page, action: str = "", /, **changes: str | Sequence[str]) -> Page:
        """Fill in and submit one of a page's forms, and return the page that follows."""
        return await self.fill(page.form(action), **changes)

    async def fill(self, form: Form, **changes: str | Sequence[str]) -> Page:
        """Fill in and submit a form, and return the page that follows."""
        return await self._post(form.action, {**form.fields, **changes})

    async def force(self, path: str, /, **fields: str | Sequence[str]) -> Page:
        """Submit a form that no page offers, with the session's token; return the next page."""
        return await self._post(path, {"form_token": self.form_token(), "once": "x" * 22, **fields})

    def form_token(self) -> str:
        """Return the CSRF token of the session."""
        return _SECRET.form_token(_SECRET.digest(self.client.cookies[SESSION_COOKIE]) or b"")

    async def _post(self, path: str, fields: dict[str, Any]) -> Page:
        return self._seen(await self.client.post(path, data=fields, follow_redirects=True))

    def _seen(self, answer: httpx2.Response) -> Page:
        page = Page(answer)
        self.pages.append(page)
        return page


class Dashboard:
    """The service at ``url``, with the tenants acme, owned by Olivia, and beta, owned by Berta."""

    def __init__(
        self,
        url: str,
        conninfo: str,
        companion: Companion,
        serve: Callable[[], AbstractAsyncContextManager[uvicorn.Server]],
        api: httpx2.AsyncClient,
        database: Database,
        connection: psycopg.AsyncConnection[TupleRow],
    ) -> None:
        self.url = url
        self.beside = companion.http_url
        """The address of the identity provider's pages and the inbox."""
        self.server: uvicorn.Server
        self._serve = serve
        self._served = AsyncExitStack()
        self.api = api
        """A client without a credential."""
        self.conninfo = conninfo
        self._issuer = companion.issuer
        self._tokens = companion.tokens
        self._database = database
        self._connection = connection
        self._refill = refilling(connection, self._add_tenants)
        self._sessions = SessionService(database, _SECRET, None, system_clock)
        self._claims: dict[DemoUser, tuple[Claims, str | None]] = {}
        self._browsers = AsyncExitStack()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run the service during the block, except while it is `away`."""
        async with self._served:
            self.server = await self._served.enter_async_context(self._serve())
            yield

    @asynccontextmanager
    async def reset(self) -> AsyncIterator[None]:
        """Reset the database to the tenants acme and beta; at the end, close all browsers.

        The service keeps its counters, rate limits and connections.
        """
        await self._refill()
        async with self._browsers:
            yield

    async def _add_tenants(self) -> None:
        for tenant_id, name, customer, owner in _TENANTS:
            wishes = {
                "name": name,
                "ownerEmail": owner.email,
                "ownerId": owner.sub,
                "stripeCustomerId": customer,
            }
            await self.operate("PUT", f"/tenants/{tenant_id}", wishes)

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Stop the service during the block, and start it again at the same address."""
        await self._served.aclose()
        yield
        self.server = await self._served.enter_async_context(self._serve())

    async def sign_in(
        self,
        user: DemoUser = OLIVIA,
        agent: str = _FIREFOX,
        *,
        authenticated: timedelta = timedelta(),
    ) -> Person:
        """Start a session of a user in a new browser, which has opened no page yet.

        The identity provider has ``authenticated`` them so long ago.
        """
        client = await self._browsers.enter_async_context(_client(self.url, {"User-Agent": agent}))
        claims, name = await self._claims_of(user)
        token = await self._sessions.begin(
            claims,
            name,
            address=LOOPBACK,
            agent=agent,
            before=None,
            authenticated_at=system_clock() - authenticated,
        )
        client.cookies.set(SESSION_COOKIE, token, LOOPBACK)
        return Person(client)

    async def _claims_of(self, user: DemoUser) -> tuple[Claims, str | None]:
        """Return the claims and the name that the service reads when a user signs in."""
        if user not in self._claims:
            async with _client(self.url) as client:
                answer = await client.get(self.start_of(user))
                for _ in range(2):  # of the identity provider, and back at the service
                    answer = await client.get(answer.headers["location"])
                digest = _SECRET.digest(client.cookies[SESSION_COOKIE])
            [(claims, name)] = await self.execute(
                "DELETE FROM dashboard_sessions WHERE digest = %s RETURNING claims, name", (digest,)
            )
            self._claims[user] = (msgspec.json.decode(claims, type=Claims), name)
        return self._claims[user]

    def start_of(self, user: DemoUser, return_to: str = "/") -> str:
        """Return the address that signs a user in without interaction."""
        return f"{self.url}/sign-in/start?hint={user.sub}&return_to={return_to}"

    async def deliver(self, event: dict[str, Any]) -> None:
        """Deliver a signed event of the payment provider."""
        answer = await signing.deliver(self.api, event, at=int(time.time()))
        assert (answer.status_code, answer.text) == (200, "OK")

    async def request(
        self, method: str, path: str, credential: str, json: object = None
    ) -> httpx2.Response:
        """Send a request to the API with this credential."""
        headers = {"Authorization": f"Bearer {credential}"}
        return await self.api.request(method, f"/api/v1{path}", json=json, headers=headers)

    def token(self, user: DemoUser) -> str:
        """Issue an access token for a user."""
        return self._tokens.access_token(user, scope="openid")

    async def call(
        self, method: str, path: str, json: object = None, user: DemoUser = OLIVIA
    ) -> JsonObject:
        """Call the API with a user's token; return the content."""
        return _content(await self.request(method, path, self.token(user), json))

    async def operate(self, method: str, path: str, json: object = None) -> JsonObject:
        """Call the API with the operator's token; return the content."""
        return _content(await self.request(method, path, OPERATOR_TOKEN, json))

    async def execute(
        self,
        statement: LiteralString | Composed,
        values: Sequence[object] | Mapping[str, object] = (),
    ) -> list[TupleRow]:
        """Run a statement as the owner of the tables; return its rows."""
        cursor = await self._connection.execute(statement, values)
        return await cursor.fetchall() if cursor.description else []

    async def add_member(self, user_id: str, role: str = "member", *, accepted: bool = True) -> str:
        """Invite a user to acme, who has ``accepted`` or not; return the path of their page."""
        made = await self.call("POST", "/members", {"userId": user_id, "role": role})
        if accepted:
            await self.accept_invitations()
        return f"{AT_ACME}/settings/members/{made['id']}"

    async def accept_invitations(self) -> None:
        """Accept all invitations."""
        await self.execute("UPDATE memberships SET invited = false")

    async def page_of(self, user_id: str) -> str:
        """Return the path of an active member's page at acme."""
        found: list[JsonObject] = (await self.call("GET", f"/members?userId={user_id}"))["data"]
        return f"{AT_ACME}/settings/members/{found[0]['id']}"

    async def join_many(self, user: DemoUser, number: int) -> None:
        """Make a user a member of more tenants: ``many-1`` with the name Many 00001, and so on."""
        await self.execute(
            "INSERT INTO tenants (id, name, owner_id, owner_email, plan, created_at, updated_at) "
            "SELECT 'many-' || n, 'Many ' || lpad(n::text, 5, '0'), 'x', 'x@x.example', 'free', "
            "now(), now() FROM generate_series(1, %s) AS n",
            (number,),
        )
        await self.execute(
            "INSERT INTO memberships (issuer, subject, tenant_id, role) "
            "SELECT %s, %s, id, 'member' FROM tenants WHERE id LIKE 'many-%%'",
            (self._issuer, user.sub),
        )

    async def use_key(self, key_id: str, secret: str) -> None:
        """Use a key, and record its use immediately."""
        assert (await self.request("GET", "/auth/whoami", secret)).status_code == 200
        pepper = Pepper(PEPPER.encode())
        uses = WriteBehind(self._database, "uses of keys", record_uses)
        uses.record(
            key_id,
            KeyUse(
                key_id, datetime.now(UTC), "192.0.2.7", pepper.digest(secret.encode()), pepper.id
            ),
        )
        await uses.write()

    async def forget_members(self) -> None:
        """Remove all members: users have only the roles of their tokens, and only a key can create
        an OWNER key.
        """
        await self.execute("DELETE FROM memberships")


def _content(answer: httpx2.Response) -> JsonObject:
    assert answer.is_success, answer.text
    content: JsonObject = answer.json() if answer.content else {}
    return content


def _client(url: str, headers: Mapping[str, str] | None = None) -> httpx2.AsyncClient:
    # Without `verify=False`, each client reads the certificates of all authorities, which takes 30
    # ms.
    return httpx2.AsyncClient(
        base_url=url, trust_env=False, verify=False, timeout=30, headers=headers
    )


@asynccontextmanager
async def started_dashboard(
    conninfo: str, folder: Path, timeouts: Timeouts = PATIENT, /, **values: str
) -> AsyncIterator[Dashboard]:
    """Run the service on this database with an identity provider in ``folder``; ``values`` are
    settings.

    Use it in blocks of `Dashboard.reset`.
    """
    async with AsyncExitStack() as stack:
        companion = stack.enter_context(
            Companion(
                folder,
                users=_USERS,
                audience=AUDIENCE,
                client_id=CLIENT_ID,
                client_secret=Secret(_CLIENT_SECRET),
            )
        )
        listeners = [stack.enter_context(socket.create_server((LOOPBACK, 0)))]
        url = url_of(listeners[0])
        settings = make_settings(
            BASE_URL=url,
            OIDC_ISSUER=companion.issuer,
            OIDC_AUDIENCE=AUDIENCE,
            OIDC_CLIENT_ID=CLIENT_ID,
            OIDC_CLIENT_SECRET=_CLIENT_SECRET,
            **{"OPERATORS": OLGA.sub, **values},
        )

        @asynccontextmanager
        async def serve() -> AsyncIterator[uvicorn.Server]:
            with (
                listeners.pop()
                if listeners
                else socket.create_server((LOOPBACK, urlsplit(url).port or 0)) as listener
            ):
                app = build_app(settings, conninfo, timeouts=timeouts)
                async with serving(app, listener, LoadSheddingProtocol, grace=5) as server:
                    yield server

        database = patient_database(conninfo, pool_size=1)
        await database.open()
        stack.push_async_callback(database.close)
        connection = await stack.enter_async_context(connected(conninfo))
        api = await stack.enter_async_context(_client(url))
        dashboard = Dashboard(url, conninfo, companion, serve, api, database, connection)
        await stack.enter_async_context(dashboard.serving())
        yield dashboard


@asynccontextmanager
async def dashboard_of_file(
    postgres: PostgresServer, folder: Path, catalog: str = "", /, **values: str
) -> AsyncIterator[Dashboard]:
    """Run the same on a new database, with the text of a plan catalog, for all tests of a file."""
    if catalog:
        values["TENANTRY_PLANS"] = catalog_file(catalog)
    with postgres.database() as conninfo:
        async with started_dashboard(conninfo, folder, **values) as dashboard:
            yield dashboard


@asynccontextmanager
async def running_dashboard(
    conninfo: str, folder: Path, timeouts: Timeouts = PATIENT, /, **values: str
) -> AsyncIterator[Dashboard]:
    """Run the same with its tenants, for one use."""
    async with (
        started_dashboard(conninfo, folder, timeouts, **values) as dashboard,
        dashboard.reset(),
    ):
        yield dashboard


@asynccontextmanager
async def running_with_provider(conninfo: str, folder: Path) -> AsyncIterator[Dashboard]:
    """Run the same with a payment provider's API."""
    async with (
        running_provider() as provider,
        running_dashboard(conninfo, folder, **settings_of(provider)) as dashboard,
    ):
        yield dashboard


def settings_of(provider: ProviderServer) -> dict[str, str]:
    """Return the settings for this payment provider's API."""
    return {"PROVIDER_SECRET_KEY": KEY, "PROVIDER_API_BASE": provider.url}
