"""What tests of the SDK share: the service at an address, and both clients under one surface."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2

from tenantry_sdk import AsyncTenantry, Backoff, EventFollower, Page, Pager, Secret, Tenantry
from tests.support.app import client_of, make_app
from tests.support.issuer import running_issuer
from tests.support.patience import PATIENT
from tests.support.service import ManualClock, Organization, Service, identity_settings
from tests.support.serving import served

SDK: Final = Path(__file__).parents[2] / "sdk"
QUICK: Final = Backoff(first=0.002, longest=0.02, in_flight=0.02)


class Served(NamedTuple):
    """The service, which listens on loopback."""

    url: str
    service: Service


INVITING: Final = {
    "INVITATIONS": "true",
    "SMTP_URL": "smtp://127.0.0.1:9",
    "MAIL_FROM": "mail@acme.example",
}
"""Settings of a service that invites by mail; its mails stay queued."""


@asynccontextmanager
async def serving(
    conninfo: str, clock: ManualClock | None = None, **values: str
) -> AsyncIterator[Served]:
    """The service on this database at its own address; ``values`` are settings."""
    clock = clock or ManualClock()
    async with running_issuer() as issuer:
        app = make_app(conninfo, clock, PATIENT, **{**identity_settings(issuer), **values})
        async with served(app) as url, client_of(app) as client:
            async with httpx2.AsyncClient(verify=False, trust_env=False) as first:
                await first.get(f"{url}/healthz")  # is answered once the application has started
            yield Served(url, Service(client, clock, issuer, conninfo))


class Flavour(NamedTuple):
    """One of the two clients; `make` gives it with methods to be awaited, whichever it is."""

    name: str
    make: Callable[..., Any]

    @asynccontextmanager
    async def client(
        self, credential: str | Secret | None = None, **arguments: Any
    ) -> AsyncIterator[Any]:
        """A client that is closed after the block; it waits for milliseconds between attempts."""
        client = self.make(credential, backoff=QUICK, **arguments)
        yield client
        await client.aclose()

    def client_of(self, served: Served, organization: Organization, **arguments: Any) -> Any:
        """`client`, with the OWNER key of this organization."""
        return self.client(str(organization.owner.credential), base_url=served.url, **arguments)


@asynccontextmanager
async def answered_by(
    flavour: Flavour,
    answer: Callable[[httpx2.Request], httpx2.Response],
    credential: str | None = "key",
    **values: Any,
) -> AsyncIterator[Any]:
    """A client whose requests ``answer`` gets; ``http_headers`` are those of the program's own HTTP
    client.
    """
    headers = values.pop("http_headers", {})
    transport = httpx2.MockTransport(answer)
    kind = httpx2.AsyncClient if flavour is ASYNC else httpx2.Client
    http_client: httpx2.AsyncClient | httpx2.Client = kind(transport=transport, headers=headers)
    async with flavour.client(credential, http_client=http_client, **values) as client:
        yield client
    if isinstance(http_client, httpx2.AsyncClient):
        await http_client.aclose()
    else:
        await asyncio.to_thread(http_client.close)


class Threaded:
    """The synchronous client as if it were the other one: its methods run in threads."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, "close" if name == "aclose" else name)
        if not callable(value):
            return Threaded(value)
        if name == "list":
            return lambda **arguments: ThreadedPager(value(**arguments))
        if name == "follow":
            return lambda **arguments: ThreadedFollower(value(**arguments))
        if name in {"with_options", "tenant"}:
            return lambda *values, **arguments: Threaded(value(*values, **arguments))

        async def call(*positional: Any, **arguments: Any) -> Any:
            return await asyncio.to_thread(value, *positional, **arguments)

        return call


class ThreadedPager:
    """A `Pager` as if it were the other one."""

    def __init__(self, pager: Pager[Any]) -> None:
        self._pager = pager

    async def first_page(self) -> Any:
        return ThreadedPage(await asyncio.to_thread(self._pager.first_page))

    async def pages(self) -> AsyncIterator[Any]:
        async for page in _in_thread(self._pager.pages()):
            yield page

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in _in_thread(iter(self._pager)):
            yield item


class ThreadedPage:
    """A `Page` as if it were the other one."""

    def __init__(self, page: Page[Any]) -> None:
        self._page = page

    def __getattr__(self, name: str) -> Any:
        return getattr(self._page, name)

    async def next(self) -> Any:
        return ThreadedPage(await asyncio.to_thread(self._page.next))


class ThreadedFollower:
    """An `EventFollower` as if it were the other one."""

    def __init__(self, follower: EventFollower) -> None:
        self._follower = follower

    @property
    def cursor(self) -> str | None:
        return self._follower.cursor

    async def pages(self) -> AsyncIterator[Any]:
        async for page in _in_thread(self._follower.pages()):
            yield page

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for event in _in_thread(iter(self._follower)):
            yield event


async def _in_thread(items: Iterator[Any]) -> AsyncIterator[Any]:
    end = object()
    while (item := await asyncio.to_thread(next, items, end)) is not end:
        yield item


ASYNC: Final = Flavour("async", AsyncTenantry)
SYNC: Final = Flavour(
    "sync", lambda *positional, **arguments: Threaded(Tenantry(*positional, **arguments))
)
