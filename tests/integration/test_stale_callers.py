"""A caller who loses a right while the request waits has lost it for that request too, and cannot
restore it.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final, Literal

import httpx2
import psycopg

from tests.support import events
from tests.support.billing import Provider, until_blocked
from tests.support.cases import cases
from tests.support.members import add_member, join, path_of
from tests.support.service import KEYS, PROJECTS, WHOAMI, Caller, Organization, Service, refusal

MEMBERS: Final = "/api/v1/members"

ProjectWrite = Literal["create", "change", "delete"]


async def one_after_the_other(
    service: Service, org: Organization, *requests: Awaitable[httpx2.Response]
) -> list[httpx2.Response]:
    """The answers to requests that were all authorized before the first was carried out, in
    order.
    """
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute("SELECT 1 FROM tenants WHERE id = %s FOR NO KEY UPDATE", (org.id,))
        tasks = []
        for number, request in enumerate(requests, start=1):
            tasks.append(asyncio.ensure_future(request))
            await until_blocked(service.conninfo, number)
    return list(await asyncio.gather(*tasks))


async def test_waiting_request_of_an_erased_member_is_rejected(service: Service) -> None:
    org = await service.organization()
    await join(service, org, "auth0|erased", "admin")
    caller = service.user("auth0|erased", asks_for=org.id)
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute("SELECT 1 FROM tenants WHERE id = %s FOR NO KEY UPDATE", (org.id,))
        waiting = asyncio.ensure_future(caller.post(PROJECTS, {"name": "mine"}))
        await until_blocked(service.conninfo, 1)
        await connection.execute(
            "UPDATE memberships SET subject = 'erased_1', removed_at = now() WHERE subject = 'auth0|erased'"
        )
    assert refusal(await waiting) == (403, "no_organization")


async def test_waiting_request_of_a_removed_member_is_rejected(service: Service) -> None:
    org = await service.organization()
    member = await add_member(org.owner, "mallory", "admin")
    mallory = service.user("mallory", asks_for=org.id)
    removal, comeback = await one_after_the_other(
        service,
        org,
        org.owner.delete(path_of(member)),
        mallory.post(MEMBERS, {"userId": "mallory", "role": "admin"}),
    )
    assert removal.status_code == 204
    assert refusal(comeback) == (403, "no_organization")
    assert (await org.owner.get(path_of(member))).json()["status"] == "removed"


async def test_waiting_request_of_a_lowered_owner_cannot_restore_the_role(service: Service) -> None:
    org = await service.organization()
    await add_member(org.owner, "another-owner", "owner")
    member = await add_member(org.owner, "falling", "owner")
    falling = service.user("falling", asks_for=org.id)
    for user in (falling, service.user("another-owner", asks_for=org.id)):
        await user.get(WHOAMI)  # accepts the invitation
    lowered, raised = await one_after_the_other(
        service,
        org,
        org.owner.patch(path_of(member), {"role": "member"}),
        falling.patch(path_of(member), {"role": "owner"}),
    )
    assert lowered.status_code == 200
    assert refusal(raised) == (403, "insufficient_scope")


async def test_lowered_owner_does_not_transfer_the_tenant(service: Service) -> None:
    org = await service.organization()
    await add_member(org.owner, "other-owner", "owner")
    member = await add_member(org.owner, "seller", "owner")
    seller = service.user("seller", asks_for=org.id)
    sale = {"userId": "seller", "ownerEmail": "seller@x.example"}
    lowered, transferred = await one_after_the_other(
        service,
        org,
        org.owner.patch(path_of(member), {"role": "admin"}),
        seller.post(f"{org.path}/transfer", sale),
    )
    assert lowered.status_code == 200
    assert refusal(transferred) == (403, "scope_escalation")


async def test_lowered_admin_does_not_change_the_tenant(service: Service) -> None:
    org = await service.organization()
    member = await add_member(org.owner, "renamer", "admin")
    renamer = service.user("renamer", asks_for=org.id)
    _, renamed = await one_after_the_other(
        service,
        org,
        org.owner.patch(path_of(member), {"role": "member"}),
        renamer.patch(org.path, {"name": "Mine"}),
    )
    assert refusal(renamed) == (403, "insufficient_scope")


async def test_revoked_key_creates_no_key(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, accessLevel="OWNER")
    body = {"orgId": org.id, "name": "heir", "scopes": [], "accessLevel": "OWNER"}
    revoked, made = await one_after_the_other(
        service, org, org.owner.delete(key.path), key.caller.post(KEYS, body)
    )
    assert revoked.status_code == 204
    assert refusal(made) == (401, "api_key_revoked")


async def test_revoked_key_is_not_rotated_by_itself(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "api-keys:write")
    _, rotated = await one_after_the_other(
        service, org, org.owner.delete(key.path), key.caller.post(f"{key.path}/rotate")
    )
    assert refusal(rotated) == (401, "api_key_revoked")


async def test_narrowed_key_does_not_widen_itself(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "api-keys:write", "projects:write")
    narrowed, widened = await one_after_the_other(
        service,
        org,
        org.owner.patch(key.path, {"scopes": ["api-keys:write"]}),
        key.caller.patch(key.path, {"scopes": ["api-keys:write", "projects:write"]}),
    )
    assert narrowed.status_code == 200
    assert refusal(widened) == (403, "scope_escalation")


async def test_key_that_fewer_addresses_may_use_meanwhile_changes_nothing(
    service: Service,
) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "api-keys:write")
    _, renamed = await one_after_the_other(
        service,
        org,
        org.owner.patch(key.path, {"allowedAddresses": ["192.0.2.0/24"]}),
        key.caller.patch(key.path, {"name": "late"}),
    )
    assert refusal(renamed) == (403, "address_not_allowed")


async def test_key_that_is_switched_off_meanwhile_changes_nothing(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "api-keys:write")
    _, renamed = await one_after_the_other(
        service,
        org,
        org.owner.patch(key.path, {"enabled": False}),
        key.caller.patch(key.path, {"name": "late"}),
    )
    assert refusal(renamed) == (401, "api_key_disabled")


async def project_write(caller: Caller, write: ProjectWrite, path: str) -> httpx2.Response:
    """Send a change of projects; ``path`` is that of an existing one."""
    if write == "create":
        return await caller.post(PROJECTS, {"name": "late"})
    if write == "change":
        return await caller.patch(path, {"name": "late"})
    return await caller.delete(path)


async def project_names(caller: Caller) -> list[str]:
    return [project["name"] for project in (await caller.get(PROJECTS)).json()["data"]]


@cases("write", ["create", "change", "delete"])
async def test_revoked_key_writes_no_project(service: Service, write: ProjectWrite) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:write")
    project = await org.owner.post(PROJECTS, {"name": "early"})
    _, written = await one_after_the_other(
        service,
        org,
        org.owner.delete(key.path),
        project_write(key.caller, write, project.headers["Location"]),
    )
    assert refusal(written) == (401, "api_key_revoked")
    assert await project_names(org.owner) == ["early"]


@cases("write", ["create", "change", "delete"])
async def test_narrowed_key_writes_no_project(service: Service, write: ProjectWrite) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:*")
    project = await org.owner.post(PROJECTS, {"name": "early"})
    _, written = await one_after_the_other(
        service,
        org,
        org.owner.patch(key.path, {"scopes": ["projects:read"]}),
        project_write(key.caller, write, project.headers["Location"]),
    )
    assert refusal(written) == (403, "insufficient_scope")
    assert await project_names(org.owner) == ["early"]


@cases("write", ["create", "change", "delete"])
async def test_removed_member_writes_no_project(service: Service, write: ProjectWrite) -> None:
    org = await service.organization()
    member = await add_member(org.owner, "leaving", "member")
    leaving = service.user("leaving", asks_for=org.id)
    await leaving.get(WHOAMI)  # accepts the invitation
    project = await org.owner.post(PROJECTS, {"name": "early"})
    _, written = await one_after_the_other(
        service,
        org,
        org.owner.delete(path_of(member)),
        project_write(leaving, write, project.headers["Location"]),
    )
    assert refusal(written) == (403, "no_organization")
    assert await project_names(org.owner) == ["early"]


@cases("write", ["create", "change", "delete"])
async def test_project_of_a_tenant_suspended_meanwhile_is_not_written(
    service: Service, write: ProjectWrite
) -> None:
    org = await service.organization()
    project = await org.owner.post(PROJECTS, {"name": "early"})
    state = {"name": "n", "ownerEmail": "o@x.example"}
    _, written = await one_after_the_other(
        service,
        org,
        service.operator.put(org.path, {**state, "suspended": True}),
        project_write(org.owner, write, project.headers["Location"]),
    )
    assert refusal(written) == (403, "org_suspended")
    await service.operator.put(org.path, {**state, "suspended": False})
    assert await project_names(org.owner) == ["early"]


async def test_plan_lowered_meanwhile_limits_the_waiting_request(service: Service) -> None:
    provider = Provider(service)
    subscriber = await provider.subscriber()
    org = subscriber.organization
    assert org is not None
    await provider.send(events.updated(**subscriber.names))
    for _ in range(3):  # as many as the plan free allows
        assert (await org.owner.post(PROJECTS, {"name": "early"})).status_code == 201
    ended = provider.post(events.deleted(created=events.NOW + 1, **subscriber.names))
    _, written = await one_after_the_other(
        service, org, ended, org.owner.post(PROJECTS, {"name": "late"})
    )
    assert refusal(written) == (403, "plan_limit_reached")


@cases("kind", ["key", "member", "tenant"])
async def test_tenant_suspended_meanwhile_is_not_changed(service: Service, kind: str) -> None:
    org = await service.organization()
    if kind == "key":
        change = org.owner.post(KEYS, {"orgId": org.id, "name": "late", "scopes": ["a:b"]})
    elif kind == "member":
        change = org.owner.post(MEMBERS, {"userId": "late", "role": "member"})
    else:
        change = org.owner.patch(org.path, {"name": "late"})
    suspension = service.operator.put(
        org.path, {"name": "n", "ownerEmail": "o@x.example", "suspended": True}
    )
    _, changed = await one_after_the_other(service, org, suspension, change)
    assert refusal(changed) == (403, "org_suspended")


async def test_key_that_may_no_longer_write_keys_does_not_rename_itself(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "api-keys:*")
    _, renamed = await one_after_the_other(
        service,
        org,
        org.owner.patch(key.path, {"scopes": ["api-keys:read"]}),
        key.caller.patch(key.path, {"name": "late"}),
    )
    assert refusal(renamed) == (403, "insufficient_scope")


async def test_caller_with_unchanged_rights_is_served(service: Service) -> None:
    org = await service.organization()
    await add_member(org.owner, "steady", "admin")
    steady = service.user("steady", asks_for=org.id)
    body = {"orgId": org.id, "name": "n", "scopes": ["projects:read"]}
    answers = await one_after_the_other(
        service, org, steady.post(KEYS, body), steady.post(KEYS, body)
    )
    assert [answer.status_code for answer in answers] == [201, 201]
