"""Sends requests with retries, token renewal and a deadline."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

import msgspec

from tenantry_sdk._async._compat import fetch, sleep
from tenantry_sdk._async._http import AsyncHttp
from tenantry_sdk._async._token_renewal import AsyncFixedCredential, AsyncTokenRenewer
from tenantry_sdk._log import logger
from tenantry_sdk._options import Acting, CallOptions, Options
from tenantry_sdk._request import Call
from tenantry_sdk._response import Response, is_whole, record
from tenantry_sdk._retry import Backoff, Loss, RetryState
from tenantry_sdk._secret import Secret
from tenantry_sdk._tokens import Token
from tenantry_sdk.errors import TenantryError

if TYPE_CHECKING:
    import httpx2
    from typing_extensions import Self

_UNAUTHORIZED: Final = 401

AsyncCredentials = AsyncFixedCredential | AsyncTokenRenewer


class AsyncEngine:
    """Sends requests to one service with one credential."""

    def __init__(
        self,
        http: AsyncHttp,
        base_url: str,
        credentials: AsyncCredentials,
        options: Options,
    ) -> None:
        self._http = http
        self.base_url = base_url
        self._credentials = credentials
        self._options = options

    def with_options(self, changes: CallOptions, organization: str | None = None) -> Self:
        """Return a copy with other options, which shares connections and credentials."""
        if not changes and organization is None:
            return self
        return self._with(self._options.with_changes(changes, organization))

    def acting(self, acting: Acting) -> Self:
        """Return a copy that acts for a tenant, which shares connections and credentials."""
        return self._with(msgspec.structs.replace(self._options, acting=acting))

    def with_credential(self, credential: Secret) -> Self:
        """Return a copy with another credential, which shares the connections. It names neither the
        organization nor the tenant that this one names.
        """
        options = msgspec.structs.replace(self._options, organization=None, acting=None)
        fixed = AsyncFixedCredential(credential)
        return type(self)(self._http, self.base_url, fixed, options)

    def _with(self, options: Options) -> Self:
        return type(self)(self._http, self.base_url, self._credentials, options)

    @property
    def tenant_id(self) -> str | None:
        """The tenant for which the operator acts."""
        acting = self._options.acting
        return None if acting is None else acting.tenant_id

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
            http, token = await self._ready(progress)
            response = await self._attempt(http, token, progress)
            if isinstance(response, Loss):
                logger.info("%s: %s", call.summary, response.reason)
                wait = progress.after_loss(response, time.monotonic())
            else:
                if response.status_code == _UNAUTHORIZED and not renewed:
                    renewed = True
                    _, other = await self._ready(progress, rejected=token)
                    if other is not token:
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

    async def _ready(
        self, progress: RetryState, rejected: Token | None = None
    ) -> tuple[httpx2.AsyncClient, Token | None]:
        """Return the HTTP client and the token for an attempt. Calls share their failures, so each
        one raises an error of its own.
        """
        try:
            http = await self._http.client()
            if progress.call.is_anonymous:
                return http, None
            return http, await self._credentials.current(progress.ends, rejected)
        except TenantryError as error:
            raise progress.own_error(error) from error.__cause__

    async def _attempt(
        self, http: httpx2.AsyncClient, token: Token | None, progress: RetryState
    ) -> Response | Loss:
        from httpx2 import HTTPError  # noqa: PLC0415  # slow to import

        call = progress.call
        begun = time.monotonic()
        seconds = progress.seconds(begun)
        logger.debug("%s: %s, at most %.1f s", call.summary, progress.attempt, seconds)
        try:
            response = await fetch(
                http,
                self._request(http, call, token, seconds),
                seconds,
                call.idempotency_key,
            )
        except (HTTPError, TimeoutError) as error:
            return progress.loss_of(error, self.base_url, begun, time.monotonic())
        record(response)
        logger.info(
            "%s: %d in %.0f ms (request %s)",
            call.summary,
            response.status_code,
            1000 * (time.monotonic() - begun),
            response.request_id,
        )
        if not is_whole(response):
            return Loss("the response was incomplete.", request_id=response.request_id)
        return response

    def _request(
        self, http: httpx2.AsyncClient, call: Call, token: Token | None, seconds: float
    ) -> httpx2.Request:
        request = http.build_request(
            call.method,
            self.base_url + call.path,
            params=call.query or None,
            content=call.body,
            timeout=seconds,
        )
        if call.is_by_caller:
            request.headers.pop("Cookie", None)  # of the program's own HTTP client
        for name, value in self._options.headers_of(call, token).items():
            request.headers.pop(name, None)
            if value is not None:
                request.headers[name] = value
        return request
