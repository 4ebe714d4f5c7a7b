"""The identity provider's metadata (OpenID Connect Discovery 1.0) and keys (RFC 7517), cached."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, NamedTuple

import httpx2
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key
from joserfc.util import base64_to_int

from tenantry.common.cancellation import cancel
from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.common.encoding import NOT_JSON
from tenantry.domain.errors import AuthUnavailableError
from tenantry.integrations.http_client import FetchError, fetch
from tenantry.integrations.oidc.claims import OidcConfig

REFRESH_SECONDS: Final = 300.0
COOLDOWN_SECONDS: Final = 30.0
MAX_STALENESS_SECONDS: Final = 24 * 3600.0

_OF_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
# RFC 9864: Ed25519 is the name of EdDSA with this curve alone.
_OF_ED25519: Final = ("EdDSA", "Ed25519")
_FITTING: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": _OF_RSA,
    "EC P-256": ("ES256",),
    "EC P-384": ("ES384",),
    "EC P-521": ("ES512",),
    "OKP Ed25519": _OF_ED25519,
    "OKP Ed448": ("EdDSA",),
}
"""The algorithms by the type of a key, with its curve if it has one."""
ALGORITHMS: Final = {
    name: jws.JWSRegistry.algorithms[name]
    for name in (*_OF_RSA, "ES256", "ES384", "ES512", *_OF_ED25519)
}
"""The accepted signature algorithms by JOSE name."""

MAX_KEYS: Final = 32
MAX_ENTRIES: Final = 256
_MAX_MEMBER: Final = 2048
"""The longest member of a key; the modulus of the longest key has 1,366 characters."""
_USED_MEMBERS: Final = ("kty", "use", "key_ops", "alg", "kid", "n", "e", "crv", "x", "y", "issuer")
_PRIVATE_MEMBER: Final = "d"
_MAX_SHOWN: Final = 100

MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 8192

_log = logging.getLogger(__name__)


class IssuerMetadata(msgspec.Struct, frozen=True):
    """The used members of a discovery document."""

    issuer: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool | None = None

    @property
    def can_sign_in(self) -> bool:
        return bool(self.authorization_endpoint and self.token_endpoint)


class _Jwks(msgspec.Struct, frozen=True):
    keys: list[Any]


class UsableKey(NamedTuple):
    """A published key, and the algorithms whose signatures it may verify."""

    algorithms: tuple[str, ...]
    key: Key


class IgnoredKey(NamedTuple):
    """An entry of a key set that cannot verify tokens. ``expected``: providers publish such entries
    for other uses.
    """

    kid: str
    """The key's id as a log may show it."""
    reason: str
    expected: bool = False

    def __str__(self) -> str:
        return f"{self.kid}: {self.reason}"


class PublishedKeys(msgspec.Struct, frozen=True):
    """The usable keys of a provider by ``(kid, alg)``; kid None has all keys of an algorithm."""

    by_id: dict[tuple[str | None, str], tuple[Key, ...]]
    metadata: IssuerMetadata
    ignored: tuple[IgnoredKey, ...] = ()
    usable: tuple[UsableKey, ...] = ()


async def fetch_published_keys(config: OidcConfig, client: httpx2.AsyncClient) -> PublishedKeys:
    """Fetch the provider's metadata and keys. The caller sets a timeout.

    Raises `FetchError`, the errors of `NOT_JSON`, and the client's errors.
    """
    body = await fetch(client, config.discovery_address, allow_http=config.allow_http)
    metadata = msgspec.json.decode(body, type=IssuerMetadata)
    if metadata.issuer != config.issuer:
        raise FetchError("the discovery document names another issuer")
    body = await fetch(client, metadata.jwks_uri, allow_http=config.allow_http)
    usable, ignored = await read_key_set(msgspec.json.decode(body, type=_Jwks).keys)
    by_id: dict[tuple[str | None, str], tuple[Key, ...]] = {}
    for algorithms, key in usable:
        for kid, alg in itertools.product({key.kid, None}, algorithms):
            by_id[kid, alg] = (*by_id.get((kid, alg), ()), key)
    return PublishedKeys(by_id, metadata, tuple(ignored), tuple(usable))


