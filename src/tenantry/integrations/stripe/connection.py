"""Requests to the provider's API: form encoding, idempotency keys, retries and rejections."""

import asyncio
import logging
import math
import random
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Final, Literal, NamedTuple

import httpx2
import msgspec

from tenantry import __version__
from tenantry.common.clock import EPOCH_MAX, Clock, system_clock
from tenantry.common.encoding import NOT_JSON
from tenantry.common.http import parse_http_date
from tenantry.common.secret import Secret
from tenantry.common.tracing import Tracing
from tenantry.integrations.http_client import (
    FetchError,
    ResponseTooLargeError,
    new_http_client,
    read_body,
)

API_VERSION: Final = "2026-10-28.endive"
"""The shape of requests and responses; it changes with this package."""
_RETRIES: Final = 2
_SHORTEST_WAIT: Final = 0.5
_MAX_BODY_BYTES: Final = 1024 * 1024
_USER_AGENT: Final = f"tenantry/{__version__}"
TEMPORARY: Final = frozenset({HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS})
"""Rejections by status after which the same request can succeed later."""

logger = logging.getLogger(__name__)


class ProviderResponse(NamedTuple):
    """A response with a status of 2xx, and the second of the provider's clock in which it was
    requested.
    """

    body: bytes
    request_id: str | None
    sent_at: int


@dataclass
class RequestRejectedError(Exception):
    """The provider answered with another status than 2xx, or not at all: ``status`` 0.

    ``kind``, ``code``, ``param`` and ``message`` are those of the error object
    (https://docs.stripe.com/api/errors). The same request can succeed later if it ``is_temporary``.
    """

    status: int
    cause: str
    kind: object = None
    code: object = None
    param: object = None
    request_id: str | None = None
    is_temporary: bool = False
    message: object = None


class NotPermittedError(RequestRejectedError):
    """The API key lacks the permission (403)."""


class MissingError(RequestRejectedError):
    """There is no such object, or the request names one that does not exist."""


class TooLargeError(RequestRejectedError):
    """The response is larger than what is read."""


class _ErrorObject(msgspec.Struct, frozen=True):
    type: object = None
    code: object = None
    param: object = None
    message: object = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorObject = _ErrorObject()


class ProviderConnection:
    """Sends requests to the provider over connections that stay open until `aclose`, all in one
    event loop.

    ``timeout`` is that of one try, in seconds. Redirects are not followed: they would carry the API
    key elsewhere. ``clock`` counts only where a response has no date.
    """

    def __init__(
        self,
        secret_key: Secret,
        api_base: str,
        timeout: float,
        tracing: Tracing | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self._secret_key = secret_key
        self._api_base = api_base.rstrip("/")
        self._timeout = timeout
        self._clock = clock
        self._client = new_http_client(timeout, peer="payment provider", tracing=tracing)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def send(
        self,
        method: Literal["GET", "POST"],
        path: str,
        params: Mapping[str, object],
        idempotency_key: str | None = None,
    ) -> ProviderResponse:
        """Send a request, up to three times; a POST has an idempotency key, so that no retry counts
        twice.

        The provider says in ``Stripe-Should-Retry`` whether to try again; without it 409, 429 and
        5xx are retried (https://docs.stripe.com/error-low-level). Raises `RequestRejectedError`.
        """
        headers = {
            "Authorization": f"Bearer {self._secret_key.reveal()}",
            "Stripe-Version": API_VERSION,
            "User-Agent": _USER_AGENT,
            "Accept-Encoding": "identity",
        }
        if method == "POST":
            headers["Idempotency-Key"] = idempotency_key or str(uuid.uuid4())
        send_once = partial(self._send_once, method, path, dict(form_fields(params)), headers)
        for retry in range(_RETRIES):
            try:
                return await send_once()
            except RequestRejectedError as error:
                if not error.is_temporary:
                    raise
            await asyncio.sleep(_wait_before(retry))
        return await send_once()

    async def _send_once(
        self,
        method: Literal["GET", "POST"],
        path: str,
        fields: Mapping[str, str],
        headers: Mapping[str, str],
    ) -> ProviderResponse:
        request = self._client.build_request(
            method,
            f"{self._api_base}{path}",
            headers=headers,
            params=fields if method == "GET" else None,
            data=fields if method == "POST" else None,
        )
        now, started = self._clock(), time.monotonic()
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._client.send(request, stream=True)
                body = await read_body(response, _MAX_BODY_BYTES)
        except ResponseTooLargeError as error:
            raise TooLargeError(0, str(error)) from None
        except (httpx2.HTTPError, FetchError, TimeoutError) as error:
            cause = type(error).__name__
            raise RequestRejectedError(0, cause, is_temporary=True) from None
        if not response.is_success:
            raise _rejection(response, body)
        sent_at = second_sent(response.headers.get("date"), time.monotonic() - started, now)
        return ProviderResponse(body, response.headers.get("request-id"), sent_at)


def second_sent(
    date: str | None,
    elapsed: float,
    sent_at: datetime,
) -> int:
    """Return the second of the provider's clock in which a request was sent, or an earlier one
    (Unix time).

    ``date`` is the header of a response that took ``elapsed`` seconds: the provider wrote it within
    that time. Where it is missing or malformed, our own clock counts: ``sent_at``.
    """
    answered = parse_http_date(date or "")
    if answered is None:
        return int(sent_at.timestamp())
    second = int(answered.timestamp()) - math.ceil(elapsed)
    return second if 0 <= second <= EPOCH_MAX else int(sent_at.timestamp())


def form_fields(params: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield parameters in the provider's form encoding: ``items[0][price]``; None is left out."""
    for name, value in params.items():
        if isinstance(value, list):
            value = dict(enumerate(value))  # noqa: PLW2901
        if isinstance(value, Mapping):
            yield from form_fields({f"{name}[{key}]": item for key, item in value.items()})
        elif isinstance(value, bool):
            yield name, "true" if value else "false"
        elif value is not None:
            yield name, str(value)


def _is_retryable(response: httpx2.Response) -> bool:
    status, advice = response.status_code, response.headers.get("stripe-should-retry")
    if advice in ("true", "false"):
        return advice == "true"
    return status in TEMPORARY or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _wait_before(retry: int) -> float:
    """Return the seconds to wait: they double with each retry, half of them by chance."""
    longest: float = _SHORTEST_WAIT * 2**retry
    return max(_SHORTEST_WAIT, longest * random.uniform(0.5, 1))  # noqa: S311  # no secret


def _rejection(response: httpx2.Response, body: bytes) -> RequestRejectedError:
    error = _error_object(body)
    return _rejection_type(response.status_code, error.code)(
        response.status_code,
        "RequestRejectedError",
        error.type,
        error.code,
        error.param,
        response.headers.get("request-id"),
        is_temporary=_is_retryable(response),
        message=error.message,
    )


def _error_object(body: bytes) -> _ErrorObject:
    """Return the error of a response; an empty one where the body has none."""
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error
    except NOT_JSON:
        return _ErrorObject()


def _rejection_type(status: int, code: object) -> type[RequestRejectedError]:
    if code == "resource_missing":
        return MissingError
    return NotPermittedError if status == HTTPStatus.FORBIDDEN else RequestRejectedError
