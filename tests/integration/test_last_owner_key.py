"""The last OWNER key of a tenant is not given up by accident.

The operator has made these tenants, without a user who owns them.
"""

import asyncio
from typing import Final

import pytest

from tests.support.service import KEYS, Key, Service, refusal

OWNER: Final = {"accessLevel": "OWNER"}


async def test_last_owner_key_is_not_revoked_without_force(service: Service) -> None:
    organization = await service.organization()
    answer = await organization.owner.delete(organization.key.path)
    assert refusal(answer) == (409, "last_owner")
    assert "force=true" in answer.json()["detail"]
    assert (await organization.owner.get(organization.key.path)).json()["status"] == "active"


async def test_last_owner_key_is_revoked_with_force(service: Service) -> None:
    organization = await service.organization()
    assert (
        await organization.owner.delete(f"{organization.key.path}?force=true")
    ).status_code == 204
    assert refusal(await organization.owner.get(KEYS)) == (401, "api_key_revoked")


async def test_last_owner_key_keeps_its_level(service: Service) -> None:
    organization = await service.organization()
    answer = await organization.owner.patch(organization.key.path, {"scopes": ["projects:read"]})
    assert refusal(answer) == (409, "last_owner")


async def test_name_and_expiry_of_the_last_owner_key_may_change(service: Service) -> None:
    organization = await service.organization()
    change = {"name": "root", "expiresAt": "2030-01-01T00:00:00Z"}
    assert (await organization.owner.patch(organization.key.path, change)).status_code == 200


async def test_last_owner_key_may_be_rotated(service: Service) -> None:
    organization = await service.organization()
    assert (await organization.owner.post(f"{organization.key.path}/rotate")).status_code == 201


async def test_during_the_overlap_the_new_key_counts_as_the_last(service: Service) -> None:
    organization = await service.organization()
    rotated = await organization.owner.post(
        f"{organization.key.path}/rotate", {"overlapSeconds": 3600}
    )
    successor = service.caller(rotated.json()["secret"])
    assert refusal(await successor.delete(f"{KEYS}/{rotated.json()['id']}")) == (409, "last_owner")


async def test_no_force_is_needed_with_another_owner_key(service: Service) -> None:
    organization = await service.organization()
    other = await service.key(organization.owner, organization.id, **OWNER)
    assert (await other.caller.delete(organization.key.path)).status_code == 204
    assert refusal(await other.caller.delete(other.path)) == (409, "last_owner")


@pytest.mark.parametrize("other", [{"mode": "test"}, {"expiresAt": "2026-01-01T12:10:00Z"}])
async def test_a_test_mode_or_expired_owner_key_does_not_count(
    fresh_service: Service, other: dict[str, str]
) -> None:
    organization = await fresh_service.organization()
    await fresh_service.key(organization.owner, organization.id, **OWNER, **other)
    fresh_service.clock.advance(hours=1)
    assert refusal(await organization.owner.delete(organization.key.path)) == (409, "last_owner")


async def test_a_member_with_the_role_owner_counts(service: Service) -> None:
    user = service.user("founder", org="org_founded", role="owner")
    await user.post("/api/v1/tenants", {"name": "Founded", "ownerEmail": "f@x.example"})
    key: Key = await service.key(user, "org_founded", **OWNER)
    assert (await key.caller.delete(key.path)).status_code == 204


async def test_revoked_and_scoped_keys_do_not_count(service: Service) -> None:
    organization = await service.organization()
    scoped = await service.key(organization.owner, organization.id, "*:*")
    assert (await organization.owner.delete(scoped.path)).status_code == 204


async def test_concurrent_mutual_revocation_leaves_one_key(service: Service) -> None:
    organization = await service.organization()
    other = await service.key(organization.owner, organization.id, **OWNER)
    answers = await asyncio.gather(
        organization.owner.delete(other.path), other.caller.delete(organization.key.path)
    )
    left = [
        key for key in (organization.key, other) if (await key.caller.get(KEYS)).status_code == 200
    ]
    assert len(left) == 1
    assert sorted(answer.status_code for answer in answers) in ([204, 401], [204, 409])
