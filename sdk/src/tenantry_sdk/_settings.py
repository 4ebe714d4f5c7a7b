"""The client's settings from arguments and the environment."""

from __future__ import annotations

import os
import re
from typing import Final

from tenantry_sdk._secret import Secret, revealed
from tenantry_sdk._tokens import http_address, is_plain
from tenantry_sdk.errors import ConfigurationError

_API_KEY: Final = "TENANTRY_API_KEY"
_BASE_URL: Final = "TENANTRY_BASE_URL"
_API_PREFIX: Final = re.compile(r"(?<!/)/api/v1$")  # after "//" it is a host
_DEFAULT: Final = "http://127.0.0.1:3001"


def credential_of(api_key: str | Secret | None) -> Secret | None:
    """Return the given API key, or ``TENANTRY_API_KEY``, or None without either. Raises
    `ConfigurationError`.
    """
    source = _API_KEY if api_key is None else "api_key"
    key = revealed(os.environ.get(_API_KEY, "") if api_key is None else api_key).strip()
    if not key and api_key is None:
        return None
    if not key:
        raise ConfigurationError(f"{source}: the API key is empty.")
    if not is_plain(key):
        raise ConfigurationError(f"{source}: the API key has invalid characters.")
    return Secret(key)


def base_url_of(base_url: str | None, *, allow_http: bool) -> str:
    """Return the service's address without a trailing slash, and without the prefix of the API's
    paths, which the address of an example may end in. Raises `ConfigurationError`.
    """
    source = "base_url" if base_url else _BASE_URL
    address = base_url or os.environ.get(_BASE_URL) or _DEFAULT
    return _API_PREFIX.sub("", http_address(address, source, allow_http=allow_http))
