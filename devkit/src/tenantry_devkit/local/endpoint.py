"""The webhook endpoint that receives events: its address, the signing secret, sending and
retrying.
"""

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

from tenantry.common.clock import exponential, system_clock
from tenantry.common.http import local_origin
from tenantry.common.secret import Secret
from tenantry.integrations.stripe.signature import sign
from tenantry.settings import DEMO_FLAG
from tenantry_cli.client_configuration import without_api_prefix, xdg_folder
from tenantry_cli.demo_folder import data_dir
from tenantry_cli.output import OUT_OF_REACH, CommandError
from tenantry_devkit.files import OWNER_ONLY, create_private

WEBHOOK_PATH: Final = "/api/v1/webhooks/payment-provider"
WEBHOOK_SECRET: Final = "PROVIDER_WEBHOOK_SECRET"  # noqa: S105  # a variable's name
LISTENER_SECRET: Final = "listen.secret"  # noqa: S105  # a file's name
BAD_SIGNATURE: Final = "Invalid signature"
TIMEOUT: Final = 30.0
"""Seconds for each step of a request: about as long as the provider waits."""
_LONGEST_ANSWER: Final = 2000
_SECRET: Final = re.compile(r"whsec_[A-Za-z0-9]{16,}")
_ADDRESS_TEXT: Final = re.compile(r"[!-~]*")
_HEADERS: Final = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "tenantry"}
_RETRIED: Final = frozenset({408, 425, 429, *range(500, 600)})


def webhook_address(text: str) -> str:
    """Expand an address, ``host:port`` or a port of this machine; without a path, it gets the
    service's.

    Raises `ValueError`, whose message completes "the address ...".
    """
    parts = urlsplit(_with_scheme(text))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("must be an http address, host:port, or a port")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must hold no credentials")
    return urlunsplit(parts._replace(path=parts.path or WEBHOOK_PATH, fragment=""))


def _with_scheme(text: str) -> str:
    """Complete ``host:port`` or a port; empty for characters that no address has."""
    if _ADDRESS_TEXT.fullmatch(text) is None:
        return ""
    if text.isdigit():
        return f"http://127.0.0.1:{text}"
    return text if "://" in text else f"http://{text}"


def origin_of(address: str) -> str:
    return urlunsplit(urlsplit(address)._replace(path="", query="", fragment=""))


def service_base(values: Mapping[str, str]) -> str:
    """Return the service's address: TENANTRY_BASE_URL, else HOST and PORT on this machine."""
    if base := values.get("TENANTRY_BASE_URL", "").strip():
        return without_api_prefix(base)
    host = values.get("HOST", "").strip() or "127.0.0.1"
    return local_origin(host, values.get("PORT", "").strip() or 3001)


def service_address(values: Mapping[str, str], forward_to: str | None) -> str:
    """Return the webhook endpoint to send to. Raises `click.BadParameter` for a malformed
    ``--forward-to``.
    """
    try:
        return webhook_address(forward_to or service_base(values) + WEBHOOK_PATH)
    except ValueError as error:
        option = "--forward-to" if forward_to else "TENANTRY_BASE_URL"
        raise click.BadParameter(str(error), param_hint=option) from error


class RetryPolicy(NamedTuple):
    """How often to read the provider's list, and the delays after failures, in seconds; ``retries``
    is per event.
    """

    interval: float = 1.0
    first: float = 0.5
    ceiling: float = 15.0
    retries: int = 6

    def delay(self, failures: int) -> float:
        """Return an exponential delay after so many failures in a row."""
        return exponential(failures, first=self.first, factor=2, ceiling=self.ceiling)


class EndpointResponse(NamedTuple):
    """``text`` is the beginning of the body, or the error if there was no response (``status`` is
    None).
    """

    status: int | None
    text: str
    milliseconds: int = 0
    is_connected: bool = True
    """Whether the endpoint accepts connections."""

    @property
    def is_good(self) -> bool:
        return self.status is not None and httpx2.codes.is_success(self.status)

    @property
    def is_final(self) -> bool:
        """Whether a retry would have the same result."""
        return self.status is not None and self.status not in _RETRIED


class Endpoint:
    """Sends events to one address, signed with ``secret``. The caller closes ``client``."""

    def __init__(self, client: httpx2.AsyncClient, url: str, secret: Secret) -> None:
        self.url = url
        self.secret = secret
        self._client = client

    async def post(self, body: bytes, signature: str | None = None) -> EndpointResponse:
        """Send an event, signed now unless another ``signature`` is given; an empty one omits the
        header.

        The signature is in both headers, so any Stripe library can check it.
        """
        if signature is None:
            signature = sign(body, self.secret.reveal(), int(system_clock().timestamp()))
        names = ("Provider-Signature", "Stripe-Signature") if signature else ()
        headers = _HEADERS | dict.fromkeys(names, signature)
        started = time.monotonic()
        try:
            response = await self._client.post(self.url, content=body, headers=headers)
        except httpx2.HTTPError as error:
            is_connected = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            problem = ": ".join(filter(None, (type(error).__name__, str(error).strip())))
            return EndpointResponse(None, problem, is_connected=is_connected)
        milliseconds = round((time.monotonic() - started) * 1000)
        text = response.text[:_LONGEST_ANSWER].strip()
        return EndpointResponse(response.status_code, text, milliseconds)

    async def deliver(self, body: bytes) -> EndpointResponse:
        """Send an event once. Raises `CommandError` if there is no response."""
        response = await self.post(body)
        if response.status is None:
            raise CommandError(f"{self.url} does not answer ({response.text}).", OUT_OF_REACH)
        return response


def secret_path(values: Mapping[str, str]) -> Path:
    """Return the path of the signing secret: in the demo's folder if the settings are a demo's,
    else below XDG_STATE_HOME. Raises `CommandError` without a home directory.
    """
    is_demo = values.get(DEMO_FLAG) == "true"
    folder = data_dir(values) if is_demo else xdg_folder(values, "XDG_STATE_HOME", ".local/state")
    return folder / LISTENER_SECRET


def load_or_create_secret(path: Path) -> Secret:
    """Return the secret in a file, created if missing, readable only by its owner; raises
    `OSError`, `ValueError`.
    """
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_private(path, f"whsec_{secrets.token_hex(24)}\n".encode())
    if stat.S_IMODE(path.stat().st_mode) & ~OWNER_ONLY:
        path.chmod(OWNER_ONLY)
    text = path.read_text("utf-8", "replace").strip()
    if _SECRET.fullmatch(text) is None:
        raise ValueError(f"{path} holds no signing secret. Remove it to create a new one.")
    return Secret(text)


def signing_secret(values: Mapping[str, str]) -> Secret:
    """Return the secret that `tenantry listen` signs with. Raises `CommandError`."""
    try:
        return load_or_create_secret(secret_path(values))
    except (OSError, ValueError) as error:
        raise CommandError(f"The signing secret cannot be stored: {error}") from None
