"""Verifying bearer tokens: JWT (RFC 7519) in JWS compact form (RFC 7515), by the rules of RFC 8725 and RFC 9068."""

import json
import logging
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, TypeVar

import msgspec
from joserfc.jwk import Key
from joserfc.util import urlsafe_b64decode

from tenantry.domain.errors import InvalidCredentialError, TokenExpiredError
from tenantry.gateways.identity.config import OidcConfig
from tenantry.gateways.identity.jwks import ALGORITHMS
from tenantry.gateways.identity.keys import KeySet
from tenantry.kit.clock import Clock, system_clock

_log = logging.getLogger(__name__)
_Kind = TypeVar("_Kind")

MAX_TOKEN_BYTES: Final = 8192
LEEWAY_SECONDS: Final = 30
MAX_LIFETIME_SECONDS: Final = 24 * 3600
_MAX_EMAIL: Final = 254
_TYPES: Final = ("jwt", "at+jwt", "application/at+jwt")
# OpenID Connect Core 2: at most 255 ASCII characters; a blank or control character has no place in an id.
_subject = re.compile(r"[!-~]{1,255}")


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
    expires_at: datetime
    email: str | None


class _Header(msgspec.Struct, frozen=True):
    alg: str
    kid: str | msgspec.UnsetType = msgspec.UNSET
    typ: str | msgspec.UnsetType = msgspec.UNSET
    crit: Any = msgspec.UNSET
    b64: Any = True


class _Payload(msgspec.Struct, frozen=True):
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


class TokenVerifier:
    """Verifies the access tokens of one identity provider."""

    def __init__(self, config: OidcConfig, keys: KeySet, *, clock: Clock = system_clock) -> None:
        self._config = config
        self._keys = keys
        self._clock = clock

    async def verify(self, token: str) -> Claims:
        """Return what ``token`` says, once every check has passed. The token itself is not kept.

        Raises `TokenExpiredError` when nothing but its age is wrong with it, `InvalidCredentialError` when anything
        else is, and `AuthUnavailableError` when the provider's keys are out of reach.
        """
        if len(token) > MAX_TOKEN_BYTES:
            _refuse("oversized")
        try:
            header, payload, signature = token.encode("ascii").split(b".")
            proof = urlsafe_b64decode(signature)
        except ValueError:
            _refuse("not a JWS in compact form")
        alg, kid = _read_header(header)
        keys = await self._keys.key(kid, alg)
        if not _is_signed(alg, keys, header + b"." + payload, proof):
            _refuse("wrong signature")
        return self._read_claims(payload)

    def _read_claims(self, segment: bytes) -> Claims:
        members = _decode_object(segment)
        payload = _convert(members, _Payload)
        self._check_parties(payload)
        claims = self._claims(payload, members)
        self._check_times(payload)
        return claims

    def _check_parties(self, payload: _Payload) -> None:
        if payload.iss != self._config.issuer:
            _refuse("wrong issuer")
        audiences = [payload.aud] if isinstance(payload.aud, str) else payload.aud
        if self._config.audience not in audiences:
            _refuse("wrong audience")
        if payload.nonce is not msgspec.UNSET or payload.at_hash is not msgspec.UNSET:
            _refuse("an ID token")
        if set(audiences) == {self._config.client_id}:
            _refuse("an ID token: only the client is its audience")
        if _subject.fullmatch(payload.sub) is None:
            _refuse("sub is not 1 to 255 visible ASCII characters")

    def _claims(self, payload: _Payload, members: dict[str, Any]) -> Claims:
        org_id = _reach(members, self._config.org_claim)
        if org_id is msgspec.UNSET:
            org_id = ""
        elif not isinstance(org_id, str) or (org_id and not org_id.isprintable()):
            _refuse("the organization claim is not a text")
        role = _reach(members, self._config.role_claim)
        try:
            expires_at = datetime.fromtimestamp(payload.exp, UTC)
        except (ValueError, OverflowError, OSError):
            _refuse("exp is out of range")
        return Claims(
            issuer=payload.iss,
            subject=payload.sub,
            org_id=org_id or None,
            role=role if isinstance(role, str) else None,
            scopes=_scopes(payload),
            expires_at=expires_at,
            email=verified_email(payload.email, payload.email_verified),
        )

    def _check_times(self, payload: _Payload) -> None:
        # Only compared and added to: subtracting a float from an int of any size can overflow.
        now = self._clock().timestamp()
        if payload.iat > now + LEEWAY_SECONDS:
            _refuse("issued in the future")
        if not isinstance(payload.nbf, msgspec.UnsetType) and payload.nbf > now + LEEWAY_SECONDS:
            _refuse("not yet valid")
        if payload.exp > payload.iat + MAX_LIFETIME_SECONDS:
            _refuse("lives longer than 24 hours")
        if payload.exp + LEEWAY_SECONDS <= now:
            raise TokenExpiredError("The bearer token has expired.")


def _read_header(segment: bytes) -> tuple[str, str | None]:
    header = _convert(_decode_object(segment), _Header)
    if header.alg not in ALGORITHMS:
        _refuse("algorithm not accepted")
    if header.crit is not msgspec.UNSET or header.b64 is not True:
        # No extension is understood here; RFC 7797's unencoded payload is one.
        _refuse("critical extension")
    if isinstance(header.typ, str) and header.typ.lower() not in _TYPES:
        _refuse("wrong type")
    return header.alg, header.kid if isinstance(header.kid, str) else None


def _is_signed(alg: str, keys: Sequence[Key], signed: bytes, proof: bytes) -> bool:
    algorithm = ALGORITHMS[alg]
    return any(algorithm.verify(signed, proof, key) for key in keys)


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


def _decode_object(segment: bytes) -> dict[str, Any]:
    try:
        members = _decoder.decode(urlsafe_b64decode(segment).decode())
    except (ValueError, RecursionError):
        _refuse("not base64url of JSON with unique names")
    if not isinstance(members, dict):
        _refuse("not a JSON object")
    return members


def _convert(members: dict[str, Any], kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.convert(members, kind)
    except msgspec.ValidationError:
        _refuse("a member is missing or of the wrong type")


def _reach(members: dict[str, Any], name: str) -> object:
    """The claim of that very name, else the one at that path of member names; UNSET without it."""
    if name in members:
        return members[name]
    found: Any = members
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            return msgspec.UNSET
        found = found[part]
    return found


def _scopes(payload: _Payload) -> tuple[str, ...]:
    """The entries of ``scope`` (RFC 9068 section 2.2.3), else of ``scp``, which some providers write."""
    scopes = payload.scp if payload.scope is None else payload.scope
    return tuple(scopes.split() if isinstance(scopes, str) else scopes or ())


def verified_email(email: object, verified: object) -> str | None:
    """The address, where it looks like one and the provider vouches for it (OpenID Connect Core 5.1)."""
    if verified is not True or not isinstance(email, str) or len(email) > _MAX_EMAIL:
        return None
    return email if "@" in email and email.isprintable() and " " not in email else None


def _refuse(reason: str) -> NoReturn:
    _log.debug("bearer token refused: %s", reason)
    raise InvalidCredentialError("The bearer token is not valid.") from None
