"""An identity provider in this process: keys of every kind, tokens with any content, a real HTTP
server on loopback.
"""

import asyncio
import base64
import contextlib
import functools
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from joserfc import jws
from joserfc.jwk import JWKRegistry, Key

NOW: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
"""The moment at which the tokens of `Issuer.mint` are issued."""

AUDIENCE: Final = "tenantry-api"
CLIENT_ID: Final = "dashboard"
DISCOVERY: Final = "/.well-known/openid-configuration"
JWKS: Final = "/jwks"
USERINFO: Final = "/userinfo"


class SigningKey(NamedTuple):
    """A private key, the algorithm it signs with, and the id under which it is published."""

    alg: str
    kid: str
    given: Key | None = None
    """The key itself; otherwise it is generated at its first use."""

    @property
    def private(self) -> Key:
        return self.given or _generated(self.alg, self.kid)

    def jwk(self) -> dict[str, Any]:
        """The public half, as a member of a JSON Web Key Set."""
        return {
            **self.private.as_dict(private=False),
            "kid": self.kid,
            "alg": self.alg,
            "use": "sig",
        }

    def sign(self, header: bytes, payload: bytes) -> str:
        """The JWS of exactly these bytes, whatever they are."""
        signed = f"{segment(header)}.{segment(payload)}"
        return f"{signed}.{segment(self.signature(signed.encode()))}"

    def signature(self, signed: bytes) -> bytes:
        return jws.JWSRegistry.algorithms[self.alg].sign(signed, self.private)


def signing_key(alg: str, kid: str) -> SigningKey:
    """A key of this kind and id."""
    return SigningKey(alg, kid)


@functools.cache
def _generated(alg: str, kid: str) -> Key:
    """A key of this kind and id; the same one for each call, for RSA keys take long to generate."""
    kinds: dict[str, tuple[str, str | int]] = {
        "ES256": ("EC", "P-256"),
        "ES384": ("EC", "P-384"),
        "ES512": ("EC", "P-521"),
        "EdDSA": ("OKP", "Ed25519"),
        "Ed25519": ("OKP", "Ed25519"),
    }
    return JWKRegistry.generate_key(*kinds.get(alg, ("RSA", 2048)))


def segment(raw: bytes) -> str:
    """Base64url without padding (RFC 7515 section 2)."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str] = {}
    ends: bool = True
    """Whether the body is all; else it is sent again and again until the client hangs up."""


class Issuer:
    """Serves discovery, keys and userinfo; `answers` may be changed at any time.

    `fetches` counts requests by path, `connections` every client.
    """

    def __init__(self, *keys: SigningKey, host: str = "127.0.0.1") -> None:
        self._host = host
        self.keys = list(keys)
        self.url = ""
        self.answers: dict[str, Answer] = {}
        self.fetches: Counter[str] = Counter()
        self.connections = 0
        self.authorization: str | None = None
        self.hangs_up = False
        """Whether connections are closed as soon as they are made."""
        self.open = asyncio.Event()
        """While it is not set, requests are taken but not answered."""
        self.open.set()
        self._arrival = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._port = 0

    async def start(self) -> None:
        """Listen; after `stop`, on the same port again."""
        self._server = await asyncio.start_server(self._serve, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://{self._host}:{self._port}"

    async def stop(self) -> None:
        """Be away: connections are refused."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def until_fetched(self, path: str, times: int) -> None:
        """Wait for the request number ``times`` for ``path``."""
        async with self._arrival:
            await self._arrival.wait_for(lambda: self.fetches[path] >= times)

    def mint(
        self,
        key: SigningKey | None = None,
        *,
        header: Mapping[str, Any] | None = None,
        claims: Mapping[str, Any] | None = None,
        without: tuple[str, ...] = (),
    ) -> str:
        """A good access token of this issuer, but for what is asked otherwise."""
        key = key or self.keys[0]
        head = {"alg": key.alg, "kid": key.kid, "typ": "at+jwt", **(header or {})}
        issued = int(NOW.timestamp())
        body = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "user_1",
            "iat": issued,
            "exp": issued + 3600,
            **(claims or {}),
        }
        for name in without:
            head.pop(name, None)
            body.pop(name, None)
        return key.sign(json.dumps(head).encode(), json.dumps(body).encode())

    def document(self, path: str) -> Answer:
        """What is answered under ``path`` where `answers` has nothing else."""
        documents: dict[str, object] = {
            DISCOVERY: {
                "issuer": self.url,
                "jwks_uri": self.url + JWKS,
                "userinfo_endpoint": self.url + USERINFO,
            },
            JWKS: {"keys": [key.jwk() for key in self.keys]},
        }
        if path not in documents:
            return Answer(404, b"")
        return Answer(200, json.dumps(documents[path]).encode())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.hangs_up:
            writer.close()
            return
        # The client may hang up at any time, which is its right.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            request, *lines = head.splitlines()
            path = request.split(" ")[1]
            fields = dict(
                line.lower().split(": ", 1)[:1] + line.split(": ", 1)[1:] for line in lines if line
            )
            self.authorization = fields.get("authorization")
            async with self._arrival:
                self.fetches[path] += 1
                self._arrival.notify_all()
            await self.open.wait()
            answer = self.answers.get(path) or self.document(path)
            length = {"Content-Length": str(len(answer.body))} if answer.ends else {}
            headers = {**length, "Connection": "close", **answer.headers}
            top = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
            writer.write(f"HTTP/1.1 {answer.status} -\r\n{top}\r\n".encode() + answer.body)
            await writer.drain()
            while not answer.ends:
                writer.write(answer.body)
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def running_issuer(*keys: SigningKey, host: str = "127.0.0.1") -> AsyncIterator[Issuer]:
    """An issuer that listens, with one RS256 key unless others are given."""
    issuer = Issuer(*(keys or (SigningKey("RS256", "rsa-1"),)), host=host)
    await issuer.start()
    try:
        yield issuer
    finally:
        issuer.open.set()
        await issuer.stop()
