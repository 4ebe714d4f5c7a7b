"""Which calls are sent again, when, and how long they wait."""

import math
import re
from datetime import UTC, datetime
from typing import Final

import httpx2
import pytest

from tenantry_sdk import errors
from tenantry_sdk._request import Call
from tenantry_sdk._response import Response
from tenantry_sdk._retry import Backoff, Loss, RetrySettings, RetryState, retry_after, wait_before
from tests.support.cases import cases

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
READ: Final = Call("GET", "/api/v1/projects")
REVOKE: Final = Call("DELETE", "/api/v1/api-keys/key_1")
CREATE: Final = Call("POST", "/api/v1/api-keys", idempotency_key="once")
CREATE_UNSAFE: Final = Call("POST", "/api/v1/api-keys/report-leak")
CHANGE: Final = Call("PATCH", "/api/v1/projects/proj_1")
LOST: Final = Loss("no answer.")


def answer(status: int, code: str = "some_code", **headers: str) -> Response:
    return Response(status, headers, b'{"code": "%s", "detail": "Why."}' % code.encode())


def progress(call: Call, *, retries: int = 3, ends: float = 30.0) -> RetryState:
    return RetryState(call, RetrySettings(ends, 10.0, retries), ends)


@cases("call", [READ, REVOKE, CREATE])
@cases("status", [408, 429, 502, 503, 504])
def test_temporary_failures_are_retried(call: Call, status: int) -> None:
    assert progress(call).after(answer(status), NOW, 0.0) is not None


@cases("call", [CREATE_UNSAFE, CHANGE])
@cases("status", [408, 429, 502, 503, 504])
def test_unrepeatable_calls_are_sent_once(call: Call, status: int) -> None:
    with pytest.raises(errors.APIError) as raised:
        progress(call).after(answer(status), NOW, 0.0)
    assert raised.value.status_code == status


@cases("status", [400, 401, 403, 404, 409, 413, 415, 422, 500, 501])
def test_final_answers_are_not_retried(status: int) -> None:
    with pytest.raises(errors.APIError) as raised:
        progress(READ).after(answer(status), NOW, 0.0)
    assert type(raised.value).status == status


def test_limit_of_invitations_is_final() -> None:
    with pytest.raises(errors.RateLimitedError) as raised:
        progress(CREATE).after(answer(429, "invitation_limit_reached"), NOW, 0.0)
    assert raised.value.code == "invitation_limit_reached"


@cases("call", [READ, REVOKE, CREATE])
def test_lost_answers_are_retried(call: Call) -> None:
    assert progress(call).after_loss(LOST, 0.0) >= 0


@pytest.mark.parametrize("call", [CREATE_UNSAFE, CHANGE])
def test_lost_answers_of_unrepeatable_calls_are_errors(call: Call) -> None:
    with pytest.raises(errors.ConnectionFailedError):
        progress(call).after_loss(LOST, 0.0)


def test_attempts_are_counted() -> None:
    going = progress(READ, retries=2)
    going.after(answer(503), NOW, 0.0)
    going.after_loss(LOST, 0.0)
    with pytest.raises(errors.UnavailableError):
        going.after(answer(503), NOW, 0.0)


def test_no_wait_exceeds_the_deadline() -> None:
    with pytest.raises(errors.RateLimitedError) as raised:
        progress(READ, ends=30.0).after(answer(429, **{"retry-after": "31"}), NOW, 0.0)
    assert raised.value.retry_after == 31


def test_no_attempt_begins_after_the_end() -> None:
    with pytest.raises(errors.TimedOutError):
        progress(READ, ends=30.0).seconds(30.0)


def test_last_attempt_gets_the_remaining_time() -> None:
    assert progress(READ, ends=30.0).seconds(27.5) == 2.5


def test_missing_project_after_a_lost_answer_counts_as_deleted() -> None:
    going = progress(Call("DELETE", "/api/v1/projects/proj_1", vanishes=True))
    going.after_loss(LOST, 0.0)
    assert going.after(answer(404, "not_found"), NOW, 0.0) is None


