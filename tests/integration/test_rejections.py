"""Rejections: what a tenant learns of its refused requests, and what it does not.

Each test sends its requests to a second service on the same database, or to an application beside
it. They write the rejections when they stop.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from typing import Any, Final

import psycopg
import pytest

from tenantry.auth.rejection_log import RejectionLog
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.domain.permissions import Mode, PrincipalKind
from tenantry.domain.rejections import MOST_OF_SENDER, MOST_OF_TENANT, KnownSender, RefusedRequest
from tests.support.app import OPERATOR_TOKEN
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.database_link import database_link
from tests.support.in_process import MIDDLEWARE, WSGI, running_app
from tests.support.issuer import NOW
from tests.support.patience import patient_database
from tests.support.rate_limits import set_plan
from tests.support.service import (
    KEYS,
    PROJECTS,
    VERIFY,
    WHOAMI,
    Caller,
    JsonObject,
    Key,
    Organization,
    Service,
    refusal,
    running_service,
)

REJECTIONS: Final = "/api/v1/rejections"
CATALOG: Final = """
[[features]]
id = "exports"
type = "metered"
[[features]]
id = "sso"
type = "boolean"
[[plans]]
id = "free"
[plans.features]
exports = 1
[[plans]]
id = "slow"
[plans.limits]
requests_per_minute = 1
"""

Elsewhere = Callable[[], AbstractAsyncContextManager[Service]]


@pytest.fixture
def elsewhere(service: Service) -> Elsewhere:
    """Runs a second service on the database of the first."""
    return partial(running_service, service.conninfo, TENANTRY_PLANS=catalog_file(CATALOG))


@pytest.fixture
async def org(service: Service) -> Organization:
    return await service.organization()


@pytest.fixture
async def key(service: Service, org: Organization) -> Key:
    return await service.key(org.owner, org.id, "projects:read")


async def rejections_of(caller: Caller, **parameters: Any) -> list[JsonObject]:
    """The rejections that a caller reads, newest first."""
    answer = await caller.get(REJECTIONS, **parameters)
    assert answer.status_code == 200, answer.text
    found: list[JsonObject] = answer.json()["data"]
    return found


async def test_a_rejection_says_what_was_missing_where_and_when(
    elsewhere: Elsewhere, org: Organization, key: Key
) -> None:
    async with elsewhere() as other:
        answer = await other.caller(key.caller.credential).get(KEYS)
    assert refusal(answer) == (403, "insufficient_scope")
    [rejection] = await rejections_of(org.owner)
    assert rejection.pop("at").startswith(NOW.date().isoformat())
    assert rejection == {
        "mode": "live",
        "status": 403,
        "code": "insufficient_scope",
        "needed": "api-keys:read",
        "route": KEYS,
        "keyId": key.id,
        "requestId": answer.headers["x-request-id"],
        "address": "127.0.0.1",
        "counted": 1,
    }


async def test_equal_rejections_of_a_minute_are_one(
    elsewhere: Elsewhere, org: Organization, key: Key
) -> None:
    async with elsewhere() as other:
        caller = other.caller(key.caller.credential)
        answers = [await caller.get(KEYS) for _ in range(3)]
        other.clock.advance(seconds=60)
        await caller.get(KEYS)
    newest, first = await rejections_of(org.owner)
    assert (newest["counted"], first["counted"]) == (1, 3)
    assert first["requestId"] == answers[-1].headers["x-request-id"]


async def test_processes_add_up_the_rejections_of_a_minute(
    elsewhere: Elsewhere, org: Organization, key: Key
) -> None:
    for _ in range(2):
        async with elsewhere() as other:
            await other.caller(key.caller.credential).get(KEYS)
    assert [each["counted"] for each in await rejections_of(org.owner)] == [2]


async def test_hot_routes_are_named_by_their_template(
    elsewhere: Elsewhere, org: Organization, key: Key
) -> None:
    async with elsewhere() as other:
        caller = other.caller(key.caller.credential)
        await caller.get(f"{VERIFY}reports:read")
        await caller.get(f"{VERIFY}-/feature:sso")
    found = {(each["needed"], each["route"]) for each in await rejections_of(org.owner)}
    assert found == {("reports:read", f"{VERIFY}{{scope}}"), ("sso", f"{VERIFY}{{scope}}")}


async def test_a_quota_and_a_limit_are_named(
    service: Service, elsewhere: Elsewhere, org: Organization, key: Key
) -> None:
    async with elsewhere() as other:
        caller = other.caller(key.caller.credential)
        await caller.post("/api/v1/entitlements/exports/consume", {"amount": 2})
        await set_plan(service, org, "slow")
        await caller.get(PROJECTS)
        await caller.get(PROJECTS)
    found = [
        (each["status"], each["code"], each["needed"]) for each in await rejections_of(org.owner)
    ]
    assert sorted(found) == [(403, "quota_exceeded", "exports"), (429, "rate_limited", "tenant")]


async def test_a_revoked_key_and_a_suspended_tenant_are_recorded(
    service: Service, elsewhere: Elsewhere, org: Organization, key: Key
) -> None:
    other_key = await service.key(org.owner, org.id, "projects:read")
    await org.owner.delete(key.path)
    fields = {"name": org.id, "ownerEmail": "owner@x.example"}
    async with elsewhere() as other:
        await other.caller(key.caller.credential).get(PROJECTS)
        await service.operator.put(org.path, {**fields, "suspended": True})
        await other.caller(other_key.caller.credential).get(PROJECTS)
    await service.operator.put(org.path, {**fields, "suspended": False})
    found = {
        each["keyId"]: (each["status"], each["code"]) for each in await rejections_of(org.owner)
    }
    assert found == {key.id: (401, "api_key_revoked"), other_key.id: (403, "org_suspended")}


async def test_a_users_rejection_names_the_user(elsewhere: Elsewhere, org: Organization) -> None:
    async with elsewhere() as other:
        await other.user("mia", org=org.id, role="member").get(KEYS)
    [rejection] = await rejections_of(org.owner)
    assert (rejection["principalId"], "keyId" in rejection) == ("mia", False)


async def test_nobody_fills_the_log_of_a_tenant_without_its_credential(
    service: Service, elsewhere: Elsewhere, org: Organization, key: Key
) -> None:
    stranger = await service.organization()
    assert key.caller.credential is not None
    async with elsewhere() as other:
        await other.caller(key.caller.credential[:-7] + "0000000").get(PROJECTS)
        await other.user("eve", asks_for=org.id).get(PROJECTS)
        outsider = other.caller(stranger.owner.credential)
        body = {"orgId": org.id, "name": "key", "scopes": ["projects:read"]}
        assert refusal(await outsider.post(KEYS, body)) == (403, "org_mismatch")
    assert await rejections_of(org.owner) == []
    assert await rejections_of(stranger.owner) == []


async def test_accepted_requests_and_the_operators_are_not_recorded(
    elsewhere: Elsewhere, org: Organization, key: Key
) -> None:
    async with elsewhere() as other:
        caller = other.caller(key.caller.credential)
        assert (await caller.get(PROJECTS)).status_code == 200
        assert (await caller.get(f"{PROJECTS}/proj_none")).status_code == 404
        operator = other.caller(OPERATOR_TOKEN, X_Act_As_Organization=org.id)
        assert (await operator.get("/api/v1/me/memberships")).status_code == 403
    assert await rejections_of(org.owner) == []


@pytest.mark.parametrize("kind", [MIDDLEWARE, WSGI])
async def test_an_application_records_too(
    service: Service, org: Organization, key: Key, kind: str
) -> None:
    async with running_app(kind, service, TENANTRY_PLANS=catalog_file(CATALOG)) as app:
        answer = await app.caller(key.caller.credential).get(app.path("reports:write"))
        assert refusal(answer) == (403, "insufficient_scope")
        await set_plan(service, org, "slow")
        for _ in range(2):
            await app.caller(key.caller.credential).get(app.path(None))
    found = {each["code"]: each for each in await rejections_of(org.owner)}
    assert set(found) == {"insufficient_scope", "rate_limited"}
    scope = found["insufficient_scope"]
    assert (scope["needed"], scope["requestId"]) == (
        "reports:write",
        answer.headers["x-request-id"],
    )
    assert "route" not in scope


async def test_a_caller_reads_rejections_of_its_mode_with_the_scope(
    service: Service, elsewhere: Elsewhere, org: Organization, key: Key
) -> None:
    tester = await service.key(org.owner, org.id, "audit:read", mode="test")
    async with elsewhere() as other:
        await other.caller(key.caller.credential).get(KEYS)
        await other.caller(tester.caller.credential).get(KEYS)
    [live] = await rejections_of(org.owner)
    [tested] = await rejections_of(tester.caller)
    assert (live["keyId"], tested["keyId"]) == (key.id, tester.id)
    assert refusal(await key.caller.get(REJECTIONS)) == (403, "insufficient_scope")


async def test_a_list_is_of_one_key_since_a_moment_and_in_pages(
    service: Service, elsewhere: Elsewhere, org: Organization, key: Key
) -> None:
    second = await service.key(org.owner, org.id, "projects:read")
    async with elsewhere() as other:
        await other.caller(key.caller.credential).get(KEYS)
        other.clock.advance(seconds=90)
        for each in (key, second):
            await other.caller(each.caller.credential).get(WHOAMI + "x")
            await other.caller(each.caller.credential).get(KEYS)
        since = (other.clock.now - timedelta(seconds=1)).isoformat()
    assert len(await rejections_of(org.owner, keyId=key.id)) == 2
    assert len(await rejections_of(org.owner, since=since)) == 2
    first = (await org.owner.get(REJECTIONS, limit=2)).json()
    rest = (await org.owner.get(REJECTIONS, limit=2, cursor=first["nextCursor"])).json()
    assert (len(first["data"]), len(rest["data"]), rest["nextCursor"]) == (2, 1, None)


@cases(
    ("parameters", "status"),
    [
        ({"since": "2026-01-01T00:00:00"}, (422, "validation_failed")),
        ({"keyId": "a\0b"}, (422, "validation_failed")),
        ({"cursor": "nonsense"}, (400, "invalid_cursor")),
        ({"limit": "101"}, (422, "validation_failed")),
    ],
)
async def test_a_query_that_cannot_be_answered_is_refused(
    org: Organization, parameters: dict[str, str], status: tuple[int, str]
) -> None:
    assert refusal(await org.owner.get(REJECTIONS, **parameters)) == status


# The log of one process


def refused(code: str = "insufficient_scope", needed: str | None = None) -> RefusedRequest:
    return RefusedRequest(403, code, needed, PROJECTS, "request-1", "203.0.113.7")


def sender(org: Organization, number: int = 0) -> KnownSender:
    return KnownSender(org.id, PrincipalKind.API_KEY, f"key_{number}", Mode.LIVE)


@pytest.fixture
async def log(service: Service) -> AsyncIterator[RejectionLog]:
    async with patient_database(service.conninfo, pool_size=1) as database:
        yield RejectionLog(database, service.clock)


async def counts_of(service: Service, org: Organization) -> dict[str, list[int]]:
    """The counts that the database has, by key."""
    found: dict[str, list[int]] = {}
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        rows = await connection.execute(
            "SELECT principal, counted FROM rejections WHERE org_id = %s ORDER BY at", (org.id,)
        )
        for principal, counted in await rows.fetchall():
            found.setdefault(principal, []).append(counted)
    return found


async def test_a_flood_of_one_reason_is_one_row(
    service: Service, org: Organization, log: RejectionLog
) -> None:
    for _ in range(10_000):
        log.record(sender(org), refused())
    await log.write()
    assert await counts_of(service, org) == {"key_0": [10_000]}


async def test_a_key_with_many_reasons_keeps_its_count_and_few_rows(
    service: Service, org: Organization, log: RejectionLog
) -> None:
    for number in range(100):
        log.record(sender(org), refused(needed=f"reports:{number}"))
    await log.write()
    counts = (await counts_of(service, org))["key_0"]
    assert (sum(counts), len(counts)) == (100, 21)


async def test_what_was_missing_is_a_name(
    service: Service, org: Organization, log: RejectionLog
) -> None:
    for needed in ("a\0b:read", "x" * 3000, "ö:read"):
        log.record(sender(org), refused(needed=needed))
    await log.write()
    assert await counts_of(service, org) == {"key_0": [3]}


async def test_what_the_database_refuses_does_not_keep_others_waiting(
    service: Service, org: Organization, log: RejectionLog
) -> None:
    faulty = RefusedRequest(403, "insufficient_scope", None, PROJECTS, "request\0", None)
    log.record(sender(org), faulty)
    with pytest.raises(psycopg.DataError):
        await log.write()
    log.record(sender(org, 1), refused())
    await log.write()
    assert await counts_of(service, org) == {"key_1": [1]}


async def test_a_key_does_not_push_out_the_rows_of_others(
    service: Service, org: Organization, log: RejectionLog
) -> None:
    log.record(sender(org, 1), refused())
    await log.write()
    for minute in range(30):
        service.clock.advance(minutes=1)
        for number in range(20):
            log.record(sender(org), refused(needed=f"{minute}:{number}"))
        await log.write()
    counts = await counts_of(service, org)
    assert (len(counts["key_0"]), counts["key_1"]) == (MOST_OF_SENDER, [1])


async def test_a_tenant_keeps_its_newest_rows_and_takes_no_space_of_others(
    service: Service, org: Organization, log: RejectionLog
) -> None:
    neighbor = await service.organization()
    for number in range(MOST_OF_TENANT + 100):
        log.record(sender(org, number), refused())
    log.record(sender(neighbor), refused())
    await log.write()
    service.clock.advance(minutes=1)
    newest = [sender(org, 5000 + number) for number in range(10)]
    for each in newest:
        log.record(each, refused())
    await log.write()
    counts = await counts_of(service, org)
    assert sum(len(each) for each in counts.values()) == MOST_OF_TENANT
    assert {each.id for each in newest} <= set(counts)
    assert await counts_of(service, neighbor) == {"key_0": [1]}


async def test_rejections_outlast_an_unreachable_database(
    service: Service, org: Organization
) -> None:
    async with database_link(service.conninfo) as link, Database(link.conninfo, 1) as database:
        log = RejectionLog(database, service.clock)
        log.record(sender(org), refused())
        await link.cut()
        with pytest.raises(DatabaseUnavailableError):
            await log.write()
        log.record(sender(org), refused())
        await link.restore()
        await log.write()
        await log.write()
    assert await counts_of(service, org) == {"key_0": [2]}


async def test_an_ended_tenant_gets_no_more_rejections(
    service: Service, org: Organization, log: RejectionLog
) -> None:
    log.record(sender(org), refused())
    assert (await service.operator.delete(org.path)).status_code == 204
    await log.write()
    assert await counts_of(service, org) == {}
