"""Discovery (OpenID Connect Discovery 1.0) and JSON Web Key Sets (RFC 7517): which keys may prove a token."""

import logging
from typing import Any, Final

import httpx2
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key

from tenantry.integrations.oidc.config import OidcConfig
from tenantry.integrations.oidc.fetch import FetchError, fetch
from tenantry.integrations.oidc.weak_keys import weakness

_log = logging.getLogger(__name__)

ALGORITHMS: Final = {name: jws.JWSRegistry.algorithms[name] for name in ("RS256", "ES256", "EdDSA")}
"""The signature algorithms that are accepted, by their JOSE name."""

MAX_KEYS: Final = 32
_EDDSA_CURVES: Final = ("Ed25519", "Ed448")
_PUBLIC_MEMBERS: Final = ("kty", "use", "key_ops", "alg", "kid", "n", "e", "crv", "x", "y")


class Metadata(msgspec.Struct, frozen=True):
    """What is needed of a discovery document."""

    issuer: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False

    @property
    def can_sign_in(self) -> bool:
        """Whether people can be signed in there with a browser."""
        return bool(self.authorization_endpoint and self.token_endpoint)


class _Jwks(msgspec.Struct, frozen=True):
    keys: list[Any]


class PublishedKeys(msgspec.Struct, frozen=True):
    """The usable keys of a provider at one moment, found by ``(kid, alg)``; kid None finds all of an algorithm."""

    by_id: dict[tuple[str | None, str], tuple[Key, ...]]
    ids: frozenset[str]
    metadata: Metadata


async def fetch_published_keys(config: OidcConfig, client: httpx2.AsyncClient) -> PublishedKeys:
    """Discover the provider and read its key set. The caller bounds the time.

    Raises `FetchError`, those of `NOT_JSON`, or what the client raises.
    """
    # OpenID Connect Discovery 4.1: a terminating slash goes before the well-known path is appended.
    address = config.issuer.removesuffix("/") + "/.well-known/openid-configuration"
    body = await fetch(client, address, allow_http=config.allow_http)
    metadata = msgspec.json.decode(body, type=Metadata)
    if metadata.issuer != config.issuer:
        raise FetchError("the discovery document names another issuer")
    body = await fetch(client, metadata.jwks_uri, allow_http=config.allow_http)
    keys = usable_keys(msgspec.json.decode(body, type=_Jwks).keys)
    if not keys:
        _log.warning("the identity provider publishes no key that can be used")
    return _index(keys, metadata)


def _index(keys: list[tuple[str, Key]], metadata: Metadata) -> PublishedKeys:
    by_id: dict[tuple[str | None, str], tuple[Key, ...]] = {}
    for alg, key in keys:
        for kid in {key.kid, None}:
            by_id[kid, alg] = (*by_id.get((kid, alg), ()), key)
    ids = frozenset(key.kid for _, key in keys if key.kid is not None)
    return PublishedKeys(by_id, ids, metadata)


def usable_keys(entries: list[Any]) -> list[tuple[str, Key]]:
    """The keys of a set that can verify a token, each with its one algorithm; at most 32.

    Left out, as RFC 7517 section 5 has it for what is not understood: symmetric keys, keys for another use or
    algorithm, other curves, broken entries, and keys published with their private half. Weak keys (`weak_keys`) are
    left out with a line in the log.
    """
    found = [pair for entry in entries if isinstance(entry, dict) and (pair := _usable_key(entry))]
    if len(found) > MAX_KEYS:
        _log.warning("the identity provider publishes %d keys; the first %d are used", len(found), MAX_KEYS)
    return found[:MAX_KEYS]


def _usable_key(entry: dict[str, Any]) -> tuple[str, Key] | None:
    if "d" in entry:
        return None
    try:
        alg = _algorithm_of(entry)
        if alg is None:
            return None
        if reason := weakness(entry):
            _log.warning("the identity provider's key %.100r is ignored: %s", entry.get("kid"), reason)
            return None
        key = JWKRegistry.import_key({name: entry[name] for name in _PUBLIC_MEMBERS if name in entry})
        ALGORITHMS[alg].check_key(key)
        key.check_key_op("verify")
    except (JoseError, UnsupportedAlgorithm, ValueError, TypeError, LookupError):
        return None
    return alg, key


def _algorithm_of(entry: dict[str, Any]) -> str | None:
    match entry.get("kty"):
        case "RSA":
            return "RS256"
        case "EC" if entry.get("crv") == "P-256":
            return "ES256"
        case "OKP" if entry.get("crv") in _EDDSA_CURVES:
            return "EdDSA"
    return None
