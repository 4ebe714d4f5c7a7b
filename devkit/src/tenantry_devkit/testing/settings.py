"""The settings of a test session's service: those that a suite gives, and those that it is run with here."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tenantry.settings import Settings, SettingsError, load
from tenantry.variables import DATABASE_URL, EMBEDDED
from tenantry_devkit.testing.errors import StartError
from tenantry_devkit.testing.masking import Variables

AUDIENCE: Final = "tenantry-api"
CLIENT_ID: Final = "tenantry-tests"
_OURS: Final = frozenset(
    {
        "DATABASE_URL", "DATABASE_POOLER_URL", "TENANTRY_DATA_DIR", "HOST", "PORT", "OIDC_ISSUER", "SMTP_URL",
        "PROVIDER_API_BASE",
    }
)  # fmt: skip
"""Where things are that are started here."""


def as_text(given: Mapping[str, object]) -> Variables:
    """What a suite gives, by variable name. Raises `StartError`."""
    if not isinstance(given, Mapping):
        raise StartError(f"tenantry_settings must be a mapping of variables, not {type(given).__name__}")
    unset = ", ".join(sorted(name for name, value in given.items() if value is None))
    given = Variables({name: str(value) for name, value in given.items()})  # an error shows what this was given
    if unset:
        raise StartError(f'tenantry_settings: {unset} cannot be None: leave out what has its default, "" is nothing.')
    return given


def complete(given: Mapping[str, str]) -> Variables:
    """What a suite gives, and the rest: secrets of this session, and how to call each other.

    A relative path of a plan catalog is looked for from the current folder. Raises `StartError`.
    """
    if taken := sorted(_OURS & given.keys()):
        raise StartError(f"tenantry_settings: {', '.join(taken)} cannot be set: the tests run these themselves.")
    plans = given.get("TENANTRY_PLANS")
    return Variables({
        "PROVIDER_WEBHOOK_SECRET": f"whsec_{secrets.token_hex(24)}",
        "PROVIDER_SECRET_KEY": f"sk_test_{secrets.token_hex(24)}",
        "API_KEY_PEPPER": secrets.token_hex(32),
        "SESSION_SECRET": secrets.token_hex(32),
        "OPERATOR_TOKEN": f"op_{secrets.token_hex(24)}",
        "OIDC_AUDIENCE": AUDIENCE,
        "OIDC_CLIENT_ID": CLIENT_ID,
        "OIDC_CLIENT_SECRET": secrets.token_hex(24),
        "MAIL_FROM": "tenantry tests <billing@tenantry.example>",
        # tenants are compared with the provider when a test asks for it, not while it runs
        "RECONCILE_HOURS": "0",
        "DRAIN_SECONDS": "0",  # nothing stands before it that would have to notice its end
        **given,
        **({"TENANTRY_PLANS": str(Path(plans).absolute())} if plans else {}),
        "HOST": "127.0.0.1",
        "PORT": "0",
    })  # fmt: skip


def checked(values: Variables) -> Settings:
    """The settings as the service will read them. Raises `StartError`, which names every fault."""
    try:
        return load({**values, DATABASE_URL.name: EMBEDDED})
    except SettingsError as error:
        faults = "\n".join(f"  {fault}" for fault in error.faults)
        raise StartError(f"tenantry_settings: {len(error.faults)} setting(s) are faulty.\n{faults}") from None
