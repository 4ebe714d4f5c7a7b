"""A browser that signs in to the dashboard at an identity provider with scripted answers."""

import base64
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
import psycopg
from psycopg.rows import TupleRow

from tenantry.common.clock import Timeouts
from tenantry.domain.issuers import DIRECTORY
from tenantry.server.asgi_types import AsgiApp
from tests.support.app import BASE_URL, OPERATOR_TOKEN, client_of, lifespan, make_app
from tests.support.emptying import connected, refilling
from tests.support.issuer import (
    AUDIENCE,
    CLIENT_ID,
    DISCOVERY,
    JWKS,
    NOW,
    Answer,
    Issuer,
    running_issuer,
    signing_key,
)
from tests.support.patience import PATIENT

KEY: Final = signing_key("RS256", "one")
TOKEN: Final = "/token"
CALLBACK: Final = "/sign-in/callback"
USER: Final = "user_olivia"
HOME: Final = "/orgs/acme/"
_FORM_TOKEN: Final = re.compile(r'name="form_token" value="([^"]+)"')


class Clock:
    """A clock that advances only on request."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


class Browser:
    """A browser with its cookies, the service, and the identity provider."""

    def __init__(
        self,
        make: Callable[..., AsgiApp],
        issuer: Issuer,
        clock: Clock,
        conninfo: str,
        connection: psycopg.AsyncConnection[TupleRow],
        directory: str = "",
    ) -> None:
        self.directory = directory
        """The directory that the provider's tokens are of; empty for a provider without
        directories.
        """
        self._make = make
        self.app = app = make()
        self.client = client_of(app)
        self.issuer = issuer
        self.clock = clock
        self.conninfo = conninfo
        self.asked: dict[str, str] = {}
        self._refill = refilling(connection, self._add_tenants)

    @asynccontextmanager
    async def reset(self) -> AsyncIterator[None]:
        """Start without cookies, with the tenants acme, owned by `USER`, and other in an empty
        database.

        The provider answers again as at the start. The clock advances by a day, so that nothing
        issued before is valid.
        """
        self.clock.now += timedelta(days=1)
        self.asked = {}
        self.issuer.answers.clear()
        self.issuer.fetches.clear()
        if self.directory:
            describe_directories(self.issuer)
        else:
            describe(self.issuer)
        async with client_of(self.app) as self.client:
            await self._refill()
            yield

    async def _add_tenants(self) -> None:
        for tenant, owner in (("acme", USER), ("other", "other-owner")):
            answer = await self.client.put(
                f"/api/v1/tenants/{tenant}",
                json={"name": tenant.title(), "ownerEmail": "o@x.example", "ownerId": owner},
                headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"},
            )
            assert answer.is_success, answer.text

    @asynccontextmanager
    async def at_another_process(self, **changes: str) -> AsyncIterator[httpx2.AsyncClient]:
        """Run another instance of the service on the same database, with ``changes`` of settings;
        the client begins with this browser's cookies.
        """
        app = self._make(**changes)
        async with lifespan(app), client_of(app) as client:
            client.cookies.update(self.client.cookies)
            yield client

    async def start(self, return_to: str = HOME, **query: str) -> httpx2.Response:
        """Start a sign-in, and keep the parameters of the authorization request."""
        answer = await self.client.get("/sign-in/start", params={"return_to": return_to, **query})
        parts = urlsplit(answer.headers["location"])
        self.asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return answer

    def give(self, *, access: Mapping[str, Any] | None = None, **claims: Any) -> None:
        """Let the provider issue tokens for the last started sign-in, with these claims in the ID
        token.
        """
        access_token = self.issuer.mint(
            claims={
                "sub": USER,
                "org_id": "acme",
                "org_role": "owner",
                **self.origin(),
                **self.times(),
                **(access or {}),
            }
        )
        said = {
            "sub": USER,
            "aud": CLIENT_ID,
            "nonce": self.asked["nonce"],
            "at_hash": at_hash(access_token),
            **claims,
        }
        id_token = self.issuer.mint(
            header={"typ": "JWT"}, claims={**self.origin(), **self.times(), **said}
        )
        self.answer(
            {
                "access_token": access_token,
                "id_token": id_token,
                "token_type": "Bearer",
                "expires_in": 300,
            }
        )

    def times(self) -> dict[str, int]:
        now = int(self.clock.now.timestamp())
        return {"iat": now, "exp": now + 300}

    def origin(self) -> dict[str, str]:
        """Return the claims that name the directory, if there are directories."""
        return (
            {"iss": issuer_of(self.issuer, self.directory), "tid": self.directory}
            if self.directory
            else {}
        )

    def answer(self, tokens: object, status: int = 200) -> None:
        """Set the answers of the token endpoint."""
        body = tokens if isinstance(tokens, bytes) else msgspec.json.encode(tokens)
        self.issuer.answers[TOKEN] = Answer(status, body, {"content-type": "application/json"})

    async def open_callback(self, **changes: str) -> httpx2.Response:
        """Open the callback as the provider's redirect does."""
        query = {
            "code": "a-code",
            "state": self.asked["state"],
            "iss": self.origin().get("iss", self.issuer.url),
            **changes,
        }
        return await self.client.get(
            CALLBACK, params={name: value for name, value in query.items() if value}
        )

    async def sign_in(self, return_to: str = HOME, **claims: Any) -> httpx2.Response:
        """Run the whole sign-in."""
        await self.start(return_to)
        self.give(**claims)
        return await self.open_callback()

    async def form_token(self, path: str = HOME) -> str:
        found = _FORM_TOKEN.search((await self.client.get(path)).text)
        assert found
        return found[1]

    @property
    def cookie(self) -> str | None:
        return self.client.cookies.get("tenantry_session")


