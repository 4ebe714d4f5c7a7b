"""The trusted identity provider, and its tokens' claims: JWT (RFC 7519) in JWS compact form (RFC
7515).
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, NoReturn

import msgspec
from joserfc.util import urlsafe_b64decode

from tenantry.domain.issuers import Issuers
from tenantry.domain.members import User
from tenantry.domain.operators import OperatorRole
from tenantry.domain.roles import BUILT_IN_ROLES, Roles

STANDARD_AUDIENCE: Final = "aud"
TOKEN_LIFETIME: Final = 86_400
"""The default of `OidcConfig.token_lifetime`, in seconds."""


def unmapped_roles(roles: Roles) -> Mapping[str, str]:
    """Return what a role claim may say where no map is set, with the ids of the roles."""
    ids = [role.id for role in roles]
    return MappingProxyType({**{one: one for one in ids}, **{f"org:{one}": one for one in ids}})


_MAX_SHOWN: Final = 120
_UNITS: Final = (("d", 24 * 3600), ("h", 3600), ("min", 60), ("s", 1))
_MAX_EMAIL: Final = 254
_MAX_NAME: Final = 100
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class OidcConfig(msgspec.Struct, frozen=True):
    """The identity provider of a deployment.

    ``issuers`` and ``audiences`` are what a token's ``iss`` and the claim ``audience_claim`` must
    say. ``client_id`` is the dashboard's, and should be no audience: a token whose ``aud`` is the
    client alone is an ID token. The claim names are tried as they are, then as a path of member
    names joined by dots. ``role_map`` maps the provider's role values to ids of ``roles``.
    ``operator_role`` makes a user an operator.
    ``token_lifetime`` is in seconds. ``allow_http`` accepts a plain-http issuer beyond loopback,
    whose keys an attacker on the network can forge.
    """

    issuers: Issuers
    audiences: tuple[str, ...]
    audience_claim: str = STANDARD_AUDIENCE
    client_id: str | None = None
    org_claim: str = "org_id"
    role_claim: str = "org_role"
    role_map: Mapping[str, str] = unmapped_roles(BUILT_IN_ROLES)
    roles: Roles = BUILT_IN_ROLES
    token_lifetime: int = TOKEN_LIFETIME
    allow_http: bool = False
    operator_role: OperatorRole | None = None

    @property
    def issuer(self) -> str:
        """The issuer or its template, as the discovery document names it."""
        return self.issuers.name

    @property
    def discovery_address(self) -> str:
        """Where the discovery document is (OpenID Connect Discovery 4.1: without a slash before the
        path).
        """
        # Microsoft Entra ID publishes its template, and the keys of all directories, there
        issuer = self.issuers.any_directory
        return issuer.removesuffix("/") + "/.well-known/openid-configuration"

    @property
    def resource(self) -> str | None:
        """The API to request access tokens for; None where the audience claim holds the client."""
        return self.audiences[0] if self.audience_claim == STANDARD_AUDIENCE else None


class RoleClaim(msgspec.Struct, frozen=True):
    """What a token says of the role, by its id. ``role`` is None without the claim; ``known`` is
    false if no value is ours.
    """

    role: str | None
    known: bool = True


_NO_ROLE: Final = RoleClaim(None)


class Claims(msgspec.Struct, frozen=True):
    """The claims of a verified token. A user is ``(issuer, subject)``.

    ``role`` is a role's id, None if the token has no role claim. ``scopes`` are as the provider
    wrote them; ``email`` is set only if the provider has verified it; ``name`` is what it calls the
    user.
    """

    issuer: str
    subject: str
    org_id: str | None
    role: str | None
    scopes: tuple[str, ...]
    issued_at: datetime
    expires_at: datetime
    email: str | None
    name: str | None = None
    operator_role: OperatorRole | None = None
    """The role of operators, if the token has it."""

    @property
    def user(self) -> User:
        """The user, without the claims."""
        return User(self.issuer, self.subject)


def role_claim(members: dict[str, Any], config: OidcConfig) -> RoleClaim:
    """Read the role: the highest known one in a text or a list of texts; any other value counts as
    member.
    """
    value = claim_at(members, config.role_claim)
    if value is msgspec.UNSET or value in ("", []):
        return _NO_ROLE
    roles = [
        config.role_map[each]
        for each in (value if isinstance(value, list) else [value])
        if isinstance(each, str) and each in config.role_map
    ]
    return RoleClaim(config.roles.highest(roles).id, known=bool(roles))


def operator_role(members: dict[str, Any], config: OidcConfig) -> OperatorRole | None:
    """Return the role of operators if the token's claim, taken as it is, contains it."""
    role = config.operator_role
    given = texts(claim_at(members, role.claim)) if role else None
    return role if role and given and role.name in given else None


