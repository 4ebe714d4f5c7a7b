"""The trusted identity provider, and its tokens' claims: JWT (RFC 7519) in JWS compact form (RFC 7515)."""

import json
import re
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import msgspec
from joserfc.util import urlsafe_b64decode

from tenantry.domain.members import User
from tenantry.domain.permissions import Role

_ROLES: Final = {role.value: role for role in Role}
_MAX_SHOWN: Final = 120
_UNITS: Final = (("d", 24 * 3600), ("h", 3600), ("min", 60), ("s", 1))
_MAX_EMAIL: Final = 254
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class OidcConfig(msgspec.Struct, frozen=True):
    """The identity provider of a deployment.

    ``issuer`` and ``audience`` must equal the token's ``iss`` and ``aud``. ``client_id`` is the dashboard's, and must
    differ from ``audience``: a token for it alone is an ID token. The claim names are tried as they are, then as a path
    of member names joined by dots. ``allow_http`` accepts a plain-http issuer beyond loopback, whose keys an attacker
    on the network can forge.
    """

    issuer: str
    audience: str
    client_id: str | None = None
    org_claim: str = "org_id"
    role_claim: str = "org_role"
    allow_http: bool = False


class Claims(msgspec.Struct, frozen=True):
    """The claims of a verified token. A user is ``(issuer, subject)``.

    ``role`` and ``scopes`` are as the provider wrote them; ``email`` is set only if the provider has verified it.
    """

    issuer: str
    subject: str
    org_id: str | None
    role: str | None
    scopes: tuple[str, ...]
    issued_at: datetime
    expires_at: datetime
    email: str | None

    @property
    def user(self) -> User:
        """The user, without the claims."""
        return User(self.issuer, self.subject)

    @property
    def claimed_role(self) -> Role | None:
        """The role; an unknown one counts as member."""
        return None if self.role is None else _ROLES.get(self.role, Role.MEMBER)


class Header(msgspec.Struct, frozen=True):
    """The members of a token's header that are used. Key hints (``jwk``, ``jku``, ``x5u``, ``x5c``) are not."""

    alg: str
    kid: str | msgspec.UnsetType = msgspec.UNSET
    typ: str | msgspec.UnsetType = msgspec.UNSET
    crit: Any = msgspec.UNSET
    b64: Any = True


class Payload(msgspec.Struct, frozen=True):
    """The standard claims; configured ones are found by `claim_at`."""

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
        return [self.aud] if isinstance(self.aud, str) else self.aud

    @property
    def scopes(self) -> tuple[str, ...]:
        """The entries of ``scope`` (RFC 9068 section 2.2.3), else of ``scp``, which some providers use."""
        scopes = self.scp if self.scope is None else self.scope
        return tuple(scopes.split() if isinstance(scopes, str) else scopes or ())


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(members)
    if len(made) != len(members):
        raise ValueError("duplicate member")
    return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)  # msgspec ignores duplicates


def decode(segment: bytes) -> object:
    """Return the JSON value in a segment of a token. Raises `ValueError` or `RecursionError`.

    Half of a surrogate pair is rejected: it is no character (RFC 7493 section 2.1) and has no UTF-8 form.
    """
    text = urlsafe_b64decode(segment).decode()
    value = _decoder.decode(text)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def claim_at(members: dict[str, Any], name: str) -> object:
    """Return the claim of this name, else the one at this path of member names, else UNSET."""
    if name in members:
        return members[name]
    found: Any = members
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            return msgspec.UNSET
        found = found[part]
    return found


def verified_email(email: object, verified: object) -> str | None:
    """Return a plausible address that the provider has verified (OpenID Connect Core 5.1)."""
    if verified is not True or not isinstance(email, str) or len(email) > _MAX_EMAIL:
        return None
    return email if "@" in email and email.isprintable() and " " not in email else None


def format_json(value: object) -> str:
    """Format a token's value as JSON, shortened to fit a line."""
    if value is msgspec.UNSET:
        return "none"
    try:
        text = json.dumps(value)
    except RecursionError:
        return "nested deeply"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({len(text):,} characters)"


def format_time(seconds: float, now: float) -> str:
    """Format a token's time with its distance: ``2026-01-01T13:00:00Z, in 59 min 30 s``."""
    try:
        shown = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return format_json(seconds)
    distance = int(seconds - now)
    if not distance:
        return f"{shown}, now"
    return f"{shown}, in {format_duration(distance)}" if distance > 0 else f"{shown}, {format_duration(-distance)} ago"


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units: ``1 h``, ``59 min 30 s``."""
    parts, rest = [], int(seconds)
    for unit, size in _UNITS:
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return " ".join(parts[:2]) or "0 s"
