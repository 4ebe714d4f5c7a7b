"""The client's settings from arguments and the environment."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import urlsplit

from tenantry_sdk._secret import Secret, revealed
from tenantry_sdk._tokens import check_address
from tenantry_sdk.errors import ConfigurationError

_DEFAULT: Final = "http://127.0.0.1:3001"


def credential_of(api_key: str | Secret | None) -> Secret:
    """Return the given API key, or ``TENANTRY_API_KEY``. Raises `ConfigurationError`."""
    key = revealed(api_key if api_key is not None else os.environ.get("TENANTRY_API_KEY", "")).strip()
    if not key:
        raise ConfigurationError("There is no credential: pass api_key= or tokens=, or set TENANTRY_API_KEY.")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError("The API key has invalid characters.")
    return Secret(key)


def base_url_of(base_url: str | None, *, allow_http: bool) -> str:
    """Return the service's address without a trailing slash. Raises `ConfigurationError`."""
    address = (base_url or os.environ.get("TENANTRY_BASE_URL") or _DEFAULT).rstrip("/")
    parts = urlsplit(address)
    if "@" in parts.netloc:
        raise ConfigurationError(
            "The base URL must not contain a user or password: the credential is sent in a header."
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ConfigurationError(f"The base URL is not an http address: {address}")
    if not allow_http:
        check_address(address, "The base URL")
    return address
