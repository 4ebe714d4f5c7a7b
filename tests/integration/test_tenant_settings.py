"""What a tenant's people change of it, and how an owner deletes it."""

from typing import Any, Final

from tests.support.billing import Provider
from tests.support.cases import cases
from tests.support.events import NOW, updated
from tests.support.members import MEMBERS, join, owned
from tests.support.service import (
    PROJECTS,
    WHOAMI,
    Organization,
    Service,
    refusal,
    running_service,
)

ZONE: Final = "Pacific/Auckland"


async def delete(service: Service, org: Organization, user: str, name: str | None = None) -> Any:
    body = {"name": org.id if name is None else name}
    return await service.user(user, asks_for=org.id).post(f"{org.path}/end", body)


async def test_time_zone_is_in_the_record_until_it_is_cleared(service: Service) -> None:
    org = await service.organization()
    before = (await org.owner.get(org.path)).json()
    changed = (await org.owner.patch(org.path, {"timeZone": ZONE})).json()
    assert changed == {**before, "timeZone": ZONE, "updatedAt": changed["updatedAt"]}
    assert (await org.owner.get(org.path)).json() == changed
    cleared = await org.owner.patch(org.path, {"timeZone": None})
    assert cleared.status_code == 200
    assert cleared.json() == {**before, "updatedAt": cleared.json()["updatedAt"]}


@cases("zone", ["Mars/Olympus", "localtime", "europe/berlin", "../etc", ""])
async def test_zone_that_is_none_is_refused(service: Service, zone: str) -> None:
    org = await service.organization()
    answer = await org.owner.patch(org.path, {"timeZone": zone})
    assert refusal(answer) == (422, "validation_failed")
    assert answer.json()["errors"][0]["location"] == "timeZone"


async def test_change_of_one_field_leaves_the_others(service: Service) -> None:
    org = await service.organization()
    await org.owner.patch(org.path, {"timeZone": ZONE, "name": "Renamed"})
    await org.owner.patch(org.path, {"ownerEmail": "bills@x.example"})
    record = (await org.owner.get(org.path)).json()
    assert (record["name"], record["timeZone"]) == ("Renamed", ZONE)
    assert refusal(await org.owner.patch(org.path, {})) == (422, "validation_failed")


async def test_audit_trail_has_the_change_of_the_zone(service: Service) -> None:
    org = await service.organization()
    await org.owner.patch(org.path, {"timeZone": ZONE})
    entry = (await org.owner.get("/api/v1/audit-events")).json()["data"][0]
    assert (entry["before"].get("timeZone"), entry["after"]["timeZone"]) == (None, ZONE)
    await org.owner.patch(org.path, {"timeZone": None})
    entry = (await org.owner.get("/api/v1/audit-events")).json()["data"][0]
    assert (entry["before"], entry["after"]) == ({"timeZone": ZONE}, {"timeZone": None})


async def test_those_who_may_change_the_address_see_whether_it_is_verified(
    service: Service,
) -> None:
    org = await service.organization()
    await join(service, org, "reader", "member")
    path = f"{org.path}/owner-address"
    assert (await org.owner.get(path)).json() == {"email": "owner@x.example", "verified": True}
    await org.owner.patch(org.path, {"ownerEmail": "new@x.example"})
    assert (await org.owner.get(path)).json() == {"email": "new@x.example", "verified": False}
    reader = service.user("reader", asks_for=org.id)
    assert refusal(await reader.get(path)) == (403, "insufficient_scope")
    other = await service.organization()
    assert refusal(await other.owner.get(path)) == (404, "not_found")


async def test_owner_deletes_the_organization(service: Service) -> None:
    org, _ = await owned(service, "ender")
    await join(service, org, "colleague", "member")
    assert (await delete(service, org, "ender")).status_code == 204
    assert refusal(await org.owner.get(PROJECTS))[0] == 401
    for user in ("ender", "colleague"):
        answer = await service.user(user, asks_for=org.id).get(WHOAMI)
        assert refusal(answer) == (401, "invalid_credential")
    exported = (await service.operator.get(f"{org.path}/export")).json()
    newest = exported["auditEvents"][-1]
    assert (newest["action"], newest["actorId"]) == ("tenant.ended", "ender")


async def test_only_an_owner_deletes_it_and_no_key_does(service: Service) -> None:
    org, _ = await owned(service, "holder")
    await join(service, org, "admin", "admin")
    await join(service, org, "member", "member")
    assert refusal(await delete(service, org, "admin")) == (403, "scope_escalation")
    assert refusal(await delete(service, org, "member")) == (403, "insufficient_scope")
    answer = await org.owner.post(f"{org.path}/end", {"name": org.id})
    assert refusal(answer) == (403, "user_token_required")
    assert len((await org.owner.get(MEMBERS)).json()["data"]) == 3


async def test_name_must_match_to_delete(service: Service) -> None:
    org, _ = await owned(service, "typist")
    answer = await delete(service, org, "typist", "another")
    assert refusal(answer) == (422, "validation_failed")
    assert answer.json()["errors"][0]["location"] == "name"
    assert (await org.owner.get(org.path)).status_code == 200


@cases(
    ("fields", "expected"),
    [
        ({"status": "active"}, 409),
        ({"status": "trialing"}, 409),
        ({"status": "past_due"}, 409),
        ({"status": "active", "cancel": True}, 204),
        ({"status": "canceled"}, 204),
    ],
)
async def test_subscription_that_renews_is_canceled_first(
    service: Service, fields: dict[str, Any], expected: int
) -> None:
    org, _ = await owned(service, "payer")
    await Provider(service).send(updated(org=org.id, customer=f"cus_{org.id}", **fields))
    answer = await delete(service, org, "payer")
    assert answer.status_code == expected
    if expected == 409:
        assert answer.json()["code"] == "subscription_exists"
        assert (await org.owner.get(org.path)).status_code == 200


async def test_each_subscription_is_canceled_first(conninfo: str) -> None:
    async with running_service(conninfo, SUBSCRIPTIONS="each") as service:
        org, _ = await owned(service, "payer")
        provider = Provider(service)
        names: dict[str, Any] = {"org": org.id, "customer": f"cus_{org.id}"}
        await provider.send(
            updated(**names, subscription_id="sub_1", cancel=True),
            updated(**names, subscription_id="sub_2"),
        )
        assert (await delete(service, org, "payer")).status_code == 409
        await provider.send(updated(**names, subscription_id="sub_2", cancel=True, created=NOW + 1))
        assert (await delete(service, org, "payer")).status_code == 204
