"""The credential of the next request: an API key, or a token that is renewed before it expires."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from tenantry_sdk._async._compat import SharedTask, called, fetch, in_thread, sleep
from tenantry_sdk._async._http import AsyncHttp
from tenantry_sdk._log import logger
from tenantry_sdk._response import Response
from tenantry_sdk._secret import Secret
from tenantry_sdk._tokens import (
    AsyncTokenSource,
    ClientCredentials,
    Grant,
    RefreshToken,
    Token,
    TokenRequest,
    TokenStore,
    as_token,
    discovery_request,
    endpoint_of,
    token_of,
    token_request,
)
from tenantry_sdk.errors import (
    ConfigurationError,
    TenantryError,
    TokenRefreshError,
    TokenTimedOutError,
)

if TYPE_CHECKING:
    import httpx2

_SECONDS: Final = 15.0
"""Timeout of each request to the identity provider."""
_STALE_AFTER: Final = 2.0
"""Seconds that a call waits for a new token while the current one is still valid."""
_PAUSE: Final = 2.0
"""Seconds after a failure before the next request to the identity provider."""
_POLL: Final = 0.05


class AsyncTokenRenewer:
    """Holds the current token. A renewal continues even if no caller waits for it any more."""

    def __init__(self, source: AsyncTokenSource, http: AsyncHttp) -> None:
        self._source = source
        self._http = http
        self._endpoint: str | None = None
        self._token: Token | None = None
        self._unsaved = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._mutex = Lock()
        self._locks: list[Any] = []
        self._renewal: SharedTask[Token] | None = None
        self._failed: tuple[float, TenantryError] | None = None

    async def current(self, ends: float, rejected: Token | None = None) -> Token:
        """Return a valid token, a newer one than the service has ``rejected``. ``ends`` is the
        deadline of the call, by the monotonic clock.

        If the identity provider is slow, a token that is due for renewal is used until it expires.
        Raises `TokenRefreshError`, `ConfigurationError` and `TokenTimedOutError`.
        """
        token = self._token
        if token is None or token is rejected or token.is_over(time.time()):
            return await self._renewed(token, ends)
        if not token.is_due(time.time()):
            return token
        try:
            return await self._renewed(token, min(ends, self._begun() + _STALE_AFTER))
        except TenantryError:
            return token

    async def _renewed(self, old: Token | None, ends: float) -> Token:
        """Return a newer token than ``old``. The first caller fetches it; concurrent callers get
        the same one.
        """
        if os.getpid() != self._pid:
            self._begin()  # a forked child does not continue the parent's renewal
        token: Token | None = None
        while token is None:  # again if the renewal ended with another event loop
            with self._mutex:
                if self._token is not None and self._token is not old:
                    return self._token
                if self._renewal is None or self._renewal.is_over:
                    if self._failed is not None and time.monotonic() < self._failed[0] + _PAUSE:
                        raise self._failed[1].with_traceback(None)
                    self._renewal = SharedTask(partial(self._renew, old))
                renewal = self._renewal
            token = await renewal.outcome(ends - time.monotonic())
        return token

    async def close(self) -> None:
        """Wait for a renewal in progress: the identity provider may already have revoked the
        previous token.
        """
        if self._renewal is not None and not self._renewal.is_over and os.getpid() == self._pid:
            try:
                await self._renewal.outcome(2 * _SECONDS)
            except TenantryError as error:
                logger.warning("the access token was not renewed: %s", error)

    def _begun(self) -> float:
        now = time.monotonic()
        if self._renewal is None or self._renewal.is_over:
            return now
        return self._renewal.begun

    async def _renew(self, old: Token | None) -> Token:
        try:
            return await self._renewed_token(old)
        except TenantryError as error:
            self._failed = (time.monotonic(), error)
            raise

    async def _renewed_token(self, old: Token | None) -> Token:
        source = self._source
        if not isinstance(source, (RefreshToken, ClientCredentials)):
            return self._set_current(as_token(await called(source), time.time()))
        store = source.store
        if store is None:
            return self._set_current(await self._fetch_token(source, old))
        while self._locks:  # of a renewal that ended with its event loop
            store.unlock(self._locks.pop())
        locks = self._locks = []
        async with locked(store, locks):
            return await self._renewed_in(store, source, old)

    async def _renewed_in(
        self,
        store: TokenStore,
        source: Grant,
        old: Token | None,
    ) -> Token:
        """Return the token that another process has stored, or renew it. The store is locked."""
        kept = await self._load(store, source, old)
        # Another process may have renewed it; using a refresh token twice may revoke all of them.
        fresh = kept if kept != old else None
        if fresh is not None and not fresh.is_due(time.time()):
            return self._set_current(fresh)
        try:
            token = self._set_current(await self._fetch_token(source, kept or old))
        except TenantryError:
            if fresh is None or fresh.is_over(time.time()):
                raise
            return self._set_current(fresh)
        await self._save(store, token)
        return token

    async def _load(
        self,
        store: TokenStore,
        source: Grant,
        old: Token | None,
    ) -> Token | None:
        """Return the stored token of this source. Raises `TokenRefreshError` if it was deleted."""
        kept = await in_thread(store.load)
        if kept is not None and kept.is_of(source.issuer, source.client_id):
            return kept
        if old is not None and not self._unsaved:
            raise TokenRefreshError(
                "The stored token is gone: the user signed out. Sign in again.",
                code="signed_out",
            )
        return None

    def _set_current(self, token: Token) -> Token:
        self._token = token
        return token

    async def _save(self, store: TokenStore, token: Token) -> None:
        try:
            await in_thread(lambda: store.save(token))
        except ConfigurationError as error:
            self._unsaved = True
            logger.warning(
                "the new token could not be stored, so only this process has it: %s", error
            )
        except BaseException as error:
            # canceled, maybe before it was saved
            if not isinstance(error, Exception) and self._token is token:
                store.save(token)
            raise
        else:
            self._unsaved = False

    async def _fetch_token(self, grant: Grant, last: Token | None) -> Token:
        try:
            return await self._request_token(grant, last)
        except TokenRefreshError as error:
            passed = isinstance(grant, RefreshToken) and grant.refresh_token
            if (
                error.code != "invalid_grant"
                or not passed
                or last is None
                or last.refresh_token in (None, passed)
            ):
                raise
            # the stored one is revoked; try the caller's
            return await self._request_token(grant, None)

    async def _request_token(self, grant: Grant, last: Token | None) -> Token:
        url = grant.token_url or self._endpoint
        if url is None:
            found = await self._send(discovery_request(grant.issuer))
            url = self._endpoint = endpoint_of(grant.issuer, found)
        answer = await self._send(token_request(grant, url, last))
        return token_of(grant, answer, time.time(), last)

    async def _send(self, request: TokenRequest) -> Response:
        from httpx2 import HTTPError  # noqa: PLC0415  # slow to import

        http = await self._http.client()
        try:
            response = await fetch(http, _build_request(http, request), _SECONDS)
        except (HTTPError, TimeoutError) as error:
            kind = type(error).__name__
        else:
            logger.info("token request to %s: %d", request.host, response.status_code)
            return response
        logger.info("token request to %s: %s", request.host, kind)
        raise TokenRefreshError(f"{request.host} is unreachable for a token request: {kind}")


class AsyncFixedCredential:
    """An API key, or a token that is never renewed, or none."""

    def __init__(self, credential: Secret | None) -> None:
        self._token = None if credential is None else Token(credential)

    async def current(self, ends: float, rejected: Token | None = None) -> Token:  # noqa: ARG002
        """Return the credential. Raises `ConfigurationError` if there is none."""
        if self._token is None:
            raise ConfigurationError(
                "There is no credential: pass api_key=, tokens= or operator_token=, "
                "or set TENANTRY_API_KEY or TENANTRY_OPERATOR_TOKEN."
            )
        return self._token

    async def close(self) -> None:
        """Do nothing."""


def _build_request(http: httpx2.AsyncClient, request: TokenRequest) -> httpx2.Request:
    built = http.build_request(
        request.method,
        request.url,
        headers=request.headers,
        content=request.content,
        timeout=_SECONDS,
    )
    if request.basic is not None:
        built.headers["Authorization"] = "Basic " + request.basic.reveal()
    return built


@asynccontextmanager
async def locked(store: TokenStore, locks: list[Any]) -> AsyncGenerator[None]:
    """Lock the store, so that no other process renews the same token. ``locks`` contains the lock
    while it is held.
    """

    def lock() -> bool:
        if (taken := store.try_lock()) is not None:
            locks.append(taken)
        return taken is not None

    ends = time.monotonic() + 2 * _SECONDS
    try:
        while not await in_thread(lock):
            if time.monotonic() >= ends:
                raise TokenTimedOutError("Another process is still renewing the token.")
            await sleep(_POLL)
        yield
    finally:
        while locks:  # the next renewal may have unlocked it
            store.unlock(locks.pop())
