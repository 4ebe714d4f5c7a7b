"""Reading a small document from the identity provider, within bounds."""

import contextlib
import ipaddress
from collections.abc import Mapping
from typing import Final

import httpx2

TOTAL_SECONDS: Final = 3.0
MAX_BODY_BYTES: Final = 256 * 1024


class FetchError(Exception):
    """The document could not be had; the message names no secret."""


def is_secure(url: str, *, allow_http: bool = False) -> bool:
    """Whether ``url`` is https, or http on loopback (anywhere, with ``allow_http``)."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        return False
    if not parsed.host:
        return False
    return parsed.scheme == "https" or (parsed.scheme == "http" and (allow_http or _is_loopback(parsed.host)))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def fetch(
    client: httpx2.AsyncClient, url: str, *, allow_http: bool, headers: Mapping[str, str] | None = None
) -> bytes:
    """GET ``url`` and return the body of its 200 answer: at most 256 KiB, not compressed, no redirects.

    The caller bounds the time. Raises `FetchError`, or what the client raises.
    """
    if not is_secure(url, allow_http=allow_http):
        raise FetchError("not an https address")
    # A request of its own carries none of the client's defaults: no cookie of one user goes along with another's.
    request = httpx2.Request(
        "GET", url, headers={"Accept": "application/json", "Accept-Encoding": "identity", **(headers or {})}
    )
    response = await client.send(request, stream=True, auth=None, follow_redirects=False)
    async with contextlib.aclosing(response):
        if response.status_code != httpx2.codes.OK:
            raise FetchError(f"answered {response.status_code}")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise FetchError("answered with a compressed body")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise FetchError(f"answered with more than {MAX_BODY_BYTES} bytes")
    return bytes(body)
