"""Gateways as people run them: nginx and Caddy with the configurations of ``examples/gateways``.

In front of them is a client that sends exactly what a test says, behind them an application that
notes what it gets, and between them and the service a line that notes what they ask, and can be
cut.
"""

import asyncio
import http.client
import io
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tenantry.server.asgi_types import Receive, Scope, Send
from tests.support import proxies
from tests.support.app import OPERATOR_TOKEN
from tests.support.catalogs import catalog_file
from tests.support.commands import Running
from tests.support.database_link import DatabaseLink, database_link
from tests.support.deployment import deployed
from tests.support.issuer import AUDIENCE, CLIENT_ID, running_issuer
from tests.support.link import Link
from tests.support.ports import free_port
from tests.support.postgres import as_url
from tests.support.proxies import NGINX_READY, example, start, start_nginx
from tests.support.required import debian_program
from tests.support.service import ManualClock, Service
from tests.support.serving import LOOPBACK, served

EXAMPLES: Final = proxies.EXAMPLES / "gateways"
CLIENT: Final = "127.0.0.2"
"""The address that test clients have: another than the gateway's own."""

EXTERNAL_ID: Final = "X-Key-External-Id"
"""Of keys with an external id alone."""
FEATURES: Final = "X-Features"
"""Of plan catalogs with features alone."""
IDENTITY: Final = (
    "X-Tenant-Id",
    "X-Principal-Id",
    "X-Principal-Kind",
    "X-Mode",
    "X-Plan",
    "X-Subscription-Status",
    "X-Access",
    "X-Effective-Plan",
    EXTERNAL_ID,
    FEATURES,
)
_HOST: Final = "api.example"
Headers = Sequence[tuple[str, str]]


class Answer(NamedTuple):
    """What a client got; header names in lower case."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """A header that is sent once, or not at all."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) < 2, f"{name} is there {len(values)} times: {values}"
        return values[0] if values else None


def refused(answer: Answer, status: int, code: str) -> Answer:
    """The answer, which must be this refusal, with a whole problem document."""
    assert answer.status == status, answer
    assert answer.header("content-type") == "application/problem+json"
    assert answer.header("x-from") is None
    problem = json.loads(answer.body)
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["type"] == f"urn:tenantry:problem:{code}"
    assert problem["title"]
    assert problem["detail"]
    assert problem["requestId"] == answer.header("x-request-id")
    return answer


class Request(NamedTuple):
    """A request as the application, or the service, received it; header names in lower case."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: int = 0
    """The body's length in bytes."""

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def identity(self) -> dict[str, list[str]]:
        """Every header that an application could take for one of `IDENTITY`, with all its values.

        CGI and its kin make an underscore of a hyphen, some of them of any other character too.
        """
        wanted = {name.lower() for name in IDENTITY}
        found: dict[str, list[str]] = {}
        for name, value in self.headers:
            if re.sub(r"[^a-z0-9]", "-", name) in wanted:
                found.setdefault(name, []).append(value)
        return found


class Application:
    """The application behind the gateway: an ASGI application that answers anything and notes it.

    ``?answer=500`` makes it answer with that status, ``?limits`` adds its own rate-limit headers.
    """

    def __init__(self) -> None:
        self.address = ""
        self.received: list[Request] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._lifespan(receive, send)
            return
        length, more = 0, True
        while more:
            message = await receive()
            length += len(message.get("body", b""))
            more = message.get("more_body", False)
        query = scope["query_string"].decode()
        target = scope["raw_path"].decode() + (f"?{query}" if query else "")
        self.received.append(Request(scope["method"], target, _texts(scope["headers"]), length))
        status = int(query.removeprefix("answer=")) if query.startswith("answer=") else 200
        headers = [(b"content-type", b"text/plain"), (b"x-from", b"application")]
        if query == "limits":
            headers += [(b"ratelimit", b'"own";r=1;t=9'), (b"ratelimit-policy", b'"own";q=1;w=9')]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"the application"})

    def only(self) -> Request:
        """The one request that it received."""
        [request] = self.received
        return request

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        for _ in range(2):
            message = await receive()
            await send({"type": f"{message['type']}.complete"})


class Line(Link):
    """Passes bytes on to the service, and tells what the gateway asked."""

    def __init__(self, port: int) -> None:
        super().__init__(lambda: asyncio.open_connection(LOOPBACK, port))

    @property
    def connections(self) -> int:
        """How many connections the gateway has made."""
        return len(self.asked)

    def requests(self) -> list[Request]:
        """The requests so far, of which none may have a body: what follows a head would be read as
        another one.
        """
        heads = [head for asked in self.asked for head in bytes(asked).split(b"\r\n\r\n") if head]
        return [_request(head.decode("latin-1")) for head in heads]

    def forget(self) -> None:
        """Begin anew, on the connections that there are."""
        for asked in self.asked:
            asked.clear()


