"""Create, read and revoke API keys."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.cases import cases
from tests.support.issuer import NOW
from tests.support.service import KEYS, PROJECTS, WHOAMI, Service, refusal

RECORD = {
    "allowedAddresses",
    "enabled",
    "requestsPerMinute",
    "id",
    "orgId",
    "name",
    "scopes",
    "accessLevel",
    "mode",
    "expiresAt",
    "status",
    "start",
    "last4",
    "createdAt",
    "createdBy",
    "lastUsedAt",
    "lastUsedAddress",
    "revokedAt",
    "rotatedFrom",
    "rotatedFromLastUsedAt",
    "supersededBy",
    "leakReportedAt",
    "externalId",
    "metadata",
    "importedAs",
}


async def test_creation_returns_the_record_and_the_secret(service: Service) -> None:
    org = await service.organization()
    body = {
        "orgId": org.id,
        "name": "CI",
        "scopes": ["projects:read"],
        "expiresAt": "2026-01-02T00:00:00Z",
    }
    answer = await org.owner.post(KEYS, body)
    key = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{KEYS}/{key['id']}"
    assert answer.headers["cache-control"] == "no-store"
    assert key.keys() == RECORD | {"secret"}
    assert key == {
        **key,
        "orgId": org.id,
        "name": "CI",
        "scopes": ["projects:read"],
        "accessLevel": "SCOPED",
        "mode": "live",
        "expiresAt": "2026-01-02T00:00:00Z",
        "status": "active",
        "start": key["secret"][:13],
        "last4": key["secret"][-4:],
        "createdBy": org.key.id,
        "lastUsedAt": None,
        "lastUsedAddress": None,
        "rotatedFromLastUsedAt": None,
        "leakReportedAt": None,
        "externalId": None,
        "metadata": {},
        "importedAs": None,
        "revokedAt": None,
        "rotatedFrom": None,
        "supersededBy": None,
    }
    assert datetime.fromisoformat(key["createdAt"]) >= NOW
    assert key["createdAt"].endswith("Z")


async def test_secret_has_the_documented_form_and_works_at_once(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read", mode="test")
    assert key.caller.credential is not None
    assert key.caller.credential.startswith("svc_test_")
    assert len(key.caller.credential) == 58
    assert (await key.caller.get(PROJECTS)).status_code == 200


async def test_secret_is_in_no_later_answer(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    for answer in (
        await org.owner.get(KEYS),
        await org.owner.get(key.path),
        await org.owner.patch(key.path, {}),
    ):
        assert answer.status_code == 200
        assert "secret" not in answer.text
        assert str(key.caller.credential) not in answer.text


async def test_read_key_is_the_made_one(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    assert (await org.owner.get(key.path)).json() == key.record
    assert (await org.owner.get(KEYS)).json()["data"][0] == key.record


@pytest.mark.parametrize(
    "spelling", [{"accessLevel": "OWNER", "scopes": []}, {"scopes": ["OWNER"]}]
)
async def test_owner_is_shown_with_all_scopes(
    service: Service, spelling: dict[str, object]
) -> None:
    org = await service.organization()
    key = (await org.owner.post(KEYS, {"orgId": org.id, "name": "o", **spelling})).json()
    assert (key["accessLevel"], key["scopes"]) == ("OWNER", ["*:*"])


async def test_expiry_is_answered_in_utc_whatever_zone_it_was_given_in(service: Service) -> None:
    org = await service.organization()
    body = {
        "orgId": org.id,
        "name": "z",
        "scopes": ["a:b"],
        "expiresAt": "2026-06-01T02:00:00.25+02:00",
    }
    made = (await org.owner.post(KEYS, body)).json()
    assert made["expiresAt"] == "2026-06-01T00:00:00.250000Z"
    read = (await org.owner.get(f"{KEYS}/{made['id']}")).json()
    assert read["expiresAt"] == made["expiresAt"]
    changed = await org.owner.patch(
        f"{KEYS}/{made['id']}", {"expiresAt": "2026-05-01T00:00:00-01:00"}
    )
    assert changed.json()["expiresAt"] == "2026-05-01T01:00:00Z"


@cases(
    "expires_at",
    [
        "2026-01-01T11:00:00Z",
        "2026-01-02T00:00:00",
        "2026-01-02",
        "tomorrow",
        "",
        1_800_000_000,
        "1800000000",
        "9999-12-31T23:59:59-10:00",
        "0001-01-01T00:00:00+10:00",
        "2026-02-30T00:00:00Z",
    ],
)
async def test_expiry_must_be_in_the_future(service: Service, expires_at: object) -> None:
    org = await service.organization()
    body = {"orgId": org.id, "name": "z", "scopes": ["a:b"], "expiresAt": expires_at}
    answer = await org.owner.post(KEYS, body)
    assert refusal(answer) == (422, "validation_failed")
    assert answer.json()["errors"][0]["location"] == "expiresAt"


@cases(
    ("scopes", "location"),
    [
        ([], "scopes"),
        (["OWNER", "a:b"], "scopes"),
        (["projects"], "scopes[0]"),
        (["a:b", "projects:read\n"], "scopes[1]"),
        (["Projects:read"], "scopes[0]"),
        ([f"a{number}:b" for number in range(65)], "scopes"),
        ("projects:read", "scopes"),
        ([1], "scopes[0]"),
        (None, "scopes"),
    ],
)
async def test_scopes_must_be_scopes(service: Service, scopes: object, location: str) -> None:
    org = await service.organization()
    answer = await org.owner.post(KEYS, {"orgId": org.id, "name": "s", "scopes": scopes})
    assert refusal(answer) == (422, "validation_failed")
    assert answer.json()["errors"][0]["location"] == location


async def test_64_scopes_are_accepted_and_duplicates_count_once(service: Service) -> None:
    org = await service.organization()
    scopes = [f"a{number}:b" for number in range(63)]
    made = await service.key(org.owner, org.id, *scopes, "a0:b")
    assert made.record["scopes"] == scopes


async def test_key_for_another_organization_is_refused(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    for org_id in (other.id, "nowhere"):
        answer = await org.owner.post(KEYS, {"orgId": org_id, "name": "x", "scopes": ["a:b"]})
        assert refusal(answer) == (403, "org_mismatch")
        listed = await org.owner.get(KEYS, orgId=org_id, search="\0")
        assert refusal(listed) == (403, "org_mismatch")


async def test_deleted_key_is_refused_at_the_very_next_request(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    assert (await key.caller.get(PROJECTS)).status_code == 200
    deleted = await org.owner.delete(key.path)
    assert (deleted.status_code, deleted.content) == (204, b"")
    for path in (PROJECTS, WHOAMI, KEYS):
        answer = await key.caller.get(path)
        assert refusal(answer) == (401, "api_key_revoked")
        assert answer.headers["www-authenticate"].startswith(
            'Bearer realm="api", error="invalid_token"'
        )


async def test_deleting_twice_succeeds_without_effect(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    await org.owner.delete(key.path)
    revoked = (await org.owner.get(key.path)).json()
    assert (await org.owner.delete(key.path)).status_code == 204
    assert (await org.owner.get(key.path)).json() == revoked
    assert revoked["status"] == "revoked"
    assert revoked["revokedAt"] is not None


async def test_key_may_end_itself(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "api-keys:write")
    assert (await key.caller.delete(key.path)).status_code == 204
    assert refusal(await key.caller.delete(key.path)) == (401, "api_key_revoked")


async def test_key_of_another_tenant_answers_as_a_missing_one(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    theirs = await service.key(other.owner, other.id, "projects:read")
    for method, suffix, body in (
        ("GET", "", None),
        ("PATCH", "", {"name": "mine"}),
        ("DELETE", "", None),
        ("POST", "/rotate", {}),
    ):
        answers = []
        for key_id in (theirs.id, "key_missing"):
            answer = await org.owner.call(method, f"{KEYS}/{key_id}{suffix}", body)
            assert refusal(answer) == (404, "not_found")
            answers.append({**answer.json(), "requestId": ""})
        assert answers[0] == answers[1]
    assert (await theirs.caller.get(PROJECTS)).status_code == 200


async def test_expired_key_is_refused_and_shown_as_expired(fresh_service: Service) -> None:
    service = fresh_service
    org = await service.organization()
    end = (NOW + timedelta(minutes=5)).astimezone(UTC).isoformat()
    key = await service.key(org.owner, org.id, "projects:read", expiresAt=end)
    assert (await key.caller.get(PROJECTS)).status_code == 200
    service.clock.advance(minutes=5)
    answer = await key.caller.get(PROJECTS)
    assert refusal(answer) == (401, "api_key_expired")
    assert answer.headers["www-authenticate"].startswith(
        'Bearer realm="api", error="invalid_token"'
    )
    assert (await org.owner.get(key.path)).json()["status"] == "expired"


async def test_keys_are_listed_by_status(fresh_service: Service) -> None:
    service = fresh_service
    org = await service.organization()
    active = await service.key(org.owner, org.id, "a:b")
    revoked = await service.key(org.owner, org.id, "a:b")
    expired = await service.key(org.owner, org.id, "a:b", expiresAt="2026-01-01T12:10:00Z")
    both = await service.key(org.owner, org.id, "a:b", expiresAt="2026-01-01T12:10:00Z")
    for key in (revoked, both):
        await org.owner.delete(key.path)
    service.clock.advance(minutes=15)
    listed = {
        status: [key["id"] for key in (await org.owner.get(KEYS, status=status)).json()["data"]]
        for status in ("active", "revoked", "expired")
    }
    assert listed == {
        "active": [active.id, org.key.id],
        "revoked": [both.id, revoked.id],
        "expired": [expired.id],
    }
    assert refusal(await org.owner.get(KEYS, status="gone")) == (422, "validation_failed")
