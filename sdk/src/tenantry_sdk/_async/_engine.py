"""Sends requests with retries, token renewal and a deadline."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from tenantry_sdk._async._compat import fetch, sleep
from tenantry_sdk._async._http import AsyncHttp
from tenantry_sdk._async._token_renewal import AsyncFixedCredential, AsyncTokenRenewer
from tenantry_sdk._request import Call, Response, is_whole, record, visible
from tenantry_sdk._retry import RetrySettings, RetryState
from tenantry_sdk._tokens import Token
from tenantry_sdk._version import __version__
from tenantry_sdk.errors import ConnectionFailedError, TimedOutError

if TYPE_CHECKING:
    import httpx2

_UNAUTHORIZED: Final = 401

AsyncCredentials = AsyncFixedCredential | AsyncTokenRenewer


class AsyncEngine:
    """Sends requests to one service with one credential."""

    def __init__(
        self,
        http: AsyncHttp,
        base_url: str,
        credentials: AsyncCredentials,
        retry: RetrySettings,
        organization: str | None,
    ) -> None:
        self._http = http
        self.base_url = base_url
        self._credentials = credentials
        self._retry = retry
        self._headers = {"Accept": "application/json", "User-Agent": f"tenantry-sdk/{__version__}"}
        if organization is not None:
            self._headers["X-Organization-Id"] = visible(organization, "organization")

    def deadline(self) -> float:
        """Return the deadline of a call that begins now, by the monotonic clock."""
        return time.monotonic() + self._retry.timeout

    async def send(self, call: Call, ends: float | None = None) -> Response:
        """Send a request and return its successful response, by the deadline ``ends``. Raises `TenantryError`.

        A request that is not repeatable is sent once, and once more with another token after a 401.
        """
        if ends is None:
            ends = self.deadline()
        progress = RetryState(call, self._retry, ends)
        renewed = False
        while True:
            token = await self._credentials.current(ends)
            try:
                response = await self._attempt(call, token, progress.seconds(time.monotonic()))
            except ConnectionFailedError as error:
                wait = progress.after_loss(error, time.monotonic())
            else:
                if response.status_code == _UNAUTHORIZED and not renewed:
                    renewed = True
                    if await self._credentials.renewed(token, ends) is not token:
                        continue
                pause = progress.after(response, datetime.now(timezone.utc), time.monotonic())
                if pause is None:
                    return response
                wait = pause
            await sleep(wait)

    async def aclose(self) -> None:
        """Wait for a token renewal in progress, and close the connections."""
        await self._credentials.close()
        await self._http.aclose()

    async def _attempt(self, call: Call, token: Token, seconds: float) -> Response:
        from httpx2 import HTTPError, NetworkError, TimeoutException  # noqa: PLC0415  # slow to import

        http = self._http.client()
        what = f"{call.method} {call.path}"
        try:
            response = await fetch(http, self._request(http, call, token, seconds), seconds)
        except (TimeoutException, TimeoutError):
            lost: ConnectionFailedError = TimedOutError(f"{what}: no complete response within {seconds:.1f} s.")
        except NetworkError as error:
            lost = ConnectionFailedError(f"{what}: the connection failed: {error}")
        except HTTPError as error:
            # Its text may contain what the server sent.
            lost = ConnectionFailedError(f"{what}: the connection failed: {type(error).__name__}")
        else:
            record(response)
            if is_whole(response):
                return response
            lost = ConnectionFailedError(f"{what}: the response was incomplete.")
        raise lost

    def _request(self, http: httpx2.AsyncClient, call: Call, token: Token, seconds: float) -> httpx2.Request:
        request = http.build_request(
            call.method,
            self.base_url + call.path,
            params=call.query or None,
            content=call.body,
            headers=self._headers,
            timeout=seconds,
        )
        request.headers["Authorization"] = (
            f"Bearer {token.access_token.reveal()}"  # the client does not log this header
        )
        if call.body is not None:
            request.headers["Content-Type"] = "application/json"
        if call.idempotency_key is not None:
            request.headers["Idempotency-Key"] = call.idempotency_key
        return request
