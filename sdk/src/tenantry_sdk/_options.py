"""What one call may change of its client's settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypedDict

import msgspec

from tenantry_sdk._retry import RetrySettings

_TIMES: Final = frozenset({"timeout", "attempt_timeout", "retries"})
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_RESERVED: Final = frozenset(
    {
        "authorization",
        "content-length",
        "content-type",
        "host",
        "idempotency-key",
        "transfer-encoding",
    }
)
_ORGANIZATION: Final = "x-organization-id"


class CallOptions(TypedDict, total=False):
    """Options that every method takes, as named arguments; `with_options` sets them for all calls
    of a copy.
    """

    timeout: float
    """Seconds that the call takes at most, retries included."""
    attempt_timeout: float
    """Seconds that each attempt takes at most."""
    retries: int
    """How often the request is repeated at most, if it can be; 0 means never."""
    headers: Mapping[str, str]
    """Further headers, such as ``X-Request-Id``. They are added to those of the client."""


class Options(msgspec.Struct, frozen=True):
    """The retry settings and the further headers of calls."""

    retry: RetrySettings
    headers: Mapping[str, str] = {}

    def with_changes(self, changes: CallOptions) -> Options:
        """Return these options with changes. Raises `TypeError` and `ValueError` for invalid
        ones.
        """
        if unknown := changes.keys() - CallOptions.__annotations__.keys():
            raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
        times = {name: value for name, value in changes.items() if name in _TIMES}
        headers = checked_headers(changes.get("headers", {}))
        return Options(msgspec.structs.replace(self.retry, **times), {**self.headers, **headers})


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers with names in lower case. Raises `ValueError`, without the value, which may be
    a secret.
    """
    checked = {name.lower(): value for name, value in headers.items()}
    for name, value in checked.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} has characters that no header can carry")
        if name == _ORGANIZATION:
            raise ValueError("pass organization= instead of a header")
        if name in _RESERVED:
            raise ValueError(f"the client sets the header {name!r} itself")
    return checked
