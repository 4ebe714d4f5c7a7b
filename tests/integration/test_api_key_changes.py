"""Change and rotate API keys."""

from tests.support.cases import cases
from tests.support.service import KEYS, PROJECTS, Service, refusal

WRITER = ("api-keys:read", "api-keys:write", "projects:*")


async def test_change_affects_only_the_given_fields(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read", expiresAt="2026-02-01T00:00:00Z")
    for change in (
        {"name": "renamed"},
        {"scopes": ["projects:write", "a:b"]},
        {"expiresAt": "2026-03-01T00:00:00Z"},
        {"expiresAt": None},
        {},
    ):
        before = (await org.owner.get(key.path)).json()
        answer = await org.owner.patch(key.path, change)
        assert answer.status_code == 200
        assert answer.json() == {**before, **change}
        assert (await org.owner.get(key.path)).json() == answer.json()


@cases(
    ("change", "location"),
    [
        ({"name": None}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a\n"}, "name"),
        ({"name": "a\x00b"}, "name"),
        ({"name": "a" * 201}, "name"),
        ({"scopes": None}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"expiresAt": "2026-01-01T11:59:59Z"}, "expiresAt"),
        ({"mode": "test"}, "mode"),
        ({"accessLevel": "OWNER"}, "accessLevel"),
        ({"orgId": "x"}, "orgId"),
        ({"status": "active"}, "status"),
    ],
)
async def test_invalid_change_is_rejected(
    service: Service, change: dict[str, object], location: str
) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    answer = await org.owner.patch(key.path, change)
    assert refusal(answer) == (422, "validation_failed")
    assert [fault["location"] for fault in answer.json()["errors"]] == [location]
    assert (await org.owner.get(key.path)).json() == key.record


async def test_new_scopes_count_at_the_next_request(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    await org.owner.patch(key.path, {"scopes": ["projects:write"]})
    assert refusal(await key.caller.get(PROJECTS)) == (403, "insufficient_scope")
    assert (await key.caller.post(PROJECTS, {"name": "now"})).status_code == 201


async def test_only_an_active_key_can_be_changed_or_rotated(fresh_service: Service) -> None:
    service = fresh_service
    org = await service.organization()
    revoked = await service.key(org.owner, org.id, "a:b")
    expired = await service.key(org.owner, org.id, "a:b", expiresAt="2026-01-01T12:01:00Z")
    await org.owner.delete(revoked.path)
    service.clock.advance(minutes=2)
    for key in (revoked, expired):
        assert refusal(await org.owner.patch(key.path, {"name": "x"})) == (409, "key_not_active")
        assert refusal(await org.owner.patch(key.path, {"expiresAt": None})) == (
            409,
            "key_not_active",
        )
        assert refusal(await org.owner.post(f"{key.path}/rotate")) == (409, "key_not_active")


async def test_rotation_gives_a_key_like_the_old_one(service: Service) -> None:
    org = await service.organization()
    old = await service.key(
        org.owner, org.id, *WRITER, mode="test", expiresAt="2026-02-01T00:00:00Z"
    )
    answer = await org.owner.post(f"{old.path}/rotate", {"overlapSeconds": 60})
    new = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{KEYS}/{new['id']}"
    assert answer.headers["cache-control"] == "no-store"
    secret = new.pop("secret")
    assert secret.startswith("svc_test_")
    assert new == {
        **old.record,
        "id": new["id"],
        "start": secret[:13],
        "last4": secret[-4:],
        "createdAt": new["createdAt"],
        "createdBy": org.key.id,
        "rotatedFrom": old.id,
    }
    assert (await org.owner.get(old.path)).json()["supersededBy"] == new["id"]


@cases("body", [None, {}, {"overlapSeconds": 0}])
async def test_without_overlap_the_old_key_is_revoked_immediately(
    service: Service, body: object
) -> None:
    org = await service.organization()
    old = await service.key(org.owner, org.id, "projects:read")
    new = (await org.owner.post(f"{old.path}/rotate", body)).json()
    assert refusal(await old.caller.get(PROJECTS)) == (401, "api_key_revoked")
    assert (await service.caller(new["secret"]).get(PROJECTS)).status_code == 200


async def test_both_keys_work_during_the_overlap(fresh_service: Service) -> None:
    service = fresh_service
    org = await service.organization()
    old = await service.key(org.owner, org.id, "projects:read")
    new = service.caller(
        (await org.owner.post(f"{old.path}/rotate", {"overlapSeconds": 300})).json()["secret"]
    )
    service.clock.advance(seconds=290)
    assert (await old.caller.get(PROJECTS)).status_code == 200
    assert (await new.get(PROJECTS)).status_code == 200
    service.clock.advance(seconds=11)
    assert refusal(await old.caller.get(PROJECTS)) == (401, "api_key_expired")
    assert (await new.get(PROJECTS)).status_code == 200


async def test_overlap_never_outlasts_the_old_keys_own_expiry(service: Service) -> None:
    org = await service.organization()
    old = await service.key(org.owner, org.id, "projects:read", expiresAt="2026-01-01T13:00:00Z")
    new = (await org.owner.post(f"{old.path}/rotate", {"overlapSeconds": 604_800})).json()
    assert new["expiresAt"] == "2026-01-01T13:00:00Z"
    assert (await org.owner.get(old.path)).json()["expiresAt"] == "2026-01-01T13:00:00Z"


async def test_rotated_key_cannot_be_given_a_later_end(service: Service) -> None:
    org = await service.organization()
    old = await service.key(org.owner, org.id, "projects:read")
    await org.owner.post(f"{old.path}/rotate", {"overlapSeconds": 3600})
    for later in (None, "2027-01-01T00:00:00Z"):
        assert refusal(await org.owner.patch(old.path, {"expiresAt": later})) == (
            409,
            "key_not_active",
        )
    assert (
        await org.owner.patch(old.path, {"expiresAt": "2026-01-01T12:30:00Z"})
    ).status_code == 200


async def test_key_is_rotated_once(service: Service) -> None:
    org = await service.organization()
    old = await service.key(org.owner, org.id, "projects:read")
    assert (await org.owner.post(f"{old.path}/rotate", {"overlapSeconds": 60})).status_code == 201
    assert refusal(await org.owner.post(f"{old.path}/rotate", {"overlapSeconds": 60})) == (
        409,
        "key_not_active",
    )


async def test_key_may_rotate_itself(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, *WRITER, expiresAt="2026-02-01T00:00:00Z")
    new = (await key.caller.post(f"{key.path}/rotate")).json()
    assert new["createdBy"] == key.id
    assert (await service.caller(new["secret"]).get(PROJECTS)).status_code == 200


@cases("overlap", [-1, 604_801, "5", 5.5, None, True, 10**30])
async def test_overlap_is_a_whole_number_of_seconds_up_to_a_week(
    service: Service, overlap: object
) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    answer = await org.owner.post(f"{key.path}/rotate", {"overlapSeconds": overlap})
    assert refusal(answer) == (422, "validation_failed")
    assert answer.json()["errors"][0]["location"] == "overlapSeconds"
    assert (await key.caller.get(PROJECTS)).status_code == 200
