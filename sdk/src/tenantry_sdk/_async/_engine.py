"""Sends requests with retries, token renewal and a deadline."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from tenantry_sdk._async._compat import fetch, sleep
from tenantry_sdk._async._http import AsyncHttp
from tenantry_sdk._async._token_renewal import AsyncFixedCredential, AsyncTokenRenewer
from tenantry_sdk._log import logger
from tenantry_sdk._options import CallOptions, Options
from tenantry_sdk._request import Call, visible
from tenantry_sdk._response import Response, is_whole, record
from tenantry_sdk._retry import Backoff, RetryState
from tenantry_sdk._secret import Secret
from tenantry_sdk._version import __version__
from tenantry_sdk.errors import ConnectionFailedError, TimedOutError

if TYPE_CHECKING:
    import httpx2
    from typing_extensions import Self

_UNAUTHORIZED: Final = 401
_HEADERS: Final = {"Accept": "application/json", "User-Agent": f"tenantry-sdk/{__version__}"}
_ORGANIZATION: Final = "X-Organization-Id"

AsyncCredentials = AsyncFixedCredential | AsyncTokenRenewer


class AsyncEngine:
    """Sends requests to one service with one credential."""

    def __init__(
        self,
        http: AsyncHttp,
        base_url: str,
        credentials: AsyncCredentials,
        options: Options,
        organization: str | None,
    ) -> None:
        self._http = http
        self.base_url = base_url
        self._credentials = credentials
        self._options = options
        self._organization = None if organization is None else visible(organization, "organization")

    def with_options(self, changes: CallOptions, organization: str | None = None) -> Self:
        """Return a copy with other options, which shares connections and credentials."""
        if not changes and organization is None:
            return self
        return type(self)(
            self._http,
            self.base_url,
            self._credentials,
            self._options.with_changes(changes),
            self._organization if organization is None else organization,
        )

    @property
    def backoff(self) -> Backoff:
        """The delays between the attempts of a call."""
        return self._options.retry.backoff

    def deadline(self) -> float:
        """Return the deadline of a call that begins now, by the monotonic clock."""
        return time.monotonic() + self._options.retry.timeout

    async def send(self, call: Call, ends: float | None = None) -> Response:
        """Send a request and return its successful response, by the deadline ``ends``. Raises
        `TenantryError`.

        A request that is not repeatable is sent once, and once more with another token after a 401.
        """
        if ends is None:
            ends = self.deadline() + call.wait
        progress = RetryState(call, self._options.retry, ends)
        renewed = call.is_anonymous
        while True:
            token = None if call.is_anonymous else await self._credentials.current(ends)
            credential = (
                call.authorization
                if token is None
                else Secret(f"Bearer {token.access_token.reveal()}")
            )
            seconds = progress.seconds(time.monotonic())
            logger.debug("%s: %s, at most %.1f s", call.summary, progress.attempt, seconds)
            try:
                response = await self._attempt(call, credential, seconds, progress)
            except ConnectionFailedError as error:
                wait = progress.after_loss(error, time.monotonic())
            else:
                if response.status_code == _UNAUTHORIZED and not renewed:
                    renewed = True
                    if await self._credentials.renewed(token, ends) is not token:
                        logger.info("%s: again with another token", call.summary)
                        continue
                pause = progress.after(response, datetime.now(timezone.utc), time.monotonic())
                if pause is None:
                    return response
                wait = pause
            logger.info("%s: %s in %.2f s", call.summary, progress.attempt, wait)
            await sleep(wait)

    async def aclose(self) -> None:
        """Wait for a token renewal in progress, and close the connections."""
        await self._credentials.close()
        await self._http.aclose()

    async def _attempt(
        self, call: Call, credential: Secret | None, seconds: float, progress: RetryState
    ) -> Response:
        from httpx2 import HTTPError, NetworkError, TimeoutException  # noqa: PLC0415  # slow to import

        http = self._http.client()
        what = call.summary
        begun = time.monotonic()
        try:
            response = await fetch(http, self._request(http, call, credential, seconds), seconds)
        except (TimeoutException, TimeoutError):
            duration = progress.duration(begun, time.monotonic())
            lost: ConnectionFailedError = TimedOutError(
                f"{what}: no complete response from {self.base_url} in {duration}."
            )
        except NetworkError as error:
            lost = ConnectionFailedError(
                f"{what}: the connection to {self.base_url} failed: {error}"
            )
        except HTTPError as error:
            # Its text may contain what the server sent.
            lost = ConnectionFailedError(
                f"{what}: the connection to {self.base_url} failed: {type(error).__name__}"
            )
        else:
            record(response)
            took = 1000 * (time.monotonic() - begun)
            logger.info(
                "%s: %d in %.0f ms (request %s)",
                what,
                response.status_code,
                took,
                response.request_id,
            )
            if is_whole(response):
                return response
            lost = ConnectionFailedError(f"{what}: the response was incomplete.")
            lost.request_id = response.request_id
        logger.info("%s", lost)
        raise lost

    def _request(
        self, http: httpx2.AsyncClient, call: Call, credential: Secret | None, seconds: float
    ) -> httpx2.Request:
        request = http.build_request(
            call.method,
            self.base_url + call.path,
            params=call.query or None,
            content=call.body,
            headers=_HEADERS,
            timeout=seconds,
        )
        headers = request.headers
        headers.update(self._options.headers)
        # The HTTP client may be the caller's, and have such headers.
        headers.pop("Authorization", None)
        headers.pop(_ORGANIZATION, None)
        if credential is not None:
            # the HTTP client does not log this header
            headers["Authorization"] = credential.reveal()
        if self._organization is not None and not call.is_anonymous:
            headers[_ORGANIZATION] = self._organization
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        if call.idempotency_key is not None:
            headers["Idempotency-Key"] = call.idempotency_key
        headers.update(call.headers)
        for name, secret in call.secret_headers.items():
            headers.pop(name, None)
            if secret is not None:
                headers[name] = secret.reveal()
        return request
