"""Usage over HTTP: which requests count, for whom, and as what.

Each test sends its requests to a second service on the same database. It writes their counts when
it stops.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import pytest

from tenantry.auth.usage_counting import UsageCounter
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.domain.usage import RequestOutcome
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.database_link import database_link
from tests.support.issuer import NOW
from tests.support.patience import patient_database
from tests.support.rate_limits import set_plan
from tests.support.service import (
    KEYS,
    PROJECTS,
    VERIFY,
    WHOAMI,
    Caller,
    Key,
    ManualClock,
    Organization,
    Service,
    refusal,
    running_service,
)
from tests.support.usage import counting

USAGE: Final = "/api/v1/usage"
OPERATOR_USAGE: Final = "/api/v1/operator/usage"
HOUR: Final = NOW.replace(minute=0, second=0, microsecond=0)
CATALOG: Final = """
[[features]]
id = "calls"
type = "metered"
counts = "requests"

[[plans]]
id = "free"
[plans.features]
calls = true
[[plans]]
id = "slow"
[plans.limits]
requests_per_minute = 2
[plans.features]
calls = true
[[plans]]
id = "small"
[plans.features]
calls = 2
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


async def send(other: Service, key: Key, *paths: str) -> list[int]:
    """Send requests with a key, and return their statuses."""
    caller = other.caller(key.caller.credential)
    return [(await caller.get(path)).status_code for path in paths]


async def outcomes_of(service: Service, org: Organization, key: Key) -> dict[str, int]:
    """The written counts of a key in the present hour, by outcome."""
    answer = await service.operator.get(
        OPERATOR_USAGE, orgId=org.id, keyId=key.id, groupBy="outcome"
    )
    assert answer.status_code == 200, answer.text
    return {count["outcome"]: count["count"] for count in answer.json()["data"]}


async def test_requests_of_hot_and_other_routes_are_accepted(
    service: Service, org: Organization, key: Key, elsewhere: Elsewhere
) -> None:
    async with elsewhere() as other:
        paths = (PROJECTS, WHOAMI, f"{VERIFY}projects:read", f"{PROJECTS}/proj_none")
        assert await send(other, key, *paths) == [200, 200, 200, 404]
    assert await outcomes_of(service, org, key) == {"accepted": 4}


async def test_requests_without_the_scope_are_forbidden(
    service: Service, org: Organization, key: Key, elsewhere: Elsewhere
) -> None:
    async with elsewhere() as other:
        assert await send(other, key, KEYS, f"{VERIFY}other:read") == [403, 403]
    assert await outcomes_of(service, org, key) == {"forbidden": 2}


async def test_requests_over_the_rate_limit_are_counted_apart(
    service: Service, org: Organization, key: Key, elsewhere: Elsewhere
) -> None:
    await set_plan(service, org, "slow")
    async with elsewhere() as other:
        other.clock.advance(minutes=2)  # the tenant's earlier requests count no more
        assert await send(other, key, *[PROJECTS] * 4) == [200, 200, 429, 429]
    assert await outcomes_of(service, org, key) == {"accepted": 2, "rate_limited": 2}


async def test_requests_over_the_quota_are_counted_apart(
    service: Service, org: Organization, key: Key, elsewhere: Elsewhere
) -> None:
    await set_plan(service, org, "small")
    async with elsewhere() as other:
        assert await send(other, key, *[PROJECTS] * 3) == [200, 200, 403]
    assert await outcomes_of(service, org, key) == {"accepted": 2, "quota_exceeded": 1}


async def test_requests_with_a_revoked_key_count_for_it(
    service: Service, org: Organization, key: Key, elsewhere: Elsewhere
) -> None:
    assert (await org.owner.delete(key.path)).status_code == 204
    async with elsewhere() as other:
        assert await send(other, key, PROJECTS, WHOAMI) == [401, 401]
    assert await outcomes_of(service, org, key) == {"expired_or_revoked": 2}


async def test_requests_of_a_suspended_tenant_are_counted(
    service: Service, org: Organization, key: Key, elsewhere: Elsewhere
) -> None:
    fields = {"name": org.id, "ownerEmail": "owner@x.example", "suspended": True}
    await service.operator.put(org.path, fields)
    async with elsewhere() as other:
        assert await send(other, key, PROJECTS) == [403]
    assert await outcomes_of(service, org, key) == {"suspended": 1}


