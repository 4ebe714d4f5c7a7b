# Made from _async/_keeper.py by sdk/make_sync.py: change that one.
"""The credential of the next request: an API key, or a token that is renewed in time, once for all who wait."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tenantry_sdk._secret import Secret
from tenantry_sdk._store import Token, TokenStore
from tenantry_sdk._sync._compat import Lock, called, fetch, sleep
from tenantry_sdk._tokens import (
    ClientCredentials,
    Grant,
    RefreshToken,
    TokenSource,
    as_token,
    discovery_url,
    endpoint_of,
    token_of,
    token_request,
)
from tenantry_sdk.errors import TenantryError, TimedOutError, TokenRefreshError

if TYPE_CHECKING:
    import httpx2

_POLL = 0.05


class Keeper:
    """Holds the token in use."""

    def __init__(self, source: TokenSource, http: httpx2.Client, attempt_timeout: float) -> None:
        self._source = source
        self._http = http
        self._attempt_timeout = attempt_timeout
        self._token: Token | None = None
        self._endpoint: str | None = None
        self._lock = Lock()

    def current(self, ends: float) -> Token:
        """A token that is good for a while yet. ``ends`` is when the call gives up, by the monotonic clock.

        Where the identity provider cannot be asked, the present token is used as long as it lasts.
        Raises `TokenRefreshError` and `TimedOutError`.
        """
        token = self._token
        if token is not None and not token.is_due(time.time()):
            return token
        try:
            return self.renewed(token, ends)
        except TenantryError:
            if token is None or token.is_over(time.time()):
                raise
            return token

    def renewed(self, old: Token | None, ends: float) -> Token:
        """Another token than ``old``: whoever comes first fetches it, and the others get the same."""
        with self._lock.held(ends - time.monotonic()):
            if self._token is None or self._token is old:
                self._token = self._next(old, ends)
            return self._token

    def _next(self, old: Token | None, ends: float) -> Token:
        source = self._source
        if not isinstance(source, (RefreshToken, ClientCredentials)):
            return as_token(called(source), time.time())
        if source.store is None:
            return self._granted(source, old, ends)
        with _alone(source.store, ends):
            kept = source.store.load()
            # Another process may have renewed it; a refresh token that is used twice may end all of them.
            fresh = kept if kept != old else None
            if fresh is not None and not fresh.is_due(time.time()):
                return fresh
            try:
                token = self._granted(source, kept or old, ends)
            except TenantryError:
                if fresh is None or fresh.is_over(time.time()):
                    raise
                return fresh
            source.store.save(token)
            return token

    def _granted(self, grant: Grant, last: Token | None, ends: float) -> Token:
        url = grant.token_url or self._endpoint
        if url is None:
            answer = self._asked(self._http.build_request("GET", discovery_url(grant.issuer)), ends)
            url = self._endpoint = endpoint_of(grant.issuer, "token_endpoint", *answer)
        request = token_request(grant, url, last)
        status, content = self._asked(
            self._http.build_request("POST", request.url, headers=request.headers, data=request.form), ends
        )
        return token_of(status, content, time.time(), last)

    def _asked(self, request: httpx2.Request, ends: float) -> tuple[int, bytes]:
        from httpx2 import RequestError  # noqa: PLC0415  # slow to import

        seconds = min(self._attempt_timeout, ends - time.monotonic())
        if seconds <= 0:
            raise TimedOutError("There was no time left to fetch a token.")
        try:
            answer = fetch(self._http, request, seconds)
        except (RequestError, TimeoutError) as error:
            raise TokenRefreshError(
                f"{request.url.host} cannot be asked for a token: {type(error).__name__}"
            ) from error
        return answer.status_code, answer.content


class Fixed:
    """Holds an API key or a token that nobody renews."""

    def __init__(self, credential: Secret) -> None:
        self._token = Token(credential)

    def current(self, ends: float) -> Token:  # noqa: ARG002
        """The same always."""
        return self._token

    def renewed(self, old: Token | None, ends: float) -> Token:  # noqa: ARG002
        """The same always."""
        return self._token


@contextmanager
def _alone(store: TokenStore, ends: float) -> Generator[None]:
    """Keep other processes from renewing the same token meanwhile."""
    lock: Any = store.try_lock()
    while lock is None:
        if time.monotonic() >= ends:
            raise TimedOutError("Another process is still fetching a token.")
        sleep(_POLL)
        lock = store.try_lock()
    try:
        yield
    finally:
        store.unlock(lock)
