"""The webhook endpoint that receives events: its address, the signing secret, sending and
retrying.
"""

import asyncio
import contextlib
import csv
import itertools
import random
import re
import secrets
import ssl
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import click
import httpx2

from tenantry.cli.client_configuration import without_api_prefix, xdg_folder
from tenantry.cli.output import OUT_OF_REACH, CommandError
from tenantry.common.clock import exponential, system_clock
from tenantry.common.files import OWNER_ONLY
from tenantry.common.secret import Secret
from tenantry.integrations.stripe.signature import sign
from tenantry_devkit.files import create_private

WEBHOOK_PATH: Final = "/api/v1/webhooks/payment-provider"
WEBHOOK_SECRET: Final = "PROVIDER_WEBHOOK_SECRET"  # noqa: S105  # a variable's name
BAD_SIGNATURE: Final = "Invalid signature"
TIMEOUT: Final = 30.0
"""Seconds for each step of a request: about as long as the provider waits."""
_BODY_SECONDS: Final = 10.0
_BODY_BYTES: Final = 2000
_SECRET: Final = re.compile(r"whsec_[A-Za-z0-9]{16,}")
_RETRY_AFTER: Final = re.compile(r"[0-9]{1,3}")
_ADDRESS_TEXT: Final = re.compile(r"[!-~]*")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")  # RFC 9110, 5.6.2
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?")
_RESERVED_HEADERS: Final = frozenset(
    {
        "provider-signature",
        "stripe-signature",
        "content-type",
        "content-length",
        "content-encoding",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "expect",
    }
)
_RETRIED: Final = frozenset({408, 425, 429, *range(500, 600)})


Header = tuple[str, str]


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


def is_on_this_machine(address: str) -> bool:
    return urlsplit(address).hostname in ("127.0.0.1", "::1", "localhost")


def origin_of(address: str) -> str:
    return urlunsplit(
        urlsplit(address)._replace(
            path="",
            query="",
            fragment="",
        )
    )


