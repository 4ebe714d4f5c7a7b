"""The access of a tenant: its record, the headers for gateways, and the limits that count."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import psycopg
import pytest

from tenantry.domain.access import AccessPhase
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.emptying import SharedDatabase
from tests.support.rate_limits import rate_headers
from tests.support.service import (
    KEYS,
    TENANTS,
    VERIFY,
    Organization,
    Service,
    refusal,
    running_service,
)

CATALOG: Final = """
[[plans]]
id = "free"
name = "Free"
[plans.limits]
projects = 1
api_keys = 2
members = 2
requests_per_minute = 500
[[plans]]
id = "pro"
name = "Pro"
[plans.limits]
projects = 2
api_keys = 3
members = 3
requests_per_minute = 700
[[addons]]
id = "more"
[addons.limits]
projects = 1
requests_per_minute = 50
"""
PROJECTS: Final = "/api/v1/projects"
MEMBERS: Final = "/api/v1/members"
WHOAMI: Final = "/api/v1/auth/whoami"
UNPAID: Final = {
    "state": "none",
    "plan": "free",
    "until": None,
    "reason": "The subscription is unpaid.",
}
GRACE: Final = "The subscription is past due."
GRACE_OVER: Final = "The subscription is past due. The grace period has ended."


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    async with running_service(
        shared_database.conninfo, TENANTRY_PLANS=catalog_file(CATALOG)
    ) as service:
        yield service


async def subscribed(
    service: Service, status: str, phases: Sequence[AccessPhase] = (), **columns: object
) -> Organization:
    """A tenant of the plan ``pro`` with this status and stored access."""
    org = await service.organization()
    access = msgspec.json.encode(phases).decode() if phases else None
    values = {"plan": "pro", "subscription_status": status, "access": access, **columns}
    assignments = ", ".join(f"{name} = %({name})s" for name in values)
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        query: Any = f"UPDATE tenants SET {assignments} WHERE id = %(org)s"  # noqa: S608
        await connection.execute(query, {**values, "org": org.id})
    return org


def late(service: Service, seconds: int) -> list[AccessPhase]:
    """In grace for so many seconds more."""
    until = int(service.clock.now.timestamp()) + seconds
    return [AccessPhase("grace", "pro", GRACE, until), AccessPhase("none", "free", GRACE_OVER)]


def shown(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


async def access_of(org: Organization) -> Any:
    """The access in the record, which is that of whoami."""
    access = (await org.owner.get(org.path)).json()["access"]
    assert (await org.owner.get(WHOAMI)).json()["access"] == access
    return access


async def test_record_has_the_access_and_the_end_of_the_subscription(service: Service) -> None:
    now = int(service.clock.now.timestamp())
    org = await subscribed(service, "active", cancel_at=now + 10, ends_at=now + 20, seats=5)
    record = (await org.owner.get(org.path)).json()
    access = {
        "state": "full",
        "plan": "pro",
        "until": None,
        "reason": "The subscription is active.",
    }
    expected = {
        "cancelAt": shown(now + 10),
        "endsAt": shown(now + 20),
        "seats": 5,
        "access": access,
    }
    assert {name: record[name] for name in expected} == expected
    assert (await org.owner.get(TENANTS)).json()["data"] == [record]
    assert (await service.user("first", org=org.id).get(TENANTS)).json()["data"] == [record]
    changed = (
        await service.operator.put(org.path, {"name": org.id, "ownerEmail": "owner@x.example"})
    ).json()
    exported = (await service.operator.get(f"{org.path}/export")).json()["tenant"]
    of_operator = {"ownerEmail": "owner@x.example", "suspended": False}
    assert changed == {**record, **of_operator, "updatedAt": changed["updatedAt"]}
    assert exported == {**record, "updatedAt": exported["updatedAt"]}


async def test_new_tenant_has_the_access_of_the_free_plan(service: Service) -> None:
    org = await service.organization()
    record = (await org.owner.get(org.path)).json()
    assert await access_of(org) == {
        "state": "none",
        "plan": "free",
        "until": None,
        "reason": "There is no subscription.",
    }
    assert (record["cancelAt"], record["endsAt"], record["seats"]) == (None, None, None)


@cases(
    ("status", "access", "plan"),
    [
        ("trialing", "full", "pro"),
        ("active", "full", "pro"),
        ("past_due", "grace", "pro"),
        ("unpaid", "none", "free"),
        ("incomplete", "none", "free"),
        ("paused", "none", "free"),
        ("canceled", "none", "free"),
    ],
)
async def test_gateways_get_access_and_effective_plan(
    service: Service, status: str, access: str, plan: str
) -> None:
    org = await subscribed(service, status)
    limit = {"pro": 700, "free": 500}[plan]
    for caller in (org.owner, service.user("first", org=org.id)):
        answer = await caller.get(f"{VERIFY}-")
        headers = answer.headers
        assert (headers["x-access"], headers["x-effective-plan"], headers["x-plan"]) == (
            access,
            plan,
            "pro",
        )
        assert rate_headers(answer)[0] == f'"tenant";q={limit};w=60'


async def test_access_ends_to_the_second(emptied_service: Service) -> None:
    service = emptied_service
    org = await subscribed(service, "past_due", late(service, 60))
    until = int(service.clock.now.timestamp()) + 60
    started = service.clock.now
    grace = {"state": "grace", "plan": "pro", "until": shown(until), "reason": GRACE}
    over = {"state": "none", "plan": "free", "until": None, "reason": GRACE_OVER}
    for seconds, expected in ((0, grace), (59, grace), (60, over), (61, over)):
        service.clock.now = started + timedelta(seconds=seconds)
        assert await access_of(org) == expected
        headers = (await org.owner.get(f"{VERIFY}-")).headers
        assert (headers["x-access"], headers["x-effective-plan"]) == (
            expected["state"],
            expected["plan"],
        )


@pytest.mark.parametrize("is_unpaid", [False, True])
async def test_limits_are_those_of_the_access(service: Service, *, is_unpaid: bool) -> None:
    org = await subscribed(service, "unpaid" if is_unpaid else "active")
    most, name, why = (1, "Free", " The subscription is unpaid.") if is_unpaid else (2, "Pro", "")
    for number in range(most):
        assert (await org.owner.post(PROJECTS, {"name": f"project {number}"})).status_code == 201
    refused = await org.owner.post(PROJECTS, {"name": "one more"})
    assert refusal(refused) == (403, "plan_limit_reached")
    assert refused.json()["detail"] == f"The plan {name} allows {most} projects.{why}"
    for _ in range(most):  # the organization has one already
        await service.key(org.owner, org.id, "projects:read")
    refused = await org.owner.post(
        KEYS, {"orgId": org.id, "name": "key", "scopes": ["projects:read"]}
    )
    assert refusal(refused) == (409, "key_limit_reached")
    assert refused.json()["detail"] == f"The plan {name} allows {most + 1} active API keys.{why}"
    admin = service.user("first", org=org.id, role="owner")
    for number in range(most + 1):
        assert (
            await admin.post(MEMBERS, {"userId": f"user-{number}", "role": "member"})
        ).status_code == 201
    refused = await admin.post(MEMBERS, {"userId": "one-more", "role": "member"})
    assert refusal(refused) == (403, "plan_limit_reached")
    allowed = f"The plan {name} allows {most + 1} members; invitations count as members.{why}"
    assert refused.json()["detail"] == allowed


async def test_addons_raise_the_limits(service: Service) -> None:
    phases = [AccessPhase("full", "pro", "The subscription is active.", addons=(("more", 2),))]
    org = await subscribed(service, "active", phases)
    assert rate_headers(await org.owner.get(f"{VERIFY}-"))[0] == '"tenant";q=800;w=60'
    for number in range(4):
        assert (await org.owner.post(PROJECTS, {"name": f"project {number}"})).status_code == 201
    assert refusal(await org.owner.post(PROJECTS, {"name": "one more"})) == (
        403,
        "plan_limit_reached",
    )


async def test_plan_of_the_operator_gives_full_access(service: Service) -> None:
    org = await subscribed(service, "none")
    assert (await access_of(org))["reason"] == "The plan needs no subscription."
