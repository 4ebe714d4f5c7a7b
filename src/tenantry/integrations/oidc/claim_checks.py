"""The checks of a token, by the rules of RFC 8725 and RFC 9068, for `TokenVerifier`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from joserfc.jwk import Key
from joserfc.util import urlsafe_b64decode

from tenantry.common.clock import Clock
from tenantry.domain.issuers import Issuers, is_directory_id
from tenantry.integrations.oidc.claims import (
    STANDARD_AUDIENCE,
    Claims,
    Header,
    OidcConfig,
    Payload,
    RoleClaim,
    claim_at,
    decode,
    format_duration,
    format_json,
    format_time,
    operator_role,
    role_claim,
    texts,
    user_name,
    verified_email,
)
from tenantry.integrations.oidc.keys import ALGORITHMS, KeySet

MAX_TOKEN_BYTES: Final = 16_384
LEEWAY_SECONDS: Final = 30
_CACHED_HEADERS: Final = 64
_TYPES: Final = ("jwt", "at+jwt", "application/at+jwt")
# OpenID Connect Core 2: at most 255 ASCII characters; without blanks and control characters.
_SUBJECT: Final = re.compile(r"[!-~]{1,255}")

Part = TypeVar("Part", Header, Payload)


class Times(NamedTuple):
    """The times of a token, in seconds since the Unix epoch."""

    issued: int | float
    not_before: int | float | None
    expires: int | float


@dataclass(eq=False, repr=False, slots=True)
class DecodedToken:
    """A token during the checks: each check reads what earlier ones have decoded."""

    token: str
    config: OidcConfig
    key_set: KeySet
    header_segment: bytes = field(init=False)
    payload_segment: bytes = field(init=False)
    signature: bytes = field(init=False)
    header: Header = field(init=False)
    # the keys that may have signed the token; set before `CLAIM_CHECKS`
    keys: Sequence[Key] = field(init=False)
    key: Key = field(init=False)  # the key that signed it
    members: dict[str, Any] = field(init=False)
    payload: Payload = field(init=False)
    role: RoleClaim = field(init=False)
    expires_at: datetime = field(init=False)
    org_id: str | None = field(init=False)
    times: Times = field(init=False)
    # the current time in seconds since the Unix epoch; set before `TIME_CHECKS`
    now: float = field(init=False)

    @property
    def kid(self) -> str | None:
        """The key's id; a number counts as its text, as among the published keys."""
        return None if self.header.kid is None else str(self.header.kid)

    def claims(self) -> Claims:
        payload = self.payload
        return Claims(
            issuer=payload.iss,
            subject=payload.sub,
            org_id=self.org_id,
            role=self.role.role,
            scopes=payload.scopes,
            # at most the lifetime before the expiry
            issued_at=datetime.fromtimestamp(payload.iat, UTC),
            expires_at=self.expires_at,
            email=verified_email(payload.email, payload.email_verified),
            name=user_name(self.members),
            operator_role=operator_role(self.members, self.config),
        )


Describe = Callable[[DecodedToken], str]


class Check(NamedTuple):
    """One rule. ``said`` requires that earlier checks have passed; ``expected`` does not."""

    name: str
    expected: Describe
    said: Describe
    fault: Callable[[DecodedToken], str | bool | None]
    """Returns why the token is rejected, without any of its content, or True for ``reason``."""
    reason: str = ""

    @property
    def word(self) -> str:
        """The name as a metric's label."""
        return self.name.replace(" ", "_")


def _check(
    name: str, expected: str | Describe, said: Describe = lambda _: "", *, reason: str = ""
) -> Callable[[Callable[[DecodedToken], str | bool | None]], Check]:
    describe = (lambda _: expected) if isinstance(expected, str) else expected
    return lambda fault: Check(name, describe, said, fault, reason)


class CheckFailure(NamedTuple):
    """The first check that a token fails, and why."""

    check: Check
    reason: str


def first_failure(checks: Sequence[Check], token: DecodedToken) -> CheckFailure | None:
    for check in checks:
        if fault := check.fault(token):
            return CheckFailure(check, check.reason or str(fault))
    return None