def host_and_port(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def service_base(values: Mapping[str, str]) -> str:
    """Return the service's address: TENANTRY_BASE_URL, else HOST and PORT on this machine."""
    if base := values.get("TENANTRY_BASE_URL", "").strip():
        return without_api_prefix(base)
    host = values.get("HOST", "").strip()
    host = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host  # noqa: S104  # not bound here: requests go to loopback
    return f"http://{f'[{host}]' if ':' in host else host}:{values.get('PORT', '').strip() or 3001}"


def service_address(values: Mapping[str, str], forward_to: str | None) -> str:
    """Return the webhook endpoint to send to. Raises `click.BadParameter` for a malformed
    ``--forward-to``.
    """
    try:
        return webhook_address(forward_to or service_base(values) + WEBHOOK_PATH)
    except ValueError as error:
        option = "--forward-to" if forward_to else "TENANTRY_BASE_URL"
        raise click.BadParameter(str(error), param_hint=option) from error


def parse_headers(texts: Iterable[str]) -> list[Header]:
    """Parse ``Name: value`` pairs with commas between; a pair in double quotes may contain commas.

    Raises `ValueError`, whose message names no value, since that may be a secret.
    """
    try:
        rows = [
            next(csv.reader([text], skipinitialspace=True, strict=True)) or [""] for text in texts
        ]
    except csv.Error:
        raise ValueError("has a quote without its end") from None
    pairs = itertools.chain.from_iterable(rows)
    return [_parse_header(number, pair) for number, pair in enumerate(pairs, start=1)]


def _parse_header(number: int, pair: str) -> Header:
    name, colon, value = pair.strip().partition(":")
    value = value.strip(" \t")
    if not colon or _HEADER_NAME.fullmatch(name) is None:
        raise ValueError(
            f"number {number} is not Name: value, such as X-Tunnel: 1; quote a pair that contains commas"
        )
    if _HEADER_VALUE.fullmatch(value) is None:
        raise ValueError(
            f"the value of {name} is empty or has characters other than printable ASCII"
        )
    if name.lower() in _RESERVED_HEADERS or name.lower().startswith("proxy-"):
        raise ValueError(f"{name} cannot be set: the relay sets it, or it is for one connection")
    return name, value


class RetryPolicy(NamedTuple):
    """How often to read the provider's list, and the delays after failures, in seconds; ``retries``
    is per event.
    """

    interval: float = 1.0
    first: float = 0.5
    ceiling: float = 15.0
    retries: int = 6

    def delay(self, failures: int) -> float:
        """Return an exponential delay with jitter after so many failures in a row."""
        longest = exponential(
            failures,
            first=self.first,
            factor=2,
            ceiling=self.ceiling,
        )
        return random.uniform(longest / 2, longest)  # noqa: S311  # jitter, no secret


class EndpointResponse(NamedTuple):
    """``text`` is the beginning of the body, or the error if there was no response (``status`` is
    None).
    """

    status: int | None
    text: str
    milliseconds: int | None = None
    retry_after: float = 0.0
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
    """Sends events to one address, signed with ``secret``, and with these ``headers``. The caller
    closes ``client``.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: str,
        secret: Secret,
        *,
        headers: Sequence[Header] = (),
    ) -> None:
        own = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "tenantry"}
        given = {name.lower() for name, _ in headers}
        self._headers = [
            *((name, value) for name, value in own.items() if name.lower() not in given),
            *headers,
        ]
        self.client = client
        self.url = url
        self.secret = secret

    async def post(self, body: bytes, signature: str | None = None) -> EndpointResponse:
        """Send an event, signed now unless another ``signature`` is given; an empty one omits the
        header.

        The signature is in both headers, so any Stripe library can check it.
        """
        if signature is None:
            signature = sign(body, self.secret.reveal(), int(system_clock().timestamp()))
        headers = [*self._headers]
        if signature:
            headers += [("Provider-Signature", signature), ("Stripe-Signature", signature)]
        started = time.monotonic()
        try:
            async with self.client.stream(
                "POST",
                self.url,
                content=body,
                headers=headers,
            ) as response:
                text = await _read_beginning(response)
        except httpx2.HTTPError as error:
            is_unconnected = isinstance(
                error, httpx2.ConnectError | httpx2.ConnectTimeout
            ) and not _is_tls_error(error)
            problem = ": ".join(filter(None, (type(error).__name__, str(error).strip())))
            return EndpointResponse(None, problem, is_connected=not is_unconnected)
        retry_after = response.headers.get("retry-after", "")
        return EndpointResponse(
            response.status_code,
            text,
            round((time.monotonic() - started) * 1000),
            float(retry_after) if _RETRY_AFTER.fullmatch(retry_after) else 0.0,
        )

    async def deliver(self, body: bytes) -> EndpointResponse:
        """Send an event once. Raises `CommandError` if there is no response."""
        response = await self.post(body)
        if response.status is None:
            raise CommandError(f"{self.url} does not answer ({response.text}).", OUT_OF_REACH)
        return response


def _is_tls_error(error: BaseException | None) -> bool:
    """Whether the certificate or the TLS protocol is the cause: then waiting does not help."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


async def _read_beginning(response: httpx2.Response) -> str:
    """Read the first bytes of the body. A slow, long or truncated body does not change the outcome
    of the request.
    """
    read = bytearray()
    with contextlib.suppress(httpx2.HTTPError, TimeoutError):
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in response.aiter_bytes():
                read += chunk
                if len(read) >= _BODY_BYTES:
                    break
    return read[:_BODY_BYTES].decode("utf-8", "replace").strip()


def secret_path(values: Mapping[str, str]) -> Path:
    """Return the path of the signing secret, below XDG_STATE_HOME. Raises `CommandError` without a
    home directory.
    """
    return xdg_folder(values, "XDG_STATE_HOME", ".local/state") / "listen.secret"


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
