"""Users, the signing key and the tokens of the development identity provider."""

import contextlib
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
from authlib.oidc.core.util import create_half_hash
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

    ``email`` counts as verified. ``role`` is the role in the organization ``org_id``: owner, admin
    or member. ``is_operator`` is for the pages alone: who is one is the service's setting.
    """

    sub: str
    name: str
    email: str | None
    org_id: str | None = None
    role: str | None = None
    is_operator: bool = False


def load_or_create_signing_key(path: Path) -> SigningKey:
    """Return the key in a PEM file, which is created if it is missing, readable only by its owner.

    A new key is RSA: every OpenID provider has to sign RS256 (OpenID Connect Discovery 1.0, section
    3). Raises `ValueError` if the file holds anything but an unencrypted RSA or P-256 private key.
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


class Grant(msgspec.Struct, frozen=True):
    """The result of a sign-in."""

    user: DemoUser
    scopes: tuple[str, ...]
    nonce: str | None
    authenticated_at: datetime


class TokenIssuer(msgspec.Struct, frozen=True):
    """Signs the tokens of one client: access tokens are for ``audience``, ID tokens for
    ``client_id``.
    """

    signing_key: SigningKey
    issuer: str
    audience: str
    client_id: str
    clock: Clock = system_clock

    def access_token(
        self,
        user: DemoUser,
        *,
        scope: str = DEFAULT_SCOPE,
        lifetime: timedelta = ACCESS_TOKEN_LIFETIME,
        more_claims: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Return a JWT access token (RFC 9068); ``scope`` is separated by blanks. ``more_claims``
        override others.
        """
        claims = {
            **self._claims(self.audience, user, lifetime),
            "jti": secrets.token_urlsafe(16),
            "client_id": self.client_id,
            "scope": scope,
            **user_claims(user, ("email",)),
            **more_claims,
        }
        return self._sign(claims, ACCESS_TOKEN_TYPE)

    def id_token(self, grant: Grant, access_token: str, *, nonce: str | None) -> str:
        """Return the ID token (OpenID Connect Core 1.0, section 2) of an access token."""
        claims = {
            **self._claims(
                self.client_id,
                grant.user,
                ACCESS_TOKEN_LIFETIME,
            ),
            "at_hash": (create_half_hash(access_token, self.algorithm) or b"").decode(),
            "auth_time": int(grant.authenticated_at.timestamp()),
            **({} if nonce is None else {"nonce": nonce}),
            **user_claims(grant.user, grant.scopes),
        }
        return self._sign(claims, "JWT")

    def read(self, access_token: str) -> Mapping[str, Any] | None:
        """Return the claims of a valid access token of this issuer, else None."""
        expected: dict[str, Any] = {
            "iss": {"essential": True, "value": self.issuer},
            "aud": {"essential": True, "value": self.audience},
            "exp": {"essential": True},
        }
        try:
            decoded = jwt.decode(
                access_token,
                self.signing_key,
                algorithms=[self.algorithm],
            )
            jwt.JWTClaimsRegistry(now=int(self.clock().timestamp()), **expected).validate(
                decoded.claims
            )
        except (JoseError, ValueError):
            return None
        return decoded.claims if decoded.header.get("typ") == ACCESS_TOKEN_TYPE else None

    @property
    def algorithm(self) -> str:
        return "RS256" if isinstance(self.signing_key, RSAKey) else "ES256"

    def _claims(self, audience: str, user: DemoUser, lifetime: timedelta) -> dict[str, Any]:
        """Return the claims of both kinds of token, with the user's organization and role."""
        now, organization = self.clock(), {"org_id": user.org_id, "org_role": user.role}
        return {
            "iss": self.issuer,
            "sub": user.sub,
            "aud": audience,
            "iat": int(now.timestamp()),
            "exp": int((now + lifetime).timestamp()),
            **{name: text for name, text in organization.items() if text is not None},
        }

    def _sign(self, claims: dict[str, Any], kind: str) -> str:
        header = {
            "alg": self.algorithm,
            "typ": kind,
            "kid": self.signing_key.thumbprint(),
        }
        return jwt.encode(
            header,
            claims,
            self.signing_key,
            algorithms=[self.algorithm],
        )


def user_claims(user: DemoUser, scopes: tuple[str, ...]) -> dict[str, Any]:
    """Return the claims that ``scopes`` allow (OpenID Connect Core 1.0, section 5.4)."""
    email = (
        {"email": user.email, "email_verified": True}
        if user.email is not None and "email" in scopes
        else {}
    )
    return {**({"name": user.name} if "profile" in scopes else {}), **email}
