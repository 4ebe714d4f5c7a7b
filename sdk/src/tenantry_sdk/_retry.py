"""Retry rules: which calls are retried, and after how long. Pure: no sleeping, no clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from copy import copy
from datetime import datetime, timezone
from typing import Final, NamedTuple

import msgspec

from tenantry_sdk._request import Call, CallFacts
from tenantry_sdk._response import Response, error_of
from tenantry_sdk.errors import (
    APIError,
    ConnectionFailedError,
    TenantryError,
    TimedOutError,
)

_AGAIN: Final = frozenset({408, 429, 502, 503, 504})
_TOO_MANY: Final = 429
_MAYBE_DONE: Final = frozenset({408, 502, 503, 504})
"""Statuses of a gateway that timed out although the service may have handled the request."""
_IN_FLIGHT: Final = "idempotency_in_flight"
_INVITATION_LIMIT: Final = "invitation_limit_reached"
"""A 429 that no call outlasts: the limits are of 24 hours, or end when somebody acts."""
_NOT_FOUND: Final = 404
_CHECK_RETRIES: Final = 1

_MOST: Final = 86_400.0
_MOST_DOUBLINGS: Final = 30


def may_pass(error: TenantryError) -> bool:
    """Whether the same call may succeed a little later."""
    if isinstance(error, APIError):
        return error.status_code in _AGAIN and error.code != _INVITATION_LIMIT
    return isinstance(error, ConnectionFailedError)


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds between the attempts of a call."""

    first: float = 0.25
    """The upper bound of the first delay. It doubles with each attempt."""
    longest: float = 8.0
    """The upper bound of every delay."""
    in_flight: float = 0.5
    """The minimum delay while the service still handles an earlier attempt."""


BACKOFF: Final = Backoff()
"""The default of all clients."""


class RetrySettings(msgspec.Struct, frozen=True):
    """The timeouts of a call and of each attempt, in seconds, how often to retry at most, and the
    delays.
    """

    timeout: float = 30.0
    attempt_timeout: float = 10.0
    retries: int = 3
    backoff: Backoff = BACKOFF

    def __post_init__(self) -> None:
        _check_seconds("timeout", self.timeout)
        _check_seconds("attempt_timeout", self.attempt_timeout)
        _check_retries(self.retries)


def _check_seconds(name: str, value: object) -> None:
    """Raise `TypeError` or `ValueError` for a timeout that is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, at most {_MOST:.0f}, not {value!r}")
    if not 0 < value <= _MOST:
        raise ValueError(f"{name} must be above 0 and at most {_MOST:.0f} seconds, not {value!r}")


def _check_retries(value: object) -> None:
    """Raise `TypeError` or `ValueError` for a number of retries that is none."""
    if not isinstance(value, int):
        raise TypeError(f"retries must be a whole number, not {value!r}")
    if value < 0:
        raise ValueError(f"retries must be 0 or more, not {value}")


def wait_before(
    attempt: int,
    retry_after: float | None,
    chance: Callable[[float, float], float] = random.uniform,
    backoff: Backoff = BACKOFF,
) -> float:
    """Return the seconds before attempt ``attempt`` + 1: exponential backoff with full jitter."""
    doublings = min(attempt - 1, _MOST_DOUBLINGS)
    jitter = chance(0.0, min(backoff.longest, backoff.first * 2.0**doublings))
    return jitter if retry_after is None else retry_after + jitter


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds of a ``Retry-After`` header (RFC 9110 section 10.2.3); None without a
    valid one.
    """
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  # slow to import

    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or timezone.utc) - now).total_seconds())


class Loss(NamedTuple):
    """An attempt without a complete response: why, the class of its error, and the request's id if
    a part of the response had it.
    """

    reason: str
    kind: type[ConnectionFailedError] = ConnectionFailedError
    request_id: str | None = None


