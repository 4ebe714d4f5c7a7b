"""The webhook endpoint that events are sent to: its address, its secret, and sending."""

import asyncio
import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import click
import httpx2

from tenantry.cli.database import service_base
from tenantry.cli.output import fail
from tenantry.common.clock import Clock, system_clock
from tenantry.common.secret import Secret
from tenantry.integrations.stripe.signature import sign

WEBHOOK_PATH: Final = "/api/v1/webhooks/payment-provider"
TENANTS_PATH: Final = "/api/v1/tenants"
EVENTS_PATH: Final = "/api/v1/billing/events"
WHOAMI_PATH: Final = "/api/v1/auth/whoami"
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def webhook_address(text: str) -> str:
    """The whole address of a webhook endpoint that is named by an address, ``host:port``, or a port of this machine.

    One without a path has the service's. Raises `ValueError`, whose message completes "the address ...".
    """
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("must be an http address, host:port, or a port")
    if text.isdigit():
        text = f"127.0.0.1:{text}"
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("must be an http address, host:port, or a port")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must hold no credentials")
    return urlunsplit(parts._replace(path=parts.path or WEBHOOK_PATH, fragment=""))


def is_on_this_machine(address: str) -> bool:
    """Whether an address is on loopback."""
    return urlsplit(address).hostname in _LOOPBACK


def origin_of(address: str) -> str:
    """Scheme, host and port of an address."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"


def host_and_port(address: str) -> tuple[str, int]:
    """What to connect to."""
    parts = urlsplit(address)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def service_address(values: Mapping[str, str], forward_to: str | None) -> str:
    """The webhook endpoint that events go to. Raises `click.BadParameter` for a malformed ``--forward-to``."""
    try:
        return webhook_address(forward_to or service_base(values) + WEBHOOK_PATH)
    except ValueError as error:
        option = "--forward-to" if forward_to else "TENANTRY_BASE_URL"
        raise click.BadParameter(str(error), param_hint=option) from error


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


_OWNER_ALONE: Final = 0o600
_SECRET: Final = re.compile(r"whsec_[A-Za-z0-9]{16,}")


def secret_path(values: Mapping[str, str]) -> Path:
    """Where the secret is kept: below XDG_STATE_HOME, by default ``~/.local/state``.

    Raises `RuntimeError` where there is no home directory either.
    """
    base = Path(values.get("XDG_STATE_HOME", ""))
    folder = base if base.is_absolute() else Path.home() / ".local" / "state"  # a relative one is to be ignored
    return folder / "tenantry" / "listen.secret"


def load_or_create_secret(path: Path) -> Secret:
    """The secret in this file, which is made, readable by its owner alone, where it is missing.

    Raises `OSError`, and `ValueError` where the file holds something else.
    """
    if not path.exists():
        _create(path)
    if stat.S_IMODE(path.stat().st_mode) & ~_OWNER_ALONE:
        path.chmod(_OWNER_ALONE)
    text = path.read_text("utf-8", "replace").strip()
    if _SECRET.fullmatch(text) is None:
        raise ValueError(f"{path} holds no signing secret. Remove it, and a new one is made.")
    return Secret(text)


def _create(path: Path) -> None:
    """Put a new secret there; of two that do so at once one wins, and both then read the same."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ALONE)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"whsec_{secrets.token_hex(24)}\n")
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(fresh)
    finally:
        fresh.unlink()


def signing_secret(values: Mapping[str, str]) -> Secret:
    """The secret that `tenantry listen` signs with, created on first use; exits with a message on failure."""
    try:
        return load_or_create_secret(secret_path(values))
    except (OSError, ValueError, RuntimeError) as error:
        fail(f"The signing secret cannot be kept: {error}")
