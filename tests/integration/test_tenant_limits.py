"""Limits on a user's tenants and a tenant's members, which do not slow down others."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import httpx2
import psycopg
import pytest

from tenantry.accounts.projects_store import PAGE_OF_CALLER
from tenantry.auth.authentication_store import UserQuery, user_access_in, user_lookup
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.pagination import Window
from tests.support.app import running_app
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.members import (
    MEMBERS,
    OWN,
    accept_path,
    add_member,
    join,
    own_path,
    path_of,
    remove_member,
)
from tests.support.patience import patient_database
from tests.support.postgres import PostgresServer
from tests.support.service import (
    PROJECTS,
    TENANTS,
    WHOAMI,
    Caller,
    Service,
    identity_settings,
    refusal,
    running_service,
)

CATALOG = """
[[plans]]
id = "free"
[plans.limits]
members = 3
requests_per_minute = 100000
"""
TENANT_LIMIT = (403, "tenant_limit_reached")
PLAN_LIMIT = (403, "plan_limit_reached")
BODY = {"name": "x", "ownerEmail": "me@x.example"}


@pytest.fixture(scope="module")
def values() -> dict[str, str]:
    return {
        "TENANTRY_PLANS": catalog_file(CATALOG),
        "TENANTS_PER_USER": "3",
        "DATABASE_POOL_SIZE": "8",
    }


@pytest.fixture(scope="module")
async def service(postgres: PostgresServer, values: dict[str, str]) -> AsyncIterator[Service]:
    with postgres.database() as conninfo:
        async with running_service(conninfo, **values) as service:
            yield service


@pytest.fixture
async def elsewhere(service: Service, values: dict[str, str]) -> AsyncIterator[Service]:
    """The same service a second time, as another process has it."""
    settings = {**identity_settings(service.issuer), **values}
    async with running_app(service.conninfo, clock=service.clock, **settings) as client:
        yield Service(client, service.clock, service.issuer, service.conninfo)


def statuses(answers: list[httpx2.Response]) -> Counter[int]:
    return Counter(answer.status_code for answer in answers)


async def test_user_creates_so_many_tenants_and_no_more(service: Service) -> None:
    user = service.user("founding")
    made = [(await user.post(TENANTS, BODY)).json()["id"] for _ in range(3)]
    answer = await user.post(TENANTS, BODY)
    assert refusal(answer) == TENANT_LIMIT
    assert "3 organizations" in answer.json()["detail"]
    assert (
        refusal(await service.user("founding", org="a-claimed-one").post(TENANTS, BODY))
        == TENANT_LIMIT
    )
    assert (await service.user("founding-too").post(TENANTS, BODY)).status_code == 201
    await service.operator.delete(f"{TENANTS}/{made[0]}")
    assert (await user.post(TENANTS, BODY)).status_code == 201


async def test_tenant_that_its_owner_deleted_counts_until_the_operator_ends_it(
    service: Service,
) -> None:
    user = service.user("starting-anew")
    made = [(await user.post(TENANTS, BODY)).json()["id"] for _ in range(3)]
    path = f"{TENANTS}/{made[0]}"
    owner = service.user("starting-anew", asks_for=made[0])
    assert (await owner.post(f"{path}/end", {"name": BODY["name"]})).status_code == 204
    answer = await user.post(TENANTS, BODY)
    assert refusal(answer) == TENANT_LIMIT
    assert "deleted in the last 30 days count" in answer.json()["detail"]
    assert (await service.operator.delete(path)).status_code == 204
    assert (await user.post(TENANTS, BODY)).status_code == 201


async def test_transferred_tenants_still_count(service: Service) -> None:
    user = service.user("giving-away")
    for _ in range(3):
        tenant = (await user.post(TENANTS, BODY)).json()["id"]
        founder = service.user("giving-away", asks_for=tenant)
        await add_member(founder, "accomplice", "owner")
        await service.user("accomplice", asks_for=tenant).get(WHOAMI)
        await founder.post(
            f"{TENANTS}/{tenant}/transfer", {"userId": "accomplice", "ownerEmail": "a@x.example"}
        )
        (own,) = (await user.get(OWN)).json()["data"]
        assert (await user.delete(own_path(own))).status_code == 204
    assert (await user.get(OWN)).json()["data"] == []
    assert refusal(await user.post(TENANTS, BODY)) == TENANT_LIMIT


async def test_creations_at_once_in_two_processes_stay_within_the_limit(
    service: Service, elsewhere: Service
) -> None:
    callers = [one.user("hurrying") for one in (service, elsewhere)]
    answers = await asyncio.gather(
        *(caller.post(TENANTS, BODY) for _ in range(5) for caller in callers)
    )
    assert statuses(answers) == {201: 3, 403: 7}
    assert len((await service.user("hurrying").get(OWN)).json()["data"]) == 3


async def test_creation_that_is_sent_again_counts_once(service: Service) -> None:
    user = service.user("repeating")
    answers = [await user.post(TENANTS, BODY, idempotency_key="create-1") for _ in range(4)]
    assert statuses(answers) == {201: 4}
    assert len((await user.get(OWN)).json()["data"]) == 1


async def test_creations_are_rate_limited_by_user_and_not_by_tenant(service: Service) -> None:
    user, other = service.user("flooding"), service.user("patient")
    answers = [await user.post(TENANTS, BODY) for _ in range(61)]
    assert statuses(answers) == {201: 3, 403: 57, 429: 1}
    assert refusal(answers[-1]) == (429, "rate_limited")
    assert int(answers[-1].headers["retry-after"]) > 0
    assert answers[0].headers["ratelimit-policy"] == '"key";q=60;w=60'
    assert (await other.post(TENANTS, BODY)).status_code == 201
    assert (await user.get(OWN)).status_code == 200


async def test_members_and_invitations_are_limited_by_the_plan(service: Service) -> None:
    org = await service.organization()
    await join(service, org, "limited-1")
    invited = await add_member(org.owner, "limited-2")
    declined = await add_member(org.owner, "limited-3")
    for _ in range(2):
        assert (
            refusal(await org.owner.post(MEMBERS, {"userId": "limited-4", "role": "member"}))
            == PLAN_LIMIT
        )
    assert (await service.user("limited-2").post(accept_path(invited))).status_code == 200
    assert (await service.user("limited-3").delete(own_path(declined))).status_code == 204
    fourth = await add_member(org.owner, "limited-4")
    assert (
        refusal(await org.owner.post(MEMBERS, {"userId": "limited-3", "role": "member"}))
        == PLAN_LIMIT
    )
    await remove_member(org.owner, fourth)
    assert (await add_member(org.owner, "limited-3"))["id"] == declined["id"]
    assert (await org.owner.get(path_of(fourth))).json()["status"] == "removed"


async def test_invitations_at_once_in_two_processes_stay_within_the_plan(
    service: Service, elsewhere: Service
) -> None:
    org = await service.organization()
    callers = [org.owner, elsewhere.caller(org.owner.credential)]
    answers = await asyncio.gather(
        *(
            caller.post(MEMBERS, {"userId": f"crowd-{number}-{which}", "role": "member"})
            for number in range(4)
            for which, caller in enumerate(callers)
        )
    )
    assert statuses(answers) == {201: 3, 403: 5}
    assert len((await org.owner.get(MEMBERS)).json()["data"]) == 3


async def test_plans_name_the_limit_of_members(service: Service) -> None:
    (plan,) = (await (await service.organization()).owner.get("/api/v1/plans")).json()["data"]
    assert plan["limits"]["members"] == 3


@cases("state", ["active", "invited", "removed"])
async def test_lookup_of_the_only_tenant_reads_few_rows_of_however_many(
    service: Service, state: str
) -> None:
    subject = f"in-many-{state}"
    async with await psycopg.AsyncConnection.connect(
        service.conninfo, autocommit=True
    ) as connection:
        await connection.execute(
            "INSERT INTO tenants (id, name, owner_id, owner_email) "
            "SELECT %(s)s || n, 'x', 'x', 'x@x.example' FROM generate_series(1, 1000) n",
            {"s": subject},
        )
        await connection.execute(
            "INSERT INTO memberships (tenant_id, issuer, subject, role, invited, removed_at) "
            "SELECT %(s)s || n, %(i)s, %(s)s, 'member', %(t)s = 'invited', "
            "CASE WHEN %(t)s = 'removed' THEN now() END FROM generate_series(1, 1000) n",
            {"s": subject, "i": service.issuer.url, "t": state},
        )
        await connection.execute("ANALYZE tenants, memberships")
    database = patient_database(service.conninfo, pool_size=1)
    await database.open()
    try:
        async with database.transaction(ACROSS_TENANTS) as connection:
            users = [UserQuery(service.issuer.url, subject, None, Window(20))]
            answer = await connection.run_batch(*user_lookup(users, PAGE_OF_CALLER))
            (seats,) = user_access_in(answer, users)
            cursor = await connection.execute(
                "SELECT relname, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables "
                "WHERE relname IN ('memberships', 'tenants', 'projects')"
            )
            read = dict(await cursor.fetchall())
    finally:
        await database.close()
    assert len(seats) == (2 if state == "active" else 0)
    assert max(read["memberships"], read["tenants"]) <= 10
    assert read["projects"] == 0
    caller: Caller = service.user(subject)
    assert refusal(await caller.get(PROJECTS)) == (403, "no_organization")
