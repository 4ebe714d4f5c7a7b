"""The audit trail: every change to keys and tenants, by whom, from where, and what was before and
after.
"""

from typing import Any, Final

import msgspec
import psycopg
import pytest

from tests.support.app import PEPPER
from tests.support.cases import cases
from tests.support.service import KEYS, TENANTS, Caller, Organization, Service, refusal

AUDIT: Final = "/api/v1/audit-events"


async def trail(caller: Caller, **wanted: str | int) -> list[dict[str, Any]]:
    """The entries that are asked for, oldest first."""
    answer = await caller.get(AUDIT, **wanted)
    assert answer.status_code == 200, answer.text
    return list(reversed(answer.json()["data"]))


async def test_made_key_is_entered_with_its_maker_address_and_request(service: Service) -> None:
    organization = await service.organization()
    body = {"orgId": organization.id, "name": "CI", "scopes": ["projects:read"]}
    made = await organization.owner.call("POST", KEYS, body, headers={"X-Request-Id": "req-1"})
    (entry,) = await trail(organization.owner, targetId=made.json()["id"])
    assert entry["action"] == "api_key.created"
    assert (entry["actorKind"], entry["actorId"]) == ("api_key", organization.key.id)
    assert (entry["address"], entry["requestId"]) == ("127.0.0.1", "req-1")
    assert entry["before"] is None
    record = made.json()
    del record["secret"]
    assert entry["after"] == record


async def test_no_secret_and_no_digest_is_in_the_trail(service: Service) -> None:
    organization = await service.organization()
    key = await service.key(organization.owner, organization.id, "projects:read")
    await organization.owner.post(f"{key.path}/rotate")
    text = (await organization.owner.get(AUDIT)).text
    assert key.caller.credential is not None
    assert key.caller.credential[13:] not in text
    assert PEPPER not in text


async def test_change_of_a_key_is_entered_with_what_differs(service: Service) -> None:
    organization = await service.organization()
    key = await service.key(organization.owner, organization.id, "projects:read")
    await organization.owner.patch(key.path, {"name": "new name"})
    entry = (await trail(organization.owner, targetId=key.id))[-1]
    assert (entry["action"], entry["before"], entry["after"]) == (
        "api_key.updated",
        {"name": "key"},
        {"name": "new name"},
    )


async def test_change_that_changes_nothing_is_not_entered(service: Service) -> None:
    organization = await service.organization()
    key = await service.key(organization.owner, organization.id, "projects:read")
    await organization.owner.patch(key.path, {"name": "key"})
    await organization.owner.patch(organization.path, {"name": organization.id})
    assert [entry["action"] for entry in await trail(organization.owner, targetId=key.id)] == [
        "api_key.created"
    ]
    assert [
        entry["action"] for entry in await trail(organization.owner, targetId=organization.id)
    ] == ["tenant.created"]


async def test_rotation_enters_both_keys(service: Service) -> None:
    organization = await service.organization()
    key = await service.key(organization.owner, organization.id, "projects:read")
    new = (await organization.owner.post(f"{key.path}/rotate", {"overlapSeconds": 60})).json()
    (created,) = await trail(organization.owner, targetId=new["id"])
    rotated = (await trail(organization.owner, targetId=key.id))[-1]
    assert (created["action"], created["after"]["rotatedFrom"]) == ("api_key.created", key.id)
    assert (rotated["action"], rotated["after"]["supersededBy"]) == ("api_key.rotated", new["id"])
    assert rotated["before"] == {"expiresAt": None, "supersededBy": None}


async def test_revocation_is_entered_once_however_often_it_is_asked_for(service: Service) -> None:
    organization = await service.organization()
    key = await service.key(organization.owner, organization.id, "projects:read")
    for _ in range(2):
        await organization.owner.delete(key.path)
    actions = [entry["action"] for entry in await trail(organization.owner, targetId=key.id)]
    assert actions == ["api_key.created", "api_key.revoked"]


async def test_replayed_request_is_entered_once(service: Service) -> None:
    organization = await service.organization()
    body = {"orgId": organization.id, "name": "once", "scopes": ["projects:read"]}
    for _ in range(2):
        await organization.owner.post(KEYS, body, idempotency_key="one")
    made = [
        entry for entry in await trail(organization.owner) if entry["after"].get("name") == "once"
    ]
    assert len(made) == 1


