"""Users, the signing key and the tokens of the development identity provider."""

import base64
import contextlib
import hashlib
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from tenantry.common.clock import Clock, system_clock
from tenantry_devkit.files import create_private

SigningKey = ECKey | RSAKey
"""An RSA key signs RS256, a key on the curve P-256 signs ES256."""

ACCESS_TOKEN_LIFETIME: Final = timedelta(hours=1)
DEFAULT_SCOPE: Final = "openid profile email"
ACCESS_TOKEN_TYPE: Final = "at+jwt"  # noqa: S105  # a media type, RFC 9068 section 2.1
_RSA_BITS: Final = 2048


class DemoUser(msgspec.Struct, frozen=True):
    """A user who can sign in with one click.

    ``email`` counts as verified. ``role`` is the role in the organization ``org_id``: owner, admin or member.
    """

    sub: str
    name: str
    email: str | None
    org_id: str | None = None
    role: str | None = None


def load_or_create_signing_key(path: Path) -> SigningKey:
    """Return the key in a PEM file, which is created if it is missing, readable only by its owner.

    A new key is RSA: every OpenID provider has to sign RS256 (OpenID Connect Discovery 1.0, section 3). Raises
    `ValueError` if the file holds anything but an unencrypted RSA or P-256 private key.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        create_private(path, RSAKey.generate_key(_RSA_BITS).as_pem(private=True))
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        key = load_pem_private_key(path.read_bytes(), password=None)
        if isinstance(key, RSAPrivateKey):
            return RSAKey.import_key(key)
        if isinstance(key, EllipticCurvePrivateKey) and key.curve.name == "secp256r1":
            return ECKey.import_key(key)
    raise ValueError(f"{path} holds no RSA or P-256 private key; remove it to create a new one")


def algorithm_of(key: SigningKey) -> str:
    return "RS256" if isinstance(key, RSAKey) else "ES256"


def mint_access_token(
    signing_key: SigningKey,
    *,
    issuer: str,
    audience: str,
    client_id: str,
    user: DemoUser,
    lifetime: timedelta = ACCESS_TOKEN_LIFETIME,
    scope: str = DEFAULT_SCOPE,
    clock: Clock = system_clock,
    more_claims: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Return a JWT access token (RFC 9068); ``scope`` is separated by blanks. ``more_claims`` override others."""
    claims = {
        **_claims(issuer, audience, user, clock(), lifetime),
        "jti": secrets.token_urlsafe(16),
        "client_id": client_id,
        "scope": scope,
        **user_claims(user, ("email",)),
        **more_claims,
    }
    return _sign(signing_key, claims, ACCESS_TOKEN_TYPE)


def mint_id_token(
    signing_key: SigningKey,
    *,
    issuer: str,
    client_id: str,
    user: DemoUser,
    access_token: str,
    scopes: tuple[str, ...],
    now: datetime,
    more_claims: Mapping[str, Any],
) -> str:
    """Return the ID token (OpenID Connect Core 1.0, section 2) of an access token."""
    half = hashlib.sha256(access_token.encode()).digest()[:16]
    claims = {
        **_claims(issuer, client_id, user, now, ACCESS_TOKEN_LIFETIME),
        "at_hash": base64.urlsafe_b64encode(half).rstrip(b"=").decode(),
        **user_claims(user, scopes),
        **more_claims,
    }
    return _sign(signing_key, claims, "JWT")


def user_claims(user: DemoUser, scopes: tuple[str, ...]) -> dict[str, Any]:
    """Return the claims that ``scopes`` allow (OpenID Connect Core 1.0, section 5.4)."""
    email = {"email": user.email, "email_verified": True} if user.email is not None and "email" in scopes else {}
    return {**({"name": user.name} if "profile" in scopes else {}), **email}


def read_access_token(
    token: str, signing_key: SigningKey, *, issuer: str, audience: str, now: datetime
) -> Mapping[str, Any] | None:
    """Return the claims of a valid access token of this issuer, else None."""
    expected: dict[str, Any] = {
        "iss": {"essential": True, "value": issuer},
        "aud": {"essential": True, "value": audience},
        "exp": {"essential": True},
    }
    try:
        decoded = jwt.decode(token, signing_key, algorithms=[algorithm_of(signing_key)])
        jwt.JWTClaimsRegistry(now=int(now.timestamp()), **expected).validate(decoded.claims)
    except (JoseError, ValueError):
        return None
    return decoded.claims if decoded.header.get("typ") == ACCESS_TOKEN_TYPE else None


def _claims(issuer: str, audience: str, user: DemoUser, now: datetime, lifetime: timedelta) -> dict[str, Any]:
    """Return the claims of both kinds of token, with the user's organization and role."""
    organization = {"org_id": user.org_id, "org_role": user.role}
    return {
        "iss": issuer,
        "sub": user.sub,
        "aud": audience,
        "iat": int(now.timestamp()),
        "exp": int((now + lifetime).timestamp()),
        **{name: text for name, text in organization.items() if text is not None},
    }


def _sign(key: SigningKey, claims: dict[str, Any], kind: str) -> str:
    alg = algorithm_of(key)
    return jwt.encode({"alg": alg, "typ": kind, "kid": key.thumbprint()}, claims, key, algorithms=[alg])
