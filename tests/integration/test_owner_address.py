"""The owner's address follows the identity provider's until a user sets it."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
import pytest

from tenantry.accounts.owner_addresses import owner_address_writes
from tenantry.db.outbox import Outbox
from tenantry.db.write_behind import WriteBehind
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.integrations.oidc.tokens import Claims
from tests.support.app import make_settings
from tests.support.billing import rows
from tests.support.database_link import database_link
from tests.support.emptying import SharedDatabase
from tests.support.issuer import USERINFO, Answer
from tests.support.members import accept_path, add_member
from tests.support.patience import patient_database
from tests.support.service import TENANTS, Caller, JsonObject, Service, refusal, running_service

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


Scene = Callable[[Service, str], Awaitable[JsonObject]]
"""What happens to a tenant of this owner, a user; returns the tenant as it was made."""


@pytest.fixture(scope="module")
async def exports(shared_database: SharedDatabase, service: Service) -> dict[Scene, JsonObject]:
    """The exports of the tenants of all scenes, which happen in one service that is stopped after
    them.

    What has been noticed is written when the service stops, at the latest.
    """
    async with running_service(shared_database.conninfo) as stopping:
        tenants = {
            scene: await scene(stopping, f"owner-{number}") for number, scene in enumerate(SCENES)
        }
    return {scene: await export(service, tenant) for scene, tenant in tenants.items()}


async def export(service: Service, tenant: JsonObject) -> JsonObject:
    answer = await service.operator.get(f"{TENANTS}/{tenant['id']}/export")
    exported: JsonObject = answer.json()
    return exported


async def new_address_in_the_token(service: Service, owner: str) -> JsonObject:
    tenant = await make_tenant(service.user(owner, **verified(OLD)))
    await service.user(owner, **verified(NEW)).get(TENANTS)
    return tenant


def test_owner_email_follows_the_owners_token(exports: dict[Scene, JsonObject]) -> None:
    assert exports[new_address_in_the_token]["ownerEmail"] == NEW


def test_change_is_in_the_audit_trail_as_the_systems(exports: dict[Scene, JsonObject]) -> None:
    entry = exports[new_address_in_the_token]["auditEvents"][-1]
    assert (entry["action"], entry["actorKind"], entry["actorId"]) == (
        "tenant.updated",
        "system",
        None,
    )
    assert (entry["before"], entry["after"]) == ({"ownerEmail": OLD}, {"ownerEmail": NEW})


async def old_address_of_the_identity_provider(service: Service, owner: str) -> JsonObject:
    service.issuer.answers[USERINFO] = Answer(
        200, json.dumps({"sub": owner, **verified(OLD)}).encode()
    )
    tenant = await make_tenant(service.user(owner))
    await service.user(owner, **verified(NEW)).get(TENANTS)
    del service.issuer.answers[USERINFO]
    return tenant


def test_owner_email_follows_the_identity_provider(exports: dict[Scene, JsonObject]) -> None:
    assert exports[old_address_of_the_identity_provider]["ownerEmail"] == NEW


async def addresses_that_do_not_count(service: Service, owner: str) -> JsonObject:
    caller = service.user(owner, **verified(OLD))
    tenant = await make_tenant(caller)
    second = await add_member(caller, f"{owner}-second", "owner")
    assert (await service.user(f"{owner}-second").post(accept_path(second))).status_code == 200
    for user, claims in (
        (owner, {"email": "not-verified@x.example", "email_verified": False}),
        (owner, {"email": "not-said-to-be-verified@x.example"}),
        (owner, {}),
        (f"{owner}-second", verified("second-owners@x.example")),
    ):
        assert (await service.user(user, **claims).get(TENANTS)).status_code == 200
    return tenant


def test_only_the_owners_verified_address_counts(exports: dict[Scene, JsonObject]) -> None:
    assert exports[addresses_that_do_not_count]["ownerEmail"] == OLD


async def given_with_the_tenant(service: Service, owner: str) -> JsonObject:
    tenant = await make_tenant(service.user(owner, **verified(OLD)), ownerEmail=OLD)
    await service.user(owner, **verified(NEW)).get(TENANTS)
    return tenant


def test_address_that_was_given_with_the_tenant_stays(exports: dict[Scene, JsonObject]) -> None:
    assert exports[given_with_the_tenant]["ownerEmail"] == OLD


async def set_to_the_same(service: Service, owner: str) -> JsonObject:
    caller = service.user(owner, **verified(OLD))
    tenant = await make_tenant(caller)
    await caller.patch(f"{TENANTS}/{tenant['id']}", {"name": "x", "ownerEmail": OLD})
    await service.user(owner, **verified(NEW)).get(TENANTS)
    return tenant


def test_address_that_is_set_stays_even_if_it_is_the_same(exports: dict[Scene, JsonObject]) -> None:
    assert exports[set_to_the_same]["ownerEmail"] == OLD


async def another_field_set(service: Service, owner: str) -> JsonObject:
    caller = service.user(owner, **verified(OLD))
    tenant = await make_tenant(caller)
    await caller.patch(f"{TENANTS}/{tenant['id']}", {"name": "y"})
    await service.user(owner, **verified(NEW)).get(TENANTS)
    return tenant


def test_owner_email_follows_after_another_change(exports: dict[Scene, JsonObject]) -> None:
    assert exports[another_field_set]["ownerEmail"] == NEW


async def set_by_the_operator(service: Service, owner: str) -> JsonObject:
    tenant = await make_tenant(service.user(owner, **verified(OLD)))
    await service.operator.put(f"{TENANTS}/{tenant['id']}", {"name": "x", "ownerEmail": OLD})
    await service.user(owner, **verified(NEW)).get(TENANTS)
    return tenant


def test_address_that_the_operator_sets_stays(exports: dict[Scene, JsonObject]) -> None:
    assert exports[set_by_the_operator]["ownerEmail"] == OLD


async def transferred(service: Service, owner: str) -> JsonObject:
    caller, heir = service.user(owner, **verified(OLD)), f"{owner}-heir"
    tenant = await make_tenant(caller)
    invited = await add_member(caller, heir)
    assert (await service.user(heir).post(accept_path(invited))).status_code == 200
    await caller.post(
        f"{TENANTS}/{tenant['id']}/transfer", {"userId": heir, "ownerEmail": "set@x.example"}
    )
    for user in (owner, heir):
        await service.user(user, **verified(NEW)).get(TENANTS)
    return tenant


def test_address_of_a_transfer_stays(exports: dict[Scene, JsonObject]) -> None:
    assert exports[transferred]["ownerEmail"] == "set@x.example"


async def refused(service: Service, owner: str) -> JsonObject:
    tenant = await make_tenant(service.user(owner, **verified(OLD)))
    suspended = {"name": "x", "ownerEmail": OLD, "suspended": True}
    await service.operator.put(f"{TENANTS}/{tenant['id']}", suspended)
    answer = await service.user(owner, **verified(NEW)).get(TENANTS)
    assert refusal(answer) == (403, "org_suspended")
    return tenant


def test_refused_owner_changes_no_address(exports: dict[Scene, JsonObject]) -> None:
    assert exports[refused]["ownerEmail"] == OLD


SCENES: Final[Sequence[Scene]] = (
    new_address_in_the_token,
    old_address_of_the_identity_provider,
    addresses_that_do_not_count,
    given_with_the_tenant,
    set_to_the_same,
    another_field_set,
    set_by_the_operator,
    transferred,
    refused,
)


@asynccontextmanager
async def owner_address_writer(conninfo: str) -> AsyncIterator[WriteBehind[Claims]]:
    """The pending writes of owner addresses of one process."""
    database = patient_database(conninfo, pool_size=1)
    await database.open()
    try:
        yield owner_address_writes(database, Outbox(), make_settings().billing.catalog, lambda: NOW)
    finally:
        await database.close()


def seen(email: str, *, issued_in: int) -> Claims:
    """What a token says that is issued in so many minutes, and ends an hour later."""
    issued = NOW + timedelta(minutes=issued_in)
    return Claims(
        "https://id.example", "owner", None, None, (), issued, issued + timedelta(hours=1), email
    )


async def tenant_that_follows(service: Service) -> JsonObject:
    return await make_tenant(service.user("owner", **verified(OLD)))


async def address(service: Service, tenant: JsonObject) -> str:
    return str((await export(service, tenant))["ownerEmail"])


async def test_of_two_tokens_the_one_that_was_issued_later_counts(service: Service) -> None:
    tenant = await tenant_that_follows(service)
    async with owner_address_writer(service.conninfo) as addresses:
        addresses.record(tenant["id"], seen(NEW, issued_in=2))
        addresses.record(tenant["id"], seen("older@x.example", issued_in=1))
        await addresses.write()
    assert await address(service, tenant) == NEW


@pytest.mark.parametrize(("issued_in", "counts"), [(1, NEW), (3, OLD)])
async def test_older_token_does_not_restore_the_old_address(
    service: Service, issued_in: int, counts: str
) -> None:
    tenant = await tenant_that_follows(service)
    async with (
        owner_address_writer(service.conninfo) as one,
        owner_address_writer(service.conninfo) as other,
    ):
        one.record(tenant["id"], seen(NEW, issued_in=2))
        await one.write()
        other.record(tenant["id"], seen(OLD, issued_in=issued_in))
        await other.write()
    assert await address(service, tenant) == counts


@pytest.mark.thorough
async def test_noticed_address_is_kept_while_the_database_is_unavailable(service: Service) -> None:
    tenant = await tenant_that_follows(service)
    async with (
        database_link(service.conninfo) as link,
        owner_address_writer(link.conninfo) as addresses,
    ):
        addresses.record(tenant["id"], seen(NEW, issued_in=1))
        await link.cut()
        with pytest.raises(DatabaseUnavailableError):
            await addresses.write()
        await link.restore()
        await addresses.write()
    assert await address(service, tenant) == NEW


async def test_noticed_address_is_kept_while_the_database_is_read_only(service: Service) -> None:
    tenant = await tenant_that_follows(service)
    async with owner_address_writer(service.conninfo) as addresses:
        addresses.record(tenant["id"], seen(NEW, issued_in=1))
        await rows(service.conninfo, "REVOKE ALL ON audit_events FROM tenantry_batch")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await addresses.write()
        await rows(service.conninfo, "GRANT INSERT ON audit_events TO tenantry_batch")
        await addresses.write()
    assert await address(service, tenant) == NEW
