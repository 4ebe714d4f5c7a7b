"""The users, the signing key, and the tokens."""

import base64
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
_ID_TOKEN_TYPE: Final = "JWT"  # noqa: S105
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
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if isinstance(key, RSAPrivateKey):
        return RSAKey.import_key(key)
    if isinstance(key, EllipticCurvePrivateKey) and key.curve.name == "secp256r1":
        return ECKey.import_key(key)
    raise ValueError(f"{path} holds no RSA or P-256 private key; remove it to create a new one")


def algorithm_of(key: SigningKey) -> str:
    """Return the JOSE name of the key's algorithm; raises `ValueError` for another curve than P-256."""
    if isinstance(key, RSAKey):
        return "RS256"
    if key.curve_name != "P-256":
        raise ValueError(f"a key on {key.curve_name} does not sign ES256")
    return "ES256"


def public_keys(key: SigningKey) -> dict[str, Any]:
    """Return the JSON Web Key Set (RFC 7517) with the public key."""
    entry = key.as_dict(private=False, kid=key.thumbprint(), alg=algorithm_of(key), use="sig")
    return {"keys": [entry]}


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
    now = clock()
    claims = {
        "iss": issuer,
        "sub": user.sub,
        "aud": audience,
        "iat": int(now.timestamp()),
        "exp": int((now + lifetime).timestamp()),
        "jti": secrets.token_urlsafe(16),
        "client_id": client_id,
        "scope": scope,
        **_organization(user),
        **_address(user),
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
    nonce: str | None,
    authenticated_at: datetime,
    scopes: tuple[str, ...],
    clock: Clock = system_clock,
) -> str:
    """Return the ID token (OpenID Connect Core 1.0, section 2) of an access token."""
    now = clock()
    half = hashlib.sha256(access_token.encode()).digest()[:16]
    claims = {
        "iss": issuer,
        "sub": user.sub,
        "aud": client_id,
        "iat": int(now.timestamp()),
        "exp": int((now + ACCESS_TOKEN_LIFETIME).timestamp()),
        "auth_time": int(authenticated_at.timestamp()),
        "at_hash": base64.urlsafe_b64encode(half).rstrip(b"=").decode(),
        **({} if nonce is None else {"nonce": nonce}),
        **_organization(user),
        **user_claims(user, scopes),
    }
    return _sign(signing_key, claims, _ID_TOKEN_TYPE)


def user_claims(user: DemoUser, scopes: tuple[str, ...]) -> dict[str, Any]:
    """Return the claims that ``scopes`` allow (OpenID Connect Core 1.0, section 5.4)."""
    profile = {"name": user.name} if "profile" in scopes else {}
    return {**profile, **(_address(user) if "email" in scopes else {})}


def read_access_token(
    token: str, signing_key: SigningKey, *, issuer: str, audience: str, now: datetime
) -> Mapping[str, Any] | None:
    """Return the claims of a valid access token of this issuer, else None."""
    try:
        decoded = jwt.decode(token, signing_key, algorithms=[algorithm_of(signing_key)])
        rules = jwt.JWTClaimsRegistry(
            now=int(now.timestamp()),
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
        )
        rules.validate(decoded.claims)
    except (JoseError, ValueError):
        return None
    return decoded.claims if decoded.header.get("typ") == ACCESS_TOKEN_TYPE else None


def _organization(user: DemoUser) -> dict[str, str]:
    pairs = {"org_id": user.org_id, "org_role": user.role}
    return {name: text for name, text in pairs.items() if text is not None}


def _address(user: DemoUser) -> dict[str, Any]:
    return {} if user.email is None else {"email": user.email, "email_verified": True}


def _sign(key: SigningKey, claims: dict[str, Any], kind: str) -> str:
    alg = algorithm_of(key)
    return jwt.encode({"alg": alg, "typ": kind, "kid": key.thumbprint()}, claims, key, algorithms=[alg])
