"""The identity provider's metadata (OpenID Connect Discovery 1.0) and keys (RFC 7517), cached, without weak keys."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import Any, Final

import httpx2
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key
from joserfc.util import base64_to_int, urlsafe_b64decode

from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.common.encoding import NOT_JSON
from tenantry.domain.errors import AuthUnavailableError
from tenantry.integrations.http_client import FetchError, fetch
from tenantry.integrations.oidc.claims import OidcConfig

REFRESH_SECONDS: Final = 300.0
COOLDOWN_SECONDS: Final = 30.0
MAX_STALENESS_SECONDS: Final = 24 * 3600.0

ALGORITHMS: Final = {name: jws.JWSRegistry.algorithms[name] for name in ("RS256", "ES256", "EdDSA")}
"""The accepted signature algorithms by JOSE name."""

MAX_KEYS: Final = 32
_PUBLIC_MEMBERS: Final = ("kty", "use", "key_ops", "alg", "kid", "n", "e", "crv", "x", "y")

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

_log = logging.getLogger(__name__)


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
    return PublishedKeys(by_id, metadata)


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
        case "OKP" if entry.get("crv") in _SMALL_ORDER:
            return "EdDSA"
    return None


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


@dataclass(eq=False)
class KeySet:
    """The keys of one provider: fetched at the start, every 300 s, and when a token names an unknown one.

    Cached keys are used while the provider is away, until they are 24 h old. All tokens with an unknown key share one
    fetch, at most one in 30 s, so that invented key ids cannot cause traffic. After a failed fetch no request waits:
    the next ones run in the background. The next fetch drops keys that the provider has withdrawn. ``monotonic`` is a
    monotonic clock, in seconds; ``timeout`` bounds each fetch. The caller closes the client, after `aclose`.
    """

    config: OidcConfig
    http_client: httpx2.AsyncClient
    _: KW_ONLY
    monotonic: Callable[[], float] = time.monotonic
    refresh_seconds: float = REFRESH_SECONDS
    timeout: float = DEFAULT_TIMEOUTS.identity_provider

    def __post_init__(self) -> None:
        self._cooldown = min(COOLDOWN_SECONDS, self.refresh_seconds)
        self._published: PublishedKeys | None = None
        self._fetched_at = 0.0
        self._attempted_at: float | None = None
        self.trouble: str | None = None  # why the last fetch failed, or None
        self._fetching: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def attempted(self) -> bool:
        """Whether the first fetch has ended; readiness requires it."""
        return self._published is not None or self.trouble is not None

    @property
    def metadata(self) -> IssuerMetadata | None:
        return self._published.metadata if self._published else None

    async def start(self) -> None:
        """Fetch the keys, and refresh them from now on. Raises nothing if the provider is away."""
        await self.refresh()
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._keep_fresh())

    async def aclose(self) -> None:
        """Stop fetching. Cached keys remain usable."""
        for task in (self._refreshing, self._fetching):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self._refreshing = self._fetching = None

    async def key(self, kid: str | None, alg: str) -> Sequence[Key]:
        """Return the keys that may have signed a token with this header; without ``kid``, all of ``alg``.

        Raises `AuthUnavailableError` if the key is unknown and the last fetch has failed.
        """
        keys = self.cached(kid, alg)
        if keys or self.knows(kid):
            return keys
        if self.trouble is None:
            await self._refresh_if_due()
            keys = self.cached(kid, alg)
        elif self._may_retry():
            self._begin()
        if not keys and (self.trouble is not None or self._current() is None):
            raise AuthUnavailableError("The identity provider's keys cannot be reached.")
        return keys

    def cached(self, kid: str | None, alg: str) -> Sequence[Key]:
        """Return the cached keys, without a fetch; none once they are older than 24 h."""
        published = self._current()
        return published.by_id.get((kid, alg), ()) if published else ()

    def knows(self, kid: str | None) -> bool:
        """Whether a key with this id is cached, for any algorithm."""
        published = self._current()
        return published is not None and kid is not None and any((kid, alg) in published.by_id for alg in ALGORITHMS)

    def listing(self) -> list[tuple[str | None, str]]:
        published = self._current()
        by_id = published.by_id if published else {}
        return [(key.kid, alg) for (kid, alg), keys in by_id.items() if kid is None for key in keys]

    async def refresh(self) -> None:
        """Fetch the keys, or wait for the current fetch. Raises nothing for the provider's failures."""
        # Not awaited directly: a canceled waiter must not cancel the fetch for the others.
        await asyncio.wait([self._begin()])

    async def ensure_fetched(self) -> None:
        """Fetch the keys if that has failed before, unless the last attempt was less than 30 s ago."""
        if self._published is None or self.trouble is not None:
            await self._refresh_if_due()

    def _begin(self) -> "asyncio.Task[None]":
        if self._fetching is None:
            self._attempted_at = self.monotonic()
            self._fetching = asyncio.create_task(self._fetch())
        return self._fetching

    def _current(self) -> PublishedKeys | None:
        if self._published is None or self.monotonic() - self._fetched_at > MAX_STALENESS_SECONDS:
            return None
        return self._published

    def _may_retry(self) -> bool:
        """Whether the last attempt, not the last success, is old enough."""
        return self._attempted_at is None or self.monotonic() - self._attempted_at >= self._cooldown

    async def _refresh_if_due(self) -> None:
        if self._fetching is not None or self._may_retry():
            await self.refresh()

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(self.timeout):
                published = await fetch_published_keys(self.config, self.http_client)
        except (httpx2.HTTPError, FetchError, TimeoutError, OSError, *NOT_JSON) as error:
            self.trouble = f"{type(error).__name__}: {error}"
            _log.warning("the identity provider's keys could not be fetched: %s", self.trouble)
        except Exception as error:  # noqa: BLE001  # cached keys remain usable whatever a library raises
            self.trouble = type(error).__name__
            _log.exception("the identity provider's keys could not be fetched")
        else:
            self._published, self._fetched_at, self.trouble = published, self.monotonic(), None
        finally:
            self._fetching = None

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self.refresh_seconds if self.trouble is None else self._cooldown)
            if self._may_retry():
                await self.refresh()
