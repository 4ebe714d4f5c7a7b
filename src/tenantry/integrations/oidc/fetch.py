"""Reading a small document from the identity provider, within bounds."""

import contextlib
import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import httpx2

MAX_BODY_BYTES: Final = 256 * 1024
_PLAIN: Final = {"Accept": "application/json", "Accept-Encoding": "identity"}


class FetchError(Exception):
    """The document could not be had; the message names no secret."""


def is_secure(url: str, *, allow_http: bool = False) -> bool:
    """Whether ``url`` is https, or http on loopback (anywhere, with ``allow_http``), in ASCII as headers hold it."""
    if not url.isascii() or not url.isprintable():
        return False
    try:
        parsed = httpx2.URL(url)
        urlsplit(url)  # which others here read it with, and which refuses more
    except (httpx2.InvalidURL, ValueError):
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
    status, body = await _ask(client, "GET", url, headers or {}, allow_http=allow_http)
    if status != httpx2.codes.OK:
        raise FetchError(f"answered {status}")
    return body


async def post_form(
    client: httpx2.AsyncClient, url: str, form: str, *, allow_http: bool, headers: Mapping[str, str]
) -> tuple[int, bytes]:
    """POST an encoded form; returns the status and the body of the answer, whatever it is, within the same bounds.

    The caller bounds the time. Raises `FetchError`, or what the client raises.
    """
    headers = {"Content-Type": "application/x-www-form-urlencoded", **headers}
    return await _ask(client, "POST", url, headers, form, allow_http=allow_http)


async def _ask(
    client: httpx2.AsyncClient,
    method: str,
    url: str,
    headers: Mapping[str, str],
    content: str | None = None,
    *,
    allow_http: bool,
) -> tuple[int, bytes]:
    if not is_secure(url, allow_http=allow_http):
        raise FetchError("not an https address")
    # A request of its own carries none of the client's defaults: no cookie of one user goes along with another's.
    request = httpx2.Request(method, url, headers={**_PLAIN, **headers}, content=content)
    response = await client.send(request, stream=True, auth=None, follow_redirects=False)
    async with contextlib.aclosing(response):
        if response.headers.get("content-encoding", "identity") != "identity":
            raise FetchError("answered with a compressed body")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise FetchError(f"answered with more than {MAX_BODY_BYTES} bytes")
    return response.status_code, bytes(body)
