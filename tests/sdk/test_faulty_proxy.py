"""Whatever happens between the client and the service: no key too many, none unseen, and every call
comes to an end.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Final

import psycopg
import pytest

from tenantry_sdk import NewApiKey, errors
from tests.sdk.faulty_proxy import Failure, faulty_proxy
from tests.sdk.sdk_support import ASYNC, SYNC, Flavour, Served
from tests.support import figures
from tests.support.cases import cases
from tests.support.figures import RecordProperty
from tests.support.service import Organization

FAILURES: Final = [failure for failure in Failure if failure is not Failure.NONE]
ENDS_THE_ANSWER: Final = [
    Failure.RESET_AFTER,
    Failure.UNAVAILABLE_AFTER,
    Failure.TRUNCATED,
    Failure.TRUNCATED_HEAD,
    Failure.SILENT,
    Failure.SLOW_HEAD,
    Failure.SLOW_BODY,
]
HANGS: Final = {Failure.SILENT, Failure.SLOW_HEAD, Failure.SLOW_BODY}
"""Then an attempt ends only by its timeout."""
CALLS: Final = 40
AT_ONCE: Final = 16


@pytest.fixture
def served(unlimited: Served) -> Served:
    """The service, whose plans limit nothing."""
    return unlimited


async def active_keys(served: Served, organization: Organization) -> dict[str, list[str]]:
    """The ids of a tenant's active keys, by their names."""
    async with await psycopg.AsyncConnection.connect(served.service.conninfo) as connection:
        cursor = await connection.execute(
            "SELECT name, array_agg(id) FROM api_keys WHERE org_id = %s AND revoked_at IS NULL GROUP BY name",
            (organization.id,),
        )
        return dict(await cursor.fetchall())


def patience(failure: Failure) -> dict[str, float]:
    """How long a client waits: an attempt that has to time out is short, and there are more in case
    others do too.
    """
    return {
        "timeout": 30.0,
        **({"attempt_timeout": 0.3, "retries": 19} if failure in HANGS else {}),
    }


class Once:
    """One failure, and then none."""

    def __init__(self, failure: Failure, times: int = 1) -> None:
        self._left = [failure] * times

    def __call__(self) -> Failure:
        return self._left.pop() if self._left else Failure.NONE


@cases("failure", FAILURES)
async def test_key_is_made_once_whatever_becomes_of_the_first_attempt(
    served: Served, flavour: Flavour, failure: Failure
) -> None:
    organization = await served.service.organization()
    async with (
        faulty_proxy(served.url, Once(failure)) as (url, _),
        flavour.client(
            str(organization.owner.credential), base_url=url, **patience(failure)
        ) as owner,
    ):
        made = await owner.api_keys.create(
            org_id=organization.id, name="CI", scopes=["projects:read"]
        )
        async with flavour.client(made.secret, base_url=served.url) as ci:
            assert (await ci.auth.whoami()).id == made.id
    assert (await active_keys(served, organization))["CI"] == [made.id]


@pytest.mark.thorough
@pytest.mark.parametrize("failure", ENDS_THE_ANSWER)
async def test_rotation_whose_answer_is_lost_leaves_one_key_that_is_seen(
    served: Served, flavour: Flavour, failure: Failure
) -> None:
    organization = await served.service.organization()
    old = await served.service.key(organization.owner, organization.id, "projects:read", name="CI")
    async with (
        faulty_proxy(served.url, Once(failure)) as (url, _),
        flavour.client(
            str(organization.owner.credential), base_url=url, **patience(failure)
        ) as owner,
    ):
        new = await owner.api_keys.rotate(old.id)
        async with flavour.client(new.secret, base_url=served.url) as ci:
            assert (await ci.auth.whoami()).id == new.id
    assert (await active_keys(served, organization))["CI"] == [new.id]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("flavour", "failure"),
    # What the synchronous client makes of each failure is in the first test.
    [
        *((ASYNC, failure) for failure in ENDS_THE_ANSWER),
        (SYNC, Failure.RESET_AFTER),
        (SYNC, Failure.SLOW_BODY),
    ],
    ids=lambda given: given.name,
)
async def test_repeatedly_lost_answers_raise_a_specific_error(
    served: Served, flavour: Flavour, failure: Failure
) -> None:
    organization = await served.service.organization()
    async with faulty_proxy(served.url, lambda: failure) as (url, proxy):
        twice = {
            "timeout": 30.0,
            "attempt_timeout": 0.6 if failure in HANGS else 10.0,
            "retries": 1,
        }
        async with flavour.client(
            str(organization.owner.credential), base_url=url, **twice
        ) as owner:
            with pytest.raises((errors.ConnectionFailedError, errors.UnavailableError)):
                await owner.projects.create(name="Lost")
    assert len(proxy.met) == 2
    answer = (await organization.owner.get("/api/v1/projects")).json()
    assert [project["name"] for project in answer["data"]] == ["Lost"]


