"""A webhook endpoint on this machine, and what it answers."""

import asyncio
import contextlib
import time
from typing import Final, NamedTuple

import httpx2

from tenantry.common.clock import Clock, system_clock
from tenantry.common.secret import Secret
from tenantry.integrations.stripe.signature import sign

TIMEOUT: Final = 30.0
"""Seconds for each step of a request: about as long as the provider waits."""
_BODY_SECONDS: Final = 10.0
_MOST_READ: Final = 2000
_GOOD: Final = range(200, 300)


class Answer(NamedTuple):
    """What an endpoint answered: the status, how the text begins, and how long it took.

    ``retry_after`` is how many seconds it asks to be left in peace.
    """

    status: int
    text: str
    milliseconds: int
    retry_after: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether the event was taken."""
        return self.status in _GOOD


class Endpoint:
    """Sends events to one address, signed with ``secret``; ``client`` is closed by whoever made it."""

    def __init__(self, client: httpx2.AsyncClient, url: str, secret: Secret, clock: Clock = system_clock) -> None:
        self.url = url
        self._client = client
        self._secret = secret
        self._clock = clock

    def signature(self, body: bytes, *, seconds_ago: int = 0, secret: str | None = None) -> str:
        """The header that vouches for ``body``, made some time ago, or with another secret than the endpoint's."""
        moment = int(self._clock().timestamp()) - seconds_ago
        return sign(body, secret or self._secret.reveal(), moment)

    async def post(self, body: bytes, signature: str | None = None) -> Answer:
        """Send an event, signed now unless another ``signature`` is given (an empty one: no header at all).

        The header has both of its names, so that other software than ours can check it. Raises `httpx2.HTTPError`.
        """
        signature = self.signature(body) if signature is None else signature
        headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "tenantry"}
        if signature:
            headers |= {"Provider-Signature": signature, "Stripe-Signature": signature}
        begun = time.monotonic()
        async with self._client.stream("POST", self.url, content=body, headers=headers) as response:
            text = await _beginning(response)
        elapsed = round((time.monotonic() - begun) * 1000)
        return Answer(response.status_code, text, elapsed, _seconds(response.headers.get("retry-after", "")))


async def _beginning(response: httpx2.Response) -> str:
    """How the body begins; the rest of a long or slow one is not waited for, and what breaks off ends there.

    The status has been given by then: nothing about the body makes another answer of it.
    """
    read = bytearray()
    with contextlib.suppress(httpx2.HTTPError, TimeoutError):
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in response.aiter_bytes():
                read += chunk
                if len(read) >= _MOST_READ:
                    break
    return read[:_MOST_READ].decode("utf-8", "replace").strip()


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0.0  # noqa: PLR2004
