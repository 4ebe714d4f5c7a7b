"""The signature of a provider event (Stripe documentation, "Verify webhook signatures manually").

The header is ``t=<unix seconds>,v1=<hex>[,v1=<hex>...]``; each ``v1`` is the HMAC-SHA256 of
``<t>.<raw body>`` keyed by the whole secret string.
"""

import hashlib
import hmac
import re
from collections.abc import Sequence
from enum import StrEnum
from itertools import product, starmap
from typing import Final

MOST_SIGNATURES: Final = 16
"""The provider sends one for each secret of an endpoint: two while a secret is replaced."""
_HEX_LENGTH: Final = 64
_HEADER: Final = re.compile(rb"[^,=]*=[^,]*(?:,[^,=]*=[^,]*){0,63}")
_TIME: Final = re.compile(rb"[0-9]{1,12}")


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
        expected = [_hex_mac(key, stamp, body) for key in self._keys]
        if not any(starmap(hmac.compare_digest, product(expected, signatures))):
            return SignatureFault.NO_MATCH
        age = now - int(stamp)
        if age > self._tolerance:
            return SignatureFault.TOO_OLD
        return SignatureFault.IN_FUTURE if -age > self._tolerance else None


def _hex_mac(key: hmac.HMAC, stamp: bytes, body: bytes) -> bytes:
    mac = key.copy()  # copied: the key is half of the cost of a short message
    mac.update(stamp + b".")
    mac.update(body)
    return mac.hexdigest().encode()


def _parse(header: bytes) -> tuple[bytes, list[bytes]] | None:
    """Return the time and the signatures of a header; None if it is malformed."""
    parts = _parts(header)
    stamp = b",".join(_values(parts, b"t"))  # no time unless there is exactly one
    given = _values(parts, b"v1")
    signatures = [value for value in given if len(value) == _HEX_LENGTH]
    is_valid = _TIME.fullmatch(stamp) and signatures and len(given) <= MOST_SIGNATURES
    return (stamp, signatures) if is_valid else None


def _parts(header: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Return the parts of a header around their equals signs; none of a malformed one."""
    if not _HEADER.fullmatch(header):
        return []
    return [part.strip().partition(b"=") for part in header.split(b",")]


def _values(parts: Sequence[tuple[bytes, bytes, bytes]], scheme: bytes) -> list[bytes]:
    return [value for name, _, value in parts if name == scheme]


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
