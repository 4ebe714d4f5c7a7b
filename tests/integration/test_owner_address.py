"""The owner's address follows the identity provider's, until somebody sets it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tenantry.db.database import Database
from tenantry.gateways.identity.tokens import Claims
from tenantry.services.owner_address import OwnerAddresses
from tests.support.billing import rows
from tests.support.database_link import database_link
from tests.support.issuer import USERINFO, Answer
from tests.support.logs import watched
from tests.support.members import add_member
from tests.support.service import TENANTS, Caller, JsonObject, refusal, running_service

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
OLD: Final = "old@x.example"
NEW: Final = "new@x.example"


def verified(email: str) -> dict[str, Any]:
    return {"email": email, "email_verified": True}


async def make_tenant(caller: Caller, **fields: str) -> JsonObject:
    answer = await caller.post(TENANTS, {"name": "x", **fields})
    assert answer.status_code == 201, answer.text
    tenant: JsonObject = answer.json()
    return tenant


async def address_after_a_restart(conninfo: str, tenant: JsonObject) -> str:
    """What has been noticed is written when the service stops, at the latest."""
    async with running_service(conninfo) as service:
        export = await service.operator.get(f"{TENANTS}/{tenant['id']}/export")
    return str(export.json()["ownerEmail"])


async def test_address_of_the_token_follows_the_owners(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        tenant = await make_tenant(service.user("owner", **verified(OLD)))
        await service.user("owner", **verified(NEW)).get(TENANTS)
    assert await address_after_a_restart(conninfo, tenant) == NEW


async def test_address_of_the_identity_provider_follows_the_owners(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        said = {"sub": "owner", **verified(OLD)}
        service.issuer.answers[USERINFO] = Answer(200, json.dumps(said).encode())
        tenant = await make_tenant(service.user("owner"))
        await service.user("owner", **verified(NEW)).get(TENANTS)
    assert await address_after_a_restart(conninfo, tenant) == NEW


@pytest.mark.parametrize(
    ("sub", "claims"),
    [
        ("owner", {"email": NEW, "email_verified": False}),
        ("owner", {"email": NEW}),
        ("owner", {}),
        ("second", verified(NEW)),
    ],
)
async def test_only_the_owners_verified_address_counts(conninfo: str, sub: str, claims: dict[str, Any]) -> None:
    async with running_service(conninfo) as service:
        owner = service.user("owner", **verified(OLD))
        tenant = await make_tenant(owner)
        await add_member(owner, "second", "owner")
        assert (await service.user(sub, **claims).get(TENANTS)).status_code == 200
    assert await address_after_a_restart(conninfo, tenant) == OLD


async def test_address_that_was_given_with_the_tenant_stays(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        tenant = await make_tenant(service.user("owner", **verified(OLD)), ownerEmail=OLD)
        await service.user("owner", **verified(NEW)).get(TENANTS)
    assert await address_after_a_restart(conninfo, tenant) == OLD


async def test_address_that_is_set_stays_even_if_it_is_the_same(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        owner = service.user("owner", **verified(OLD))
        tenant = await make_tenant(owner)
        await owner.patch(f"{TENANTS}/{tenant['id']}", {"name": "x", "ownerEmail": OLD})
        await service.user("owner", **verified(NEW)).get(TENANTS)
    assert await address_after_a_restart(conninfo, tenant) == OLD


async def test_another_change_lets_the_address_follow(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        owner = service.user("owner", **verified(OLD))
        tenant = await make_tenant(owner)
        await owner.patch(f"{TENANTS}/{tenant['id']}", {"name": "y"})
        await service.user("owner", **verified(NEW)).get(TENANTS)
    assert await address_after_a_restart(conninfo, tenant) == NEW


async def test_address_that_the_operator_sets_stays(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        tenant = await make_tenant(service.user("owner", **verified(OLD)))
        await service.operator.put(f"{TENANTS}/{tenant['id']}", {"name": "x", "ownerEmail": OLD})
        await service.user("owner", **verified(NEW)).get(TENANTS)
    assert await address_after_a_restart(conninfo, tenant) == OLD


async def test_address_of_a_transfer_stays(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        owner = service.user("owner", **verified(OLD))
        tenant = await make_tenant(owner)
        await add_member(owner, "heir")
        await owner.post(f"{TENANTS}/{tenant['id']}/transfer", {"userId": "heir", "ownerEmail": "set@x.example"})
        for user in ("owner", "heir"):
            await service.user(user, **verified(NEW)).get(TENANTS)
    assert await address_after_a_restart(conninfo, tenant) == "set@x.example"


@asynccontextmanager
async def noticing(conninfo: str) -> AsyncIterator[OwnerAddresses]:
    """What notices addresses in one process."""
    database = Database(conninfo, pool_size=1)
    await database.open()
    try:
        yield OwnerAddresses(database, lambda: NOW)
    finally:
        await database.close()


def seen(email: str, *, issued_in: int) -> Claims:
    """What a token says that is issued in so many minutes, and ends an hour later."""
    issued = NOW + timedelta(minutes=issued_in)
    return Claims("https://id.example", "owner", None, None, (), issued, issued + timedelta(hours=1), email)


async def tenant_that_follows(conninfo: str) -> JsonObject:
    async with running_service(conninfo) as service:
        return await make_tenant(service.user("owner", **verified(OLD)))


async def test_of_two_tokens_the_one_that_was_issued_later_counts(conninfo: str) -> None:
    tenant = await tenant_that_follows(conninfo)
    async with noticing(conninfo) as addresses:
        addresses.record(tenant["id"], seen(NEW, issued_in=2))
        addresses.record(tenant["id"], seen("older@x.example", issued_in=1))
        await addresses.write()
    assert await address_after_a_restart(conninfo, tenant) == NEW


@pytest.mark.parametrize(("issued_in", "counts"), [(1, NEW), (3, OLD)])
async def test_token_from_before_the_change_does_not_bring_the_old_address_back(
    conninfo: str, issued_in: int, counts: str
) -> None:
    tenant = await tenant_that_follows(conninfo)
    async with noticing(conninfo) as one, noticing(conninfo) as other:
        one.record(tenant["id"], seen(NEW, issued_in=2))
        await one.write()
        other.record(tenant["id"], seen(OLD, issued_in=issued_in))
        await other.write()
    assert await address_after_a_restart(conninfo, tenant) == counts


async def test_change_is_in_the_audit_trail_as_the_systems(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        tenant = await make_tenant(service.user("owner", **verified(OLD)))
        await service.user("owner", **verified(NEW)).get(TENANTS)
    async with running_service(conninfo) as service:
        export = (await service.operator.get(f"{TENANTS}/{tenant['id']}/export")).json()
    entry = export["auditEvents"][-1]
    assert (entry["action"], entry["actorKind"], entry["actorId"]) == ("tenant.updated", "system", None)
    assert (entry["before"], entry["after"]) == ({"ownerEmail": OLD}, {"ownerEmail": NEW})


async def test_refused_owner_changes_no_address(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        tenant = await make_tenant(service.user("owner", **verified(OLD)))
        suspended = {"name": "x", "ownerEmail": OLD, "suspended": True}
        await service.operator.put(f"{TENANTS}/{tenant['id']}", suspended)
        answer = await service.user("owner", **verified(NEW)).get(TENANTS)
        assert refusal(answer) == (403, "org_suspended")
    assert await address_after_a_restart(conninfo, tenant) == OLD


async def test_what_was_noticed_is_kept_while_the_database_is_away(conninfo: str) -> None:
    tenant = await tenant_that_follows(conninfo)
    async with database_link(conninfo) as link, noticing(link.conninfo) as addresses:
        addresses.record(tenant["id"], seen(NEW, issued_in=1))
        await link.cut()
        await addresses.write()
        await link.restore()
        await addresses.write()
    assert await address_after_a_restart(conninfo, tenant) == NEW


async def test_what_was_noticed_is_kept_while_the_database_does_not_let_us_write_it(conninfo: str) -> None:
    tenant = await tenant_that_follows(conninfo)
    async with noticing(conninfo) as addresses:
        addresses.record(tenant["id"], seen(NEW, issued_in=1))
        await rows(conninfo, "REVOKE ALL ON audit_events FROM tenantry_batch")
        with watched("tenantry.services.owner_address") as log:
            await addresses.write()
        await rows(conninfo, "GRANT INSERT ON audit_events TO tenantry_batch")
        await addresses.write()
    assert await address_after_a_restart(conninfo, tenant) == NEW
    assert log.count("the addresses of 1 owners are written later: InsufficientPrivilege") == 1