@_check(
    "size",
    f"at most {MAX_TOKEN_BYTES:,} characters",
    lambda token: f"{len(token.token):,} characters",
    reason=f"too long: at most {MAX_TOKEN_BYTES:,} characters",
)
def _size(token: DecodedToken) -> bool:
    return len(token.token) > MAX_TOKEN_BYTES


@_check(
    "form",
    "3: header.payload.signature, each base64url without padding",
    lambda token: f"parts: {token.token.count('.') + 1}",
)
def _form(token: DecodedToken) -> str | None:
    try:
        token.header_segment, token.payload_segment, signature = token.token.encode("ascii").split(
            b"."
        )
        token.signature = urlsafe_b64decode(signature)
    except ValueError:
        return "not a JWS in compact form"
    return None


def _decode_object(segment: bytes, kind: type[Part]) -> tuple[dict[str, Any], Part] | str:
    """Return the members of a segment's object, and those of ``kind``; or the fault. A null member
    stays.
    """
    try:
        members = decode(segment)
    except (ValueError, RecursionError):
        return "not base64url of JSON with unique names"
    if not isinstance(members, dict):
        return "not a JSON object"
    try:
        return members, msgspec.convert(members, kind)
    except msgspec.ValidationError:
        return _faulty_member(members, kind)


def _faulty_member(members: dict[str, Any], kind: type[Part]) -> str:
    """Name the first member that is absent or of the wrong type."""
    for each in msgspec.structs.fields(kind):
        value = members.get(each.name)
        if value is None and each.required:
            return f"{each.name} is absent"
        try:
            msgspec.convert(value, each.type if value is not None else Any)
        except msgspec.ValidationError:
            return f"{each.name} is of the wrong type"
    return "a member is of the wrong type"


# a provider puts the same header on all tokens of one key
_decode_header = lru_cache(_CACHED_HEADERS)(_decode_object)


@_check(
    "header", "a JSON object without duplicate names; alg is text, kid and typ are text or absent"
)
def _header(token: DecodedToken) -> str | None:
    decoded = _decode_header(token.header_segment, Header)
    if isinstance(decoded, str):
        return decoded
    _, token.header = decoded
    return None


@_check(
    "algorithm",
    f"one of {', '.join(ALGORITHMS)}",
    lambda token: format_json(token.header.alg),
    reason="algorithm not accepted",
)
def _algorithm(token: DecodedToken) -> bool:
    return token.header.alg not in ALGORITHMS


def _said_extensions(token: DecodedToken) -> str:
    header = token.header
    said = [] if header.crit is msgspec.UNSET else [f"crit {format_json(header.crit)}"]
    said += [] if header.b64 is True else [f"b64 {format_json(header.b64)}"]
    return ", ".join(said) or "none"


@_check("extensions", "none: no crit, b64 not false", _said_extensions, reason="critical extension")
def _extensions(token: DecodedToken) -> bool:
    # No extension is supported; RFC 7797's unencoded payload is one.
    header = token.header
    return header.crit is not msgspec.UNSET or header.b64 is not True


@_check(
    "type",
    "no typ, JWT or at+jwt",
    lambda token: format_json(token.header.typ),
    reason="wrong type",
)
def _type(token: DecodedToken) -> bool:
    typ = token.header.typ
    return typ is not None and typ.lower() not in _TYPES


# the checks that need only the token
HEADER_CHECKS: Final = (_size, _form, _header, _algorithm, _extensions, _type)


def _published_keys(token: DecodedToken) -> str:
    return f"one that the provider publishes: {', '.join(token.key_set.listing()) or 'it publishes none'}"


@_check("key", _published_keys, lambda token: format_json(token.header.kid))
def _key(token: DecodedToken) -> str | None:
    if token.keys:
        return None
    return "the key is for another algorithm" if token.key_set.knows(token.kid) else "no such key"


@_check("signature", "made with that key over exactly these bytes")
def _signature(token: DecodedToken) -> str | None:
    algorithm = ALGORITHMS[token.header.alg]
    signed = token.header_segment + b"." + token.payload_segment
    for key in token.keys:
        if algorithm.verify(signed, token.signature, key):
            token.key = key
            return None
    return "wrong signature"