@cases("overlap", [0, 3600])
async def test_lost_rotation_by_the_key_itself_names_the_remaining_steps(
    served: Served, flavour: Flavour, overlap: int
) -> None:
    organization = await served.service.organization()
    own = await served.service.key(
        organization.owner, organization.id, accessLevel="OWNER", name="own"
    )
    async with (
        faulty_proxy(served.url, Once(Failure.RESET_AFTER)) as (url, _),
        flavour.client(str(own.caller.credential), base_url=url) as client,
    ):
        with pytest.raises(errors.LostKeyError, match=own.id) as raised:
            await client.api_keys.rotate(own.id, overlap_seconds=overlap)
    left = set((await active_keys(served, organization))["own"])
    assert left == ({raised.value.key_id, own.id} if overlap else left)
    assert len(left - {own.id}) == 1


async def test_rotation_whose_healing_fails_names_the_key_that_is_left(
    served: Served, flavour: Flavour
) -> None:
    organization = await served.service.organization()
    old = await served.service.key(organization.owner, organization.id, "projects:read", name="CI")
    failures = iter([Failure.RESET_AFTER, Failure.NONE])
    async with (
        faulty_proxy(served.url, lambda: next(failures, Failure.RESET_BEFORE)) as (url, _),
        flavour.client(str(organization.owner.credential), base_url=url, retries=1) as owner,
    ):
        with pytest.raises(errors.LostKeyError) as raised:
            await owner.api_keys.rotate(old.id)
    assert (await active_keys(served, organization))["CI"] == [raised.value.key_id]


@cases("failure", [Failure.RESET_AFTER, Failure.UNAVAILABLE_AFTER, Failure.TRUNCATED_HEAD])
async def test_project_is_deleted_though_the_answer_is_lost(
    served: Served, flavour: Flavour, failure: Failure
) -> None:
    organization = await served.service.organization()
    project = (await organization.owner.post("/api/v1/projects", {"name": "First"})).json()
    async with (
        faulty_proxy(served.url, Once(failure)) as (url, proxy),
        flavour.client(
            str(organization.owner.credential), base_url=url, **patience(failure)
        ) as owner,
    ):
        await owner.projects.delete(project["id"])
        assert proxy.met == [failure, Failure.NONE]
        assert [one async for one in owner.projects.list()] == []


async def test_change_is_not_sent_twice(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    key = await served.service.key(organization.owner, organization.id, "projects:read")
    async with (
        faulty_proxy(served.url, Once(Failure.RESET_BEFORE)) as (url, proxy),
        flavour.client(str(organization.owner.credential), base_url=url) as owner,
    ):
        with pytest.raises(errors.ConnectionFailedError):
            await owner.api_keys.update(key.id, name="other")
    assert proxy.met == [Failure.RESET_BEFORE]


@pytest.mark.thorough
async def test_no_key_is_made_twice_on_a_bad_day(
    served: Served, flavour: Flavour, record_property: RecordProperty
) -> None:
    organization = await served.service.organization()
    chance = random.Random(20)  # noqa: S311  # the same day each time

    def bad_day() -> Failure:
        return chance.choice(FAILURES) if chance.random() < 0.4 else Failure.NONE

    async with faulty_proxy(served.url, bad_day) as (url, proxy):
        briefly = {"attempt_timeout": 0.7, "timeout": 60.0, "retries": 5}
        async with flavour.client(
            str(organization.owner.credential), base_url=url, **briefly
        ) as owner:
            room = asyncio.Semaphore(AT_ONCE)

            async def create(number: int) -> NewApiKey | errors.TenantryError:
                async with room:
                    try:
                        made: NewApiKey = await owner.api_keys.create(
                            org_id=organization.id, name=f"key {number}", scopes=["projects:read"]
                        )
                    except errors.TenantryError as error:
                        return error
                    return made

            results = await asyncio.gather(*(create(number) for number in range(CALLS)))
    async with flavour.client(str(organization.owner.credential), base_url=served.url) as owner:
        wrong = await count_wrong(owner, organization, results, served)
    ran = {
        "calls": len(results),
        "failures": sum(failure is not Failure.NONE for failure in proxy.met),
    }
    figures.record(
        record_property,
        "keys made through a faulty proxy",
        ran,
        {"made twice or left unseen": wrong},
    )
    assert wrong == 0
    assert set(proxy.met) == set(Failure)


async def count_wrong(
    owner: Any,
    organization: Organization,
    results: Sequence[NewApiKey | errors.TenantryError],
    served: Served,
) -> int:
    """Calls that left another key than the one that they gave, or one that their error does not
    lead to.
    """
    active, wrong = await active_keys(served, organization), 0
    for number, result in enumerate(results):
        name = f"key {number}"
        there = active.get(name, [])
        if isinstance(result, NewApiKey):
            wrong += there != [result.id]
            continue
        if isinstance(result, errors.LostKeyError):
            wrong += there not in ([], [result.key_id])  # its revocation may be what was lost
            continue
        with pytest.raises(errors.ConflictError) as again:
            await create_again(owner, organization, name, result.idempotency_key)
        wrong += there not in ([], [again.value.document["id"]])
    return wrong


async def create_again(
    owner: Any, organization: Organization, name: str, idempotency_key: str | None
) -> None:
    """The same call with the key that its error had: twice, for the first one may have made
    nothing.
    """
    for _ in range(2):
        await owner.api_keys.create(
            org_id=organization.id,
            name=name,
            scopes=["projects:read"],
            idempotency_key=idempotency_key,
        )
