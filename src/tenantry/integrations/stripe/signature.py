"""The signature of a provider event (Stripe documentation, "Verify webhook signatures manually").

The header is ``t=<unix seconds>,v1=<hex>[,v1=<hex>...]``; each ``v1`` is the HMAC-SHA256 of
``<t>.<raw body>`` keyed by the whole secret string.
"""

import hashlib
import hmac
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

MOST_SIGNATURES: Final = 16
"""The provider sends one for each secret of an endpoint: two while a secret is replaced."""
_MOST_PARTS: Final = 64
_HEX_LENGTH: Final = 64
_MOST_TIME_DIGITS: Final = 12


class SignatureFault(StrEnum):
    """Why a signature is rejected; for the log and the metric, never for the response."""

    MALFORMED = "malformed"
    TOO_OLD = "too_old"
    IN_FUTURE = "in_future"
    NO_MATCH = "no_match"


class SignatureVerifier:
    """Checks event signatures against several secrets, within a tolerance of seconds both ways."""

    def __init__(self, secrets: Sequence[str], tolerance: int) -> None:
        if not secrets or not all(secrets):
            raise ValueError("at least one secret is needed, and none may be empty")
        self._keys = [hmac.new(secret.encode(), digestmod="sha256") for secret in secrets]
        self._tolerance = tolerance

    def check(
        self,
        header: bytes,
        body: bytes,
        now: float,
    ) -> SignatureFault | None:
        """Return why the signature of ``body`` is invalid at Unix time ``now``, or None if it is
        valid.
        """
        parsed = _parse(header)
        if parsed is None:
            return SignatureFault.MALFORMED
        stamp, signatures = parsed
        matches = False
        for key in self._keys:
            mac = key.copy()  # copied: the key is half of the cost of a short message
            mac.update(stamp + b".")
            mac.update(body)
            expected = mac.hexdigest().encode()
            for signature in signatures:
                matches |= hmac.compare_digest(expected, signature)
        if not matches:
            return SignatureFault.NO_MATCH
        age = now - int(stamp)
        if age > self._tolerance:
            return SignatureFault.TOO_OLD
        return SignatureFault.IN_FUTURE if -age > self._tolerance else None


def _parse(header: bytes) -> tuple[bytes, list[bytes]] | None:
    """Return the time and the signatures of a header; None if it is malformed."""
    if header.count(b",") >= _MOST_PARTS:
        return None
    parts = [part.strip().partition(b"=") for part in header.split(b",")]
    if not all(equals for _, equals, _ in parts):
        return None
    stamps, given = _values(parts, b"t"), _values(parts, b"v1")
    signatures = [value for value in given if len(value) == _HEX_LENGTH]
    if not _is_one_time(stamps) or not signatures or len(given) > MOST_SIGNATURES:
        return None
    return stamps[0], signatures


def _values(parts: Sequence[tuple[bytes, bytes, bytes]], scheme: bytes) -> list[bytes]:
    return [value for name, _, value in parts if name == scheme]


def _is_one_time(stamps: Sequence[bytes]) -> bool:
    return len(stamps) == 1 and stamps[0].isdigit() and len(stamps[0]) <= _MOST_TIME_DIGITS


def sign(
    body: bytes,
    secret: str,
    timestamp: int,
) -> str:
    """Return the header for ``body`` at Unix time ``timestamp``, for demos and local testing."""
    signature = hmac.digest(
        secret.encode(),
        b"%d.%b" % (timestamp, body),
        hashlib.sha256,
    ).hex()
    return f"t={timestamp},v1={signature}"
