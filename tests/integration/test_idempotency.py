"""`Idempotency-Key`: a repeated request takes effect once."""

import asyncio
from collections import Counter

import psycopg
import pytest

from tenantry.auth.changes import AnsweredChange, Changes
from tenantry.domain.audit import BY_OPERATOR, Action
from tenantry.domain.permissions import operator_principal
from tenantry.domain.tenants import Project
from tests.support.cases import cases
from tests.support.patience import patient_database
from tests.support.service import KEYS, PROJECTS, TENANTS, Organization, Service, refusal


def key_body(org: Organization) -> dict[str, object]:
    return {"orgId": org.id, "name": "CI", "scopes": ["projects:read"]}


async def test_same_request_again_gets_the_first_answer(service: Service) -> None:
    org = await service.organization()
    first, again = [await org.owner.post(PROJECTS, {"name": "a"}, "one") for _ in range(2)]
    assert first.status_code == again.status_code == 201
    assert first.json() == again.json()
    assert first.headers["location"] == again.headers["location"]
    assert len((await org.owner.get(PROJECTS)).json()["data"]) == 1


async def test_another_body_under_the_same_key_is_refused(service: Service) -> None:
    org = await service.organization()
    await org.owner.post(PROJECTS, {"name": "a"}, "one")
    assert refusal(await org.owner.post(PROJECTS, {"name": "b"}, "one")) == (
        422,
        "idempotency_mismatch",
    )
    assert len((await org.owner.get(PROJECTS)).json()["data"]) == 1


async def test_secret_is_never_sent_twice(service: Service) -> None:
    org = await service.organization()
    first = await org.owner.post(KEYS, key_body(org), "one")
    again = await org.owner.post(KEYS, key_body(org), "one")
    assert refusal(again) == (409, "idempotency_replay")
    assert again.json()["id"] == first.json()["id"]
    assert first.json()["secret"] not in again.text
    assert len((await org.owner.get(KEYS)).json()["data"]) == 2


async def test_replay_is_the_same_after_the_expiry_that_it_asked_for(
    fresh_service: Service,
) -> None:
    service = fresh_service
    org = await service.organization()
    body = {**key_body(org), "expiresAt": "2026-01-01T12:10:00Z"}
    first = await org.owner.post(KEYS, body, "one")
    service.clock.advance(minutes=20)
    again = await org.owner.post(KEYS, body, "one")
    assert refusal(again) == (409, "idempotency_replay")
    assert again.json()["id"] == first.json()["id"]


async def test_secret_of_a_rotation_is_never_sent_twice(service: Service) -> None:
    org = await service.organization()
    old = await service.key(org.owner, org.id, "projects:read")
    first = await org.owner.post(f"{old.path}/rotate", {"overlapSeconds": 9}, "one")
    again = await org.owner.post(f"{old.path}/rotate", {"overlapSeconds": 9}, "one")
    assert refusal(again) == (409, "idempotency_replay")
    assert again.json()["id"] == first.json()["id"]
    assert "secret" not in again.json()


async def test_secret_is_not_in_the_database(service: Service) -> None:
    org = await service.organization()
    secret = (await org.owner.post(KEYS, key_body(org), "one")).json()["secret"]
    export = await service.operator.get(f"{org.path}/export")
    assert export.status_code == 200
    assert secret not in export.text
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        cursor = await connection.execute(
            "SELECT (SELECT string_agg(k::text, '') FROM api_keys k) || (SELECT string_agg(i::text, '') "
            "FROM idempotency_keys i)"
        )
        row = await cursor.fetchone()
    assert row is not None
    assert org.key.id in row[0]
    assert secret not in row[0]
    assert secret.encode().hex() not in row[0]


async def test_key_counts_for_one_caller_and_one_route(service: Service) -> None:
    org = await service.organization()
    other = await service.key(org.owner, org.id, "*:*")
    mine = (await org.owner.post(PROJECTS, {"name": "a"}, "one")).json()
    theirs = (await other.caller.post(PROJECTS, {"name": "a"}, "one")).json()
    assert mine["id"] != theirs["id"]
    assert (await org.owner.post(KEYS, key_body(org), "one")).status_code == 201
    first, second = [await service.key(org.owner, org.id, "a:b") for _ in range(2)]
    assert (await org.owner.post(f"{first.path}/rotate", {}, "two")).status_code == 201
    assert (await org.owner.post(f"{second.path}/rotate", {}, "two")).status_code == 201


