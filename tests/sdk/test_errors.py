"""The errors of failed calls."""

import copy
import pickle
from collections.abc import Callable
from typing import Final

import msgspec
import pytest

from tenantry.server.problems import STATUS_OF
from tenantry_sdk import Project, _response, errors
from tenantry_sdk._response import Response
from tests.support.cases import cases

PROBLEM: Final = {
    "type": "urn:tenantry:problem:validation_failed",
    "title": "Unprocessable Entity",
    "status": 422,
    "detail": "The request has 1 fault.",
    "code": "validation_failed",
    "requestId": "4f2a",
    "errors": [{"location": "expiresAt", "message": "is in the past"}],
}


def error_of(status: int, content: bytes, **headers: str) -> errors.APIError:
    return _response.error_of(Response(status, headers, content), None)


def test_every_code_of_the_api_has_a_class_and_a_next_step() -> None:
    for code, status in STATUS_OF.items():
        error = error_of(status, msgspec.json.encode({"code": code, "detail": "Why."}))
        assert type(error).status == error.status_code, code
        assert error.next_step, code


def test_error_has_the_cause_the_place_and_the_remedy() -> None:
    error = error_of(422, msgspec.json.encode(PROBLEM), **{"x-request-id": "4f2a"})
    assert isinstance(error, errors.ValidationFailedError)
    assert (error.code, error.detail, error.request_id) == (
        "validation_failed",
        "The request has 1 fault.",
        "4f2a",
    )
    assert [(fault.location, fault.message) for fault in error.errors] == [
        ("expiresAt", "is in the past")
    ]
    assert str(error).splitlines() == [
        "422 validation_failed: The request has 1 fault.",
        "  expiresAt: is in the past",
        "Correct the fields that errors lists.",
        "(request 4f2a)",
    ]


@cases(
    ("content", "detail"),
    [
        (b"<html>  Bad\n gateway</html>", "<html> Bad gateway</html>"),
        (
            b"<html><head><TITLE>502 Bad\nGateway</TITLE></head><body>nginx</body></html>",
            "502 Bad Gateway",
        ),
        (b"", "The response gives no reason."),
        (b"\xff\x1b[31mred", "\ufffd[31mred"),
        (b'{"code": 3}', '{"code": 3}'),
        (b"x" * 5000, "x" * 200),
        (b"[" * 5000 + b"]" * 5000, "[" * 200),
    ],
)
def test_answer_of_something_before_the_service_is_an_error_too(
    content: bytes, detail: str
) -> None:
    error = error_of(502, content)
    assert isinstance(error, errors.BadGatewayError)
    assert (error.code, error.detail) == ("http_502", detail)
    assert error.next_step is not None
    assert "base_url" in error.next_step


def test_404_of_another_server_says_that_the_address_is_wrong() -> None:
    error = error_of(404, b"<html>nginx</html>")
    assert error.next_step == "base_url is not the address of tenantry: another server answered."


@cases("status", [418, 599, 301])
def test_unknown_status_is_an_api_error(status: int) -> None:
    error = error_of(status, b"")
    assert type(error) is errors.APIError
    assert error.status_code == status


@cases("content", [b"", b"<html>", b'{"id": 1}', b'{"id": "x"', b"\xff"])
def test_unreadable_success_is_a_specific_error(content: bytes) -> None:
    with pytest.raises(errors.UnreadableAnswerError, match="request 4f2a") as raised:
        Response(200, {"x-request-id": "4f2a"}, content).parse(Project)
    assert raised.value.request_id == "4f2a"


@cases(
    "error",
    [
        error_of(422, msgspec.json.encode(PROBLEM), **{"x-request-id": "4f2a"}),
        errors.LostKeyError("lost", "key_1"),
        errors.UnreadableAnswerError("unreadable", "4f2a", idempotency_key="once"),
        errors.TokenRefreshError("no token", code="invalid_grant"),
        errors.TimedOutError("too late", after_lost_answer=True),
    ],
    ids=lambda error: type(error).__name__,
)
@cases("copied", [copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])  # noqa: S301
def test_errors_come_back_from_other_processes(
    error: errors.TenantryError, copied: Callable[[errors.TenantryError], errors.TenantryError]
) -> None:
    again = copied(error)
    assert (type(again), str(again)) == (type(error), str(error))
    assert {**vars(again), "errors": None} == {**vars(error), "errors": None}


def test_error_class_of_a_program_may_leave_out_the_constructor() -> None:
    class ProgramError(errors.TenantryError):
        def __init__(self, reason: str) -> None:
            self.reason = reason

    error = ProgramError("sold out")
    assert (error.request_id, error.idempotency_key, error.after_lost_answer) == (None, None, False)


def test_record_that_is_nested_without_end_cannot_be_read() -> None:
    response = Response(200, {"content-type": "application/json"}, b"[" * 5000 + b"]" * 5000)
    with pytest.raises(errors.UnreadableAnswerError, match="not one of tenantry"):
        response.json()
