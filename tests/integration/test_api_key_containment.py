"""No caller can create, change or rotate a key with more rights than it holds."""

import pytest

from tests.support.cases import cases
from tests.support.service import KEYS, PROJECTS, Key, Organization, Service, refusal

WRITER = ("api-keys:read", "api-keys:write", "projects:*")
ESCALATION = (403, "scope_escalation")


async def writer_of(service: Service, org: Organization, **fields: object) -> Key:
    return await service.key(org.owner, org.id, *WRITER, **fields)


def body_of(org: Organization, *scopes: str, **fields: object) -> dict[str, object]:
    return {"orgId": org.id, "name": "new", "scopes": scopes, **fields}


@cases("scopes", [["billing:read"], ["*:*"], ["api-keys:*"], ["projects:read", "tenants:read"]])
async def test_key_creates_no_key_with_other_scopes(service: Service, scopes: list[str]) -> None:
    org = await service.organization()
    writer = await writer_of(service, org)
    assert refusal(await writer.caller.post(KEYS, body_of(org, *scopes))) == ESCALATION
    mine = await service.key(writer.caller, org.id, "projects:read")
    assert refusal(await writer.caller.patch(mine.path, {"scopes": scopes})) == ESCALATION


async def test_key_makes_keys_within_its_scopes(service: Service) -> None:
    org = await service.organization()
    writer = await writer_of(service, org)
    made = await service.key(writer.caller, org.id, "projects:read", "api-keys:write")
    assert made.record["createdBy"] == writer.id


@pytest.mark.parametrize(
    "spelling", [{"scopes": ["OWNER"]}, {"scopes": [], "accessLevel": "OWNER"}]
)
async def test_all_scopes_make_no_owner(service: Service, spelling: dict[str, object]) -> None:
    org = await service.organization()
    everything = await service.key(org.owner, org.id, "*:*")
    assert refusal(await everything.caller.post(KEYS, {**body_of(org), **spelling})) == ESCALATION
    assert (
        refusal(await everything.caller.patch(everything.path, {"scopes": ["OWNER"]})) == ESCALATION
    )


async def test_only_an_owner_changes_rotates_or_deletes_an_owner_key(service: Service) -> None:
    org = await service.organization()
    everything = await service.key(org.owner, org.id, "*:*")
    for caller in (everything.caller, service.user(org=org.id, role="admin")):
        assert refusal(await caller.patch(org.key.path, {"name": "mine"})) == ESCALATION
        assert (
            refusal(await caller.patch(org.key.path, {"scopes": ["projects:read"]})) == ESCALATION
        )
        assert refusal(await caller.post(f"{org.key.path}/rotate")) == ESCALATION
        assert refusal(await caller.delete(org.key.path)) == ESCALATION
        assert (await caller.get(org.key.path)).status_code == 200
    assert (await org.owner.get(PROJECTS)).status_code == 200


async def test_owner_makes_changes_rotates_and_deletes_owner_keys(service: Service) -> None:
    org = await service.organization()
    second = await service.key(org.owner, org.id, "OWNER")
    assert (await org.owner.patch(second.path, {"name": "second"})).status_code == 200
    third = (await second.caller.post(f"{second.path}/rotate")).json()
    assert third["accessLevel"] == "OWNER"
    assert (await org.owner.delete(f"{KEYS}/{third['id']}")).status_code == 204
    made = await service.key(org.owner, org.id, "projects:read")
    raised = await org.owner.patch(made.path, {"scopes": ["OWNER"]})
    assert (raised.json()["accessLevel"], raised.json()["scopes"]) == ("OWNER", ["*:*"])
    lowered = await org.owner.patch(made.path, {"scopes": ["projects:read"]})
    assert (lowered.json()["accessLevel"], lowered.json()["scopes"]) == (
        "SCOPED",
        ["projects:read"],
    )


async def test_key_rotates_no_key_with_more_rights(service: Service) -> None:
    org = await service.organization()
    writer = await writer_of(service, org)
    stronger = await service.key(org.owner, org.id, "projects:read", "billing:read")
    assert refusal(await writer.caller.post(f"{stronger.path}/rotate")) == ESCALATION
    assert (await stronger.caller.get(PROJECTS)).status_code == 200


@pytest.mark.parametrize("later", [None, "2026-01-03T00:00:00Z"])
async def test_key_creates_no_key_that_outlives_it(service: Service, later: str | None) -> None:
    org = await service.organization()
    writer = await writer_of(service, org, expiresAt="2026-01-02T00:00:00Z")
    assert (
        refusal(await writer.caller.post(KEYS, body_of(org, "projects:read", expiresAt=later)))
        == ESCALATION
    )
    for change in ({"expiresAt": later}, {"expiresAt": later, "scopes": ["projects:read"]}):
        assert refusal(await writer.caller.patch(writer.path, change)) == ESCALATION
    mine = await service.key(
        writer.caller, org.id, "projects:read", expiresAt="2026-01-02T00:00:00Z"
    )
    assert refusal(await writer.caller.patch(mine.path, {"expiresAt": later})) == ESCALATION


async def test_key_rotates_none_that_outlives_it(service: Service) -> None:
    org = await service.organization()
    writer = await writer_of(service, org, expiresAt="2026-01-02T00:00:00Z")
    lasting = await service.key(org.owner, org.id, "projects:read")
    assert refusal(await writer.caller.post(f"{lasting.path}/rotate")) == ESCALATION


async def test_key_grants_its_scopes_to_no_key_with_a_later_expiry(service: Service) -> None:
    org = await service.organization()
    writer = await writer_of(service, org, expiresAt="2026-01-02T00:00:00Z")
    lasting = await service.key(org.owner, org.id, "other:thing")
    assert (
        refusal(await writer.caller.patch(lasting.path, {"scopes": ["projects:read"]}))
        == ESCALATION
    )
    shortened = {"scopes": ["projects:read"], "expiresAt": "2026-01-02T00:00:00Z"}
    assert (await writer.caller.patch(lasting.path, shortened)).status_code == 200


async def test_user_creates_a_key_that_outlives_the_token(service: Service) -> None:
    org = await service.organization()
    made = await service.key(service.user(org=org.id, role="admin"), org.id, "projects:read")
    assert made.record["expiresAt"] is None


async def test_admin_creates_all_but_owner_keys(service: Service) -> None:
    org = await service.organization()
    admin = service.user(org=org.id, role="admin")
    assert (await service.key(admin, org.id, "*:*")).record["createdBy"] == "user_1"
    assert refusal(await admin.post(KEYS, body_of(org, "OWNER"))) == ESCALATION


async def test_owner_with_a_narrowed_token_is_no_owner(service: Service) -> None:
    org = await service.organization()
    narrowed = service.user(org=org.id, role="owner", scope="openid api-keys:write projects:read")
    assert refusal(await narrowed.post(KEYS, body_of(org, "OWNER"))) == ESCALATION
    assert refusal(await narrowed.delete(org.key.path)) == ESCALATION
    await service.key(narrowed, org.id, "projects:read")


async def test_reading_keys_needs_no_more_than_its_scope_and_writing_does_not_imply_it(
    service: Service,
) -> None:
    org = await service.organization()
    reader = await service.key(org.owner, org.id, "api-keys:read")
    only_writer = await service.key(org.owner, org.id, "api-keys:write")
    assert (await reader.caller.get(org.key.path)).status_code == 200
    assert refusal(await reader.caller.delete(reader.path)) == (403, "insufficient_scope")
    assert refusal(await only_writer.caller.get(KEYS)) == (403, "insufficient_scope")
