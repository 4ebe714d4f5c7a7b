"""Imported keys of which the other system hashes a part, as Laravel Sanctum does: the first
credential that is used is the key from then on.
"""

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from tests.support.cases import cases
from tests.support.database_link import database_link
from tests.support.emptying import SharedDatabase
from tests.support.imported_keys import SanctumToken, import_members, imported
from tests.support.in_process import MIDDLEWARE, WSGI, running_app
from tests.support.service import (
    KEYS,
    PROJECTS,
    SHORT_TIMEOUTS,
    VERIFY,
    WHOAMI,
    Organization,
    Service,
    refusal,
    running_service,
)

PATTERN: Final = {"IMPORTED_KEY_PATTERN": r"^\d+\|(?P<secret>.+)$"}
OLD: Final = "old-pepper-0123456789-0123456789-0123"
NEW: Final = "new-pepper-0123456789-0123456789-0123"
UNAVAILABLE: Final = (503, "auth_unavailable")
INVALID: Final = (401, "invalid_credential")
ACCEPTED: Final = (200, "")
HOT: Final = (PROJECTS, f"{VERIFY}projects:read")
_numbers = itertools.count()


def new_token() -> SanctumToken:
    return SanctumToken(hashlib.sha256(f"{next(_numbers)}".encode()).hexdigest()[:40])


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    async with running_service(shared_database.conninfo, **PATTERN) as service:
        yield service


@asynccontextmanager
async def another(service: Service, **values: str) -> AsyncIterator[Service]:
    """Another process on the same database."""
    async with running_service(service.conninfo, **{**PATTERN, **values}) as other:
        yield other


async def import_token(service: Service, org: Organization, token: SanctumToken) -> str:
    [result] = await imported(service, org.id, token.member())
    assert result["status"] == "created"
    return str(result["id"])


async def answer_to(service: Service, credential: str, path: str = PROJECTS) -> tuple[int, str]:
    answer = await service.caller(credential).get(path)
    return ACCEPTED if answer.status_code == 200 else refusal(answer)


async def shown(org: Organization, key_id: str) -> dict[str, Any]:
    return dict((await org.owner.get(f"{KEYS}/{key_id}")).json())


@pytest.mark.parametrize("path", [*HOT, WHOAMI])
async def test_credential_that_is_used_first_is_the_key(service: Service, path: str) -> None:
    org = await service.organization()
    token = new_token()
    key_id = await import_token(service, org, token)
    assert (await shown(org, key_id))["importedAs"] == "sha256"
    assert await answer_to(service, token.key(1), path) == ACCEPTED
    record = await shown(org, key_id)
    assert (record["importedAs"], record["lastUsedAt"] is None) == (None, False)
    async with another(service) as other:
        for process in (service, other):
            for number in (2, 11, 0):
                assert await answer_to(process, token.key(number), path) == INVALID
            assert await answer_to(process, token.key(1), path) == ACCEPTED


@cases(
    "form",
    ["{}", "|{}", "1|", "1|{}x", "x|{}", "1|1|{}", " |{}", "1{}", "1.{}"],
)
async def test_other_forms_are_no_key(service: Service, form: str) -> None:
    org = await service.organization()
    token = new_token()
    await import_token(service, org, token)
    assert await answer_to(service, form.format(token.secret)) == INVALID
    assert await answer_to(service, token.key()) == ACCEPTED


async def test_hash_of_the_whole_key_is_none_of_the_part(service: Service) -> None:
    org = await service.organization()
    token = new_token()
    await import_token(service, org, SanctumToken(token.key()))
    assert await answer_to(service, token.key()) == INVALID


async def test_hash_of_the_empty_part_is_not_imported(service: Service) -> None:
    org = await service.organization()
    answer = await import_members(service, org.id, SanctumToken("").member())
    assert refusal(answer) == (422, "validation_failed")
    assert "no key matches" in answer.text
    async with another(service, IMPORTED_KEY_PATTERN=r"\d+\|(?P<secret>.*)") as other:
        assert await answer_to(other, "1|") == INVALID


async def test_one_of_several_concurrent_first_uses_is_the_key(service: Service) -> None:
    org = await service.organization()
    token = new_token()
    await import_token(service, org, token)
    numbers = [*range(8)] * 2
    async with another(service) as other:
        answers = await asyncio.gather(
            *(
                answer_to(process, token.key(number), path)
                for number in numbers
                for process in (service, other)
                for path in HOT
            )
        )
        sent = [number for number in numbers for _ in range(4)]
        [first] = {
            number for number, answer in zip(sent, answers, strict=True) if answer == ACCEPTED
        }
        assert answers.count(ACCEPTED) == sent.count(first)
        assert {*answers} == {ACCEPTED, INVALID}
        for process in (service, other):
            assert await answer_to(process, token.key(first)) == ACCEPTED


async def test_later_use_of_another_process_does_not_bind_again(service: Service) -> None:
    org = await service.organization()
    token = new_token()
    await import_token(service, org, token)
    async with another(service) as other:
        assert await answer_to(other, token.key(1)) == ACCEPTED
        other.clock.advance(minutes=2)
        assert await answer_to(other, token.key(2)) == INVALID
        assert await answer_to(other, token.key(1)) == ACCEPTED
    assert await answer_to(service, token.key(1)) == ACCEPTED  # after the last uses were written
    assert await answer_to(service, token.key(2)) == INVALID


@pytest.mark.parametrize("kind", [MIDDLEWARE, WSGI])
async def test_application_in_process_binds_it(service: Service, kind: str) -> None:
    org = await service.organization()
    token = new_token()
    await import_token(service, org, token)
    async with running_app(kind, service, **PATTERN) as app:
        path = app.path("projects:read")
        answers = [await app.caller(token.key(number)).get(path) for number in (1, 2, 1)]
        assert [answer.status_code for answer in answers] == [200, 401, 200]
        assert await answer_to(service, token.key(2)) == INVALID
    assert await answer_to(service, token.key(1)) == ACCEPTED