@_check(
    "claims", "a JSON object without duplicate names, with iss, sub, iat and exp of their types"
)
def _claims(token: DecodedToken) -> str | None:
    decoded = _decode_object(token.payload_segment, Payload)
    if isinstance(decoded, str):
        return decoded
    token.members, payload = decoded
    token.payload = payload
    token.role = role_claim(token.members, token.config)
    token.times = Times(payload.iat, payload.nbf, payload.exp)
    try:
        token.expires_at = datetime.fromtimestamp(payload.exp, UTC)
    except (ValueError, OverflowError, OSError):
        return "exp is out of range"
    return None


def _expected_issuer(token: DecodedToken) -> str:
    issuers = token.config.issuers
    if not issuers.is_template:
        return format_json(issuers.name)
    accepted = ", ".join(issuers.directories)
    return f"{format_json(issuers.name)} with the token's tid, of OIDC_DIRECTORIES: {accepted}"


def _said_issuer(token: DecodedToken) -> str:
    payload = token.payload
    said = format_json(payload.iss)
    return f"{said}, tid {format_json(payload.tid)}" if token.config.issuers.is_template else said


@_check("issuer", _expected_issuer, _said_issuer)
def _issuer(token: DecodedToken) -> str | None:
    issuers = token.config.issuers
    if issuers.is_template:
        return _directory_fault(token)
    return None if token.payload.iss == issuers.name else "wrong issuer"


def _directory_fault(token: DecodedToken) -> str | None:
    """Check the issuer against the template, with the directory that the token names."""
    issuers = token.config.issuers
    payload = token.payload
    directory = payload.tid
    if directory is None:
        return "tid is absent"
    if not isinstance(directory, str) or not is_directory_id(directory):
        return "tid is not the id of a directory"
    if payload.iss != issuers.of(directory):
        return "wrong issuer"
    if not issuers.accepts(directory):
        return "the directory is not accepted"
    return _key_fault(token, directory)


def _key_fault(token: DecodedToken, directory: str) -> str | None:
    # Keys of a template's document may be those of other issuers, such as Microsoft's for personal
    # accounts.
    key_issuer = token.key.get("issuer")
    if key_issuer is not None and Issuers(str(key_issuer)).of(directory) != token.payload.iss:
        return "the key is of another issuer"
    return None


def _expected_audience(token: DecodedToken) -> str:
    config = token.config
    ours = " or ".join(map(format_json, config.audiences))
    which = "it" if len(config.audiences) == 1 else "one of them"
    no_other = "" if config.audience_claim == STANDARD_AUDIENCE else ", and no aud"
    return f"{ours}, or a list with {which}{no_other}"


def _said_audience(token: DecodedToken) -> str:
    claim = token.config.audience_claim
    aud = token.payload.aud
    said = format_json(claim_at(token.members, claim))
    if claim == STANDARD_AUDIENCE:
        return said
    return f"{claim} {said}" + ("" if aud is None else f", aud {format_json(aud)}")


@_check("audience", _expected_audience, _said_audience)
def _audience(token: DecodedToken) -> str | None:
    config = token.config
    claim = config.audience_claim
    # The claim names the client, which has tokens for other APIs, and ID tokens. Those have an aud.
    if claim != STANDARD_AUDIENCE and token.payload.aud is not None:
        return "an ID token, or for another API: it has aud"
    value = claim_at(token.members, claim)
    if value is msgspec.UNSET:
        return f"{claim} is absent"
    audiences = texts(value)
    if audiences is None:
        return f"{claim} is of the wrong type"
    return "wrong audience" if set(audiences).isdisjoint(config.audiences) else None


_ID_TOKEN_CLAIMS: Final = ("nonce", "at_hash")
_ID_USE: Final = "id"


def _said_kind(token: DecodedToken) -> str:
    payload = token.payload
    found = [name for name in _ID_TOKEN_CLAIMS if getattr(payload, name) is not None]
    if payload.token_use is not None:
        found.append(f"token_use {format_json(payload.token_use)}")
    if found:
        return f"it has {' and '.join(found)}"
    return "no aud" if payload.aud is None else f"for {format_json(payload.aud)}"


