"""The last OWNER key of a tenant is not given up by accident.

The operator has made these tenants, without a user who owns them.
"""

import asyncio
from typing import Final

import pytest

from tests.support.service import KEYS, Key, Service, refusal

OWNER: Final = {"accessLevel": "OWNER"}


async def test_it_is_not_revoked_by_itself(service: Service) -> None:
    organization = await service.organization()
    answer = await organization.owner.delete(organization.key.path)
    assert refusal(answer) == (409, "last_owner")
    assert "force=true" in answer.json()["detail"]
    assert (await organization.owner.get(organization.key.path)).json()["status"] == "active"


async def test_it_is_revoked_when_that_is_said(service: Service) -> None:
    organization = await service.organization()
    assert (await organization.owner.delete(f"{organization.key.path}?force=true")).status_code == 204
    assert refusal(await organization.owner.get(KEYS)) == (401, "api_key_revoked")


async def test_it_does_not_lose_its_level(service: Service) -> None:
    organization = await service.organization()
    answer = await organization.owner.patch(organization.key.path, {"scopes": ["projects:read"]})
    assert refusal(answer) == (409, "last_owner")


async def test_its_name_and_end_may_change(service: Service) -> None:
    organization = await service.organization()
    change = {"name": "root", "expiresAt": "2030-01-01T00:00:00Z"}
    assert (await organization.owner.patch(organization.key.path, change)).status_code == 200


async def test_it_may_be_rotated(service: Service) -> None:
    organization = await service.organization()
    assert (await organization.owner.post(f"{organization.key.path}/rotate")).status_code == 201


async def test_in_the_overlap_of_its_rotation_the_new_one_counts_as_the_last(service: Service) -> None:
    organization = await service.organization()
    rotated = await organization.owner.post(f"{organization.key.path}/rotate", {"overlapSeconds": 3600})
    successor = service.caller(rotated.json()["secret"])
    assert refusal(await successor.delete(f"{KEYS}/{rotated.json()['id']}")) == (409, "last_owner")


async def test_beside_another_it_goes_like_any_key(service: Service) -> None:
    organization = await service.organization()
    other = await service.key(organization.owner, organization.id, **OWNER)
    assert (await other.caller.delete(organization.key.path)).status_code == 204
    assert refusal(await other.caller.delete(other.path)) == (409, "last_owner")


@pytest.mark.parametrize("other", [{"mode": "test"}, {"expiresAt": "2026-01-01T12:10:00Z"}])
async def test_a_key_that_is_no_way_back_does_not_count(fresh_service: Service, other: dict[str, str]) -> None:
    organization = await fresh_service.organization()
    await fresh_service.key(organization.owner, organization.id, **OWNER, **other)
    fresh_service.clock.advance(hours=1)
    assert refusal(await organization.owner.delete(organization.key.path)) == (409, "last_owner")


async def test_a_member_who_is_owner_is_a_way_back(service: Service) -> None:
    user = service.user("founder", org="org_founded", role="owner")
    await user.post("/api/v1/tenants", {"name": "Founded", "ownerEmail": "f@x.example"})
    key: Key = await service.key(user, "org_founded", **OWNER)
    assert (await key.caller.delete(key.path)).status_code == 204


async def test_an_ended_one_and_a_scoped_one_are_no_matter(service: Service) -> None:
    organization = await service.organization()
    scoped = await service.key(organization.owner, organization.id, "*:*")
    assert (await organization.owner.delete(scoped.path)).status_code == 204


async def test_two_that_revoke_each_other_at_once_leave_one(service: Service) -> None:
    organization = await service.organization()
    other = await service.key(organization.owner, organization.id, **OWNER)
    answers = await asyncio.gather(organization.owner.delete(other.path), other.caller.delete(organization.key.path))
    left = [key for key in (organization.key, other) if (await key.caller.get(KEYS)).status_code == 200]
    assert len(left) == 1
    assert sorted(answer.status_code for answer in answers) in ([204, 401], [204, 409])