@cases(
    ("change", "status", "code"),
    [
        ({"expiresAt": "2020-01-01T00:00:00Z"}, 401, "api_key_expired"),
        ({"allowedAddresses": ["192.0.2.1"]}, 403, "address_not_allowed"),
    ],
)
async def test_refused_use_binds_nothing(
    service: Service, change: dict[str, Any], status: int, code: str
) -> None:
    org = await service.organization()
    token = new_token()
    [result] = await imported(service, org.id, token.member(**change))
    for number in (1, 2, 1):
        assert await answer_to(service, token.key(number)) == (status, code)
    assert (await shown(org, result["id"]))["lastUsedAt"] is None


async def test_revoked_key_is_refused_whatever_was_sent(service: Service) -> None:
    org = await service.organization()
    unused, used = new_token(), new_token()
    ids = [await import_token(service, org, token) for token in (unused, used)]
    assert await answer_to(service, used.key(1)) == ACCEPTED
    for key_id in ids:
        assert (await org.owner.delete(f"{KEYS}/{key_id}")).status_code == 204
    for number in (1, 2):
        assert await answer_to(service, unused.key(number)) == (401, "api_key_revoked")
    assert await answer_to(service, used.key(1)) == (401, "api_key_revoked")
    assert await answer_to(service, used.key(2)) == INVALID
    [again] = await imported(service, org.id, used.member(externalId="again"))
    assert again["status"] == "digest_taken"


async def test_of_two_keys_with_one_secret_each_is_bound_by_one_credential(
    service: Service,
) -> None:
    first, second = await service.organization(), await service.organization()
    token = new_token()
    for org, algorithm in ((first, "sha256"), (second, "sha512")):
        await imported(service, org.id, token.member(algorithm), algorithm=algorithm)
    for _ in range(2):
        for number, org in ((1, first), (2, second)):
            whoami = (await service.caller(token.key(number)).get(WHOAMI)).json()
            assert whoami["orgId"] == org.id
    assert await answer_to(service, token.key(3)) == INVALID


async def test_key_is_no_other_field_of_itself(service: Service) -> None:
    org = await service.organization()
    token = new_token()
    for text in (token.key(), token.secret):
        answer = await import_members(service, org.id, token.member(metadata={"note": text}))
        assert refusal(answer) == (422, "validation_failed")
        assert "is the key itself" in answer.text
        assert token.secret not in answer.text


async def test_second_import_of_a_secret_is_refused(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    token = new_token()
    await import_token(service, org, token)
    [taken] = await imported(service, other.id, token.member(externalId="2"))
    assert taken["status"] == "digest_taken"
    twice = await import_members(
        service, org.id, *(new_token()._replace(secret="x" * 40).member() for _ in range(2))
    )
    assert "is that of keys[0] too" in twice.text


async def test_pepper_may_change_between_import_and_later_uses(conninfo: str) -> None:
    unused, used = new_token(), new_token()
    async with running_service(conninfo, API_KEY_PEPPER=OLD, **PATTERN) as before:
        org = await before.organization()
        for token in (unused, used):
            await import_token(before, org, token)
        assert await answer_to(before, used.key(1)) == ACCEPTED
    async with running_service(conninfo, API_KEY_PEPPER=f"{NEW},{OLD}", **PATTERN) as both:
        both.clock.advance(minutes=2)
        for token in (unused, used):
            assert await answer_to(both, token.key(1)) == ACCEPTED
            assert await answer_to(both, token.key(2)) == INVALID
    async with running_service(conninfo, API_KEY_PEPPER=NEW, **PATTERN) as after:
        for token in (unused, used):
            assert await answer_to(after, token.key(1)) == ACCEPTED
            assert await answer_to(after, token.key(2)) == INVALID
            [again] = await imported(after, org.id, token.member(externalId="again"))
            assert again["status"] == "digest_taken"


async def test_used_key_works_with_a_pattern_without_the_group(service: Service) -> None:
    org = await service.organization()
    used, unused = new_token(), new_token()
    for token in (used, unused):
        await import_token(service, org, token)
    assert await answer_to(service, used.key(1)) == ACCEPTED
    async with another(service, IMPORTED_KEY_PATTERN=r"\d+\|.+") as other:
        assert await answer_to(other, used.key(1)) == ACCEPTED
        assert await answer_to(other, unused.key(1)) == INVALID


async def test_first_use_without_the_primary_is_refused_and_binds_nothing(
    service: Service,
) -> None:
    org = await service.organization()
    token = new_token()
    key_id = await import_token(service, org, token)
    async with (
        database_link(service.conninfo) as link,
        running_service(link.conninfo, SHORT_TIMEOUTS, **PATTERN) as other,
    ):
        await link.cut()
        assert await answer_to(other, token.key(1)) == UNAVAILABLE
    assert (await shown(org, key_id))["lastUsedAt"] is None
    assert await answer_to(service, token.key(2)) == ACCEPTED


async def test_leak_report_of_a_bound_key_needs_the_whole_key(service: Service) -> None:
    org = await service.organization()
    token = new_token()
    await import_token(service, org, token)
    assert await answer_to(service, token.key(1)) == ACCEPTED
    report = f"{KEYS}/report-leak"
    other = await service.anonymous.post(report, {"secret": token.key(2)})
    assert refusal(other) == (404, "not_found")
    found = await service.anonymous.post(report, {"secret": token.key(1)})
    assert found.status_code == 200
    assert await answer_to(service, token.key(1)) == (401, "api_key_revoked")
