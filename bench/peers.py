"""Measure how long hostile answers of peers hold the event loop: ``python -m bench.peers [CASE]``.

Each peer is a server on loopback. What the service does with its peer runs on a loop beside a
callback that is always ready. A pause is the processor time of the loop's thread between two turns
of the callback, so that other programs do not count. Needs ``openssl``.
"""

import asyncio
import gzip
import logging
import socket
import socketserver
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from functools import partial
from itertools import repeat
from pathlib import Path
from time import thread_time
from typing import Final, NamedTuple
from unittest.mock import patch

from tenantry.common.secret import Secret
from tenantry.domain.issuers import Issuers
from tenantry.domain.outbound_events import TypeFilter
from tenantry.domain.webhooks import WebhookEndpoint
from tenantry.integrations.http_client import fetch, new_http_client, ssl_context
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.keys import fetch_published_keys
from tenantry.integrations.smtp import Mailer, parse_smtp_url
from tenantry.integrations.stripe.client import ProviderApi
from tenantry.integrations.webhook_client import WebhookClient

_SECONDS: Final = 6.0
"""How long a case runs at most."""
_IDLE: Final = 0.0001
"""Seconds; a shorter turn had nothing to do."""
_AT_ONCE: Final = 4
_NOW: Final = datetime(2026, 11, 29, tzinfo=UTC)
_OK: Final = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
_CHUNKED: Final = _OK + b"Transfer-Encoding: chunked\r\n\r\n"
_KB: Final = 1024
_ORDINARY: Final = "an ordinary answer"

Answer = Sequence[bytes]
"""The parts of an answer; the last one is repeated until the peer has closed the connection."""


def with_length(body: bytes, *headers: bytes) -> Answer:
    """Write an answer with a body."""
    head = b"".join(header + b"\r\n" for header in headers)
    return [_OK + head + b"Content-Length: %d\r\n\r\n" % len(body) + body, b""]


HTTP: Final[dict[str, Answer]] = {
    _ORDINARY: with_length(b"{}"),
    "endless 100 Continue": [b"HTTP/1.1 100 Continue\r\n\r\n" * 2000],
    "endless 103 with a Link": [
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n" * 999
    ],
    "120 KB in chunks of one byte": [_CHUNKED + b"1\r\nx\r\n" * 120 * _KB + b"0\r\n\r\n", b""],
    "a chunk with an endless extension": [_CHUNKED + b"1;", b"x" * 64 * _KB],
    "a byte a chunk, with 16 KB of extension": [_CHUNKED, b"1;" + b"x" * 16 * _KB + b"\r\ny\r\n"],
    "an endless trailer": [_CHUNKED + b"0\r\n", b"a: b\r\n" * 9999],
    "a header line of 64 KB": [
        _OK + b"a: " + b"x" * 64 * _KB + b"\r\nContent-Length: 0\r\n\r\n",
        b"",
    ],
    "10,000 headers": [_OK + b"a: b\r\n" * 10_000 + b"Content-Length: 0\r\n\r\n", b""],
    "16 KB of spaces in a header": [_OK + b"a:" + b" " * 16_000 + b"\0\r\n\r\n", b""],
    "16 KB of spaces in a chunk's extension": [
        _CHUNKED + b"1;" + b" " * 16_000 + b"\n\r\nx\r\n0\r\n\r\n",
        b"",
    ],
    "15 KB of a date": with_length(
        b"{}", b"Date: " + b"1 " * 7_500, b"Retry-After: " + b"1 " * 500
    ),
    "an endless head": [_OK, b"a: " + b"x" * 4 * _KB + b"\r\n"],
    "an endless body": [_OK + b"Content-Length: 99999999999\r\n\r\n", b"x" * 64 * _KB],
    "a body of one byte a packet": [_OK + b"Content-Length: 9999\r\n\r\n", *[b"x"] * 9999, b""],
    "1 GB in 1 MB of gzip": with_length(
        gzip.compress(bytes(1024 * _KB)) * 1024, b"Content-Encoding: gzip"
    ),
    "JSON of 250 KB, deeply nested": with_length(b"[" * 250 * _KB),
    "JSON of 250 KB, one number": with_length(b"1" * 250 * _KB),
}
SMTP: Final[dict[str, Answer]] = {
    "an endless greeting": [b"220-x\r\n" * 2000],
    "an endless greeting, a line a packet": [b"220-x\r\n"],
    "an endless line": [b"x" * 64 * _KB],
    "a greeting of one byte a packet": [b"220-x" * 1, *[b"x"] * 9999],
    "bytes without end after the greeting": [b"220 x\r\n", b"x" * 64 * _KB],
    "32 KB of extensions": [b"220 x\r\n", b"250-a\r\n" * 4500 + b"250 b\r\n", b""],
}


