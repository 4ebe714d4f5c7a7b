"""The identity provider's public keys, kept at hand so that no request waits for the provider."""

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
from tenantry.integrations.oidc.jwks import FetchError, ProviderMetadata, PublishedKeys, fetch_published_keys

_log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 300.0
COOL_DOWN_SECONDS: Final = 30.0
MAX_STALENESS_SECONDS: Final = 24 * 3600.0


class KeySet:
    """The keys of one provider: fetched at the start, every 300 s, and when a token names an unknown one.

    Known keys answer at once, also while the provider is away, until they are 24 h old. A fetch for an unknown key
    is shared by all who wait for it and not repeated within 30 s of the last attempt, so tokens with made-up key
    ids cannot drive traffic to the provider. Once an attempt has failed nobody waits any more: the next ones go on
    behind the requests. Keys that the provider withdraws are gone with the next fetch.
    ``monotonic`` returns seconds that never go back. The client stays the caller's to close, after `aclose`.
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
        self._cool_down = min(COOL_DOWN_SECONDS, refresh_seconds)
        self._published: PublishedKeys | None = None
        self._fetched_at = 0.0
        self._attempted_at: float | None = None
        self._trouble: str | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def attempted(self) -> bool:
        """Whether the first fetch has ended, well or not: readiness waits for no more than that."""
        return self._published is not None or self._trouble is not None

    @property
    def trouble(self) -> str | None:
        """Why the last attempt to fetch the keys failed, if it did."""
        return self._trouble

    @property
    def metadata(self) -> ProviderMetadata | None:
        """What the provider says of itself, once it is known."""
        return self._published.metadata if self._published else None

    async def start(self) -> None:
        """Fetch the keys once and keep them fresh from now on. A provider that is away is no error."""
        await self.refresh()
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._keep_fresh())

    async def aclose(self) -> None:
        """Stop fetching. The keys at hand still answer."""
        for task in (self._refreshing, self._fetching):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self._refreshing = self._fetching = None

    async def key(self, kid: str | None, alg: str) -> Sequence[Key]:
        """The keys that may have signed a token with this header; without ``kid``, all of ``alg``.

        None of them where the provider has no such key. Raises `AuthUnavailableError` when that cannot be told: then
        the last attempt to ask has failed, and the next one, if it is due, goes on behind the caller.
        """
        keys = self.cached(kid, alg)
        if keys or self.knows(kid):
            return keys
        if self._trouble is None:
            await self._ask_provider()
            keys = self.cached(kid, alg)
        elif self._is_cool():
            self._begin()
        if not keys and (self._trouble is not None or self._current() is None):
            raise AuthUnavailableError("The identity provider's keys cannot be reached.")
        return keys

    def cached(self, kid: str | None, alg: str) -> Sequence[Key]:
        """Those of these keys that are known, without asking anybody: none once they are older than 24 h."""
        published = self._current()
        return published.by_id.get((kid, alg), ()) if published else ()

    def knows(self, kid: str | None) -> bool:
        """Whether a key of this id is known, for whatever algorithm."""
        published = self._current()
        return published is not None and kid in published.ids

    def listing(self) -> list[tuple[str | None, str]]:
        """Id and algorithm of every key that is known."""
        published = self._current()
        by_id = published.by_id if published else {}
        return [(key.kid, alg) for (kid, alg), keys in by_id.items() if kid is None for key in keys]

    async def refresh(self) -> None:
        """Fetch the keys now, or wait for the fetch under way. Never raises for what the provider does."""
        # Not awaited itself: a waiter that is cancelled must not end the fetch for the others.
        await asyncio.wait([self._begin()])

    async def settle(self) -> None:
        """Where the keys are not known, or the last attempt has failed: ask again, unless that was tried just now."""
        if self._published is None or self._trouble is not None:
            await self._ask_provider()

    def _begin(self) -> "asyncio.Task[None]":
        if self._fetching is None:
            self._attempted_at = self._monotonic()
            self._fetching = asyncio.create_task(self._fetch())
        return self._fetching

    def _current(self) -> PublishedKeys | None:
        if self._published is None or self._monotonic() - self._fetched_at > MAX_STALENESS_SECONDS:
            return None
        return self._published

    def _is_cool(self) -> bool:
        """Whether the last attempt, not the last success, is long enough ago."""
        return self._attempted_at is None or self._monotonic() - self._attempted_at >= self._cool_down

    async def _ask_provider(self) -> None:
        if self._fetching is not None or self._is_cool():
            await self.refresh()

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                published = await fetch_published_keys(self._config, self._client)
        except (httpx2.HTTPError, FetchError, TimeoutError, OSError, *NOT_JSON) as error:
            self._trouble = f"{type(error).__name__}: {error}"
            _log.warning("the identity provider's keys could not be fetched: %s", self._trouble)
        except Exception as error:  # noqa: BLE001  # whatever a provider makes a library do, the keys at hand go on
            self._trouble = type(error).__name__
            _log.exception("the identity provider's keys could not be fetched")
        else:
            self._published, self._fetched_at, self._trouble = published, self._monotonic(), None
        finally:
            self._fetching = None

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_seconds if self._trouble is None else self._cool_down)
            if self._is_cool():
                await self.refresh()