@_check(
    "access token",
    "no ID token: no nonce, no at_hash, no token_use id, not for the client alone",
    _said_kind,
)
def _access_token(token: DecodedToken) -> str | None:
    payload = token.payload
    if payload.nonce is not None or payload.at_hash is not None or payload.token_use == _ID_USE:
        return "an ID token"
    audiences = texts(payload.aud)
    if audiences is not None and set(audiences) == {token.config.client_id}:
        return "an ID token: only the client is its audience"
    return None


@_check(
    "subject",
    "1 to 255 visible ASCII characters",
    lambda token: format_json(token.payload.sub),
    reason="sub is not 1 to 255 visible ASCII characters",
)
def _subject(token: DecodedToken) -> bool:
    return _SUBJECT.fullmatch(token.payload.sub) is None


def _said_organization(token: DecodedToken) -> str:
    claim = token.config.org_claim
    return f"{claim}: {format_json(claim_at(token.members, claim))}"


@_check("organization claim", "a text, or none", _said_organization)
def _organization(token: DecodedToken) -> str | None:
    org_id = claim_at(token.members, token.config.org_claim)
    if org_id is msgspec.UNSET:
        org_id = ""
    # an empty text is printable
    if not isinstance(org_id, str) or not org_id.isprintable():
        return "the organization claim is not a text"
    token.org_id = org_id or None
    return None


# Times are only compared and added to: subtracting a float from a large int can overflow.


@_check(
    "issued at",
    f"iat not more than {LEEWAY_SECONDS} s in the future",
    lambda token: format_time(token.times.issued, token.now),
    reason="issued in the future",
)
def _issued(token: DecodedToken) -> bool:
    return token.times.issued > token.now + LEEWAY_SECONDS


@_check(
    "not before",
    f"no nbf, or one not more than {LEEWAY_SECONDS} s in the future",
    lambda token: (
        "none" if token.times.not_before is None else format_time(token.times.not_before, token.now)
    ),
    reason="not yet valid",
)
def _not_before(token: DecodedToken) -> bool:
    not_before = token.times.not_before
    return not_before is not None and not_before > token.now + LEEWAY_SECONDS


def _said_lifetime(token: DecodedToken) -> str:
    try:
        return format_duration(float(token.times.expires) - float(token.times.issued))
    except (OverflowError, ValueError):
        return f"from {format_json(token.times.issued)} to {format_json(token.times.expires)}"


def _expected_lifetime(token: DecodedToken) -> str:
    return f"at most {format_duration(token.config.token_lifetime)} from iat to exp, and {LEEWAY_SECONDS} s of leeway"


@_check(
    "lifetime",
    _expected_lifetime,
    _said_lifetime,
    reason="lives longer than OIDC_TOKEN_LIFETIME",
)
def _lifetime(token: DecodedToken) -> bool:
    times = token.times
    return times.expires > times.issued + token.config.token_lifetime + LEEWAY_SECONDS


@_check(
    "expiry",
    f"exp not more than {LEEWAY_SECONDS} s ago",
    lambda token: format_time(token.times.expires, token.now),
    reason="expired",
)
def _expiry(token: DecodedToken) -> bool:
    return token.times.expires + LEEWAY_SECONDS <= token.now


KEY: Final = _key
ACCESS_TOKEN: Final = _access_token  # the only check that an ID token need not pass
EXPIRY: Final = _expiry
# the checks that depend on the current time
TIME_CHECKS: Final = (_issued, _not_before, _lifetime, EXPIRY)
CLAIM_CHECKS: Final = (
    KEY,
    _signature,
    _claims,
    _issuer,
    _audience,
    ACCESS_TOKEN,
    _subject,
    _organization,
    *TIME_CHECKS,
)
"""The checks that need the key."""
CHECKS: Final = (*HEADER_CHECKS, *CLAIM_CHECKS)
"""All checks in order. The expiry is last: a token is reported as expired only if it is otherwise
valid.
"""


async def check(
    token: DecodedToken, clock: Clock, claim_checks: Sequence[Check] = CLAIM_CHECKS
) -> CheckFailure | None:
    """Run the checks of a new token; find its key in between. Raises `AuthUnavailableError`."""
    failure = first_failure(HEADER_CHECKS, token)
    if failure is not None:
        return failure
    token.keys = await token.key_set.key(token.kid, token.header.alg)
    token.now = clock().timestamp()
    return first_failure(claim_checks, token)
