"""What a token must be, check by check, by the rules of RFC 8725 and RFC 9068.

The one list of checks: `TokenVerifier.verify` lets nobody in without all of them, and `TokenVerifier.explain` tells
of each what the token said and what was expected.
"""

import functools
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec
from joserfc.jwk import Key
from joserfc.util import urlsafe_b64decode

from tenantry.integrations.oidc.claims import (
    Claims,
    Header,
    OidcConfig,
    Payload,
    as_json,
    decode,
    moment,
    reach,
    span,
    verified_email,
)
from tenantry.integrations.oidc.jwks import ALGORITHMS
from tenantry.integrations.oidc.keys import KeySet

MAX_TOKEN_BYTES: Final = 8192
LEEWAY_SECONDS: Final = 30
MAX_LIFETIME_SECONDS: Final = 24 * 3600
_HEADERS_REMEMBERED: Final = 64
_TYPES: Final = ("jwt", "at+jwt", "application/at+jwt")
# OpenID Connect Core 2: at most 255 ASCII characters; a blank or control character has no place in an id.
_subject = re.compile(r"[!-~]{1,255}")


class Times(NamedTuple):
    """When a token was issued, from when and until when it is good, in seconds since the Unix epoch."""

    issued: int | float
    not_before: int | float | None
    expires: int | float


class DecodedToken:
    """A token on its way through the checks: each reads what those before it have found."""

    __slots__ = (
        "config", "expires_at", "header", "header_segment", "key", "key_set", "keys", "members", "now", "org_id",
        "payload", "payload_segment", "proof", "times", "token",
    )  # fmt: skip

    header_segment: bytes
    payload_segment: bytes
    proof: bytes
    header: Header
    keys: Sequence[Key]
    """Those that may have signed the token; to be set before `CLAIM_CHECKS`."""
    key: Key
    """The one that did."""
    members: dict[str, Any]
    payload: Payload
    expires_at: datetime
    org_id: str | None
    times: Times
    now: float
    """The present, in seconds since the Unix epoch; to be set before `TIME_CHECKS`."""

    def __init__(self, token: str, config: OidcConfig, key_set: KeySet) -> None:
        self.token = token
        self.config = config
        self.key_set = key_set

    @property
    def kid(self) -> str | None:
        """The key id that the header names."""
        return self.header.kid if isinstance(self.header.kid, str) else None

    def claims(self) -> Claims:
        """What the token says; once every check has passed."""
        payload = self.payload
        role = reach(self.members, self.config.role_claim)
        return Claims(
            issuer=payload.iss,
            subject=payload.sub,
            org_id=self.org_id,
            role=role if isinstance(role, str) else None,
            scopes=payload.scopes,
            issued_at=datetime.fromtimestamp(payload.iat, UTC),  # no more than 24 h before the expiry
            expires_at=self.expires_at,
            email=verified_email(payload.email, payload.email_verified),
        )


class Check(NamedTuple):
    """One rule. ``said`` may be asked only where the check was reached, ``expected`` always."""

    name: str
    fault: Callable[[DecodedToken], str | None]
    """Why the token is refused, in words that hold nothing of it; None where it passes."""
    said: Callable[[DecodedToken], str]
    expected: Callable[[DecodedToken], str]


class CheckFailure(NamedTuple):
    """The first check that a token does not pass, and why."""

    check: Check
    reason: str


def first_failure(checks: Sequence[Check], reading: DecodedToken) -> CheckFailure | None:
    """Run the checks in their order, up to the first that fails."""
    for check in checks:
        reason = check.fault(reading)
        if reason is not None:
            return CheckFailure(check, reason)
    return None


def _size(reading: DecodedToken) -> str | None:
    return "oversized" if len(reading.token) > MAX_TOKEN_BYTES else None


def _form(reading: DecodedToken) -> str | None:
    try:
        reading.header_segment, reading.payload_segment, signature = reading.token.encode("ascii").split(b".")
        reading.proof = urlsafe_b64decode(signature)
    except ValueError:
        return "not a JWS in compact form"
    return None


def _decoded(segment: bytes) -> dict[str, Any] | str:
    """The JSON object in a segment, or why there is none."""
    try:
        members = decode(segment)
    except (ValueError, RecursionError):
        return "not base64url of JSON with unique names"
    return members if isinstance(members, dict) else "not a JSON object"


# A provider writes the same header on all tokens of one key.
@functools.lru_cache(maxsize=_HEADERS_REMEMBERED)
def _read_header(segment: bytes) -> Header | str:
    members = _decoded(segment)
    if isinstance(members, str):
        return members
    try:
        return msgspec.convert(members, Header)
    except msgspec.ValidationError:
        return "a member is missing or of the wrong type"


