"""Two processes on one database, one with a clock that is a day off: revocations and expiries hold
for both.
"""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final, NamedTuple

import psycopg
import pytest

from tests.support import events
from tests.support.service import KEYS, PROJECTS, Service, refusal, running_service
from tests.support.signing import deliver

REVOKED: Final = (401, "api_key_revoked")


class Two(NamedTuple):
    """The same service twice."""

    right: Service
    wrong: Service
    """Its clock is off."""


@pytest.fixture(params=[26, -26], ids=["ahead", "behind"])
async def two(conninfo: str, request: pytest.FixtureRequest) -> AsyncIterator[Two]:
    async with running_service(conninfo) as right, running_service(conninfo) as wrong:
        wrong.clock.advance(hours=request.param)
        yield Two(right, wrong)


async def test_a_key_that_one_of_them_revokes_is_refused_by_both(two: Two) -> None:
    org = await two.right.organization()
    owners = {service: service.caller(org.owner.credential) for service in two}
    for revoking in two:
        key = await two.right.key(org.owner, org.id, "projects:read")
        assert (await owners[revoking].delete(key.path)).status_code == 204
        for asked in two:
            assert refusal(await asked.caller(key.caller.credential).get(PROJECTS)) == REVOKED


async def test_a_key_that_one_of_them_rotates_without_an_overlap_is_refused_by_both(
    two: Two,
) -> None:
    org = await two.right.organization()
    owners = {service: service.caller(org.owner.credential) for service in two}
    for rotating in two:
        key = await two.right.key(org.owner, org.id, "projects:read")
        rotated = await owners[rotating].post(f"{KEYS}/{key.id}/rotate", {"overlapSeconds": 0})
        assert rotated.status_code == 201
        for asked in two:
            assert refusal(await asked.caller(key.caller.credential).get(PROJECTS)) == REVOKED
            assert (await asked.caller(rotated.json()["secret"]).get(PROJECTS)).status_code == 200


async def test_an_event_rejected_by_the_wrong_clock_is_accepted_by_the_other(
    two: Two, conninfo: str
) -> None:
    await two.right.organization(stripeCustomerId="cus_1")
    now = int(two.right.clock.now.timestamp())
    event = events.failed(customer="cus_1", event_id="evt_1", created=now)
    assert (await deliver(two.wrong.client, event, at=now)).status_code == 400
    assert (await deliver(two.right.client, event, at=now)).status_code == 200
    off = now + int((two.wrong.clock.now - two.right.clock.now) / timedelta(seconds=1))
    assert (await deliver(two.wrong.client, event, at=off)).status_code == 200
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        cursor = await connection.execute(
            "SELECT (SELECT count(*) FROM billing_events), count(*) FROM notifications"
        )
        assert await cursor.fetchall() == [(1, 1)]
