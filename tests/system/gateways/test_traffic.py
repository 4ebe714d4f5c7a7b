"""What passes through a gateway beside plain requests: addresses, uploads, connections, other
protocols.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import psycopg
import pytest

from tests.support.gateways import (
    CLIENT,
    Gateway,
    ServiceBehindGateway,
    refused,
    running_gateway,
    service_behind_gateway,
)
from tests.support.service import Organization
from tests.support.serving import LOOPBACK


async def test_service_gets_the_clients_address_from_the_gateway_alone(
    gateway: Gateway, owner: str
) -> None:
    headers = [
        ("X-Forwarded-For", "203.0.113.9"),
        ("X-Forwarded-For", "203.0.113.10"),
        ("Forwarded", "for=1.2.3.4"),
    ]
    assert (await gateway.send("GET", "/projects", *headers, credential=owner)).status == 200
    [asked] = gateway.line.requests()
    assert asked.values("x-forwarded-for") == [CLIENT]
    assert asked.values("forwarded") == []
    assert gateway.application.only().values("x-forwarded-for") == [CLIENT]


async def test_clients_address_counts_where_the_gateway_is_trusted(
    running: Gateway, conninfo: str, tmp_path: Path
) -> None:
    (tmp_path / "gateway").mkdir()
    async with service_behind_gateway(conninfo, tmp_path) as behind:
        org = await behind.service.organization()
        async with running_gateway(running.name, tmp_path / "gateway", behind.port) as gateway:
            headers = [("X-Forwarded-For", "203.0.113.9")]
            assert (
                await gateway.send("GET", "/me", *headers, credential=org.owner.credential)
            ).status == 200
        assert await behind.command.end(signal.SIGTERM) == 0  # it writes what it knows of last uses
    with psycopg.connect(conninfo) as connection:
        row = connection.execute(
            "SELECT last_used_address FROM api_keys WHERE id = %s", [org.key.id]
        ).fetchone()
    assert row == (CLIENT,)


async def test_large_upload_passes_and_is_not_sent_to_the_service(
    gateway: Gateway, owner: str
) -> None:
    size = 30 << 20
    answer = await gateway.send("POST", "/projects", credential=owner, body=b"x" * size)
    assert (answer.status, gateway.application.only().body) == (200, size)
    [asked] = gateway.line.requests()
    assert asked.method == "GET"
    assert asked.values("content-length") in ([], ["0"])
    assert asked.values("transfer-encoding") == []


async def test_refused_upload_is_answered_before_its_body(gateway: Gateway, reader: str) -> None:
    answers, writer = await gateway.open(
        "POST", "/projects", ("Content-Length", "52428800"), credential=reader
    )
    assert (await answers.readuntil(b"\r\n")).startswith(b"HTTP/1.1 403 ")
    writer.close()


async def test_token_of_157_groups_passes(
    gateway: Gateway, behind: ServiceBehindGateway, org: Organization
) -> None:
    groups = [f"11111111-2222-4333-8444-{number:012}" for number in range(157)]
    token = behind.service.user(org=org.id, groups=groups).credential or ""
    assert 8192 < len(token) < 16_384
    assert (await gateway.send("GET", "/projects", credential=token)).status == 200
    assert gateway.application.only().values("x-tenant-id") == [org.id]


async def test_connection_to_the_service_is_kept(gateway: Gateway, owner: str) -> None:
    assert (await gateway.send("GET", "/projects", credential=owner)).status == 200
    before = gateway.line.connections
    for _ in range(20):
        assert (await gateway.send("GET", "/projects", credential=owner)).status == 200
    assert (len(gateway.line.requests()), gateway.line.connections) == (21, before)


async def test_websocket_passes_once_it_is_checked(
    running: Gateway,
    behind: ServiceBehindGateway,
    owner: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    handshake = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
    ]
    folder = tmp_path_factory.mktemp("websocket")
    async with (
        Agreeable().listening() as address,
        running_gateway(running.name, folder, behind.port, {"127.0.0.1:8000": address}) as gateway,
    ):
        refused(await gateway.send("GET", "/me", *handshake), 401, "missing_credential")
        reader, writer = await gateway.open("GET", "/me", *handshake, credential=owner)
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
    assert head.startswith(b"HTTP/1.1 101 ")


class Agreeable:
    """An application that agrees to any other protocol and says back what it hears; it notes what
    was asked for.
    """

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, str]]] = []
        """The ``Upgrade`` and ``Connection`` headers of each request; names and values in lower
        case.
        """

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Its address, during the block."""
        server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        async with server:
            yield f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        headers = [
            (name, value.strip())
            for name, _, value in (line.partition(":") for line in head.split("\r\n"))
        ]
        asked = [(name, value) for name, value in headers if name in ("upgrade", "connection")]
        self.asked.append(asked)
        protocol = dict(asked).get("upgrade")
        if protocol is None:
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        else:
            agreed = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
            writer.write(agreed.encode())
            while heard := await reader.read(1024):
                writer.write(heard)
        writer.close()