async def read_key_set(entries: list[Any]) -> tuple[list[UsableKey], list[IgnoredKey]]:
    """Return the keys of a set that can verify a token, and the ignored entries: at most `MAX_KEYS`
    of each. At most `MAX_ENTRIES` are read, with a turn for other tasks after each.

    Ignored are unsupported entries (RFC 7517 section 5): symmetric and private keys, other uses,
    algorithms and curves, RSA keys of other sizes, and malformed entries.
    """
    usable, ignored = list[UsableKey](), list[IgnoredKey]()
    for entry in entries[:MAX_ENTRIES]:
        await asyncio.sleep(0)
        read = _read_entry(entry)
        if isinstance(read, UsableKey):
            usable.append(read)
        else:
            ignored.append(read)
    for _, key in usable[MAX_KEYS:]:
        ignored.append(IgnoredKey(_shown(key.kid), f"only the first {MAX_KEYS} keys are used"))
    return usable[:MAX_KEYS], ignored[:MAX_KEYS]


def _read_entry(entry: object) -> UsableKey | IgnoredKey:
    if not isinstance(entry, dict):
        return IgnoredKey("an entry", "it is not an object")
    members = _normalized(entry)
    kid = _shown(members.get("kid"))
    if any(isinstance(each, str) and len(each) > _MAX_MEMBER for each in members.values()):
        return IgnoredKey(kid, "a member is too long")
    if reason := _purpose_fault(entry, members) or _type_fault(members):
        return IgnoredKey(kid, reason, expected=members.get("use") == "enc")
    try:
        if reason := _size_fault(members):
            return IgnoredKey(kid, reason)
        return _import_key(members)
    except (JoseError, UnsupportedAlgorithm, ValueError, TypeError, LookupError) as error:
        return IgnoredKey(kid, f"it is malformed ({type(error).__name__})")


def _import_key(members: dict[str, Any]) -> UsableKey:
    algorithms = _algorithms_of(members)
    # one that is named Ed25519 verifies EdDSA too
    members.pop("alg", None)
    key = JWKRegistry.import_key(members)
    for each in algorithms:
        ALGORITHMS[each].check_key(key)
    return UsableKey(algorithms, key)


