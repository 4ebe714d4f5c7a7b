"""Servers for the tests of signing in: one that is both the identity provider and the service, and
a proxy.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from tenantry.server.asgi_types import Receive, Scope, Send
from tests.cli.command_support import Home
from tests.support.serving import served

DISCOVERY: Final = "/.well-known/openid-configuration"
CODE: Final = "/device_authorization"
TOKEN: Final = "/token"
REVOKE: Final = "/revoke"
WHOAMI: Final = "/api/v1/auth/whoami"
CLIENT: Final = "cli"
GOOD: Final = {
    "access_token": "access-1",
    "token_type": "Bearer",
    "expires_in": 3600,
    "refresh_token": "refresh-1",
}


class Reply(NamedTuple):
    """A response, sent once ``when`` is set."""

    status: int
    document: dict[str, Any]
    when: asyncio.Event | None = None


class ReceivedForm(NamedTuple):
    """A request: its path, and the form that came with it."""

    path: str
    form: dict[str, str]


class FakeProvider:
    """A fake identity provider and service: it has a list of responses for each path, and repeats
    the last one.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[ReceivedForm] = []
        self.described: dict[str, Any] = {}
        """Further fields of the discovery document."""
        self.on_request: dict[str, Callable[[], object]] = {}
        """Functions to call on a request, by path."""
        self.answers: dict[str, list[Reply]] = {
            CODE: [Reply(200, self.code(interval=0))],
            TOKEN: [Reply(200, GOOD)],
            REVOKE: [Reply(200, {})],
            WHOAMI: [Reply(401, {"code": "invalid_credential", "detail": "Not ours."})],
        }

    def code(self, **fields: float) -> dict[str, Any]:
        """Return the response of the device authorization endpoint."""
        uri = "https://login.example.com/device"
        return {
            "device_code": "d",
            "user_code": "ABCD-EFGH",
            "verification_uri": uri,
            "expires_in": 600,
            **fields,
        }

    def answer(self, path: str, *replies: Reply) -> None:
        """Set the responses of a path."""
        self.answers[path] = list(replies)

    def forms_at(self, path: str) -> list[dict[str, str]]:
        """Return the forms sent to a path."""
        return [asked.form for asked in self.asked if asked.path == path]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        self.asked.append(ReceivedForm(scope["path"], dict(parse_qsl(body.decode()))))
        self.on_request.get(scope["path"], lambda: None)()
        reply = self._reply(scope["path"])
        if reply.when is not None:
            await reply.when.wait()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(reply.document).encode()})

    def _reply(self, path: str) -> Reply:
        if path == DISCOVERY:
            endpoints = {
                "token_endpoint": self.url + TOKEN,
                "authorization_endpoint": f"{self.url}/authorize",
                "device_authorization_endpoint": self.url + CODE,
                "revocation_endpoint": self.url + REVOKE,
            }
            return Reply(200, {"issuer": self.url, **endpoints, **self.described})
        replies: Sequence[Reply] = self.answers.get(path, [Reply(404, {})])
        return self.answers[path].pop(0) if len(replies) > 1 else replies[0]

    def flags(self, service: str | None = None) -> list[str]:
        """Return the options of `tenantry login` for this provider, with itself or another as the
        service.
        """
        return ["--base-url", service or self.url, "--issuer", self.url, "--client-id", CLIENT]


@asynccontextmanager
async def fake_provider() -> AsyncIterator[FakeProvider]:
    """Start one on loopback."""
    server = FakeProvider()
    async with served(server) as url:
        server.url = url
        yield server


@asynccontextmanager
async def proxy() -> AsyncIterator[tuple[dict[str, str], set[str]]]:
    """Give the variables that name a proxy that forwards nothing, and the targets that it is asked
    for.
    """
    asked: set[str] = set()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.add((await reader.readline()).decode().rsplit(maxsplit=1)[0])
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield {"HTTP_PROXY": url, "HTTPS_PROXY": url}, asked


def signed_in(
    home: Home, service: str, issuer: str, *, ends_in: float, client: str = CLIENT
) -> None:
    """Store a sign-in, with a token that expires so many seconds from now."""
    folder = home.token_folder / "default"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    session = {"base_url": service, "issuer": issuer, "client_id": client}
    token = {
        "access_token": "access-0",
        "expires_at": time.time() + ends_in,
        "refresh_token": "refresh-0",
        "lifetime": 3600.0,
        "issuer": issuer,
        "client_id": client,
    }
    for name, content in (("session.json", session), ("token.json", token)):
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(json.dumps(content))


def stored_token(home: Home) -> dict[str, Any]:
    """Return the stored tokens of the default profile."""
    token: dict[str, Any] = json.loads((home.token_folder / "default" / "token.json").read_text())
    return token