@asynccontextmanager
async def in_front_of_agreeable(
    name: str, behind: ServiceBehindGateway, folder: Path
) -> AsyncIterator[tuple[Gateway, Agreeable]]:
    """A gateway in front of an application that agrees to any other protocol."""
    application = Agreeable()
    async with (
        application.listening() as address,
        running_gateway(name, folder, behind.port, {"127.0.0.1:8000": address}) as gateway,
    ):
        yield gateway, application


@pytest.fixture(scope="module")
async def nginx_agreeing(
    behind: ServiceBehindGateway, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Gateway, Agreeable]]:
    async with in_front_of_agreeable("nginx", behind, tmp_path_factory.mktemp("agreeing")) as both:
        yield both


@pytest.fixture(scope="module")
async def caddy_agreeing(
    behind: ServiceBehindGateway, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Gateway, Agreeable]]:
    async with in_front_of_agreeable("caddy", behind, tmp_path_factory.mktemp("agreeing")) as both:
        yield both


@pytest.fixture(params=["nginx_agreeing", "caddy_agreeing"])
def agreeing(request: pytest.FixtureRequest) -> tuple[Gateway, Agreeable]:
    both: tuple[Gateway, Agreeable] = request.getfixturevalue(request.param)
    return both


OTHER_PROTOCOLS: Final = {
    "one": ["h2c"],
    "one before websocket": ["h2c", "websocket"],
    "one after websocket": ["websocket", "h2c"],
    "one on both sides": ["h2c", "websocket", "h2c"],
    "one before websocket in one header": ["h2c, websocket"],
    "one after websocket in one header": ["websocket, h2c"],
    "one in capitals before websocket": ["H2C", "WebSocket"],
    "websocket of another name": ["websocket/1"],
    "none, then one": ["", "h2c"],
}


@pytest.mark.parametrize("protocols", OTHER_PROTOCOLS.values(), ids=OTHER_PROTOCOLS)
@pytest.mark.parametrize("target", ["/me", "/status"])
async def test_other_protocols_do_not_pass(
    agreeing: tuple[Gateway, Agreeable], owner: str, target: str, protocols: list[str]
) -> None:
    gateway, application = agreeing
    headers = [
        ("Connection", "Upgrade, HTTP2-Settings"),
        *(("Upgrade", protocol) for protocol in protocols),
        ("HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA"),
    ]
    application.asked.clear()
    reader, writer = await gateway.open("GET", target, *headers, credential=owner)
    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
    writer.close()
    [asked] = application.asked
    asks_for = [value for name, value in asked if name == "upgrade"]
    assert asks_for in (([], ["websocket"]) if "websocket" in str(protocols).lower() else ([],))
    connection = [value for name, value in asked if name == "connection"]
    assert connection in ([["upgrade"]] if asks_for else [[], ["close"], ["keep-alive"]])
    assert answer.startswith(b"http/1.1 101 ") is bool(asks_for)
    assert b"h2c" not in answer
