"""Members of a tenant over the API."""

from typing import Final

from tests.support.service import Caller, JsonObject, Organization, Service

MEMBERS: Final = "/api/v1/members"
OWN: Final = "/api/v1/me/memberships"
MANAGER: Final = ("members:read", "members:write")


async def add_member(giver: Caller, user_id: str, role: str = "member") -> JsonObject:
    """A user invited; returns the record."""
    answer = await giver.post(MEMBERS, {"userId": user_id, "role": role})
    assert answer.status_code == 201, answer.text
    record: JsonObject = answer.json()
    return record


async def join(
    service: Service, org: Organization, user_id: str, role: str = "member"
) -> JsonObject:
    """A user invited who has accepted; returns the record."""
    member = await add_member(org.owner, user_id, role)
    answer = await service.user(user_id).post(accept_path(member))
    assert answer.status_code == 200, answer.text
    record: JsonObject = (await org.owner.get(path_of(member))).json()
    return record


async def change_role(changer: Caller, member: JsonObject, role: str) -> JsonObject:
    """A member given another role; returns the record."""
    answer = await changer.patch(path_of(member), {"role": role})
    assert answer.status_code == 200, answer.text
    record: JsonObject = answer.json()
    return record


async def remove_member(remover: Caller, member: JsonObject) -> None:
    """A member removed."""
    answer = await remover.delete(path_of(member))
    assert (answer.status_code, answer.content) == (204, b"")


def path_of(member: JsonObject) -> str:
    return f"{MEMBERS}/{member['id']}"


def accept_path(member: JsonObject) -> str:
    return f"/api/v1/memberships/{member['id']}/accept"


def own_path(member: JsonObject) -> str:
    return f"{OWN}/{member['id']}"


async def owned(service: Service, name: str) -> tuple[Organization, JsonObject]:
    """A new tenant whose owner is the user ``name``, and that user's membership."""
    org = await service.organization(ownerId=name)
    (member,) = (await org.owner.get(MEMBERS)).json()["data"]
    return org, member
