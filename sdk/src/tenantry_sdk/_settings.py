"""What a client is made with, from arguments and the environment."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import urlsplit

from tenantry_sdk._secret import Secret, revealed
from tenantry_sdk._tokens import check_address
from tenantry_sdk.errors import ConfigurationError

_DEFAULT: Final = "http://127.0.0.1:3001"


def credential_of(api_key: str | Secret | None) -> Secret:
    """The API key, or the environment's. Raises `ConfigurationError`."""
    key = revealed(api_key if api_key is not None else os.environ.get("TENANTRY_API_KEY", "")).strip()
    if not key:
        raise ConfigurationError("There is no credential: pass api_key= or tokens=, or set TENANTRY_API_KEY.")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError("The API key holds characters that none has.")
    return Secret(key)


def base_url_of(base_url: str | None, *, allow_http: bool) -> str:
    """The service's address, without a slash at its end. Raises `ConfigurationError`."""
    address = (base_url or os.environ.get("TENANTRY_BASE_URL") or _DEFAULT).rstrip("/")
    parts = urlsplit(address)
    if "@" in parts.netloc:
        raise ConfigurationError("TENANTRY_BASE_URL holds a name or password: the credential goes in a header.")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ConfigurationError(f"TENANTRY_BASE_URL is no http address: {address}")
    if not allow_http:
        check_address(address, "TENANTRY_BASE_URL")
    return address