def _header(reading: DecodedToken) -> str | None:
    header = _read_header(reading.header_segment)
    if isinstance(header, str):
        return header
    reading.header = header
    return None


def _algorithm(reading: DecodedToken) -> str | None:
    return None if reading.header.alg in ALGORITHMS else "algorithm not accepted"


def _extensions(reading: DecodedToken) -> str | None:
    # No extension is understood here; RFC 7797's unencoded payload is one.
    header = reading.header
    return "critical extension" if header.crit is not msgspec.UNSET or header.b64 is not True else None


def _type(reading: DecodedToken) -> str | None:
    typ = reading.header.typ
    return "wrong type" if isinstance(typ, str) and typ.lower() not in _TYPES else None


def _key(reading: DecodedToken) -> str | None:
    if reading.keys:
        return None
    return "the key is for another algorithm" if reading.key_set.knows(reading.kid) else "no such key"


def _signature(reading: DecodedToken) -> str | None:
    algorithm = ALGORITHMS[reading.header.alg]
    signed = reading.header_segment + b"." + reading.payload_segment
    for key in reading.keys:
        if algorithm.verify(signed, reading.proof, key):
            reading.key = key
            return None
    return "wrong signature"


def _claims(reading: DecodedToken) -> str | None:
    members = _decoded(reading.payload_segment)
    if isinstance(members, str):
        return members
    reading.members = members
    try:
        payload = reading.payload = msgspec.convert(members, Payload)
    except msgspec.ValidationError:
        return "a member is missing or of the wrong type"
    not_before = None if isinstance(payload.nbf, msgspec.UnsetType) else payload.nbf
    reading.times = Times(payload.iat, not_before, payload.exp)
    try:
        reading.expires_at = datetime.fromtimestamp(payload.exp, UTC)
    except (ValueError, OverflowError, OSError):
        return "exp is out of range"
    return None


def _issuer(reading: DecodedToken) -> str | None:
    return None if reading.payload.iss == reading.config.issuer else "wrong issuer"


def _audience(reading: DecodedToken) -> str | None:
    return None if reading.config.audience in reading.payload.audiences else "wrong audience"


def _kind(reading: DecodedToken) -> str | None:
    payload = reading.payload
    if payload.nonce is not msgspec.UNSET or payload.at_hash is not msgspec.UNSET:
        return "an ID token"
    if set(payload.audiences) == {reading.config.client_id}:
        return "an ID token: only the client is its audience"
    return None


def _subject_form(reading: DecodedToken) -> str | None:
    return None if _subject.fullmatch(reading.payload.sub) else "sub is not 1 to 255 visible ASCII characters"


def _organization(reading: DecodedToken) -> str | None:
    org_id = reach(reading.members, reading.config.org_claim)
    if org_id is msgspec.UNSET:
        org_id = ""
    if not isinstance(org_id, str) or (org_id and not org_id.isprintable()):
        return "the organization claim is not a text"
    reading.org_id = org_id or None
    return None


# Times are only compared and added to: subtracting a float from an int of any size can overflow.


def _issued(reading: DecodedToken) -> str | None:
    return "issued in the future" if reading.times.issued > reading.now + LEEWAY_SECONDS else None


def _not_before(reading: DecodedToken) -> str | None:
    not_before = reading.times.not_before
    return "not yet valid" if not_before is not None and not_before > reading.now + LEEWAY_SECONDS else None


def _lifetime(reading: DecodedToken) -> str | None:
    times = reading.times
    return "lives longer than 24 hours" if times.expires > times.issued + MAX_LIFETIME_SECONDS else None


def _expiry(reading: DecodedToken) -> str | None:
    return "expired" if reading.times.expires + LEEWAY_SECONDS <= reading.now else None


def are_timely(times: Times, now: float) -> bool:
    """Whether a token of these times passes `TIME_CHECKS`, told in one step; False also where the checks must tell."""
    issued, not_before, expires = times
    latest = now + LEEWAY_SECONDS
    return (
        issued <= latest
        and (not_before is None or not_before <= latest)
        and expires <= issued + MAX_LIFETIME_SECONDS
        and expires + LEEWAY_SECONDS > now
    )


def _said_extensions(reading: DecodedToken) -> str:
    header = reading.header
    said = [] if header.crit is msgspec.UNSET else [f"crit {as_json(header.crit)}"]
    said += [] if header.b64 is True else [f"b64 {as_json(header.b64)}"]
    return ", ".join(said) or "none"


