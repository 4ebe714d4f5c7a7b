"""The client's settings from arguments and the environment."""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

from tenantry_sdk._secret import Secret, revealed
from tenantry_sdk._tokens import checked_address, is_plain
from tenantry_sdk.errors import ConfigurationError

_API_KEY: Final = "TENANTRY_API_KEY"
_OPERATOR_TOKEN: Final = "TENANTRY_OPERATOR_TOKEN"  # noqa: S105  # a variable's name
_BASE_URL: Final = "TENANTRY_BASE_URL"
_API_PREFIX: Final = re.compile(r"(?<!/)/api/v1$")  # after "//" it is a host
_DEFAULT: Final = "http://127.0.0.1:3001"


class Credential(NamedTuple):
    """What a client sends with its requests."""

    secret: Secret | None
    is_operator: bool = False


def credential_of(api_key: str | Secret | None, operator_token: str | Secret | None) -> Credential:
    """Return the given API key or operator's token; else ``TENANTRY_API_KEY`` or
    ``TENANTRY_OPERATOR_TOKEN``, or none without any. Raises `ConfigurationError`.
    """
    if api_key is not None and operator_token is not None:
        raise ConfigurationError("Pass api_key= or operator_token=, not both.")
    if api_key is not None:
        return Credential(checked_key(api_key))
    if operator_token is not None:
        return Credential(_checked(operator_token, "operator_token: the token"), is_operator=True)
    key, token = (os.environ.get(name, "").strip() for name in (_API_KEY, _OPERATOR_TOKEN))
    if key and token:
        raise ConfigurationError(
            f"{_API_KEY} and {_OPERATOR_TOKEN} are both set: pass api_key= or operator_token=."
        )
    if token:
        return Credential(_checked(token, f"{_OPERATOR_TOKEN}: the token"), is_operator=True)
    return Credential(_checked(key, f"{_API_KEY}: the API key") if key else None)


def checked_key(api_key: str | Secret) -> Secret:
    """Return the API key of the argument ``api_key``. Raises `ConfigurationError`."""
    return _checked(api_key, "api_key: the API key")


def _checked(secret: str | Secret, what: str) -> Secret:
    text = revealed(secret).strip()
    if not text:
        raise ConfigurationError(f"{what} is empty.")
    if not is_plain(text):
        raise ConfigurationError(f"{what} has invalid characters.")
    return Secret(text)


def check_organization(organization: str | None, *, is_operator: bool) -> None:
    """Raise `ConfigurationError` for an operator's client with an organization."""
    if is_operator and organization is not None:
        raise ConfigurationError(
            "organization= is for users: the operator acts by client.tenant()."
        )


def base_url_of(base_url: str | None, *, allow_http: bool) -> str:
    """Return the service's address without a trailing slash, and without the prefix of the API's
    paths, which the address of an example may end in. Raises `ConfigurationError`.
    """
    source = "base_url" if base_url else _BASE_URL
    address = base_url or os.environ.get(_BASE_URL) or _DEFAULT
    return _API_PREFIX.sub("", checked_address(address, source, allow_http=allow_http))