class Header(msgspec.Struct, frozen=True):
    """The members of a token's header that are used. Key hints (``jwk``, ``jku``, ``x5u``, ``x5c``)
    are not.
    """

    alg: str
    kid: str | int | None = None
    typ: str | None = None
    crit: Any = msgspec.UNSET
    b64: Any = True


class Payload(msgspec.Struct, frozen=True):
    """The standard claims; configured ones are found by `claim_at`. A claim that is null is an
    absent one.
    """

    iss: str
    sub: str
    exp: int | float
    iat: int | float
    aud: str | list[str] | None = None
    nbf: int | float | None = None
    nonce: Any = None
    at_hash: Any = None
    token_use: Any = None
    tid: Any = None
    scope: str | list[str] | None = None
    scp: str | list[str] | None = None
    email: Any = None
    email_verified: Any = None

    @property
    def scopes(self) -> tuple[str, ...]:
        """The entries of ``scope`` (RFC 9068 section 2.2.3), else of ``scp``, which some providers
        use.
        """
        scopes = self.scp if self.scope is None else self.scope
        return tuple(scopes.split() if isinstance(scopes, str) else scopes or ())


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(members)
    if len(made) != len(members):
        raise ValueError("duplicate member")
    return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# msgspec ignores duplicates
_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def decode(segment: bytes) -> object:
    """Return the JSON value in a segment of a token. Raises `ValueError` or `RecursionError`.

    Half of a surrogate pair is rejected: it is no character (RFC 7493 section 2.1) and has no UTF-8
    form.
    """
    text = urlsafe_b64decode(segment).decode()
    value = _decoder.decode(text)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def claim_at(members: dict[str, Any], name: str) -> object:
    """Return the claim of this name, else the one at this path of member names, else UNSET; UNSET
    for null.
    """
    found: Any = members.get(name)
    if found is None and "." in name:
        found = members
        for part in name.split("."):
            found = found.get(part) if isinstance(found, dict) else None
    return msgspec.UNSET if found is None else found


def texts(value: object) -> list[str] | None:
    """Return the texts of a claim that holds one or a list of them; None for anything else."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    return None


def verified_email(email: object, verified: object) -> str | None:
    """Return a plausible address that the provider has verified (OpenID Connect Core 5.1).

    Some providers write the flag as a text, such as Amazon Cognito in its userinfo.
    """
    is_verified = verified is True or verified == "true"
    return email if is_verified and isinstance(email, str) and _is_address(email) else None


def user_name(members: Mapping[str, Any]) -> str | None:
    """Return what the provider calls the user: the name, or else the user name."""
    return first_text(members, "name", "preferred_username")


def first_text(members: Mapping[str, Any], *names: str) -> str | None:
    """Return the first of these claims that holds printable text, at most 100 characters of it."""
    return next(filter(None, (_printable(members.get(name)) for name in names)), None)


def _printable(value: object) -> str:
    if not isinstance(value, str):
        return ""
    return "".join(filter(str.isprintable, value)).strip()[:_MAX_NAME]


def _is_address(text: str) -> bool:
    return len(text) <= _MAX_EMAIL and "@" in text and text.isprintable() and " " not in text


def format_json(value: object) -> str:
    """Format a token's value as JSON, shortened to fit a line."""
    if value is msgspec.UNSET:
        return "none"
    try:
        text = json.dumps(value)
    except RecursionError:
        return "nested deeply"
    if len(text) <= _MAX_SHOWN:
        return text
    return f"{text[:_MAX_SHOWN]}... ({len(text):,} characters)"


def format_time(seconds: float, now: float) -> str:
    """Format a token's time with its distance: ``2026-01-01T13:00:00Z, in 59 min 30 s``."""
    try:
        shown = (
            datetime.fromtimestamp(seconds, UTC)
            .isoformat(timespec="seconds")
            .replace("+00:00", "Z")
        )
    except (ValueError, OverflowError, OSError):
        return format_json(seconds)
    distance = int(seconds - now)
    if not distance:
        return f"{shown}, now"
    if distance > 0:
        return f"{shown}, in {format_duration(distance)}"
    return f"{shown}, {format_duration(-distance)} ago"


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units: ``1 h``, ``59 min 30 s``."""
    parts = []
    rest = int(seconds)
    for unit, size in _UNITS:
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return " ".join(parts[:2]) or "0 s"