class RetryState:
    """The attempts of one call: after each one, either its result or the delay before the next."""

    def __init__(
        self,
        call: Call,
        retry: RetrySettings,
        ends: float,
    ) -> None:
        """``ends`` is the deadline of the call, by the monotonic clock."""
        self.call = call
        self._retry = retry
        self.ends = ends
        self._attempts = 1 + (
            min(_CHECK_RETRIES, retry.retries) if call.is_check else retry.retries
        )
        self._attempt = 1
        self._lost = False

    @property
    def attempt(self) -> str:
        """The number of the attempt, for logs and errors."""
        return f"attempt {self._attempt} of {self._attempts}"

    def seconds(self, now: float) -> float:
        """Return the timeout of the next attempt. Raises `TimedOutError` after the deadline."""
        seconds = min(self._retry.attempt_timeout + self.call.wait, self.ends - now)
        if seconds <= 0:
            raise TimedOutError(
                f"{self.call.summary}: timed out after {self._passed(now):.1f} s.",
                **self._facts(),
            )
        return seconds

    def _duration(self, attempt_began: float, now: float) -> str:
        """Say how long the current attempt took, and of a repeated one also how long the call has
        taken.
        """
        seconds = f"{now - attempt_began:.1f} s"
        if self._attempt == 1:
            return seconds
        return f"{seconds} ({self.attempt}, {self._passed(now):.1f} s in all)"

    def _passed(self, now: float) -> float:
        """Return the seconds since the call began."""
        return now - (self.ends - self._retry.timeout - self.call.wait)

    def own_error(self, shared: TenantryError) -> TenantryError:
        """Return this call's error for a failure that calls share, such as that of a token."""
        own = copy(shared)
        vars(own).update(self._facts())
        return own

    def _facts(self) -> CallFacts:
        """Return what each error of the call has."""
        return {
            "idempotency_key": self.call.idempotency_key,
            "after_lost_answer": self._lost,
        }

    def loss_of(self, error: Exception, address: str, attempt_began: float, now: float) -> Loss:
        """Return what an error of the HTTP client means."""
        from httpx2 import NetworkError, TimeoutException  # noqa: PLC0415  # slow to import

        if isinstance(error, (TimeoutException, TimeoutError)):
            duration = self._duration(attempt_began, now)
            return Loss(f"no complete response from {address} in {duration}.", TimedOutError)
        # The text of other errors may contain what the server sent.
        reason = error if isinstance(error, NetworkError) else type(error).__name__
        return Loss(f"the connection to {address} failed: {reason}")

    def after_loss(self, loss: Loss, now: float) -> float:
        """Return the delay after a lost response. Raises its error if no attempts are left."""
        self._lost = True
        error = loss.kind(f"{self.call.summary}: {loss.reason}", loss.request_id, **self._facts())
        again = not (self.call.is_check and loss.kind is TimedOutError)
        return self._wait(error, None, now, again=again)

    def after(
        self,
        response: Response,
        at: datetime,
        now: float,
    ) -> float | None:
        """Return the delay before a retry, or None for a successful response. Raises the response's
        error.
        """
        status = response.status_code
        if status < 300 or status == self.call.accepted:  # noqa: PLR2004
            return None
        if status == _NOT_FOUND and self._lost and self.call.vanishes:
            return None  # the attempt whose response was lost succeeded
        pause = retry_after(response.headers, at)
        if status in _MAYBE_DONE:
            self._lost = True
        error = error_of(
            response, pause, after_lost_answer=self._lost, by_caller=self.call.is_by_caller
        )
        if error.code == _IN_FLIGHT and self._lost:
            self._attempt -= 1  # the lost attempt still runs; it does not count
            return self._wait(
                error,
                self._retry.backoff.in_flight,
                now,
                again=True,
            )
        return self._wait(
            error,
            pause,
            now,
            again=may_pass(error) and not self._is_callers_own(error),
        )

    def _is_callers_own(self, error: APIError) -> bool:
        """Whether the caller of the program's service decides about another attempt."""
        is_limit = error.status_code == _TOO_MANY
        return self.call.is_check or (self.call.is_by_caller and is_limit)

    def _wait(
        self,
        error: TenantryError,
        pause: float | None,
        now: float,
        *,
        again: bool,
    ) -> float:
        wait = wait_before(self._attempt, pause, backoff=self._retry.backoff)
        is_over = self._attempt >= self._attempts or now + wait >= self.ends
        if not again or not self.call.repeatable or is_over:
            raise error
        self._attempt += 1
        return wait
