"""The whole service with callers: an operator, tenants with an OWNER key each, users with
tokens.
"""

import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import httpx2

from tenantry.common.clock import Timeouts
from tests.support.app import OPERATOR_TOKEN, running_app
from tests.support.issuer import AUDIENCE, CLIENT_ID, NOW, Issuer, running_issuer
from tests.support.patience import PATIENT

KEYS: Final = "/api/v1/api-keys"
PROJECTS: Final = "/api/v1/projects"
TENANTS: Final = "/api/v1/tenants"
WHOAMI: Final = "/api/v1/auth/whoami"
VERIFY: Final = "/api/v1/auth/verify/"

JsonObject = dict[str, Any]


class ManualClock:
    """A clock that advances by a microsecond at each reading, so that no two objects have the same
    time.
    """

    def __init__(self, now: datetime = NOW) -> None:
        self.now = now

    def __call__(self) -> datetime:
        self.now += timedelta(microseconds=1)
        return self.now

    def advance(self, **parts: float) -> None:
        """Let time pass; ``parts`` are those of a `timedelta`."""
        self.now += timedelta(**parts)


class Caller:
    """A client that sends all requests with the same credential and headers."""

    def __init__(self, client: httpx2.AsyncClient, credential: str | None, **headers: str) -> None:
        self._client = client
        self.credential = credential
        self._headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if credential is not None:
            self._headers["Authorization"] = f"Bearer {credential}"

    async def call(
        self,
        method: str,
        path: str,
        json: object = None,
        headers: Mapping[str, str | bytes] | None = None,
        **more: Any,
    ) -> httpx2.Response:
        merged = [
            (name.encode(), text if isinstance(text, bytes) else text.encode())
            for name, text in {**self._headers, **(headers or {})}.items()
        ]
        return await self._client.request(method, path, json=json, headers=merged, **more)

    async def get(self, path: str, **params: str | int) -> httpx2.Response:
        return await self.call("GET", path, params=params or None)

    async def post(
        self, path: str, json: object = None, idempotency_key: str | None = None
    ) -> httpx2.Response:
        return await self.call(
            "POST",
            path,
            json,
            headers={"Idempotency-Key": idempotency_key} if idempotency_key else None,
        )

    async def put(self, path: str, json: object = None) -> httpx2.Response:
        return await self.call("PUT", path, json)

    async def patch(self, path: str, json: object = None) -> httpx2.Response:
        return await self.call("PATCH", path, json)

    async def delete(self, path: str) -> httpx2.Response:
        return await self.call("DELETE", path)


class Key(NamedTuple):
    """A key that was made: its record without the secret, and who holds it."""

    record: JsonObject
    caller: Caller

    @property
    def id(self) -> str:
        return str(self.record["id"])

    @property
    def path(self) -> str:
        return f"{KEYS}/{self.id}"


class Organization(NamedTuple):
    """A tenant with its first OWNER key, in live mode."""

    id: str
    key: Key

    @property
    def owner(self) -> Caller:
        return self.key.caller

    @property
    def path(self) -> str:
        return f"{TENANTS}/{self.id}"


class Service:
    """The running service."""

    def __init__(
        self, client: httpx2.AsyncClient, clock: ManualClock, issuer: Issuer, conninfo: str
    ) -> None:
        self.client = client
        self.clock = clock
        self.issuer = issuer
        self.conninfo = conninfo
        self.operator = self.caller(OPERATOR_TOKEN)
        self.anonymous = self.caller(None)
        self._numbers = itertools.count(1000)  # of one length, so that ids sort by age

    def caller(self, credential: str | None, **headers: str) -> Caller:
        return Caller(self.client, credential, **headers)

    def user(
        self,
        sub: str = "user_1",
        *,
        org: str | None = None,
        role: str | None = None,
        asks_for: str | None = None,
        **claims: object,
    ) -> Caller:
        """A user with a fresh token that claims this; ``asks_for`` is sent as
        ``X-Organization-Id``.
        """
        issued = int(self.clock.now.timestamp())
        said: JsonObject = {"sub": sub, "iat": issued, "exp": issued + 3600, **claims}
        if org is not None:
            said["org_id"] = org
        if role is not None:
            said["org_role"] = role
        headers = {} if asks_for is None else {"X_Organization_Id": asks_for}
        return self.caller(self.issuer.mint(claims=said), **headers)

    async def organization(self, **fields: object) -> Organization:
        """A new tenant."""
        org = f"org-{next(self._numbers)}"
        answer = await self.operator.put(
            f"{TENANTS}/{org}", {"name": org, "ownerEmail": "owner@x.example", **fields}
        )
        assert answer.status_code == 201, answer.text
        key = await self.key(self.user("first", org=org, role="owner"), org, accessLevel="OWNER")
        return Organization(org, key)

    async def key(self, maker: Caller, org: str, *scopes: str, **fields: object) -> Key:
        """A new key."""
        answer = await maker.post(KEYS, {"orgId": org, "name": "key", "scopes": scopes, **fields})
        assert answer.status_code == 201, answer.text
        record = answer.json()
        return Key(record, self.caller(record.pop("secret")))


SHORT_TIMEOUTS: Final = Timeouts(
    request=2.4,
    batch=2.2,
    batch_start=1.0,
    rate_limits=1.0,
    connect=1.5,
    statement=2.0,
    identity_provider=1.5,
    token_endpoint=2.0,
)
"""For a service whose database or identity provider does not answer: half of the defaults, time
enough for a busy machine to answer before and after.
"""


@asynccontextmanager
async def running_service(
    conninfo: str, timeouts: Timeouts = PATIENT, /, **values: str
) -> AsyncIterator[Service]:
    """The service on this database, its clock, and an identity provider; ``values`` are
    settings.
    """
    clock = ManualClock()
    async with (
        running_issuer() as issuer,
        running_app(
            conninfo, timeouts, clock=clock, **{**identity_settings(issuer), **values}
        ) as client,
    ):
        yield Service(client, clock, issuer, conninfo)


def identity_settings(issuer: Issuer) -> dict[str, str]:
    """The settings of a service that trusts this identity provider."""
    return {"OIDC_ISSUER": issuer.url, "OIDC_AUDIENCE": AUDIENCE, "OIDC_CLIENT_ID": CLIENT_ID}


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    """The status and code of an error answer, which must be a problem document."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["type"] == f"urn:tenantry:problem:{problem['code']}"
    assert problem["requestId"] == answer.headers["x-request-id"]
    assert problem["title"]
    assert problem["detail"]
    return answer.status_code, problem["code"]
