"""Messages to the endpoints of webhooks: what is sent, and to which addresses nothing is sent."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar

import pytest
from cryptography import x509

from tenantry import __version__
from tenantry.domain.webhooks import WebhookEndpoint, signed_headers
from tenantry.integrations.webhook_client import (
    MAX_RESOLVED,
    Address,
    DeliveryResult,
    WebhookClient,
    parse_retry_after,
    resolve,
)
from tests.support.required import skip_or_fail
from tests.support.smtp import self_signed
from tests.support.webhook_endpoint import (
    MOST_REPEATED,
    WebhookServer,
    answer,
    endpoint_at,
    running_webhook_server,
)

NOW = datetime(2026, 11, 2, 9, 45, 10, tzinfo=UTC)
BODY = b'{"type":"tenant.created"}'
PUBLIC = ip_address("93.184.215.14")
LOOPBACK = ip_address("127.0.0.1")
NOT_PUBLIC = "the address is not public, and allow_private is not set"
SHORT = 0.2
"""Seconds, where an attempt has to reach its limit."""


@pytest.fixture
async def server() -> AsyncIterator[WebhookServer]:
    async with running_webhook_server() as server:
        yield server


def url_of(server: WebhookServer, host: str = "127.0.0.1") -> str:
    return f"http://{host}:{server.port}/hooks?team=7"


async def send(endpoint: WebhookEndpoint, client: WebhookClient | None = None) -> DeliveryResult:
    return await (client or WebhookClient()).send(endpoint, "evt_1", BODY, NOW)


async def test_message_is_sent_with_its_signature(server: WebhookServer) -> None:
    endpoint = endpoint_at(url_of(server))
    assert (await send(endpoint)).is_success
    [received] = server.received
    assert (received.line, received.body) == ("POST /hooks?team=7 HTTP/1.1", BODY)
    assert received.headers == {
        "host": f"127.0.0.1:{server.port}",
        "content-type": "application/json",
        "content-length": str(len(BODY)),
        "user-agent": f"tenantry/{__version__}",
        **signed_headers(endpoint, "evt_1", NOW, BODY),
    }


@pytest.mark.parametrize(
    ("path", "target"),
    [("", "/"), ("?a=1", "/?a=1"), ("/a;b=1/c;d=2?e;f", "/a;b=1/c;d=2?e;f"), ("//a//", "//a//")],
)
async def test_message_is_sent_to_the_whole_path(
    server: WebhookServer, path: str, target: str
) -> None:
    assert (await send(endpoint_at(f"http://127.0.0.1:{server.port}{path}"))).is_success
    assert server.received[0].line == f"POST {target} HTTP/1.1"


# Addresses

SPELLINGS_OF_LOOPBACK = [
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "127.8.9.10",
    "2130706433",
    "0x7f000001",
    "0x7F.1",
    "0177.0.0.1",
    "017700000001",
    "127.0.0.1.",
    "0.0.0.0",
    "0",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
]


@pytest.mark.parametrize("host", SPELLINGS_OF_LOOPBACK)
async def test_no_spelling_of_an_address_reaches_this_machine(host: str) -> None:
    async with running_webhook_server("0.0.0.0") as server:
        refused = endpoint_at(url_of(server, host), allow_private=False)
        assert (await send(refused)).error in {NOT_PUBLIC, "the host name cannot be resolved"}
        assert server.connections == 0


@pytest.mark.parametrize(
    "host", ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0", "localhost"]
)
async def test_spellings_reach_this_machine_where_that_is_allowed(host: str) -> None:
    async with running_webhook_server("0.0.0.0") as server:
        assert (await send(endpoint_at(url_of(server, host)))).is_success
        assert server.connections == 1


@pytest.mark.parametrize("host", ["[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::0001]"])
async def test_no_spelling_of_an_ipv6_address_reaches_this_machine(host: str) -> None:
    if not socket.has_ipv6:
        skip_or_fail("this machine has no IPv6")
    async with running_webhook_server("::1") as server:
        refused = endpoint_at(url_of(server, host), allow_private=False)
        assert (await send(refused)).error == NOT_PUBLIC
        assert server.connections == 0
        assert (await send(endpoint_at(url_of(server, host)))).is_success


class Answers:
    """A resolver that gives other addresses at each question."""

    def __init__(self, *answers: Sequence[Address]) -> None:
        self.answers = list(answers)

    async def __call__(self, _host: str, _port: int) -> Sequence[Address]:
        return self.answers.pop(0)


async def test_name_is_resolved_once(server: WebhookServer) -> None:
    """A second answer would lead to this machine."""
    resolve = Answers([LOOPBACK], [PUBLIC])
    client = WebhookClient(resolve=resolve)
    assert (await send(endpoint_at(url_of(server, "rebinding.example")), client)).is_success
    assert resolve.answers == [[PUBLIC]]
    assert server.received[0].headers["host"] == f"rebinding.example:{server.port}"


async def test_second_answer_of_a_resolver_leads_nowhere(server: WebhookServer) -> None:
    documentation = ip_address("2001:db8::1")
    client = WebhookClient(resolve=Answers([LOOPBACK], [documentation], [LOOPBACK]))
    endpoint = endpoint_at(url_of(server, "rebinding.example"), allow_private=False)
    assert [(await send(endpoint, client)).error for _ in range(3)] == [NOT_PUBLIC] * 3
    assert server.connections == 0


@pytest.mark.parametrize("addresses", [[LOOPBACK, PUBLIC], [PUBLIC, LOOPBACK]])
async def test_one_forbidden_address_of_a_name_refuses_it(
    server: WebhookServer, addresses: list[Address]
) -> None:
    client = WebhookClient(resolve=Answers(addresses))
    endpoint = endpoint_at(url_of(server, "mixed.example"), allow_private=False)
    assert (await send(endpoint, client)).error == NOT_PUBLIC
    assert server.connections == 0


async def test_the_next_address_of_a_name_is_tried(server: WebhookServer) -> None:
    silent = [ip_address("127.0.0.2"), ip_address("127.0.0.3")]
    client = WebhookClient(resolve=Answers([*silent, LOOPBACK]))
    assert (await send(endpoint_at(url_of(server, "several.example")), client)).is_success


@pytest.mark.thorough
async def test_an_address_of_each_family_is_tried(server: WebhookServer) -> None:
    unreachable = [ip_address(f"2001:db8::{number}") for number in range(1, 9)]
    client = WebhookClient(resolve=Answers([*unreachable, LOOPBACK]))
    assert (await send(endpoint_at(url_of(server, "both.example")), client)).is_success


async def test_name_that_does_not_exist() -> None:
    async def fail(host: str, port: int) -> Sequence[Address]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    endpoint = endpoint_at("https://gone.example/")
    result = await send(endpoint, WebhookClient(resolve=fail))
    assert result == DeliveryResult(error="the host name cannot be resolved")
    result = await send(endpoint, WebhookClient(resolve=Answers([])))
    assert result == DeliveryResult(error="the host name cannot be resolved")


async def test_few_of_many_addresses_are_looked_at() -> None:
    many = [(socket.AF_INET, 0, 0, "", (f"127.0.{n >> 8}.{n & 255}", 0)) for n in range(4000)]
    assert len(await resolve("many.example", 443, lambda *_, **__: many)) == MAX_RESOLVED


@pytest.mark.asyncio(loop_scope="function")  # whose threads no other test has
async def test_lookup_without_an_answer_delays_no_other() -> None:
    answered = threading.Event()

    def wait(*_: object, **__: object) -> list[tuple[object, ...]]:
        answered.wait()
        return []

    client = WebhookClient(timeout=SHORT, resolve=partial(resolve, getaddrinfo=wait))
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    try:
        result = await send(endpoint_at("https://slow.example/"), client)
        assert result.error == "no response within 0.2 s"
        async with asyncio.timeout(10):
            await asyncio.to_thread(int)
    finally:
        answered.set()


async def test_label_that_is_too_long_cannot_be_resolved() -> None:
    result = await send(endpoint_at(f"http://{'a' * 64}.example/"))
    assert result.error == "the host name cannot be resolved"


async def test_proxy_of_the_environment_is_not_used(
    server: WebhookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_webhook_server() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert (await send(endpoint_at(url_of(server)))).is_success
        assert (server.connections, proxy.connections) == (1, 0)


# TLS


@pytest.fixture
async def tls_server(tmp_path: Path) -> AsyncIterator[WebhookServer]:
    certificate = self_signed(tmp_path, x509.DNSName("hooks.example"))
    async with running_webhook_server(certificate=certificate) as server:
        yield server


@pytest.fixture
def trusted(tmp_path: Path, tls_server: WebhookServer) -> ssl.SSLContext:
    """What trusts the server's certificate."""
    context = ssl.create_default_context(cafile=tmp_path / "mail.pem")
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # it is no authority
    return context


