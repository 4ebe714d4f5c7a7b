"""Fetches the identity provider's metadata (OpenID Connect Discovery 1.0) and keys (RFC 7517), without weak keys."""

import contextlib
import logging
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key
from joserfc.util import base64_to_int, urlsafe_b64decode

from tenantry.common.http import is_loopback
from tenantry.integrations.oidc.claims import OidcConfig

MAX_BODY_BYTES: Final = 256 * 1024
_PLAIN: Final = {"Accept": "application/json", "Accept-Encoding": "identity"}


class FetchError(Exception):
    """The response cannot be used; the message contains no secret."""


def is_secure(url: str, *, allow_http: bool = False) -> bool:
    """Whether ``url`` is https, or http on loopback (or anywhere with ``allow_http``), and ASCII."""
    if not url.isascii() or not url.isprintable():
        return False
    try:
        parsed = httpx2.URL(url)
        urlsplit(url)  # other modules use it, and it rejects more
    except (httpx2.InvalidURL, ValueError):
        return False
    if not parsed.host:
        return False
    return parsed.scheme == "https" or (parsed.scheme == "http" and (allow_http or is_loopback(parsed.host)))


async def fetch(
    client: httpx2.AsyncClient, url: str, *, allow_http: bool, headers: Mapping[str, str] | None = None
) -> bytes:
    """GET ``url``; return the body of a 200 response of at most 256 KiB. Raises `FetchError` and client errors."""
    status, body = await _request(client, "GET", url, headers or {}, allow_http=allow_http)
    if status != httpx2.codes.OK:
        raise FetchError(f"answered {status}")
    return body


async def post_form(
    client: httpx2.AsyncClient, url: str, form: str, *, allow_http: bool, headers: Mapping[str, str]
) -> tuple[int, bytes]:
    """POST an encoded form, with the bounds of `fetch`; return status and body."""
    headers = {"Content-Type": "application/x-www-form-urlencoded", **headers}
    return await _request(client, "POST", url, headers, form, allow_http=allow_http)


async def _request(
    client: httpx2.AsyncClient,
    method: str,
    url: str,
    headers: Mapping[str, str],
    content: str | None = None,
    *,
    allow_http: bool,
) -> tuple[int, bytes]:
    if not is_secure(url, allow_http=allow_http):
        raise FetchError("not an https address")
    # Without the client's defaults: no user's cookies are sent with another user's request.
    request = httpx2.Request(method, url, headers={**_PLAIN, **headers}, content=content)
    response = await client.send(request, stream=True, auth=None, follow_redirects=False)
    async with contextlib.aclosing(response):
        if response.headers.get("content-encoding", "identity") != "identity":
            raise FetchError("answered with a compressed body")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise FetchError(f"answered with more than {MAX_BODY_BYTES} bytes")
    return response.status_code, bytes(body)


MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 8192

# ROCA: Nemec et al., "The Return of Coppersmith's Attack" (CCS 2017, CVE-2017-15361), section 4. Primes of affected
# keys are k * M + 65537^a mod M, where M is a product of small primes. So modulo each of these the modulus is a power
# of 65537. The false positive rate is about 2^-27.
_ROCA_PRIMES: Final = (
    3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109,
    113, 127, 131, 137, 139, 149, 151, 157, 163, 167,
)  # fmt: skip
_ROCA_GENERATOR: Final = 65537

_P25519: Final = 2**255 - 19
_P448: Final = 2**448 - 2**224 - 1
_ORDER_8: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
"""The y-coordinate of a point of order 8 on Curve25519's Edwards form; the other is its negative."""
# By curve: the bits of y, below the sign of x (RFC 8032 sections 5.1.3 and 5.2.3); the field's prime; and the
# y-coordinates of all points whose order divides the cofactor, whose signatures anyone can forge.
_SMALL_ORDER: Final[Mapping[object, tuple[int, int, frozenset[int]]]] = {
    "Ed25519": (255, _P25519, frozenset({0, 1, _P25519 - 1, _ORDER_8, _P25519 - _ORDER_8})),
    "Ed448": (455, _P448, frozenset({0, 1, _P448 - 1})),
}