def _said_kind(reading: DecodedToken) -> str:
    payload = reading.payload
    signs = [
        name for name, value in (("nonce", payload.nonce), ("at_hash", payload.at_hash)) if value is not msgspec.UNSET
    ]
    return f"it has {' and '.join(signs)}" if signs else f"for {as_json(payload.aud)}"


def _said_lifetime(reading: DecodedToken) -> str:
    try:
        return span(float(reading.times.expires) - float(reading.times.issued))
    except (OverflowError, ValueError):
        return f"from {as_json(reading.times.issued)} to {as_json(reading.times.expires)}"


def _said_organization(reading: DecodedToken) -> str:
    return f"{reading.config.org_claim}: {as_json(reach(reading.members, reading.config.org_claim))}"


def _published(reading: DecodedToken) -> str:
    listed = [f"{kid or 'a key without an id'} ({alg})" for kid, alg in reading.key_set.listing()]
    return f"one that the provider publishes: {', '.join(listed) or 'it publishes none'}"


def _nothing(_: DecodedToken) -> str:
    return ""


HEADER_CHECKS: Final = (
    Check("size", _size, lambda r: f"{len(r.token):,} characters", lambda _: f"at most {MAX_TOKEN_BYTES:,} characters"),
    Check(
        "form",
        _form,
        lambda r: f"parts: {r.token.count('.') + 1}",
        lambda _: "3: header.payload.signature, each base64url without padding",
    ),
    Check(
        "header", _header, _nothing, lambda _: "a JSON object, no name twice, alg a text; kid and typ texts, if present"
    ),
    Check("algorithm", _algorithm, lambda r: as_json(r.header.alg), lambda _: f"one of {', '.join(ALGORITHMS)}"),
    Check("extensions", _extensions, _said_extensions, lambda _: "none: no crit, b64 not false"),
    Check("type", _type, lambda r: as_json(r.header.typ), lambda _: "no typ, JWT or at+jwt"),
)
"""The checks that need nothing but the token."""

KEY: Final = Check("key", _key, lambda r: as_json(r.header.kid), _published)
"""Whether the provider publishes the key; the first that needs the provider."""

TIME_CHECKS: Final = (
    Check(
        "issued at",
        _issued,
        lambda r: moment(r.times.issued, r.now),
        lambda _: f"iat not more than {LEEWAY_SECONDS} s in the future",
    ),
    Check(
        "not before",
        _not_before,
        lambda r: "none" if r.times.not_before is None else moment(r.times.not_before, r.now),
        lambda _: f"no nbf, or one not more than {LEEWAY_SECONDS} s in the future",
    ),
    Check("lifetime", _lifetime, _said_lifetime, lambda _: f"at most {span(MAX_LIFETIME_SECONDS)} from iat to exp"),
    Check(
        "expiry",
        _expiry,
        lambda r: moment(r.times.expires, r.now),
        lambda _: f"exp not more than {LEEWAY_SECONDS} s ago",
    ),
)
"""The checks that depend on the present too; the last one is the expiry."""

ACCESS_TOKEN: Final = Check(
    "access token", _kind, _said_kind, lambda _: "no ID token: no nonce, no at_hash, not for the client alone"
)
"""Whether it is an access token; the only check that an ID token need not pass."""

CLAIM_CHECKS: Final = (
    KEY,
    Check("signature", _signature, _nothing, lambda _: "made with that key over exactly these bytes"),
    Check(
        "claims",
        _claims,
        _nothing,
        lambda _: "a JSON object, no name twice, with iss, sub, aud, iat and exp of their types",
    ),
    Check("issuer", _issuer, lambda r: as_json(r.payload.iss), lambda r: as_json(r.config.issuer)),
    Check(
        "audience",
        _audience,
        lambda r: as_json(r.payload.aud),
        lambda r: f"{as_json(r.config.audience)}, or a list with it",
    ),
    ACCESS_TOKEN,
    Check("subject", _subject_form, lambda r: as_json(r.payload.sub), lambda _: "1 to 255 visible ASCII characters"),
    Check("organization claim", _organization, _said_organization, lambda _: "a text, or none"),
    *TIME_CHECKS,
)
"""The checks that need the key."""

CHECKS: Final = (*HEADER_CHECKS, *CLAIM_CHECKS)
"""All of them, in their order. The expiry comes last: only a token that is good otherwise is called expired."""

EXPIRY: Final = CHECKS[-1]