@pytest.fixture
def trusting(trusted: ssl.SSLContext) -> WebhookClient:
    """A client that trusts the server's certificate, and finds every name on this machine."""

    async def resolve(host: str, port: int) -> Sequence[Address]:
        return [LOOPBACK]

    return WebhookClient(resolve=resolve, trusted=trusted)


async def test_certificate_is_checked_for_the_name(
    tls_server: WebhookServer, trusting: WebhookClient
) -> None:
    url = f"https://hooks.example:{tls_server.port}/"
    assert (await send(endpoint_at(url), trusting)).is_success
    assert tls_server.received[0].headers["host"] == f"hooks.example:{tls_server.port}"


@pytest.mark.parametrize("host", ["other.example", "127.0.0.1"])
async def test_certificate_of_another_name_is_rejected(
    tls_server: WebhookServer, trusting: WebhookClient, host: str
) -> None:
    result = await send(endpoint_at(f"https://{host}:{tls_server.port}/"), trusting)
    assert result.error == "no TLS, or the certificate is not trusted for this host name"
    assert tls_server.received == []


async def test_certificate_of_an_unknown_authority_is_rejected(tls_server: WebhookServer) -> None:
    client = WebhookClient(resolve=Answers([LOOPBACK]))
    result = await send(endpoint_at(f"https://hooks.example:{tls_server.port}/"), client)
    assert result.error == "no TLS, or the certificate is not trusted for this host name"
    assert tls_server.received == []