class Case(NamedTuple):
    """What a peer answers, and what the service does meanwhile, ``at_once`` as often."""

    peer: str
    answer: str
    parts: Answer
    ask: Callable[[int], Awaitable[object]]
    at_once: int = 1
    greets: bool = False
    tls: ssl.SSLContext | None = None


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, case: Case) -> None:
        self.case = case
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        case = server.case
        with suppress(OSError):
            if case.tls is not None:
                self.request = case.tls.wrap_socket(self.request, server_side=True)
                self.rfile = self.request.makefile("rb")
            first = b"" if case.greets else self._read_request()
            parts = case.parts
            if b"openid-configuration" in first:
                issuer = b"http://127.0.0.1:%d" % server.server_address[1]
                parts = with_length(b'{"issuer":"%b","jwks_uri":"%b/keys"}' % (issuer, issuer))
            for part in parts[:-1]:
                self.request.sendall(part)
            while parts[-1]:
                self.request.sendall(parts[-1])
            self.request.recv(_KB)

    def _read_request(self) -> bytes:
        first = self.rfile.readline()
        length = 0
        while line := self.rfile.readline().strip():
            name, _, value = line.lower().partition(b":")
            if name == b"content-length":
                length = int(value)
        self.rfile.read(length)
        return first


@contextmanager
def serving(case: Case) -> Iterator[int]:
    """Run the peer of a case; yield its port."""
    with _Server(case) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()


class Measured(NamedTuple):
    """The longest pause in milliseconds, the processor time in which the loop was not idle, and the
    outcome.
    """

    pause: float
    busy: float
    outcome: str


class _Probe:
    """Is called in each turn of the loop."""

    def __init__(self) -> None:
        self.longest = self.busy = 0.0
        self._last = thread_time()
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._note()
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def _note(self) -> None:
        took = thread_time() - self._last
        self.longest = max(self.longest, took)
        if took > _IDLE:
            self.busy += took
        self._last = thread_time()

    def end(self) -> None:
        self._handle.cancel()
        self._note()


async def measure(ask: Callable[[], Awaitable[object]], at_once: int) -> Measured:
    """Do this beside a callback that is always ready."""
    probe = _Probe()
    asking = asyncio.gather(*(ask() for _ in range(at_once)), return_exceptions=True)
    done, _ = await asyncio.wait([asking], timeout=_SECONDS)
    probe.end()
    if done:
        result = asking.result()[0]
        outcome = f"{type(result).__name__}: {result}" if isinstance(result, Exception) else result
    else:
        asking.cancel()
        await asyncio.wait([asking])
        outcome = f"not over after {_SECONDS:g} s"
    return Measured(probe.longest * 1000, probe.busy * 1000, str(outcome)[:90])


# What the service does with its peers, which listen on a port of this machine


async def send_webhook(port: int) -> object:
    return await _send_webhook(f"http://127.0.0.1:{port}/", WebhookClient(timeout=5.0))


async def send_webhook_in_tls(port: int) -> object:
    trusting = WebhookClient(timeout=5.0, trusted=_trusting())
    return await _send_webhook(f"https://127.0.0.1:{port}/", trusting)


def _trusting() -> ssl.SSLContext:
    """Trust every certificate, which a hostile peer could have bought."""
    context = ssl_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def send_webhook_to_many_addresses(port: int) -> object:
    with _many_addresses():
        return await _send_webhook(f"http://many.example:{port}/", WebhookClient(timeout=5.0))


async def fetch_document_of_many_addresses(port: int) -> object:
    with _many_addresses():
        async with new_http_client() as client, asyncio.timeout(5.0):
            return await fetch(client, f"http://many.example:{port}/", allow_http=True)


@contextmanager
def _many_addresses() -> Iterator[None]:
    """Resolve each name to as many addresses as an answer of DNS can have."""
    listed = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.{n >> 8}.{n & 255}.1", 0))
        for n in range(4090)
    ]
    with patch("socket.getaddrinfo", lambda *_, **__: listed):
        yield


