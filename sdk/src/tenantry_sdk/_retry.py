"""Which calls are sent again, when, and how long they wait. Nothing here waits, and nothing looks at a clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Final

import msgspec

from tenantry_sdk._request import Call, Response
from tenantry_sdk.errors import ConnectionFailedError, TenantryError, TimedOutError, error_of

_AGAIN: Final = frozenset({408, 429, 502, 503, 504})
_MAYBE_DONE: Final = frozenset({408, 502, 503, 504})
"""What a gateway says when it gave up, though the service may have gone on."""
_IN_FLIGHT: Final = "idempotency_in_flight"
_NOT_FOUND: Final = 404

_MOST: Final = 86_400.0


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds between the attempts of a call."""

    first: float = 0.25
    """The upper bound of the first wait. It doubles with each attempt."""
    longest: float = 8.0
    """The upper bound that no wait exceeds."""
    in_flight: float = 0.5
    """The shortest wait for an earlier attempt that the service is still working on."""


BACKOFF: Final = Backoff()
"""The default of all clients."""


class Patience(msgspec.Struct, frozen=True):
    """How long a call goes on: seconds for all of it and for each attempt, the most attempts, and the waits between."""

    timeout: float = 30.0
    attempt_timeout: float = 10.0
    attempts: int = 4
    backoff: Backoff = BACKOFF

    def __post_init__(self) -> None:
        if not (0 < self.timeout <= _MOST and 0 < self.attempt_timeout <= _MOST and self.attempts >= 1):
            raise ValueError("timeout and attempt_timeout are seconds above 0, a day at most, and attempts at least 1")


def wait_before(
    attempt: int,
    retry_after: float | None,
    chance: Callable[[float, float], float] = random.uniform,
    backoff: Backoff = BACKOFF,
) -> float:
    """Seconds to wait before attempt ``attempt`` + 1: full jitter below a doubling bound, and never less than asked."""
    jitter = chance(0.0, min(backoff.longest, backoff.first * 2.0 ** (attempt - 1)))
    return jitter if retry_after is None else retry_after + jitter


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds that an answer asks to wait for (RFC 9110, 10.2.3), where it does."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  # slow to import

    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or timezone.utc) - now).total_seconds())


class Progress:
    """How far a call has come: each answer or loss either ends it or says how long to wait for the next attempt."""

    def __init__(self, call: Call, patience: Patience, ends: float) -> None:
        """``ends`` is when the call gives up, by the monotonic clock."""
        self._call = call
        self._patience = patience
        self._ends = ends
        self._attempt = 1
        self._lost = False

    def seconds(self, now: float) -> float:
        """How long the next attempt may take. Raises `TimedOutError` where there is no time left."""
        seconds = min(self._patience.attempt_timeout, self._ends - now)
        if seconds <= 0:
            raise TimedOutError("There was no time left for an answer.")
        return seconds

    def after_loss(self, error: ConnectionFailedError, now: float) -> float:
        """Return seconds to wait after a lost answer. Raises ``error`` if there are no more attempts."""
        self._lost = True
        return self._wait(error, None, now, again=True)

    def after(self, response: Response, at: datetime, now: float) -> float | None:
        """Return seconds to wait before a retry, or None for a successful answer. Raises the answer's error."""
        status = response.status_code
        if status < 300:  # noqa: PLR2004
            return None
        if status == _NOT_FOUND and self._lost and self._call.vanishes:
            return None  # the attempt with the lost answer succeeded
        pause = retry_after(response.headers, at)
        error = error_of(status, response.headers, response.content, pause)
        if error.code == _IN_FLIGHT and self._lost:
            self._attempt -= 1  # the lost attempt still runs; it does not count
            return self._wait(error, self._patience.backoff.in_flight, now, again=True)
        if status in _MAYBE_DONE:
            self._lost = True
        return self._wait(error, pause, now, again=status in _AGAIN)

    def _wait(self, error: TenantryError, pause: float | None, now: float, *, again: bool) -> float:
        wait = wait_before(self._attempt, pause, backoff=self._patience.backoff)
        is_over = self._attempt >= self._patience.attempts or now + wait >= self._ends
        if not again or not self._call.repeatable or is_over:
            error.after_lost_answer = self._lost
            raise error
        self._attempt += 1
        return wait
