"""Webhooks: unwrap those that tenantry sends; verify and sign events of the payment provider."""

from __future__ import annotations

import base64
import hmac
import re
import string
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from tenantry_sdk._encoding import NOT_JSON
from tenantry_sdk._events import ChangeEvent, event_of
from tenantry_sdk._response import Model, converted
from tenantry_sdk._secret import Secret, revealed
from tenantry_sdk._verify import Headers
from tenantry_sdk.errors import TenantryError

PROVIDER_HEADER: Final = "Provider-Signature"
"""The header with the payment provider's signature. `Stripe-Signature` is accepted too."""

_PROVIDER_NAMES: Final = (PROVIDER_HEADER.lower(), "stripe-signature")
_OWN_NAMES: Final = ("webhook-id", "webhook-timestamp", "webhook-signature")
_MOST_SIGNATURES: Final = 16
_TIME: Final = re.compile("[0-9]{1,12}")
_SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # how secrets begin
_SECRET_BYTES: Final = range(24, 65)

AnyEvent = TypeVar("AnyEvent")
Secrets = str | Secret | Sequence[str | Secret]


class SignatureError(TenantryError):
    """The signature is missing or invalid. Log ``reason``, but never send it to the client."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The event's signature is invalid: {reason}.")
        self.reason = reason


class PayloadError(TenantryError, ValueError):
    """The signature is valid, but the body is not an event."""


class PaymentProviderEvent(Model, frozen=True, kw_only=True):
    """An event of the payment provider; ``data["object"]`` is its subscription, invoice or other
    object.
    """

    type: str
    data: dict[str, Any]
    id: str | None = None
    created: int | None = None
    livemode: bool | None = None


class _Signatures(NamedTuple):
    """What a request claims: when its sender signed it, and the signatures."""

    time: str
    values: list[bytes]


def unwrap(
    body: bytes | str,
    headers: Headers,
    secrets: Secrets,
    *,
    tolerance: float = 300,
    now: float | None = None,
) -> ChangeEvent:
    """Verify the signature of a webhook that tenantry sent, and return its event.

    The event is a `TenantEvent`, `ApiKeyEvent` or another class of `operator.events.follow`; a
    `ChangeEvent` if this version does not know its kind. ``body`` is the raw, unparsed body; names
    in ``headers`` may be in any case. The signature (Standard Webhooks) must match one of the
    endpoint's ``secrets``, and its age must be within ``tolerance`` seconds of ``now`` (Unix time;
    default: the current time).

    Raises `SignatureError`, `PayloadError` for a signed body that is not an event, and `ValueError`
    for faulty secrets.
    """
    raw = _raw(body)
    keys = [_decoded(secret) for secret in _revealed(secrets)]
    message_id, signatures = _own_signatures(_by_name(headers))
    signed = f"{message_id}.{signatures.time}.".encode(errors="surrogatepass") + raw
    _check_match([_own_signature(signed, key) for key in keys], signatures)
    _check_age(signatures, tolerance, now)
    return _event(raw, event_of)


def verify_provider_event(
    body: bytes | str,
    headers: Headers,
    secrets: Secrets,
    *,
    tolerance: float = 300,
    now: float | None = None,
) -> PaymentProviderEvent:
    """Verify the signature of the payment provider's webhook, and return its event.

    The arguments and errors are those of `unwrap`; ``secrets`` are those that the provider gave
    you.
    """
    raw = _raw(body)
    keys = _revealed(secrets)
    signatures = _provider_signatures(_by_name(headers))
    _check_match([_provider_signature(raw, key, signatures.time) for key in keys], signatures)
    _check_age(signatures, tolerance, now)
    return _event(raw, _provider_event)


def sign_provider_event(
    body: bytes | str, secret: str | Secret, *, at: datetime | float | None = None
) -> str:
    """Return the `Provider-Signature` header of a body, signed at ``at`` (Unix time or datetime;
    default: now).
    """
    now = time.time() if at is None else at
    stamp = str(int(now.timestamp() if isinstance(now, datetime) else now))
    signature = _provider_signature(_raw(body), _revealed(secret)[0], stamp)
    return f"t={stamp},v1={signature.decode()}"


# Arguments


def _raw(body: object) -> bytes:
    if isinstance(body, str):
        return body.encode(errors="surrogatepass")
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(cast("bytearray", body))
    raise TypeError("body must be the raw body as it was received: bytes or text, not parsed")


def _revealed(secrets: Secrets) -> list[str]:
    texts: list[Any] = [
        revealed(key) for key in ([secrets] if isinstance(secrets, str | Secret) else secrets)
    ]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError("pass at least one secret; secrets are non-empty strings")
    return texts


def _by_name(headers: Headers) -> dict[str, str]:
    named: Any = headers
    return {_ascii(name).lower(): _ascii(value) for name, value in dict(named).items()}


def _ascii(text: str | bytes) -> str:
    """Return a header as text. Characters outside ASCII match nothing."""
    return text.decode("ascii", "replace") if isinstance(text, bytes) else text


# Both senders


def _check_match(expected: Sequence[bytes], signatures: _Signatures) -> None:
    """Compare all with all, in constant time."""
    pairs = ((one, given) for one in expected for given in signatures.values)
    if not any([hmac.compare_digest(one, given) for one, given in pairs]):  # noqa: C419  # all
        raise SignatureError("no signature matches")


def _check_age(signatures: _Signatures, tolerance: float, now: float | None) -> None:
    age = (time.time() if now is None else now) - int(signatures.time)
    if not abs(age) <= tolerance:  # NaN too
        raise SignatureError("it is too old" if age > 0 else "it is from the future")


def _event(raw: bytes, convert: Callable[[Any], AnyEvent]) -> AnyEvent:
    try:
        return convert(msgspec.json.decode(raw))
    except NOT_JSON as error:
        raise PayloadError(f"The signed body is not an event: {error}") from error


# tenantry


def _decoded(secret: str) -> bytes:
    """Return the key that a secret contains. Raises `ValueError` without a part of the secret."""
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except ValueError:
        key = b""
    if not secret.startswith(_SECRET_PREFIX) or len(key) not in _SECRET_BYTES:
        raise ValueError(
            f"a secret of tenantry's webhooks is {_SECRET_PREFIX} and base64 of "
            f"{_SECRET_BYTES[0]} to {_SECRET_BYTES[-1]} bytes"
        )
    return key


def _own_signature(signed: bytes, key: bytes) -> bytes:
    return b"v1," + base64.b64encode(hmac.digest(key, signed, "sha256"))


def _own_signatures(by_name: Mapping[str, str]) -> tuple[str, _Signatures]:
    """Return the id of the message and its signatures."""
    missing = [name for name in _OWN_NAMES if not by_name.get(name)]
    if missing and not by_name.keys().isdisjoint(_PROVIDER_NAMES):
        raise SignatureError("the payment provider sent it: use webhooks.verify_provider_event")
    if missing:
        raise SignatureError(f"there is no {missing[0]} header")
    message_id, stamp, header = (by_name[name] for name in _OWN_NAMES)
    given = header.split(" ")
    if not _TIME.fullmatch(stamp) or len(given) > _MOST_SIGNATURES:
        raise SignatureError("its headers are malformed")
    return message_id, _Signatures(stamp, [each.encode("ascii", "replace") for each in given])


# The payment provider


def _provider_event(document: Any) -> PaymentProviderEvent:  # noqa: ANN401  # decoded JSON
    event: PaymentProviderEvent = converted(document, PaymentProviderEvent)
    return event


def _provider_signature(body: bytes, secret: str, stamp: str) -> bytes:
    signed = stamp.encode() + b"." + body
    return hmac.digest(secret.encode(), signed, "sha256").hex().encode()


def _provider_signatures(by_name: Mapping[str, str]) -> _Signatures:
    own, other = _PROVIDER_NAMES
    header = by_name.get(own, by_name.get(other))
    if header:
        return _parse(header)
    if _OWN_NAMES[-1] in by_name:
        raise SignatureError("tenantry sent it: use webhooks.unwrap")
    raise SignatureError(f"there is no {PROVIDER_HEADER} header")


def _parse(header: str) -> _Signatures:
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
    return _Signatures(stamps[0], signatures)