async def _send_webhook(url: str, client: WebhookClient) -> object:
    secret = Secret("whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    endpoint = WebhookEndpoint("app", url, TypeFilter(("tenant.*",)), (secret,), allow_private=True)
    result = await client.send(endpoint, "evt_1", b"{}", _NOW)
    return result.error or result.status


async def fetch_document(port: int) -> object:
    """As discovery, userinfo and the token endpoint are fetched."""
    async with new_http_client() as client, asyncio.timeout(5.0):
        return f"{len(await fetch(client, f'http://127.0.0.1:{port}/', allow_http=True))} bytes"


async def fetch_keys(port: int) -> object:
    config = OidcConfig(Issuers(f"http://127.0.0.1:{port}"), ("api",))
    async with new_http_client() as client, asyncio.timeout(5.0):
        published = await fetch_published_keys(config, client)
    return f"{len(published.usable)} usable keys, {len(published.ignored)} ignored"


async def read_subscriptions(port: int) -> object:
    return await _ask_provider(port, lambda api: api.subscriptions_of("cus_1"))


async def read_account(port: int) -> object:
    return await _ask_provider(port, lambda api: api.customer_account("cus_1"))


async def _ask_provider(port: int, ask: Callable[[ProviderApi], Awaitable[object]]) -> object:
    api = ProviderApi(Secret("sk_test_" + "x" * 24), f"http://127.0.0.1:{port}", timeout=5.0)
    try:
        return await ask(api)
    finally:
        await api.aclose()


async def send_mail(port: int) -> object:
    await Mailer(parse_smtp_url(f"smtp://127.0.0.1:{port}", "a@example.com")).send(_mail())
    return "sent"


async def send_mail_in_tls(port: int) -> object:
    await Mailer(parse_smtp_url(f"smtps://127.0.0.1:{port}", "a@example.com")).send(_mail())
    return "sent"


def _mail() -> EmailMessage:
    message = EmailMessage()
    message["From"] = message["To"] = "a@example.com"
    message.set_content("Hello")
    return message


# Cases


def _list_of(item: bytes, size: int, member: bytes) -> Answer:
    items = b",".join(repeat(item, size // (len(item) + 1)))
    return with_length(b'{"has_more":false,"%b":[%b]}' % (member, items))


def _cases() -> Iterator[Case]:
    for peer, ask, at_once in (
        ("webhook receiver", send_webhook, _AT_ONCE),
        ("identity provider", fetch_document, 1),
        ("payment provider", read_subscriptions, 1),
    ):
        for name, parts in HTTP.items():
            yield Case(peer, name, parts, ask, at_once)
    for name, entry in _ENTRIES.items():
        keys = _list_of(entry, 250 * _KB, b"keys")
        yield Case("identity provider", f"250 KB of keys: {name}", keys, fetch_keys)
    for name, item in _OBJECTS.items():
        page = _list_of(item, 1000 * _KB, b"data")
        yield Case("payment provider", f"1 MB of objects: {name}", page, read_account)
    tls = _unusual_key_exchange()
    yield Case(
        "webhook receiver",
        "TLS 1.2, DHE of 8,192 bits",
        HTTP[_ORDINARY],
        send_webhook_in_tls,
        1,
        tls=tls,
    )
    yield Case(
        "mail server",
        "TLS 1.2, DHE of 8,192 bits",
        [b"220 x\r\n", b""],
        send_mail_in_tls,
        1,
        greets=True,
        tls=tls,
    )
    yield Case(
        "DNS", "4,090 addresses of a receiver", HTTP[_ORDINARY], send_webhook_to_many_addresses
    )
    yield Case(
        "DNS", "4,090 addresses of a provider", HTTP[_ORDINARY], fetch_document_of_many_addresses
    )
    for name, parts in SMTP.items():
        yield Case("mail server", name, parts, send_mail, 1, greets=True)


_ENTRIES: Final = {
    "{}": b"{}",
    "RSA": b'{"kty":"RSA","e":"AQAB","n":"%b"}' % (b"x" * 342),
    "one of 200 KB": b'{"kty":"RSA","e":"AQAB","n":"%b"}' % (b"_" * 200 * _KB),
}
_OBJECTS: Final = {
    "{}": b"{}",
    "subscriptions": b'{"id":"","status":"","items":{"data":[]}}',
}


def _unusual_key_exchange() -> ssl.SSLContext:
    """Return a server's TLS whose key exchange costs most."""
    with tempfile.TemporaryDirectory() as folder:
        pem, dh = Path(folder, "peer.pem"), Path(folder, "dh.pem")
        run = partial(subprocess.run, check=True, capture_output=True)
        new = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=peer -keyout {0} -out {0}.crt"
        run(new.format(pem).split())
        run(f"openssl genpkey -genparam -algorithm DH -pkeyopt group:ffdhe8192 -out {dh}".split())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{pem}.crt", pem)
        context.load_dh_params(str(dh))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("DHE+AES")
        return context


async def _main(wanted: str) -> None:
    logging.disable()
    ssl_context()  # takes 20 ms, once a process
    print(f"{'peer':18} {'answer':42} {'pause':>10} {'busy':>10}  outcome")
    for case in _cases():
        if wanted in f"{case.peer} {case.answer}":
            with serving(case) as port:
                found = await measure(partial(case.ask, port), case.at_once)
            numbers = f"{found.pause:7.1f} ms {found.busy:7.0f} ms"
            print(f"{case.peer:18} {case.answer:42} {numbers}  {found.outcome}", flush=True)


if __name__ == "__main__":
    asyncio.run(_main(" ".join(sys.argv[1:])))