async def test_nothing_counts_for_an_unknown_credential_or_the_operator(
    service: Service, elsewhere: Elsewhere, key: Key, org: Organization
) -> None:
    assert key.caller.credential is not None
    wrong = key.caller.credential[:-7] + "0000000"
    async with elsewhere() as other:
        assert (await other.caller(wrong).get(PROJECTS)).status_code == 401
        assert (await other.operator.get(OPERATOR_USAGE)).status_code == 200
    assert await outcomes_of(service, org, key) == {}


async def test_users_of_a_tenant_are_counted_together(
    service: Service, org: Organization, elsewhere: Elsewhere
) -> None:
    async with elsewhere() as other:
        for name in ("ada", "bo"):
            answer = await other.user(name, org=org.id, role="member").get(PROJECTS)
            assert answer.status_code == 200
    answer = await service.operator.get(OPERATOR_USAGE, orgId=org.id, groupBy="key")
    assert [(count["keyId"], count["count"]) for count in answer.json()["data"]] == [(None, 2)]


async def test_a_request_that_authenticates_twice_counts_once(
    service: Service, org: Organization, key: Key, elsewhere: Elsewhere
) -> None:
    writer = await service.key(org.owner, org.id, "projects:write")
    async with elsewhere() as other:
        answer = await other.caller(writer.caller.credential).post(PROJECTS, {"name": "one"})
        assert answer.status_code == 201
    assert await outcomes_of(service, org, writer) == {"accepted": 1}


async def test_an_ended_tenant_gets_no_more_counts(
    service: Service, org: Organization, key: Key, elsewhere: Elsewhere
) -> None:
    async with elsewhere() as other:
        await send(other, key, PROJECTS)
        assert (await service.operator.delete(org.path)).status_code == 204
    assert await outcomes_of(service, org, key) == {}


@pytest.fixture
async def counted(service: Service, org: Organization, key: Key) -> Organization:
    """A tenant whose key sent three requests the day before, and one two hours ago."""
    clock = ManualClock(NOW - timedelta(days=1))
    async with counting(service.conninfo, clock) as counter:
        for outcome in (RequestOutcome.ACCEPTED, RequestOutcome.ACCEPTED, RequestOutcome.FORBIDDEN):
            counter.count((org.id, key.id), outcome)
        clock.now = NOW - timedelta(hours=2)
        await counter.write()
        counter.count((org.id, key.id), RequestOutcome.ACCEPTED)
        await counter.close()
    return org


async def read(caller: Caller, **parameters: str) -> list[tuple[str, int]]:
    """The times and numbers of the counts that a tenant reads."""
    answer = await caller.get(USAGE, **parameters)
    assert answer.status_code == 200, answer.text
    return [(count["at"], count["count"]) for count in answer.json()["data"]]