def weakness(entry: Mapping[str, Any]) -> str | None:
    """Return why a JSON Web Key is too weak, or None. Raises `ValueError`, `TypeError` or `LookupError`."""
    match entry.get("kty"):
        case "RSA":
            return _weakness_of_modulus(base64_to_int(entry["n"]))
        case "OKP" if entry.get("crv") in _SMALL_ORDER:
            bits, prime, small = _SMALL_ORDER[entry["crv"]]
            y = int.from_bytes(urlsafe_b64decode(bytes(entry["x"], "ascii")), "little") & ((1 << bits) - 1)
            return "its public key is a point of small order" if y % prime in small else None
    return None


def _weakness_of_modulus(modulus: int) -> str | None:
    bits = modulus.bit_length()
    if bits < MIN_RSA_BITS:
        return f"RSA of {bits} bits, fewer than {MIN_RSA_BITS}"
    if bits > MAX_RSA_BITS:
        return f"RSA of {bits} bits, more than {MAX_RSA_BITS}"
    if all(modulus % prime in powers for prime, powers in _roca_fingerprint()):
        return "its RSA modulus can be factored (ROCA, CVE-2017-15361)"
    return None


@cache
def _roca_fingerprint() -> tuple[tuple[int, frozenset[int]], ...]:
    return tuple(
        (prime, frozenset(pow(_ROCA_GENERATOR, exponent, prime) for exponent in range(prime - 1)))
        for prime in _ROCA_PRIMES
    )


_log = logging.getLogger(__name__)

ALGORITHMS: Final = {name: jws.JWSRegistry.algorithms[name] for name in ("RS256", "ES256", "EdDSA")}
"""The accepted signature algorithms by JOSE name."""

MAX_KEYS: Final = 32
_EDDSA_CURVES: Final = ("Ed25519", "Ed448")
_PUBLIC_MEMBERS: Final = ("kty", "use", "key_ops", "alg", "kid", "n", "e", "crv", "x", "y")


class IssuerMetadata(msgspec.Struct, frozen=True):
    """The used members of a discovery document."""

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
        return bool(self.authorization_endpoint and self.token_endpoint)


class _Jwks(msgspec.Struct, frozen=True):
    keys: list[Any]


class PublishedKeys(msgspec.Struct, frozen=True):
    """The usable keys of a provider by ``(kid, alg)``; kid None has all keys of an algorithm."""

    by_id: dict[tuple[str | None, str], tuple[Key, ...]]
    ids: frozenset[str]
    metadata: IssuerMetadata


async def fetch_published_keys(config: OidcConfig, client: httpx2.AsyncClient) -> PublishedKeys:
    """Fetch the provider's metadata and keys. The caller sets a timeout.

    Raises `FetchError`, the errors of `NOT_JSON`, and the client's errors.
    """
    # OpenID Connect Discovery 4.1: remove a trailing slash before the well-known path.
    address = config.issuer.removesuffix("/") + "/.well-known/openid-configuration"
    body = await fetch(client, address, allow_http=config.allow_http)
    metadata = msgspec.json.decode(body, type=IssuerMetadata)
    if metadata.issuer != config.issuer:
        raise FetchError("the discovery document names another issuer")
    body = await fetch(client, metadata.jwks_uri, allow_http=config.allow_http)
    keys = usable_keys(msgspec.json.decode(body, type=_Jwks).keys)
    if not keys:
        _log.warning("the identity provider publishes no usable key")
    by_id: dict[tuple[str | None, str], tuple[Key, ...]] = {}
    for alg, key in keys:
        for kid in {key.kid, None}:
            by_id[kid, alg] = (*by_id.get((kid, alg), ()), key)
    ids = frozenset(key.kid for _, key in keys if key.kid is not None)
    return PublishedKeys(by_id, ids, metadata)


def usable_keys(entries: list[Any]) -> list[tuple[str, Key]]:
    """Return the keys of a set that can verify a token, each with its algorithm; at most 32.

    Ignored are unsupported entries (RFC 7517 section 5): symmetric and private keys, other uses, algorithms and curves,
    and malformed entries. Weak keys are ignored with a log line.
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
