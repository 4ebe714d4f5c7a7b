"""The identity provider's public keys, kept at hand so that no request waits for the provider."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import httpx2
import msgspec
from joserfc.jwk import Key

from tenantry.domain.errors import AuthUnavailableError, InvalidCredentialError
from tenantry.gateways.identity.config import OidcConfig
from tenantry.gateways.identity.fetch import TOTAL_SECONDS, FetchError
from tenantry.gateways.identity.jwks import PublishedKeys, fetch_published_keys

_log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 300.0
COOL_DOWN_SECONDS: Final = 30.0
MAX_STALENESS_SECONDS: Final = 24 * 3600.0


class KeySet:
    """The keys of one provider: fetched at the start, every 300 s, and when a token names an unknown one.

    Known keys answer at once, also while the provider is away, until they are 24 h old. A fetch for an unknown key
    is shared by all who wait for it and not repeated within 30 s of the last attempt, so tokens with made-up key
    ids cannot drive traffic to the provider. Keys that the provider withdraws are gone with the next fetch.
    ``monotonic`` returns seconds that never go back. The client stays the caller's to close, after `aclose`.
    """

    def __init__(
        self,
        config: OidcConfig,
        http_client: httpx2.AsyncClient,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        self._config = config
        self._client = http_client
        self._monotonic = monotonic
        self._refresh_seconds = refresh_seconds
        self._published: PublishedKeys | None = None
        self._fetched_at = 0.0
        self._attempted_at: float | None = None
        self._failed = False
        self._fetching: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def attempted(self) -> bool:
        """Whether the first fetch has ended, well or not: readiness waits for no more than that."""
        return self._published is not None or self._failed

    @property
    def userinfo_endpoint(self) -> str | None:
        """The provider's userinfo address, if it is known and has one."""
        return self._published.userinfo_endpoint if self._published else None

    async def start(self) -> None:
        """Fetch the keys once (3 s at most) and keep them fresh from now on. A provider that is away is no error."""
        await self.refresh()
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._keep_fresh())

    async def aclose(self) -> None:
        """Stop fetching. The keys at hand still answer."""
        for task in (self._refreshing, self._fetching):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        self._refreshing = None

    async def key(self, kid: str | None, alg: str) -> Sequence[Key]:
        """The keys, one at least, that may have signed a token with this header; without ``kid``, all of ``alg``.

        Raises `InvalidCredentialError` when the provider has no such key, and `AuthUnavailableError` when
        that cannot be told because the last attempt to ask it failed.
        """
        keys = self._known(kid, alg)
        if not keys:
            await self._ask_provider()
            keys = self._known(kid, alg)
        if keys:
            return keys
        if self._failed or self._current() is None:
            raise AuthUnavailableError("The identity provider's keys cannot be reached.")
        _log.debug("bearer token refused: no such key")
        raise InvalidCredentialError("The bearer token is not valid.")

    async def refresh(self) -> None:
        """Fetch the keys now, or wait for the fetch under way. Never raises for what the provider does."""
        if self._fetching is None or self._fetching.done():
            self._attempted_at = self._monotonic()
            self._fetching = asyncio.create_task(self._fetch())
        # Not awaited itself: a waiter that is cancelled must not end the fetch for the others.
        await asyncio.wait([self._fetching])

    def _current(self) -> PublishedKeys | None:
        if self._published is None or self._monotonic() - self._fetched_at > MAX_STALENESS_SECONDS:
            return None
        return self._published

    def _known(self, kid: str | None, alg: str) -> Sequence[Key]:
        published = self._current()
        if published is None:
            return ()
        keys = published.by_id.get((kid, alg), ())
        if not keys and kid in published.ids:
            _log.debug("bearer token refused: the key is for another algorithm")
            raise InvalidCredentialError("The bearer token is not valid.")
        return keys

    async def _ask_provider(self) -> None:
        cooled = self._attempted_at is None or self._monotonic() - self._attempted_at >= COOL_DOWN_SECONDS
        if cooled or self._fetching is not None:
            await self.refresh()

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(TOTAL_SECONDS):
                published = await fetch_published_keys(self._config, self._client)
        except (httpx2.HTTPError, FetchError, TimeoutError, OSError, msgspec.MsgspecError, RecursionError) as error:
            self._failed = True
            _log.warning("the identity provider's keys could not be fetched: %s: %s", type(error).__name__, error)
        except Exception:  # noqa: BLE001  # whatever a provider makes a library do, the keys at hand go on
            self._failed = True
            _log.exception("the identity provider's keys could not be fetched")
        else:
            self._published, self._fetched_at, self._failed = published, self._monotonic(), False
        finally:
            self._fetching = None

    async def _keep_fresh(self) -> None:
        while True:
            away = min(COOL_DOWN_SECONDS, self._refresh_seconds)
            await asyncio.sleep(away if self._failed else self._refresh_seconds)
            await self.refresh()
