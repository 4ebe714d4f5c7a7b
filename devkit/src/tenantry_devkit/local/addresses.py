"""Where the service is, as people name it, and the paths of its interface that the tools need."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import click

from tenantry.cli.environment import service_base

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
