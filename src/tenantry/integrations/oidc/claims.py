"""Which identity provider is trusted, and where its tokens say what we need."""

import json
import re
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import msgspec
from joserfc.util import urlsafe_b64decode


class OidcConfig(msgspec.Struct, frozen=True):
    """The identity provider of one deployment.

    ``issuer`` and ``audience`` are compared exactly with the token's ``iss`` and ``aud``. ``client_id`` is
    that of the dashboard: a token for it alone is an ID token and refused, so ``audience`` must differ from it.
    The claim names are tried as they stand, then as a path of member names joined by dots.
    ``allow_http`` lets a plain-http issuer that is not on loopback pass; its keys can then be forged on the way.
    """

    issuer: str
    audience: str
    client_id: str | None = None
    org_claim: str = "org_id"
    role_claim: str = "org_role"
    allow_http: bool = False


# How the values of a token are written for people


_MOST_SHOWN: Final = 120
_UNITS: Final = (("d", 24 * 3600), ("h", 3600), ("min", 60), ("s", 1))


def as_json(value: object) -> str:
    """A value of a token as JSON, cut to what fits a line."""
    if value is msgspec.UNSET:
        return "none"
    try:
        text = json.dumps(value)
    except RecursionError:
        return "nested deeply"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text):,} characters)"


def moment(seconds: float, now: float) -> str:
    """A time of a token beside its distance to the present: ``2026-01-01T13:00:00Z, in 59 min 30 s``."""
    try:
        shown = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return as_json(seconds)
    distance = int(seconds - now)
    if not distance:
        return f"{shown}, now"
    return f"{shown}, in {span(distance)}" if distance > 0 else f"{shown}, {span(-distance)} ago"


def span(seconds: float) -> str:
    """A length of time in its two biggest units: ``1 h``, ``59 min 30 s``."""
    parts, rest = [], int(seconds)
    for unit, size in _UNITS:
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return " ".join(parts[:2]) or "0 s"


# What a token says, as types, and how it is read: JWT (RFC 7519) in JWS compact form (RFC 7515)


_MAX_EMAIL: Final = 254
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class Claims(msgspec.Struct, frozen=True):
    """What a verified token says.

    A user is ``(issuer, subject)``. ``role`` and ``scopes`` are as the provider wrote them; ``email`` is set only
    where the provider says that it has verified the address.
    """

    issuer: str
    subject: str
    org_id: str | None
    role: str | None
    scopes: tuple[str, ...]
    issued_at: datetime
    expires_at: datetime
    email: str | None


class Header(msgspec.Struct, frozen=True):
    """The members of a token's header that count; hints to keys (``jwk``, ``jku``, ``x5u``, ``x5c``) do not."""

    alg: str
    kid: str | msgspec.UnsetType = msgspec.UNSET
    typ: str | msgspec.UnsetType = msgspec.UNSET
    crit: Any = msgspec.UNSET
    b64: Any = True


class Payload(msgspec.Struct, frozen=True):
    """The claims that have a meaning of their own; those that are configured are reached by name."""

    iss: str
    sub: str
    aud: str | list[str]
    exp: int | float
    iat: int | float
    nbf: int | float | msgspec.UnsetType = msgspec.UNSET
    nonce: Any = msgspec.UNSET
    at_hash: Any = msgspec.UNSET
    scope: str | list[str] | None = None
    scp: str | list[str] | None = None
    email: Any = None
    email_verified: Any = None

    @property
    def audiences(self) -> list[str]:
        """``aud`` as a list, which it may be or not."""
        return [self.aud] if isinstance(self.aud, str) else self.aud

    @property
    def scopes(self) -> tuple[str, ...]:
        """The entries of ``scope`` (RFC 9068 section 2.2.3), else of ``scp``, which some providers write."""
        scopes = self.scp if self.scope is None else self.scope
        return tuple(scopes.split() if isinstance(scopes, str) else scopes or ())


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object; RFC 7519 section 4 and RFC 7515 section 4: member names must be unique."""
    made = dict(members)
    if len(made) != len(members):
        raise ValueError("a member is there twice")
    return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# The one decoder here that tells of names that are there twice.
_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def decode(segment: bytes) -> object:
    """The JSON value in a segment of a token. Raises `ValueError` or `RecursionError`.

    Half of a surrogate pair is refused: it is no character (RFC 7493 section 2.1), and cannot be written as UTF-8.
    """
    text = urlsafe_b64decode(segment).decode()
    value = _decoder.decode(text)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def reach(members: dict[str, Any], name: str) -> object:
    """The claim of that very name, else the one at that path of member names; UNSET without it."""
    if name in members:
        return members[name]
    found: Any = members
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            return msgspec.UNSET
        found = found[part]
    return found


def verified_email(email: object, verified: object) -> str | None:
    """The address, where it looks like one and the provider vouches for it (OpenID Connect Core 5.1)."""
    if verified is not True or not isinstance(email, str) or len(email) > _MAX_EMAIL:
        return None
    return email if "@" in email and email.isprintable() and " " not in email else None
