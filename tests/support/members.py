"""Members of a tenant, as its people manage them over the API."""

from typing import Final

from tests.support.service import Caller, JsonObject, Organization, Service

MEMBERS: Final = "/api/v1/members"
MANAGER: Final = ("members:read", "members:write")


async def add_member(giver: Caller, user_id: str, role: str = "member") -> JsonObject:
    """A user made a member; returns the record."""
    answer = await giver.post(MEMBERS, {"userId": user_id, "role": role})
    assert answer.status_code == 201, answer.text
    record: JsonObject = answer.json()
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


async def owned(service: Service, name: str) -> tuple[Organization, JsonObject]:
    """A new tenant whose owner is the user ``name``, and that user's membership."""
    org = await service.organization(ownerId=name)
    (member,) = (await org.owner.get(MEMBERS)).json()["data"]
    return org, member