def _normalized(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the used members of an entry as RFC 7517 has them.

    Some providers write null or an empty list for an absent member, or a number for the text of the
    key's id.
    """
    members = {name: entry[name] for name in _USED_MEMBERS if entry.get(name) is not None}
    if members.get("key_ops") == []:
        del members["key_ops"]
    if type(members.get("kid")) is int:
        members["kid"] = str(members["kid"])
    return members


def _purpose_fault(entry: dict[str, Any], members: dict[str, Any]) -> str | None:
    """Return why an entry is not published for verifying signatures, if so."""
    if entry.get(_PRIVATE_MEMBER) is not None:
        return "its private part is published"
    use = members.get("use", "sig")
    operations = members.get("key_ops", ["verify"])
    if use != "sig":
        return f"it is for another use: {_shown(use)}"
    if not isinstance(operations, list) or "verify" not in operations:
        return "its key_ops do not contain verify"
    return None


def _type_fault(members: dict[str, Any]) -> str | None:
    """Return why no accepted algorithm has keys of an entry's type, if so."""
    fitting = _fitting_algorithms(members)
    if not fitting:
        curve = f", curve {_shown(members['crv'])}" if "crv" in members else ""
        return f"its type is not supported: {_shown(members.get('kty'))}{curve}"
    alg = members.get("alg")
    if alg is None or alg in fitting:
        return None
    return f"its algorithm does not fit its type: {_shown(alg)}"


def _algorithms_of(members: dict[str, Any]) -> tuple[str, ...]:
    """Return the algorithms that a key of a supported type may verify: its own, else all that
    fit.
    """
    fitting = _fitting_algorithms(members)
    alg = members.get("alg")
    return fitting if alg is None or fitting == _OF_ED25519 else (alg,)


def _fitting_algorithms(members: dict[str, Any]) -> tuple[str, ...]:
    kty = members.get("kty")
    return _FITTING.get("RSA" if kty == "RSA" else f"{kty} {members.get('crv')}", ())


def _shown(value: object) -> str:
    """Return a member of a key for a log line or an error."""
    if value is None:
        return "none"
    return f"{value[:_MAX_SHOWN]!r}" if isinstance(value, str) else f"a {type(value).__name__}"


def _size_fault(members: dict[str, Any]) -> str | None:
    """Return why the modulus of an RSA key has too few or too many bits, if so. Raises
    `ValueError`, `TypeError` or `LookupError`.
    """
    if members["kty"] != "RSA":
        return None
    bits = base64_to_int(members["n"]).bit_length()
    if bits < MIN_RSA_BITS:
        return f"RSA of {bits} bits, fewer than {MIN_RSA_BITS}"
    if bits > MAX_RSA_BITS:
        return f"RSA of {bits} bits, more than {MAX_RSA_BITS}"
    return None


@dataclass(eq=False)
class KeySet:
    """The keys of one provider: fetched at the start, every 300 s by a loop that calls
    `refresh_if_due`, and when a token names an unknown one.

    Cached keys are used while the provider is away, until they are 24 h old. All tokens with an
    unknown key share one fetch, at most one in 30 s, so that invented key ids cannot cause traffic.
    After a failed fetch no request waits: the next ones run in the background. The next fetch drops
    keys that the provider has withdrawn. ``monotonic`` is a monotonic clock, in seconds;
    ``timeout`` bounds each fetch. The caller closes the client, after `aclose`.
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

    @property
    def attempted(self) -> bool:
        """Whether the first fetch has ended; readiness requires it."""
        return self._published is not None or self.trouble is not None

    @property
    def metadata(self) -> IssuerMetadata | None:
        return self._published.metadata if self._published else None

    def pause(self) -> float:
        """Return the seconds until the next refresh: fewer after a failure."""
        return self.refresh_seconds if self.trouble is None else self._cooldown

    async def aclose(self) -> None:
        """Stop the current fetch. Cached keys remain usable."""
        await cancel(self._fetching)
        self._fetching = None

    async def key(self, kid: str | None, alg: str) -> Sequence[Key]:
        """Return the keys that may have signed a token with this header; without ``kid``, all of
        ``alg``.

        Raises `AuthUnavailableError` if the key is unknown and the last fetch has failed.
        """
        keys = self.cached(kid, alg)
        if keys or self.knows(kid):
            return keys
        await self._look_again()
        keys = self.cached(kid, alg)
        if not keys and (self.trouble is not None or self._current() is None):
            raise AuthUnavailableError("The identity provider's keys cannot be reached.")
        return keys

    async def _look_again(self) -> None:
        """Fetch the keys for an unknown one; after a failed fetch in the background."""
        if self.trouble is None:
            await self.refresh_if_due()
        elif self._may_retry():
            self._begin()

    def cached(self, kid: str | None, alg: str) -> Sequence[Key]:
        """Return the cached keys, without a fetch; none once they are older than 24 h."""
        published = self._current()
        return published.by_id.get((kid, alg), ()) if published else ()

    def knows(self, kid: str | None) -> bool:
        """Whether a key with this id is cached, for any algorithm."""
        published = self._current()
        return (
            published is not None
            and kid is not None
            and any((kid, alg) in published.by_id for alg in ALGORITHMS)
        )

    def listing(self) -> list[str]:
        """Describe each cached key: its id, and the algorithms that it verifies."""
        published = self._current()
        return [
            f"{key.kid or 'a key without an id'} ({', '.join(algorithms)})"
            for algorithms, key in (published.usable if published else ())
        ]

    async def refresh(self) -> None:
        """Fetch the keys, or wait for the current fetch. Raises nothing for the provider's
        failures.
        """
        # Not awaited directly: a canceled waiter must not cancel the fetch for the others.
        await asyncio.wait([self._begin()])

    async def refresh_if_due(self) -> None:
        """Join the current fetch, or fetch the keys if the last attempt is old enough."""
        if self._fetching is not None or self._may_retry():
            await self.refresh()

    async def ensure_fetched(self) -> None:
        """Fetch the keys if that has failed before, unless the last attempt was less than 30 s
        ago.
        """
        if self._published is None or self.trouble is not None:
            await self.refresh_if_due()

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
            self._log_ignored(published)
            self._published, self._fetched_at, self.trouble = published, self.monotonic(), None
        finally:
            self._fetching = None

    def _log_ignored(self, published: PublishedKeys) -> None:
        """Log the entries of the key set that are not used, when they change."""
        previous = self._published
        if previous is not None and previous.ignored == published.ignored and any(published.by_id):
            return
        for each in published.ignored:
            level = logging.INFO if each.expected else logging.WARNING
            _log.log(level, "the identity provider's key %s is ignored: %s", each.kid, each.reason)
        if not published.by_id:
            _log.warning("the identity provider publishes no usable key")
