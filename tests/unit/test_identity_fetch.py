"""Which addresses of an identity provider may be asked, and what is read of its answers."""

import asyncio

import httpx2
import pytest

from tenantry.integrations.http_client import fetch, is_secure, new_http_client
from tests.support.cases import cases


@cases(
    "url",
    [
        "https://issuer.example",
        "http://127.0.0.1:9000/jwks",
        "http://127.8.0.1",
        "http://[::1]:80/",
        "http://localhost",
    ],
)
def test_https_and_loopback_are_secure(url: str) -> None:
    assert is_secure(url)


@cases(
    "url",
    [
        "http://issuer.example",
        "http://10.0.0.1",
        "http://127.0.0.1.issuer.example",
        "http://localhost.issuer.example",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "https://",
        "https:///jwks",
        "/jwks",
        "",
        "https://[::1",
        "https://exam\x00ple",
    ],
)
def test_all_else_is_not(url: str) -> None:
    assert not is_secure(url)


def test_plain_http_can_be_allowed() -> None:
    assert is_secure("http://issuer.internal", allow_http=True)


async def test_heads_before_an_answer_are_limited() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 9)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with (
        await asyncio.start_server(answer, "127.0.0.1", 0) as server,
        new_http_client() as client,
    ):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(httpx2.RemoteProtocolError, match="more than 8 heads"):
            await fetch(client, url, allow_http=False)
