"""Verify and create the payment provider's webhook signatures, for your own endpoints and for
tests.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import string
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry_sdk._encoding import NOT_JSON
from tenantry_sdk._response import Model, converted
from tenantry_sdk._secret import Secret, revealed
from tenantry_sdk.errors import TenantryError

HEADER: Final = "Provider-Signature"
"""The header that carries the signature. `Stripe-Signature` is accepted too."""

_OTHER: Final = "Stripe-Signature"
_MOST_SIGNATURES: Final = 16
_TIME: Final = re.compile("[0-9]{1,12}")


class SignatureError(TenantryError):
    """The signature is missing or invalid. Log ``reason``, but never send it to the client."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The event's signature is invalid: {reason}.")
        self.reason = reason


class PayloadError(TenantryError, ValueError):
    """The signature is valid, but the body is not an event."""


class Event(Model, frozen=True, kw_only=True):
    """A provider event; ``data["object"]`` is its subscription, invoice or other object."""

    type: str
    data: dict[str, Any]
    id: str | None = None
    created: int | None = None
    livemode: bool | None = None


def verify(
    body: bytes | str,
    headers: Mapping[str, str] | Mapping[bytes, bytes] | Mapping[str, bytes],
    secrets: str | Secret | Sequence[str | Secret],
    *,
    tolerance: float = 300,
    now: float | None = None,
) -> Event:
    """Verify the signature of a webhook request and return its event.

    ``body`` is the raw, unparsed body; names in ``headers`` may be in any case. The signature must
    match one of the ``secrets``, and its age must be within ``tolerance`` seconds of ``now`` (Unix
    time; default: the current time).

    Raises `SignatureError`, `PayloadError` for a signed body that is not an event, and `ValueError`
    for empty secrets.
    """
    raw = body.encode(errors="surrogatepass") if isinstance(body, str) else body
    keys = _keys(secrets)
    stamp, signatures = _parse(_header(headers))
    expected = [_signature(raw, key, stamp).encode() for key in keys]
    if not any([hmac.compare_digest(one, given) for one in expected for given in signatures]):  # noqa: C419  # all
        raise SignatureError("no signature matches")
    _check_age((time.time() if now is None else now) - int(stamp), tolerance)
    try:
        event: Event = converted(msgspec.json.decode(raw), Event)
    except NOT_JSON as error:
        raise PayloadError(f"The signed body is not an event: {error}") from error
    return event


def sign(body: bytes | str, secret: str | Secret, *, at: datetime | float | None = None) -> str:
    """Return the `Provider-Signature` header of a body, signed at ``at`` (Unix time or datetime;
    default: now).
    """
    now = time.time() if at is None else at
    moment = now.timestamp() if isinstance(now, datetime) else now
    raw = body.encode() if isinstance(body, str) else body
    stamp = str(int(moment))
    return f"t={stamp},v1={_signature(raw, _keys(secret)[0], stamp)}"


def _keys(secrets: str | Secret | Sequence[str | Secret]) -> list[str]:
    keys: list[Any] = [
        revealed(key) for key in ([secrets] if isinstance(secrets, str | Secret) else secrets)
    ]
    if not keys or not all(isinstance(key, str) and key.strip() for key in keys):
        raise ValueError("pass at least one secret; secrets are non-empty strings")
    return keys


def _header(
    headers: Mapping[str, str] | Mapping[bytes, bytes] | Mapping[str, bytes],
) -> str:
    by_name = {_ascii(name).lower(): _ascii(value) for name, value in headers.items()}
    header = by_name.get(HEADER.lower(), by_name.get(_OTHER.lower()))
    if not header:
        raise SignatureError(f"there is no {HEADER} header")
    return header


def _check_age(age: float, tolerance: float) -> None:
    if not abs(age) <= tolerance:  # NaN too
        raise SignatureError("it is too old" if age > 0 else "it is from the future")


def _ascii(text: str | bytes) -> str:
    """Return a header as text. Characters outside ASCII match nothing."""
    return text.decode("ascii", "replace") if isinstance(text, bytes) else text


def _signature(body: bytes, secret: str, stamp: str) -> str:
    return hmac.new(secret.encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def _parse(header: str) -> tuple[str, list[bytes]]:
    stamps: list[str] = []
    signatures: list[bytes] = []
    for part in header.split(","):
        scheme, equals, value = part.strip(string.whitespace).partition("=")
        if not equals:
            raise SignatureError("the header is malformed")
        if scheme == "t":
            stamps.append(value)
        elif scheme == "v1":
            signatures.append(value.encode("ascii", "replace"))
    is_one_time = len(stamps) == 1 and _TIME.fullmatch(stamps[0])
    if not is_one_time or not 1 <= len(signatures) <= _MOST_SIGNATURES:
        raise SignatureError("the header is malformed")
    return stamps[0], signatures