class RecordingTls(ssl.SSLObject):
    """TLS that records which threads do handshakes."""

    threads: ClassVar[set[int]] = set()

    def do_handshake(self) -> None:
        self.threads.add(threading.get_ident())
        super().do_handshake()


async def test_handshake_does_not_hold_the_event_loop(
    tls_server: WebhookServer, trusting: WebhookClient, trusted: ssl.SSLContext
) -> None:
    trusted.sslobject_class = RecordingTls
    url = f"https://hooks.example:{tls_server.port}/"
    assert (await send(endpoint_at(url), trusting)).is_success
    assert RecordingTls.threads
    assert threading.get_ident() not in RecordingTls.threads


# Responses


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_a_failure_and_is_not_followed(
    server: WebhookServer, status: int
) -> None:
    async with running_webhook_server() as elsewhere:
        server.response = answer(status, f"Location: {url_of(elsewhere)}")
        result = await send(endpoint_at(url_of(server)))
        assert (result.status, result.is_success) == (status, False)
        assert (server.connections, elsewhere.connections) == (1, 0)


@pytest.mark.parametrize(
    ("status", "is_success"),
    [(200, True), (201, True), (204, True), (400, False), (410, False), (500, False)],
)
async def test_status_decides(server: WebhookServer, status: int, is_success: bool) -> None:
    server.response = answer(status)
    result = await send(endpoint_at(url_of(server)))
    assert (result.status, result.is_success, result.error) == (status, is_success, None)


async def test_receiver_may_say_when_to_try_again(server: WebhookServer) -> None:
    server.response = answer(503, "Retry-After: 120")
    assert (await send(endpoint_at(url_of(server)))).retry_after == timedelta(minutes=2)


async def test_cookies_are_not_kept(server: WebhookServer) -> None:
    server.response = answer(200, "Set-Cookie: a=b")
    client = WebhookClient()
    for _ in range(2):
        assert (await send(endpoint_at(url_of(server)), client)).is_success
    assert "cookie" not in server.received[1].headers


async def test_response_that_does_not_come(server: WebhookServer) -> None:
    server.hold.clear()
    result = await send(endpoint_at(url_of(server)), WebhookClient(timeout=SHORT))
    assert result == DeliveryResult(error="no response within 0.2 s")


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"x" * 8000 + b"\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 200),
    ],
)
async def test_response_whose_head_does_not_end(
    server: WebhookServer, begin: bytes, more: bytes
) -> None:
    server.response = begin
    server.repeats = more
    result = await send(endpoint_at(url_of(server)), WebhookClient(timeout=3600))
    assert result == DeliveryResult(error="the response exceeds a limit")
    assert server.repeated < MOST_REPEATED


async def test_response_whose_body_does_not_end(server: WebhookServer) -> None:
    server.response = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n"
    server.repeats = b"x" * 4096
    assert (await send(endpoint_at(url_of(server)), WebhookClient(timeout=3600))).is_success
    assert server.repeated < MOST_REPEATED


async def test_response_whose_body_does_not_come(server: WebhookServer) -> None:
    server.response = b"HTTP/1.1 202 Accepted\r\nContent-Length: 10\r\n\r\n"
    server.repeats = b""
    result = await send(endpoint_at(url_of(server)), WebhookClient(timeout=3600))
    assert result == DeliveryResult(202)


@pytest.mark.parametrize("response", [b"", b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"HTTP/1.1 2xx\r\n\r\n"])
async def test_malformed_response(server: WebhookServer, response: bytes) -> None:
    server.response = response
    result = await send(endpoint_at(url_of(server)))
    assert (
        result.error == "the connection was closed without a response, or the response is malformed"
    )


async def test_receiver_that_is_down(server: WebhookServer) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        result = await send(endpoint_at(f"http://127.0.0.1:{unused.getsockname()[1]}/"))
    assert result == DeliveryResult(error="no connection")


async def test_receiver_that_resets_the_connection() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    async with await asyncio.start_server(reset, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        result = await send(endpoint_at(f"http://127.0.0.1:{port}/"))
    assert result == DeliveryResult(error="the connection was lost")


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("0", timedelta()),
        ("120", timedelta(minutes=2)),
        ("Mon, 02 Nov 2026 09:46:10 GMT", timedelta(minutes=1)),
        ("Mon, 02 Nov 2026 09:46:10", timedelta(minutes=1)),
        ("Mon, 02 Nov 2026 09:40:00 GMT", timedelta()),
        ("Mon, 02 Nov 2026 09:46:10 -2500", None),
        ("Mon, 02 Nov 2026 09:46:10 +99999999999999", None),
        ("Mon, 02 Nov 99999999999999999999 09:46:10 GMT", None),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("9999999999", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, wait: timedelta | None) -> None:
    assert parse_retry_after(value, NOW) == wait