async def test_refused_change_is_not_entered(service: Service) -> None:
    organization = await service.organization()
    weak = await service.key(organization.owner, organization.id, "api-keys:write")
    before = await trail(organization.owner)
    answer = await weak.caller.post(
        KEYS, {"orgId": organization.id, "name": "n", "scopes": ["projects:read"]}
    )
    assert refusal(answer) == (403, "scope_escalation")
    assert await trail(organization.owner) == before


async def test_operator_is_named_as_such(service: Service) -> None:
    organization = await service.organization()
    await service.operator.put(
        organization.path, {"name": "New", "ownerEmail": "new@x.example", "suspended": False}
    )
    created, updated = await trail(organization.owner, targetId=organization.id)
    assert (created["action"], created["actorKind"], created["actorId"]) == (
        "tenant.created",
        "operator",
        None,
    )
    assert updated["before"] == {"name": organization.id, "ownerEmail": "owner@x.example"}
    assert updated["after"] == {"name": "New", "ownerEmail": "new@x.example"}


async def test_user_who_makes_a_tenant_is_named(service: Service) -> None:
    user = service.user("user_audited", org="org_audited", role="owner")
    await user.post(TENANTS, {"name": "Audited", "ownerEmail": "a@x.example"})
    entry = (await trail(user, targetId="org_audited"))[0]
    assert (entry["action"], entry["actorKind"], entry["actorId"]) == (
        "tenant.created",
        "user",
        "user_audited",
    )


async def test_suspension_and_end_are_in_the_export(service: Service) -> None:
    organization = await service.organization()
    body = {"name": organization.id, "ownerEmail": "owner@x.example", "suspended": True}
    await service.operator.put(organization.path, body)
    for _ in range(2):
        await service.operator.delete(organization.path)
    export = (await service.operator.get(f"{organization.path}/export")).json()
    *_, suspended, ended = export["auditEvents"]
    assert (suspended["action"], suspended["after"]) == ("tenant.updated", {"suspended": True})
    assert (ended["action"], ended["after"]) == ("tenant.ended", None)
    assert [entry["action"] for entry in export["auditEvents"]].count("tenant.ended") == 1


async def test_export_by_the_operator_leaves_an_entry(service: Service) -> None:
    organization = await service.organization()
    path = f"{organization.path}/export"
    assert (await service.operator.get(path)).status_code == 200
    exported = (await trail(organization.owner))[-1]
    assert (exported["action"], exported["targetId"]) == ("tenant.exported", organization.id)
    assert (exported["actorKind"], exported["actorId"]) == ("operator", None)
    assert exported["address"] is not None
    assert (exported["before"], exported["after"]) == (None, None)
    assert exported in (await service.operator.get(path)).json()["auditEvents"]


async def test_export_of_an_ended_tenant_leaves_an_entry(service: Service) -> None:
    organization = await service.organization()
    await service.operator.delete(organization.path)
    await service.operator.get(f"{organization.path}/export")
    export = (await service.operator.get(f"{organization.path}/export")).json()
    assert export["auditEvents"][-1]["action"] == "tenant.exported"


async def test_rejected_export_leaves_no_entry(service: Service) -> None:
    organization = await service.organization()
    await organization.owner.get(f"{organization.path}/export")
    assert "tenant.exported" not in [entry["action"] for entry in await trail(organization.owner)]


async def test_trail_is_found_by_action_actor_and_time(service: Service) -> None:
    organization = await service.organization()
    key = await service.key(organization.owner, organization.id, "api-keys:write", "projects:read")
    other = await service.key(key.caller, organization.id, "projects:read")
    (by_key,) = await trail(organization.owner, actorId=key.id)
    assert by_key["targetId"] == other.id
    await organization.owner.delete(other.path)
    (revoked,) = await trail(organization.owner, action="api_key.revoked")
    assert revoked["targetId"] == other.id
    assert await trail(organization.owner, since=revoked["at"]) == [revoked]
    assert revoked not in await trail(organization.owner, until=revoked["at"])


