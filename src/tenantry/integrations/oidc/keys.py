"""The identity provider's public keys, cached so that requests do not wait for the provider."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import httpx2
from joserfc.jwk import Key

from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.common.encoding import NOT_JSON
from tenantry.domain.errors import AuthUnavailableError
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.jwks import FetchError, IssuerMetadata, PublishedKeys, fetch_published_keys

_log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 300.0
COOLDOWN_SECONDS: Final = 30.0
MAX_STALENESS_SECONDS: Final = 24 * 3600.0


class KeySet:
    """The keys of one provider: fetched at the start, every 300 s, and when a token names an unknown one.

    Cached keys are used while the provider is away, until they are 24 h old. All tokens with an unknown key share one
    fetch, at most one in 30 s, so that invented key ids cannot cause traffic. After a failed fetch no request waits:
    the next ones run in the background. The next fetch drops keys that the provider has withdrawn. ``monotonic`` is a
    monotonic clock, in seconds. The caller closes the client, after `aclose`.
    """

    def __init__(
        self,
        config: OidcConfig,
        http_client: httpx2.AsyncClient,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        refresh_seconds: float = REFRESH_SECONDS,
        timeout: float = DEFAULT_TIMEOUTS.identity_provider,
    ) -> None:
        """``timeout`` bounds each fetch, in seconds."""
        self._config = config
        self._client = http_client
        self._monotonic = monotonic
        self._timeout = timeout
        self._refresh_seconds = refresh_seconds
        self._cooldown = min(COOLDOWN_SECONDS, refresh_seconds)
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
        return published is not None and kid in published.ids

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
            self._attempted_at = self._monotonic()
            self._fetching = asyncio.create_task(self._fetch())
        return self._fetching

    def _current(self) -> PublishedKeys | None:
        if self._published is None or self._monotonic() - self._fetched_at > MAX_STALENESS_SECONDS:
            return None
        return self._published

    def _may_retry(self) -> bool:
        """Whether the last attempt, not the last success, is old enough."""
        return self._attempted_at is None or self._monotonic() - self._attempted_at >= self._cooldown

    async def _refresh_if_due(self) -> None:
        if self._fetching is not None or self._may_retry():
            await self.refresh()

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                published = await fetch_published_keys(self._config, self._client)
        except (httpx2.HTTPError, FetchError, TimeoutError, OSError, *NOT_JSON) as error:
            self.trouble = f"{type(error).__name__}: {error}"
            _log.warning("the identity provider's keys could not be fetched: %s", self.trouble)
        except Exception as error:  # noqa: BLE001  # cached keys remain usable whatever a library raises
            self.trouble = type(error).__name__
            _log.exception("the identity provider's keys could not be fetched")
        else:
            self._published, self._fetched_at, self.trouble = published, self._monotonic(), None
        finally:
            self._fetching = None

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_seconds if self.trouble is None else self._cooldown)
            if self._may_retry():
                await self.refresh()
