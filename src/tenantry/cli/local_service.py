"""What the tools for local testing take from the settings: where the service is, and what it is to be sent."""

from collections.abc import Mapping

import click

from tenantry.cli.exit_codes import fail
from tenantry.kit.secret import Secret
from tenantry.local.addresses import WEBHOOK_PATH, webhook_address
from tenantry.local.signing_secret import load_or_create_secret, secret_path

_ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104  # not bound here: asked through loopback


def service_base(values: Mapping[str, str]) -> str:
    """Where the service is: TENANTRY_BASE_URL, else HOST and PORT on this machine."""
    if base := values.get("TENANTRY_BASE_URL", "").strip():
        return base.rstrip("/")
    host = values.get("HOST", "").strip()
    host = "127.0.0.1" if host in _ANY_ADDRESS else host
    return f"http://{f'[{host}]' if ':' in host else host}:{values.get('PORT', '').strip() or 3001}"


def service_address(values: Mapping[str, str], forward_to: str | None) -> str:
    """The webhook endpoint that events go to; a usage error where ``--forward-to`` is none."""
    try:
        return webhook_address(forward_to or service_base(values) + WEBHOOK_PATH)
    except ValueError as error:
        raise click.BadParameter(
            str(error), param_hint="--forward-to" if forward_to else "TENANTRY_BASE_URL"
        ) from error  # fmt: skip


def signing_secret(values: Mapping[str, str]) -> Secret:
    """The secret that `tenantry listen` signs with, which is made if need be; or the end with a message."""
    try:
        return load_or_create_secret(secret_path(values))
    except (OSError, ValueError, RuntimeError) as error:
        fail(f"The signing secret cannot be kept: {error}")