@pytest.mark.parametrize("lose", [True, False])
def test_key_that_is_not_there_was_never_revoked(lose: bool) -> None:
    going = progress(REVOKE)
    if lose:
        going.after_loss(LOST, 0.0)
    with pytest.raises(errors.NotFoundError) as raised:
        going.after(answer(404, "not_found"), NOW, 0.0)
    assert raised.value.after_lost_answer is lose


@cases("status", [408, 502, 503, 504])
def test_create_that_a_gateway_gave_up_may_still_run_and_is_waited_for(status: int) -> None:
    going = progress(CREATE)
    going.after(answer(status), NOW, 0.0)
    for _ in range(20):  # more often than there are attempts
        assert going.after(answer(409, "idempotency_in_flight"), NOW, 0.0) is not None


def test_create_whose_lost_attempt_still_runs_is_waited_for() -> None:
    going = progress(CREATE)
    going.after_loss(LOST, 0.0)
    assert going.after(answer(409, "idempotency_in_flight"), NOW, 0.0) is not None


def test_foreign_create_with_the_same_key_is_not_awaited() -> None:
    with pytest.raises(errors.ConflictError):
        progress(CREATE).after(answer(409, "idempotency_in_flight"), NOW, 0.0)


@cases(("attempt", "most"), [(1, 0.25), (2, 0.5), (3, 1.0), (6, 8.0), (40, 8.0)])
def test_waits_are_spread_below_a_bound_that_doubles(attempt: int, most: float) -> None:
    asked: list[tuple[float, float]] = []

    def chance(low: float, high: float) -> float:
        asked.append((low, high))
        return high

    assert wait_before(attempt, None, chance) == most
    assert asked == [(0.0, most)]


def test_waits_are_those_of_the_clients_backoff() -> None:
    backoff = Backoff(first=0.001, longest=0.002, in_flight=0.003)
    bounds = [
        wait_before(attempt, None, lambda _low, high: high, backoff)
        for attempt in (1, 2, 3, 40, 4000)
    ]
    assert bounds == [0.001, 0.002, 0.002, 0.002, 0.002]
    going = RetryState(CREATE, RetrySettings(30.0, 10.0, 4, backoff), 30.0)
    assert going.after_loss(LOST, 0.0) <= 0.001
    in_flight = going.after(answer(409, "idempotency_in_flight"), NOW, 0.0)
    assert in_flight is not None
    assert 0.003 <= in_flight <= 0.005


def test_never_sooner_than_the_service_asks() -> None:
    assert wait_before(1, 3.0, lambda _low, _high: 0.0) == 3.0


@cases(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0.0),
        ("Sun, 01 Mar 99999999999 11:00:00 GMT", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("\u0661\u0662", None),
        ("", None),
    ],
)
def test_retry_after_in_both_forms(value: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": value}, NOW) == seconds


@cases(
    ("name", "value"),
    [
        ("timeout", 0),
        ("timeout", math.inf),
        ("attempt_timeout", -1.0),
        ("attempt_timeout", math.nan),
        ("retries", -1),
    ],
)
def test_invalid_limit_is_named_in_the_error(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be .*, not {value}$"):
        RetrySettings(**{name: value})  # type: ignore[arg-type]


@cases("name", ["timeout", "attempt_timeout", "retries"])
@cases("value", [None, "3", httpx2.Timeout(5), 1j])
def test_limit_that_is_no_number_is_a_type_error(name: str, value: object) -> None:
    with pytest.raises(
        TypeError, match=rf"^{name} must be a (whole )?number.*, not {re.escape(repr(value))}$"
    ):
        RetrySettings(**{name: value})  # type: ignore[arg-type]


def test_timeout_error_tells_how_long_the_call_took() -> None:
    going = progress(READ, ends=30.0)
    assert going.loss_of(TimeoutError(), "x", 0.0, 10.02).reason.endswith("from x in 10.0 s.")
    going.after_loss(LOST, 10.0)
    again = going.loss_of(TimeoutError(), "x", 10.5, 20.5)
    assert again.reason.endswith("in 10.0 s (attempt 2 of 4, 20.5 s in all).")
    with pytest.raises(
        errors.TimedOutError, match=r"^GET /api/v1/projects: timed out after 30\.1 s\.$"
    ):
        going.seconds(30.1)
