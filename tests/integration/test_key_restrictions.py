"""A restricted key sheds its restrictions by no road: a table of roads and fields."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx2

from tests.support.cases import cases
from tests.support.imported_keys import old_key
from tests.support.service import KEYS, Key, Organization, Service, refusal

OWN: Final[dict[str, object]] = {
    "allowedAddresses": ["127.0.0.0/8"],
    "requestsPerMinute": 1000,
}
"""The restrictions of the key that tries to shed them."""
FREER: Final[dict[str, list[object]]] = {
    "allowedAddresses": [None, [], ["0.0.0.0/0"], ["127.0.0.1", "192.0.2.7"], ["::/0"]],
    "requestsPerMinute": [None, 1001, 1_000_000],
}
SAME: Final[dict[str, list[object]]] = {
    "allowedAddresses": [["127.0.0.0/8"], ["127.0.0.1"], ["::ffff:127.0.0.1"]],
    "requestsPerMinute": [1000, 1],
}
ESCALATION: Final = (403, "scope_escalation")
Road = Callable[[Service, Organization, Key, dict[str, Any]], Awaitable[httpx2.Response]]


def new(org: Organization, **fields: object) -> dict[str, object]:
    return {"orgId": org.id, "name": "new", "scopes": ["projects:read"], **fields}


async def create(
    _: Service, org: Organization, key: Key, fields: dict[str, Any]
) -> httpx2.Response:
    return await key.caller.post(KEYS, new(org, **fields))


async def change_itself(
    _: Service, _org: Organization, key: Key, fields: dict[str, Any]
) -> httpx2.Response:
    return await key.caller.patch(key.path, fields)


async def change_another(
    service: Service, org: Organization, key: Key, fields: dict[str, Any]
) -> httpx2.Response:
    other = await service.key(org.owner, org.id, "projects:read", **OWN)
    return await key.caller.patch(other.path, fields)


async def rename(
    service: Service, org: Organization, key: Key, fields: dict[str, Any]
) -> httpx2.Response:
    other = await service.key(org.owner, org.id, "projects:read", **fields)
    return await key.caller.patch(other.path, {"name": "renamed"})


async def change_while_off(
    service: Service, org: Organization, key: Key, fields: dict[str, Any]
) -> httpx2.Response:
    other = await service.key(org.owner, org.id, "projects:read", **OWN, enabled=False)
    return await key.caller.patch(other.path, fields)


async def enable(
    service: Service, org: Organization, key: Key, fields: dict[str, Any]
) -> httpx2.Response:
    other = await service.key(org.owner, org.id, "projects:read", **fields, enabled=False)
    return await key.caller.patch(other.path, {"enabled": True})


async def rotate(
    service: Service, org: Organization, key: Key, fields: dict[str, Any]
) -> httpx2.Response:
    other = await service.key(org.owner, org.id, "projects:read", **fields)
    return await key.caller.post(f"{other.path}/rotate", {"overlapSeconds": 60})


ROADS: Final[list[Road]] = [
    create,
    change_itself,
    change_another,
    change_while_off,
    rename,
    enable,
    rotate,
]


async def restricted(service: Service, org: Organization) -> Key:
    return await service.key(org.owner, org.id, "api-keys:*", "projects:read", **OWN)


@cases("road", ROADS)
async def test_key_gets_no_freer_by_any_road(service: Service, road: Road) -> None:
    org = await service.organization()
    key = await restricted(service, org)
    for name, values in FREER.items():
        for value in values:
            answer = await road(service, org, key, {**OWN, name: value})
            assert refusal(answer) == ESCALATION, (name, value)
    shown = (await org.owner.get(key.path)).json()
    assert {name: shown[name] for name in OWN} == OWN


@cases("road", ROADS)
async def test_key_does_the_same_with_as_many_restrictions(service: Service, road: Road) -> None:
    org = await service.organization()
    for name, values in SAME.items():
        for value in values:
            key = await restricted(service, org)
            answer = await road(service, org, key, {**OWN, name: value})
            assert answer.status_code in (200, 201), (name, value, answer.text)
            await org.owner.delete(key.path)
            for made in (await org.owner.get(KEYS, status="active", limit=100)).json()["data"]:
                if made["id"] != org.key.id:
                    await org.owner.delete(f"{KEYS}/{made['id']}")


async def test_key_that_leaves_a_restriction_out_makes_none(service: Service) -> None:
    org = await service.organization()
    key = await restricted(service, org)
    for name in OWN:
        body = new(org, **{field: value for field, value in OWN.items() if field != name})
        assert refusal(await key.caller.post(KEYS, body)) == ESCALATION


async def test_key_replaces_a_leaked_one_by_none_that_is_freer(service: Service) -> None:
    org = await service.organization()
    key = await restricted(service, org)
    rotated = await key.caller.post(f"{key.path}/rotate", {"overlapSeconds": 60})
    shown = rotated.json()
    assert {name: shown[name] for name in OWN} == OWN
    successor = service.caller(shown["secret"])
    assert refusal(await successor.patch(f"{KEYS}/{shown['id']}", {"requestsPerMinute": None})) == (
        ESCALATION
    )


async def test_key_imports_none(service: Service) -> None:
    org = await service.organization()
    owner = await service.key(org.owner, org.id, accessLevel="OWNER", **OWN)
    body = {"algorithm": "sha256", "keys": [old_key().member()]}
    answer = await owner.caller.post(f"{org.path}/api-keys/import", body)
    assert refusal(answer) == (401, "invalid_credential")


async def test_restricted_key_may_switch_any_key_off_and_revoke_it(service: Service) -> None:
    org = await service.organization()
    key = await restricted(service, org)
    other = await service.key(org.owner, org.id, "projects:read")
    off = await key.caller.patch(other.path, {"enabled": False})
    both = await key.caller.patch(other.path, {"enabled": False, "name": "renamed"})
    revoked = await key.caller.delete(other.path)
    assert (off.status_code, refusal(both), revoked.status_code) == (200, ESCALATION, 204)


async def test_owner_key_that_is_restricted_is_none_the_freer(service: Service) -> None:
    org = await service.organization()
    owner = await service.key(org.owner, org.id, accessLevel="OWNER", **OWN)
    made = await owner.caller.post(KEYS, new(org, accessLevel="OWNER", scopes=[]))
    freed = await owner.caller.patch(owner.path, {"allowedAddresses": None})
    of_other = await owner.caller.post(f"{org.key.path}/rotate")
    assert [refusal(answer) for answer in (made, freed, of_other)] == [ESCALATION] * 3