async def test_refused_request_may_be_sent_again(service: Service) -> None:
    org = await service.organization()
    made = [(await org.owner.post(PROJECTS, {"name": name})).json()["id"] for name in "abc"]
    assert refusal(await org.owner.post(PROJECTS, {"name": "d"}, "one")) == (
        403,
        "plan_limit_reached",
    )
    await org.owner.delete(f"{PROJECTS}/{made[0]}")
    assert (await org.owner.post(PROJECTS, {"name": "d"}, "one")).status_code == 201


async def test_answers_are_kept_for_24_hours(fresh_service: Service) -> None:
    service = fresh_service
    org = await service.organization()
    first = (await org.owner.post(PROJECTS, {"name": "a"}, "one")).json()
    service.clock.advance(hours=23, minutes=59)
    assert (await org.owner.post(PROJECTS, {"name": "a"}, "one")).json() == first
    service.clock.advance(minutes=2)
    later = (await org.owner.post(PROJECTS, {"name": "b"}, "one")).json()
    assert later["id"] != first["id"]


async def test_concurrent_duplicates_create_one_object(service: Service) -> None:
    org = await service.organization()
    answers = await asyncio.gather(
        *(org.owner.post(PROJECTS, {"name": "a"}, "one") for _ in range(10))
    )
    made = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    others = [refusal(answer) for answer in answers if answer.status_code != 201]
    assert len(made) == 1
    assert set(others) <= {(409, "idempotency_in_flight")}
    assert len((await org.owner.get(PROJECTS)).json()["data"]) == 1


async def test_concurrent_duplicates_create_one_key_and_show_its_secret_once(
    service: Service,
) -> None:
    org = await service.organization()
    answers = await asyncio.gather(*(org.owner.post(KEYS, key_body(org), "one") for _ in range(10)))
    counts = Counter(answer.status_code for answer in answers)
    assert counts[201] == 1
    assert counts[409] == 9
    assert len((await org.owner.get(KEYS)).json()["data"]) == 2


async def test_concurrent_duplicate_gets_idempotency_in_flight(service: Service) -> None:
    org = await service.organization()
    name = f"idempotency\x1fapi_key:{org.id}:{org.key.id}\x1fPOST {PROJECTS}\x1fone"
    async with await psycopg.AsyncConnection.connect(service.conninfo) as twin:
        await twin.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))
        answer = await org.owner.post(PROJECTS, {"name": "a"}, "one")
    assert refusal(answer) == (409, "idempotency_in_flight")
    assert (await org.owner.post(PROJECTS, {"name": "a"}, "one")).status_code == 201


@cases("key", [b"", b" ", b"a b", b"a\tb", b"\xe9", b"a" * 256])
async def test_key_must_be_visible_ascii(service: Service, key: bytes) -> None:
    org = await service.organization()
    answer = await org.owner.call("POST", PROJECTS, {"name": "a"}, headers={"Idempotency-Key": key})
    assert refusal(answer) == (400, "invalid_idempotency_key")


async def test_longest_key_with_any_visible_character_is_accepted(service: Service) -> None:
    org = await service.organization()
    key = "".join(chr(code) for code in range(0x21, 0x7F)).ljust(255, "~")
    answers = [await org.owner.post(PROJECTS, {"name": "a"}, key) for _ in range(2)]
    assert answers[0].json() == answers[1].json()


async def test_tenant_is_made_once(service: Service) -> None:
    user = service.user("idempotent", email="u@x.example", email_verified=True)
    first, again = [await user.post(TENANTS, {"name": "Mine"}, "one") for _ in range(2)]
    assert first.status_code == 201
    assert again.json() == first.json()
    listed = await service.user("idempotent").get(TENANTS)
    assert [tenant["id"] for tenant in listed.json()["data"]] == [first.json()["id"]]


async def forget_answer(service: Service, org: Organization) -> None:
    """Make a change that must be answered, and do not answer it."""
    async with (
        patient_database(service.conninfo, pool_size=1) as database,
        Changes(database, service.clock).begin_once(
            operator_principal(org.id), BY_OPERATOR, "projects:write", claim=None, kind=Project
        ) as change,
    ):
        assert isinstance(change, AnsweredChange)
        await change.record(Action.TENANT_EXPORTED, org.id)


async def test_a_change_that_ends_without_its_answer_is_not_made(service: Service) -> None:
    org = await service.organization()
    with pytest.raises(RuntimeError, match="without its answer"):
        await forget_answer(service, org)
    trail = (await org.owner.get("/api/v1/audit-events")).json()["data"]
    assert "tenant.exported" not in [entry["action"] for entry in trail]