def at_hash(access_token: str) -> str:
    half = hashlib.sha256(access_token.encode()).digest()[:16]
    return base64.urlsafe_b64encode(half).rstrip(b"=").decode()


def describe(issuer: Issuer, /, **changes: Any) -> None:
    """Set the provider's discovery document."""
    metadata = {
        "issuer": issuer.url,
        "jwks_uri": issuer.url + JWKS,
        "authorization_endpoint": f"{issuer.url}/authorize?tenant=x",
        "token_endpoint": issuer.url + TOKEN,
        "end_session_endpoint": f"{issuer.url}/logout",
        **changes,
    }
    issuer.answers[DISCOVERY] = Answer(
        200, msgspec.json.encode(metadata), {"content-type": "application/json"}
    )


def issuer_of(issuer: Issuer, directory: str) -> str:
    """Return the name of a directory's issuer."""
    return f"{issuer.url}/{directory}/v2.0"


def describe_directories(issuer: Issuer) -> None:
    """Set the discovery document of a provider with an issuer for each directory."""
    describe(issuer, issuer=issuer_of(issuer, DIRECTORY))
    issuer.answers["/organizations/v2.0" + DISCOVERY] = issuer.answers.pop(DISCOVERY)


@asynccontextmanager
async def at_provider(
    conninfo: str,
    timeouts: Timeouts = PATIENT,
    /,
    base_url: str = BASE_URL,
    directories: Sequence[str] = (),
    **changes: str,
) -> AsyncIterator[Browser]:
    """A browser, and the service on this database with a separate provider; ``changes`` are
    settings.

    With ``directories`` the provider has an issuer for each, and users sign in at the first.
    """
    async with running_issuer(KEY) as issuer, connected(conninfo) as connection:
        describe(issuer)
        if directories:
            describe_directories(issuer)
            changes |= {
                "OIDC_ISSUER": issuer_of(issuer, DIRECTORY),
                "OIDC_DIRECTORIES": ",".join(directories),
            }
        clock = Clock()
        values = {
            "BASE_URL": base_url,
            "OIDC_ISSUER": issuer.url,
            "OIDC_AUDIENCE": AUDIENCE,
            "OIDC_CLIENT_ID": CLIENT_ID,
            **changes,
        }
        make = partial(make_app, conninfo, clock, timeouts, **values)
        browser = Browser(
            make, issuer, clock, conninfo, connection, directories[0] if directories else ""
        )
        async with lifespan(browser.app), browser.client:
            yield browser
