"""An identity provider's token endpoint that hands out each refresh token once, and counts."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qsl

from tenantry.server.asgi_types import Receive, Scope, Send
from tests.support.serving import served

CLIENT_ID: Final = "cli"
CLIENT_SECRET: Final = "secret of the client: 100%"
DISCOVERY: Final = "/.well-known/openid-configuration"


class TokenEndpoint:
    """Hands out what ``mint`` gives; of refresh tokens only the newest is taken."""

    def __init__(self, mint: Callable[[], str]) -> None:
        self.url = ""
        self.grants: list[dict[str, str]] = []
        """The forms that came in, with ``basic`` for the header's pair."""
        self.expires_in: int | None = 3600
        self.refresh_token = "refresh-0"
        self.open = asyncio.Event()
        """While it is not set, requests are taken but not answered."""
        self.open.set()
        self._mint = mint
        self._asked = asyncio.Event()

    async def until_asked(self) -> None:
        """Wait for a request."""
        await self._asked.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        self._asked.set()
        await self.open.wait()
        status, document = await self._answer(scope, receive)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(document).encode()})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, dict[str, Any]]:
        if scope["path"] == DISCOVERY:
            return 200, {"issuer": self.url, "token_endpoint": f"{self.url}/token"}
        form = dict(parse_qsl((await receive())["body"].decode()))
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        if authorization:
            form["basic"] = base64.b64decode(authorization.removeprefix(b"Basic ")).decode()
        self.grants.append(form)
        if form["grant_type"] == "refresh_token" and form["refresh_token"] != self.refresh_token:
            return 400, {
                "error": "invalid_grant",
                "error_description": "The refresh token was used before.",
            }
        self.refresh_token = f"refresh-{len(self.grants)}"
        answer: dict[str, Any] = {"access_token": self._mint(), "token_type": "Bearer"}
        if form["grant_type"] == "refresh_token":
            answer["refresh_token"] = self.refresh_token
        if self.expires_in is not None:
            answer["expires_in"] = self.expires_in
        return 200, answer


@asynccontextmanager
async def token_endpoint(mint: Callable[[], str]) -> AsyncIterator[TokenEndpoint]:
    """One that listens on loopback."""
    endpoint = TokenEndpoint(mint)
    async with served(endpoint) as url:
        endpoint.url = url
        yield endpoint
