"""Refusals as problem documents."""

import json
from collections.abc import Iterator
from http import HTTPStatus

import msgspec
import pytest

from tenantry.api.openapi import CODES_KEY, REMEDIES_KEY, hand_written_part
from tenantry.domain import errors
from tenantry.domain.errors import DomainError
from tenantry.server.problems import (
    STATUS_OF,
    STATUSES,
    Refusal,
    fault_of,
    refuse,
    refuse_domain_error,
)
from tests.support.cases import cases

CODES = {
    "missing_credential": 401,
    "invalid_credential": 401,
    "api_key_revoked": 401,
    "api_key_expired": 401,
    "token_expired": 401,
    "insufficient_scope": 403,
    "org_mismatch": 403,
    "no_organization": 403,
    "scope_escalation": 403,
    "plan_limit_reached": 403,
    "mode_mismatch": 403,
    "org_suspended": 403,
    "user_token_required": 403,
    "not_found": 404,
    "key_limit_reached": 409,
    "key_not_active": 409,
    "idempotency_replay": 409,
    "idempotency_in_flight": 409,
    "validation_failed": 422,
    "idempotency_mismatch": 422,
    "invalid_cursor": 400,
    "payload_too_large": 413,
    "auth_unavailable": 503,
    "database_unavailable": 503,
    "overloaded": 503,
}


def subclasses(kind: type[DomainError]) -> Iterator[type[DomainError]]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


def headers_of(refusal: Refusal) -> dict[bytes, bytes]:
    return dict(refusal.headers)


def test_every_domain_error_has_a_status() -> None:
    assert set(subclasses(DomainError)) == set(STATUSES)


def test_every_code_has_a_meaning_and_a_remedy() -> None:
    texts = hand_written_part()
    assert set(texts[CODES_KEY]) == set(texts[REMEDIES_KEY]) == set(STATUS_OF)
    assert all(
        text.endswith((".", ")"))
        for key in (CODES_KEY, REMEDIES_KEY)
        for text in texts[key].values()
    )


def test_every_code_is_that_of_one_error() -> None:
    codes = [error.code for error in STATUSES]
    assert len(set(codes)) == len(codes)


@cases(("code", "status"), CODES.items())
def test_code_has_its_status(code: str, status: int) -> None:
    assert {error.code: int(number) for error, number in STATUSES.items()}[code] == status


def test_problem_has_its_members_and_no_null() -> None:
    refusal = refuse_domain_error(errors.NotFoundError("project"), "request-1")
    assert json.loads(refusal.body) == {
        "type": "urn:tenantry:problem:not_found",
        "title": HTTPStatus.NOT_FOUND.phrase,
        "status": 404,
        "detail": "There is no such project.",
        "code": "not_found",
        "requestId": "request-1",
    }
    assert headers_of(refusal) == {b"content-type": b"application/problem+json"}


def test_faults_are_listed_with_their_location() -> None:
    refusal = refuse_domain_error(
        errors.ValidationError(("name", "is too long"), ("scopes", "is empty")), "r"
    )
    assert json.loads(refusal.body)["errors"] == [
        {"location": "name", "message": "is too long"},
        {"location": "scopes", "message": "is empty"},
    ]


def test_replay_names_the_created_object() -> None:
    assert (
        json.loads(refuse_domain_error(errors.IdempotencyReplayError("key_1"), "r").body)["id"]
        == "key_1"
    )


def challenge(error: DomainError) -> bytes | None:
    return headers_of(refuse_domain_error(error, "r")).get(b"www-authenticate")


def test_missing_credential_is_challenged_without_an_error() -> None:
    assert challenge(errors.MissingCredentialError("x")) == b'Bearer realm="api"'


@cases(
    "kind",
    [
        errors.InvalidCredentialError,
        errors.ApiKeyRevokedError,
        errors.ApiKeyExpiredError,
        errors.TokenExpiredError,
    ],
)
def test_credential_that_does_not_count_is_challenged_with_invalid_token(
    kind: type[DomainError],
) -> None:
    expected = b'Bearer realm="api", error="invalid_token", error_description="Why."'
    assert challenge(kind("Why.")) == expected


def test_missing_scope_is_named_in_the_challenge() -> None:
    expected = b'Bearer realm="api", error="insufficient_scope", scope="projects:read"'
    assert challenge(errors.InsufficientScopeError("projects:read")) == expected


@cases("kind", [kind for kind in STATUSES if STATUSES[kind] is HTTPStatus.FORBIDDEN])
def test_no_other_refusal_is_challenged(kind: type[DomainError]) -> None:
    if kind is not errors.InsufficientScopeError:
        assert challenge(kind("x")) is None


@cases("kind", [kind for kind in STATUSES if STATUSES[kind] is HTTPStatus.SERVICE_UNAVAILABLE])
def test_outage_has_retry_after(kind: type[DomainError]) -> None:
    assert headers_of(refuse_domain_error(kind("x"), "r"))[b"retry-after"] == b"1"


def test_headers_hold_ascii_alone() -> None:
    refusal = refuse_domain_error(errors.InvalidCredentialError("é\u2028"), "r")
    assert all(value.isascii() and b"\n" not in value for _, value in refusal.headers)


def test_title_is_the_phrase_of_the_status() -> None:
    assert (
        json.loads(refuse("method_not_allowed", "No.", "r").body)["title"] == "Method Not Allowed"
    )


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    number: int


class Body(msgspec.Struct, forbid_unknown_fields=True):
    inner: Inner
    names: list[str] = []


@cases(
    ("text", "location", "message"),
    [
        ("[]", "body", "Expected `object`, got `array`"),
        ("{}", "inner", "Object missing required field `inner`"),
        ('{"inner": {}}', "inner.number", "Object missing required field `number`"),
        ('{"inner": {"number": 1}, "other": 1}', "other", "Object contains unknown field `other`"),
        ('{"inner": {"number": 1}, "int": 1}', "int", "Object contains unknown field `int`"),
        ('{"inner": {"number": "1"}}', "inner.number", "Expected `integer`, got `string`"),
        (
            '{"inner": {"number": 1}, "names": ["a", 2]}',
            "names[1]",
            "Expected `string`, got `integer`",
        ),
    ],
)
def test_error_in_a_body_is_located(text: str, location: str, message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.json.decode(text, type=Body)
    assert fault_of(error.value) == (location, message)


def test_error_does_not_repeat_the_body() -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.json.decode(json.dumps({"x" * 5000: 1}), type=Body)
    location, message = fault_of(error.value)
    assert len(location) <= 200
    assert len(message) <= 200
