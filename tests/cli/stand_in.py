"""A server of the outside world that answers as a test chooses: an identity provider, a service, or a proxy."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from tenantry.server.asgi_types import Receive, Scope, Send
from tests.cli.support import Home
from tests.support.serving import served

DISCOVERY: Final = "/.well-known/openid-configuration"
CODE: Final = "/device_authorization"
TOKEN: Final = "/token"
REVOKE: Final = "/revoke"
WHOAMI: Final = "/api/v1/auth/whoami"
CLIENT: Final = "cli"
GOOD: Final = {"access_token": "access-1", "token_type": "Bearer", "expires_in": 3600, "refresh_token": "refresh-1"}


class Reply(NamedTuple):
    """An answer, which is given once ``when`` is set."""

    status: int
    document: dict[str, Any]
    when: asyncio.Event | None = None


class Asked(NamedTuple):
    """A request: its path, and the form that came with it."""

    path: str
    form: dict[str, str]


class StandIn:
    """Has a list of answers for each path, of which the last is given again and again."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self.described: dict[str, Any] = {}
        """What it says of itself as an identity provider, beside where its endpoints are."""
        self.on_request: dict[str, Callable[[], object]] = {}
        """What happens when somebody asks there."""
        self.answers: dict[str, list[Reply]] = {
            CODE: [Reply(200, self.code(interval=0))],
            TOKEN: [Reply(200, GOOD)],
            REVOKE: [Reply(200, {})],
            WHOAMI: [Reply(401, {"code": "invalid_credential", "detail": "Not ours."})],
        }

    def code(self, **fields: float) -> dict[str, Any]:
        """What the device authorization endpoint answers."""
        uri = "https://login.example.com/device"
        return {"device_code": "d", "user_code": "ABCD-EFGH", "verification_uri": uri, "expires_in": 600, **fields}

    def answer(self, path: str, *replies: Reply) -> None:
        """Give these there."""
        self.answers[path] = list(replies)

    def asked_for(self, path: str) -> list[dict[str, str]]:
        """The forms that came there."""
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
        self.asked.append(Asked(scope["path"], dict(parse_qsl(body.decode()))))
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
        """The options of `tenantry login` that mean this identity provider, and itself or this one as the service."""
        return ["--base-url", service or self.url, "--issuer", self.url, "--client-id", CLIENT]


@asynccontextmanager
async def stand_in() -> AsyncIterator[StandIn]:
    """One that listens on loopback."""
    server = StandIn()
    async with served(server) as url:
        server.url = url
        yield server


@asynccontextmanager
async def proxy() -> AsyncIterator[tuple[dict[str, str], set[str]]]:
    """The variables that name a proxy, which passes nothing on; and what it is asked for, a line each."""
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


def signed_in(home: Home, service: str, issuer: str, *, ends_in: float, client: str = CLIENT) -> None:
    """Let somebody have signed in there, with a token that ends so many seconds from now."""
    folder = home.kept / "default"
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


def kept(home: Home) -> dict[str, Any]:
    """The tokens that are kept for the default profile."""
    token: dict[str, Any] = json.loads((home.kept / "default" / "token.json").read_text())
    return token