async def test_pages_follow_each_other_without_gap_or_repetition(service: Service) -> None:
    organization = await service.organization()
    for _ in range(5):
        await service.key(organization.owner, organization.id, "projects:read")
    whole = (await organization.owner.get(AUDIT, limit=100)).json()["data"]
    found, cursor = [], None
    while True:
        page = (
            await organization.owner.get(AUDIT, limit=2, **({"cursor": cursor} if cursor else {}))
        ).json()
        found += page["data"]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert found == whole


async def test_export_is_the_whole_trail_as_lines(service: Service) -> None:
    organization = await service.organization()
    for _ in range(3):
        await service.key(organization.owner, organization.id, "projects:read")
    answer = await organization.owner.get(f"{AUDIT}/export")
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert (
        msgspec.json.Decoder().decode_lines(answer.content)
        == (await organization.owner.get(AUDIT)).json()["data"]
    )


async def test_export_of_many_pages_is_complete(service: Service) -> None:
    organization = await service.organization()
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute(
            "INSERT INTO audit_events (id, org_id, at, action, actor_kind, target_id) "
            "SELECT 'aud_' || n, %s, now(), 'tenant.updated', 'system', 'x' FROM generate_series(1, 1234) AS n",
            (organization.id,),
        )
    answer = await organization.owner.get(f"{AUDIT}/export", targetId="x")
    lines = msgspec.json.Decoder().decode_lines(answer.content)
    assert len({line["id"] for line in lines}) == len(lines) == 1234


async def test_trail_needs_its_scope(service: Service) -> None:
    organization = await service.organization()
    key = await service.key(
        organization.owner, organization.id, "projects:*", "tenants:*", "api-keys:*"
    )
    assert refusal(await key.caller.get(AUDIT)) == (403, "insufficient_scope")
    assert refusal(await key.caller.get(f"{AUDIT}/export")) == (403, "insufficient_scope")
    member = service.user(org=organization.id, role="member")
    assert refusal(await member.get(AUDIT)) == (403, "insufficient_scope")


async def test_trail_is_shut_to_test_mode(service: Service) -> None:
    organization = await service.organization()
    key = await service.key(organization.owner, organization.id, "audit:read", mode="test")
    assert refusal(await key.caller.get(AUDIT)) == (403, "mode_mismatch")
    assert refusal(await key.caller.get(f"{AUDIT}/export")) == (403, "mode_mismatch")


async def test_trail_of_another_tenant_is_not_shown(service: Service) -> None:
    one, other = await service.organization(), await service.organization()
    assert {entry["orgId"] for entry in await trail(one.owner)} == {one.id}
    assert await trail(one.owner, targetId=other.key.id) == []


@cases(
    ("wanted", "status"),
    [
        ({"action": "api_key.eaten"}, 422),
        ({"since": "yesterday"}, 422),
        ({"since": "2026-01-01T00:00:00"}, 422),
        ({"until": "2026-01-01"}, 422),
        ({"cursor": "nonsense"}, 400),
        ({"actorId": "a\x00b"}, 422),
    ],
)
async def test_bad_question_is_refused(
    service: Service, wanted: dict[str, str], status: int
) -> None:
    organization = await service.organization()
    assert refusal(await organization.owner.get(AUDIT, **wanted))[0] == status


@cases(
    "statement",
    [
        "UPDATE audit_events SET actor_id = 'another user'",
        "DELETE FROM audit_events",
        "TRUNCATE audit_events",
        "TRUNCATE tenants CASCADE",
    ],
)
async def test_database_refuses_to_alter_the_trail(service: Service, statement: str) -> None:
    organization: Organization = await service.organization()
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
            await connection.execute(statement)
    assert await trail(organization.owner, targetId=organization.id)


async def test_temporary_table_does_not_fool_the_database(service: Service) -> None:
    organization = await service.organization()
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute("CREATE TEMP TABLE tenants (id text, deleted_at timestamptz)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
            await connection.execute(
                "DELETE FROM audit_events WHERE org_id = %s", (organization.id,)
            )


async def test_trail_is_deleted_with_its_tenant(service: Service) -> None:
    organization = await service.organization()
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute("DELETE FROM tenants WHERE id = %s", (organization.id,))
        cursor = await connection.execute(
            "SELECT count(*) FROM audit_events WHERE org_id = %s", (organization.id,)
        )
        assert await cursor.fetchone() == (0,)