class Gateway(NamedTuple):
    """A gateway that runs, what is behind it, and its way to the service."""

    name: str
    port: int
    application: Application
    line: Line

    async def send(
        self,
        method: str,
        target: str,
        *headers: tuple[str, str],
        credential: str | None = None,
        body: bytes = b"",
        trailing: bytes = b"",
    ) -> Answer:
        """Send these bytes and no others (no client library puts the target or the headers right).

        ``trailing`` is sent after the head without a ``Content-Length``.
        """
        sent = [*headers, ("Content-Length", str(len(body)))] if body else [*headers]
        reader, writer = await self.open(
            method, target, *sent, ("Connection", "close"), credential=credential
        )
        writer.write(body + trailing)
        await writer.drain()
        raw = await reader.read()
        writer.close()
        return _answer(method, raw)

    async def open(
        self, method: str, target: str, *headers: tuple[str, str], credential: str | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which the head of this request was sent."""
        sent = (
            [*headers]
            if credential is None
            else [*headers, ("Authorization", f"Bearer {credential}")]
        )
        reader, writer = await asyncio.open_connection(LOOPBACK, self.port, local_addr=(CLIENT, 0))
        writer.write(_head(method, target, sent))
        return reader, writer


@asynccontextmanager
async def running_gateway(
    name: str, folder: Path, service_port: int, changes: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Gateway]:
    """``nginx`` or ``caddy`` with its example, in which nothing but the addresses is changed, and
    these parts.

    It is required (`tests.support.required`).
    """
    program = debian_program(name)
    application, line = Application(), Line(service_port)
    await line.restore()
    try:
        async with served(application) as application.address:
            port = free_port()
            addresses = {
                "127.0.0.1:3001": f"{LOOPBACK}:{line.port}",
                "127.0.0.1:8000": application.address.removeprefix("http://"),
                ":8080": f":{port}",
            }
            start = _start_nginx if name == "nginx" else _start_caddy
            command, ready = await start(
                program,
                folder,
                {**changes, **{k: v for k, v in addresses.items() if k not in changes}},
            )
            try:
                await command.until(ready, "err")
                yield Gateway(name, port, application, line)
            finally:
                command.kill()
                await command.wait()
    finally:
        line.unblock()
        await line.cut()


async def _start_nginx(program: str, folder: Path, changes: dict[str, str]) -> tuple[Running, str]:
    return await start_nginx(program, folder, example("gateways/nginx.conf", changes)), NGINX_READY


async def _start_caddy(program: str, folder: Path, changes: dict[str, str]) -> tuple[Running, str]:
    (folder / "Caddyfile").write_text(example("gateways/Caddyfile", changes))
    arguments = ("run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile")
    return await start(program, *arguments, folder=folder), "serving initial configuration"


def _head(method: str, target: str, headers: Headers) -> bytes:
    lines = [
        f"{method} {target} HTTP/1.1",
        f"Host: {_HOST}",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _request(head: str) -> Request:
    first, *rest = head.split("\r\n")
    method, target, _ = first.split(" ")
    pairs = [line.partition(":") for line in rest]
    return Request(method, target, [(name.lower(), value.strip()) for name, _, value in pairs])


def _answer(method: str, raw: bytes) -> Answer:
    class Received:
        def makefile(self, *_: Any) -> io.BytesIO:
            return io.BytesIO(raw)

    response = http.client.HTTPResponse(Received(), method=method)  # type: ignore[arg-type]
    response.begin()
    headers = [(name.lower(), value) for name, value in response.getheaders()]
    return Answer(response.status, headers, response.read())


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]


CATALOG: Final = """\
[[features]]
id = "exports"
type = "boolean"

[[features]]
id = "sso"
type = "boolean"

[[plans]]
id = "free"
[plans.features]
exports = true

[[plans]]
id = "tight"
[plans.limits]
requests_per_minute = 3
"""


class ServiceBehindGateway(NamedTuple):
    """The service behind the gateways, as a separate process, with its users and its database."""

    command: Running
    port: int
    service: Service
    database: DatabaseLink
    conninfo: str


@asynccontextmanager
async def service_behind_gateway(
    conninfo: str, folder: Path, **more: str
) -> AsyncIterator[ServiceBehindGateway]:
    """The service for gateways on loopback, with an identity provider, on this database; ``more``
    are settings.
    """
    async with database_link(conninfo) as link, running_issuer() as issuer:
        values = {
            "OIDC_ISSUER": issuer.url,
            "OIDC_AUDIENCE": AUDIENCE,
            "OIDC_CLIENT_ID": CLIENT_ID,
            "OPERATOR_TOKEN": OPERATOR_TOKEN,
            "TENANTRY_PLANS": catalog_file(CATALOG),
            "TRUSTED_PROXIES": LOOPBACK,
            "WORKERS": "1",
            **more,
        }
        async with (
            deployed(as_url(link.conninfo), folder, **values) as deployment,
            deployment.client() as client,
        ):
            del client.headers["Authorization"]
            service = Service(client, ManualClock(datetime.now(UTC)), issuer, conninfo)
            yield ServiceBehindGateway(
                deployment.command,
                int(deployment.base_url.rpartition(":")[2]),
                service,
                link,
                conninfo,
            )