def in_json(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


async def test_hours_and_days_add_up_to_the_same(counted: Organization) -> None:
    hours = await read(counted.owner, since=in_json(HOUR - timedelta(days=1)))
    days = await read(counted.owner, interval="day")
    before, now = HOUR - timedelta(days=1), HOUR - timedelta(hours=2)
    assert hours == [(in_json(before), 3), (in_json(now), 1)]
    assert days == [
        (in_json(moment.replace(hour=0)), number) for moment, number in ((before, 3), (now, 1))
    ]


async def test_a_time_limits_the_counts(counted: Organization) -> None:
    until = in_json(HOUR - timedelta(hours=2))
    since = in_json(NOW - timedelta(hours=2))
    whole = {"since": in_json(HOUR - timedelta(days=2))}
    assert await read(counted.owner, until=until, **whole) == [
        (in_json(HOUR - timedelta(days=1)), 3)
    ]
    assert await read(counted.owner, since=since) == [(until, 1)]


async def test_one_call_reads_all_keys(counted: Organization, key: Key) -> None:
    answer = await counted.owner.get(USAGE, groupBy="key", interval="day")
    found = [(count["keyId"], count["count"]) for count in answer.json()["data"]]
    assert found == [(key.id, 3), (key.id, 1)]
    assert not any("orgId" in count for count in answer.json()["data"])


async def test_counts_of_one_key_by_outcome(counted: Organization, key: Key) -> None:
    answer = await counted.owner.get(USAGE, groupBy="outcome", interval="day", keyId=key.id)
    found = [(count["outcome"], count["count"]) for count in answer.json()["data"]]
    assert found == [("accepted", 2), ("forbidden", 1), ("accepted", 1)]


async def test_another_tenants_key_reads_like_one_without_requests(
    service: Service, counted: Organization, key: Key
) -> None:
    stranger = await service.organization()
    assert await read(stranger.owner, interval="day", keyId=key.id) == []
    assert await read(stranger.owner, interval="day") == []


async def test_the_operator_sees_which_tenant_and_key_calls(
    service: Service, counted: Organization, key: Key
) -> None:
    for group, expected in (
        ("tenant", {"orgId": counted.id}),
        ("key", {"orgId": counted.id, "keyId": key.id}),
    ):
        answer = await service.operator.get(OPERATOR_USAGE, groupBy=group, interval="hour")
        [count] = [one for one in answer.json()["data"] if one["orgId"] == counted.id]
        assert count == {"at": in_json(HOUR - timedelta(hours=2)), "count": 1, **expected}


async def test_reading_usage_needs_the_scope_in_live_mode(
    service: Service, org: Organization
) -> None:
    without = await service.key(org.owner, org.id, "projects:*")
    tested = await service.key(org.owner, org.id, "usage:read", mode="test")
    member = service.user("ada", org=org.id, role="member")
    assert refusal(await without.caller.get(USAGE)) == (403, "insufficient_scope")
    assert refusal(await member.get(USAGE)) == (403, "insufficient_scope")
    assert refusal(await tested.caller.get(USAGE)) == (403, "mode_mismatch")
    assert (await service.user("bo", org=org.id, role="admin").get(USAGE)).status_code == 200


@cases(
    ("parameters", "location"),
    [
        ({"since": "2026-01-01T00:00:00"}, "since"),
        ({"since": "2020-01-01T00:00:00Z"}, "since"),
        ({"since": "9999-12-31T23:59:59-14:00"}, "since"),
        ({"until": "0001-01-01T00:00:00Z"}, "until"),
        ({"until": "0001-01-01T00:00:00+14:00", "interval": "day"}, "until"),
        ({"groupBy": "tenant"}, "groupBy"),
        ({"keyId": "a\0b"}, "keyId"),
    ],
)
async def test_a_query_that_cannot_be_answered_is_refused(
    org: Organization, parameters: dict[str, str], location: str
) -> None:
    answer = await org.owner.get(USAGE, **parameters)
    assert refusal(answer) == (422, "validation_failed")
    assert [fault["location"] for fault in answer.json()["errors"]] == [location]


async def test_an_export_has_the_days_of_each_key(
    service: Service, counted: Organization, key: Key
) -> None:
    document = (await service.operator.get(f"{counted.path}/export")).json()
    assert [(one["at"][:10], one["outcome"], one["count"]) for one in document["requests"]] == [
        (in_json(HOUR - timedelta(days=1))[:10], "accepted", 2),
        (in_json(HOUR - timedelta(days=1))[:10], "forbidden", 1),
        (in_json(HOUR)[:10], "accepted", 1),
    ]
    assert {one["keyId"] for one in document["requests"]} == {key.id}


async def test_an_export_without_counts_has_no_requests(
    service: Service, org: Organization
) -> None:
    assert "requests" not in (await service.operator.get(f"{org.path}/export")).json()


async def complete_until(service: Service) -> datetime:
    answer = (await service.operator.get(OPERATOR_USAGE)).json()
    return datetime.fromisoformat(answer["completeUntil"]).replace(microsecond=0)


async def test_counts_are_complete_until_the_last_write_of_every_process(
    emptied_service: Service,
) -> None:
    service = emptied_service
    ahead, behind = ManualClock(NOW), ManualClock(NOW - timedelta(seconds=40))
    async with (
        counting(service.conninfo, ahead) as one,
        counting(service.conninfo, behind) as other,
    ):
        await one.write()
        await other.write()
        assert await complete_until(service) == behind.now.replace(microsecond=0)
        behind.advance(seconds=30)
        await other.write()
        assert await complete_until(service) == behind.now.replace(microsecond=0)
        await other.close()
        assert await complete_until(service) == ahead.now.replace(microsecond=0)


async def test_a_killed_process_delays_completeness_for_five_minutes(
    emptied_service: Service,
) -> None:
    service = emptied_service
    async with counting(service.conninfo, ManualClock(NOW - timedelta(minutes=5))) as killed:
        await killed.write()
    assert await complete_until(service) == service.clock.now.replace(microsecond=0)


async def test_a_write_whose_commit_was_not_confirmed_is_not_added_twice(
    service: Service, org: Organization, key: Key
) -> None:
    async with (
        database_link(service.conninfo) as link,
        counting(link.conninfo, service.clock) as counter,
    ):
        await counter.write()  # connects, which commits, too
        counter.count((org.id, key.id), RequestOutcome.ACCEPTED)
        link.hold_answers_after(b"COMMIT")
        writing = asyncio.create_task(counter.write())
        while not await outcomes_of(service, org, key):
            pass
        writing.cancel()
        await asyncio.wait([writing])
        link.hold_answers_after(b"nothing that is sent")
        counter.count((org.id, key.id), RequestOutcome.ACCEPTED)
        await counter.close()
    assert await outcomes_of(service, org, key) == {"accepted": 2}


async def test_counts_wait_while_the_database_is_away(
    service: Service, org: Organization, key: Key
) -> None:
    database = patient_database(service.conninfo, pool_size=1)
    counter = UsageCounter(database, service.clock)
    counter.count((org.id, key.id), RequestOutcome.ACCEPTED)
    with pytest.raises(DatabaseUnavailableError):  # the pool is not open
        await counter.write()
    counter.count((org.id, key.id), RequestOutcome.ACCEPTED)
    assert counter.waiting == 2
    await database.open()
    await counter.write()
    await database.close()
    assert counter.waiting == 0
    assert await outcomes_of(service, org, key) == {"accepted": 2}


async def test_first_count_after_an_idle_minute_is_written_at_once_and_later_ones_each_minute(
    service: Service, org: Organization, key: Key
) -> None:
    clock = ManualClock(NOW)
    subject = org.id, key.id
    async with counting(service.conninfo, clock) as counter:
        await counter.write_if_due()  # the first pass of the loop
        clock.advance(seconds=59)
        for written in (1, 1, 1):
            counter.count(subject, RequestOutcome.ACCEPTED)
            await counter.write_if_due()
            assert await outcomes_of(service, org, key) == {"accepted": written}
            clock.advance(seconds=29)
        clock.advance(seconds=2)
        await counter.write_if_due()
        assert await outcomes_of(service, org, key) == {"accepted": 3}
        counter.count(subject, RequestOutcome.ACCEPTED)
        await counter.write_if_due()
        assert counter.waiting == 1, "the minute before was not idle"
        for _ in range(2):
            clock.advance(seconds=60)
            await counter.write_if_due()
        counter.count(subject, RequestOutcome.ACCEPTED)
        await counter.write_if_due()
        assert await outcomes_of(service, org, key) == {"accepted": 5}
        await counter.close()


@cases(
    ("passed", "is_written"),
    [
        (timedelta(seconds=59), False),
        (timedelta(seconds=60), True),
        (timedelta(hours=-1), True),  # a clock that is set back
    ],
)
async def test_counts_are_due_after_a_minute(
    service: Service, passed: timedelta, is_written: bool
) -> None:
    org = await service.organization()
    clock = ManualClock(HOUR + timedelta(minutes=5))
    async with counting(service.conninfo, clock) as counter:
        for _ in range(2):
            counter.count((org.id, "key_1"), RequestOutcome.ACCEPTED)
            await counter.write_if_due()
        assert counter.waiting == 1
        clock.now += passed
        await counter.write_if_due()
        assert counter.waiting == (0 if is_written else 1)
        await counter.close()


async def test_counts_of_an_hour_are_due_at_its_end(service: Service, org: Organization) -> None:
    clock = ManualClock(HOUR + timedelta(minutes=59, seconds=50))
    async with counting(service.conninfo, clock) as counter:
        for _ in range(2):
            counter.count((org.id, "key_1"), RequestOutcome.ACCEPTED)
            await counter.write_if_due()
        clock.advance(seconds=9.75)
        assert counter.pause() == pytest.approx(0.25, abs=0.001)
        clock.advance(seconds=0.25)
        await counter.write_if_due()
        assert counter.waiting == 0
        await counter.close()


async def test_a_failed_write_is_tried_again_a_minute_later(
    service: Service, org: Organization
) -> None:
    clock = ManualClock(NOW)
    database = patient_database(service.conninfo, pool_size=1)
    counter = UsageCounter(database, clock)
    counter.count((org.id, "key_1"), RequestOutcome.ACCEPTED)
    with pytest.raises(DatabaseUnavailableError):  # the pool is not open
        await counter.write_if_due()
    clock.advance(seconds=59)
    await counter.write_if_due()
    clock.advance(seconds=1)
    with pytest.raises(DatabaseUnavailableError):
        await counter.write_if_due()
    assert counter.waiting == 1


async def test_more_counts_than_one_transaction_takes_are_written(
    service: Service, org: Organization
) -> None:
    async with counting(service.conninfo, service.clock) as counter:
        for number in range(2500):
            counter.count((org.id, f"key_{number:04}"), RequestOutcome.ACCEPTED)
        await counter.close()
    assert sum([number for _, number in await read(org.owner)]) == 2500
