"""An imported key is accepted like others, and becomes one at its first use."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
import pytest

from tests.support.cases import cases
from tests.support.emptying import SharedDatabase
from tests.support.imported_keys import (
    IMPORTED_KEY_PATTERN,
    OldKey,
    import_key,
    imported,
    old_key,
    spellings,
)
from tests.support.in_process import MIDDLEWARE, WSGI, running_app
from tests.support.metrics import Shown
from tests.support.service import (
    KEYS,
    PROJECTS,
    TENANTS,
    VERIFY,
    WHOAMI,
    Organization,
    Service,
    refusal,
    running_service,
)

OLD: Final = "old-pepper-0123456789-0123456789-0123"
NEW: Final = "new-pepper-0123456789-0123456789-0123"
REPORT: Final = f"{KEYS}/report-leak"
PATTERN: Final = {"IMPORTED_KEY_PATTERN": IMPORTED_KEY_PATTERN}


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    async with running_service(shared_database.conninfo, **PATTERN) as service:
        yield service


@asynccontextmanager
async def another(service: Service, **values: str) -> AsyncIterator[Service]:
    """Another process on the same database, which writes the uses of keys when it ends."""
    async with running_service(service.conninfo, **{**PATTERN, **values}) as other:
        yield other


async def use(service: Service, secret: str) -> None:
    """Use a key, and wait until that is stored."""
    async with another(service) as other:
        answer = await other.caller(secret).get(PROJECTS)
        assert answer.status_code == 200, answer.text


async def rows_of(service: Service, org_id: str) -> list[tuple[Any, ...]]:
    """The stored digests of a tenant's imported keys."""
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        query = (
            "SELECT id, digest, import_digest, import_algorithm FROM api_keys "
            "WHERE org_id = %s AND import_digest IS NOT NULL ORDER BY id"
        )
        return await (await connection.execute(query, (org_id,))).fetchall()


async def shown(org: Organization, key_id: str) -> dict[str, Any]:
    answer = await org.owner.get(f"{KEYS}/{key_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def answer_to(service: Service, secret: str) -> tuple[int, str]:
    """The status and code of the answer to a request with this credential."""
    answer = await service.caller(secret).get(PROJECTS)
    return (200, "") if answer.status_code == 200 else refusal(answer)


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
async def test_imported_key_becomes_one_like_others_at_its_first_use(
    service: Service, algorithm: str
) -> None:
    org = await service.organization()
    key = old_key(algorithm)
    key_id = await import_key(service, org.id, key)
    assert (await shown(org, key_id))["importedAs"] == algorithm
    [(_, before, remembered, _)] = await rows_of(service, org.id)
    assert before == remembered
    for _ in range(2):
        await use(service, key.secret)
        [(_, after, still, _)] = await rows_of(service, org.id)
        assert after != before
        assert still == remembered
        record = await shown(org, key_id)
        assert (record["importedAs"], record["lastUsedAt"] is None) == (None, False)


async def test_every_route_accepts_it(service: Service) -> None:
    org = await service.organization()
    key = old_key()
    key_id = await import_key(service, org.id, key, externalId="cus_1", metadata={"team": "a"})
    caller = service.caller(key.secret)
    whoami = (await caller.get(WHOAMI)).json()
    assert (whoami["kind"], whoami["id"], whoami["orgId"]) == ("api_key", key_id, org.id)
    assert (whoami["externalId"], whoami["metadata"]) == ("cus_1", {"team": "a"})
    checked = await caller.get(f"{VERIFY}projects:read")
    assert (checked.status_code, checked.headers["x-key-external-id"]) == (200, "cus_1")
    assert refusal(await caller.post(PROJECTS, {"name": "x"})) == (403, "insufficient_scope")
    assert refusal(await caller.post(TENANTS, {"name": "x"})) == (403, "user_token_required")


async def test_it_is_not_stored_where_a_client_sends_it_as_an_idempotency_key(
    service: Service,
) -> None:
    org = await service.organization()
    key = old_key()
    await import_key(service, org.id, key, scopes=["projects:write"])
    caller = service.caller(key.secret)
    made = [await caller.post(PROJECTS, {"name": "x"}, key.secret) for _ in range(2)]
    assert made[0].status_code == 201
    assert made[0].json() == made[1].json()
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        query = "SELECT key FROM idempotency_keys WHERE split_part(principal, ':', 2) = %s"
        rows = await (await connection.execute(query, (org.id,))).fetchall()
    assert [row[0].startswith("sha256:") for row in rows] == [True]


async def test_header_for_api_keys_accepts_it(service: Service) -> None:
    org = await service.organization()
    key = old_key()
    await import_key(service, org.id, key)
    async with another(service, API_KEY_HEADER="X-API-Key") as other:
        for headers in ({"X-API-Key": key.secret}, {"Authorization": f"Api-Key {key.secret}"}):
            answer = await other.anonymous.call("GET", PROJECTS, headers=headers)
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("kind", [MIDDLEWARE, WSGI])
async def test_application_in_process_accepts_it_and_records_its_first_use(
    service: Service, kind: str
) -> None:
    org = await service.organization()
    key = old_key()
    key_id = await import_key(service, org.id, key)
    async with running_app(kind, service, **PATTERN) as app:
        answer = await app.caller(key.secret).get(app.path("projects:read"))
        assert answer.status_code == 200, answer.text
    assert (await shown(org, key_id))["importedAs"] is None
    assert await answer_to(service, key.secret) == (200, "")


@cases(
    "values",
    [
        {"IMPORTED_KEY_PATTERN": ""},
        {"IMPORTED_KEY_PATTERN": "new_.*"},
        {"IMPORTED_KEY_PATTERN": "old_"},
    ],
)
@cases("is_used", [False, True])
async def test_key_that_the_pattern_does_not_match_is_rejected(
    service: Service, values: dict[str, str], *, is_used: bool
) -> None:
    org = await service.organization()
    key = old_key()
    await import_key(service, org.id, key)
    if is_used:
        await use(service, key.secret)
    async with another(service, **values) as other:
        assert await answer_to(other, key.secret) == (401, "invalid_credential")


async def test_longest_key_is_accepted_and_a_longer_one_is_not(service: Service) -> None:
    org = await service.organization()
    keys = [OldKey(letter * length) for letter, length in (("a", 200), ("b", 201))]
    for key in keys:
        await import_key(service, org.id, key)
    assert await answer_to(service, keys[0].secret) == (200, "")
    assert await answer_to(service, keys[1].secret) == (401, "invalid_credential")


async def test_form_of_a_token_is_a_token_whatever_the_pattern(service: Service) -> None:
    org = await service.organization()
    key = OldKey("old.key.with-two-dots")
    await import_key(service, org.id, key)
    answer = await service.caller(key.secret).get(PROJECTS)
    assert refusal(answer) == (401, "invalid_credential")
    async with another(service, IMPORTED_KEY_PATTERN=".*", OPERATOR_TOKEN="") as other:
        user = other.user("ada", org=org.id, role="owner")
        assert (await user.get(PROJECTS)).status_code == 200


@cases(
    "secret", ["svc_live_of-another-system-0001", "svc_0002-of-another-system", "acme_live_0003x"]
)
async def test_key_that_begins_with_a_prefix_of_ours_is_accepted(
    service: Service, secret: str
) -> None:
    org = await service.organization()
    await import_key(service, org.id, OldKey(secret))
    async with another(service, KEY_PREFIX="acme") as other:
        assert await answer_to(other, secret) == (200, "")


async def test_key_of_ours_is_not_accepted_by_an_imported_hash(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    secret = org.owner.credential or ""
    key_id = await import_key(service, other.id, OldKey(secret))
    assert (await service.caller(secret).get(WHOAMI)).json()["orgId"] == org.id
    assert (await shown(other, key_id))["lastUsedAt"] is None


async def test_no_given_or_stored_hash_is_a_credential(service: Service) -> None:
    org = await service.organization()
    keys = [old_key("sha256"), old_key("sha512")]
    for key in keys:
        await import_key(service, org.id, key)
    async with another(service, IMPORTED_KEY_PATTERN=".*", OPERATOR_TOKEN="") as other:
        for moment in ("before", "after"):
            stored = [digest for row in await rows_of(service, org.id) for digest in row[1:3]]
            for value in [*stored, *(key.hash for key in keys)]:
                for text in spellings(value):
                    assert await answer_to(other, text) == (401, "invalid_credential"), moment
            for key in keys:
                await use(service, key.secret)


async def test_hash_of_ascii_characters_is_no_credential(service: Service) -> None:
    org = await service.organization()
    text = "0123456789abcdef0123456789abcdef"  # as bytes, as long as a sha256
    member = old_key().member(digest=base64.b64encode(text.encode()).decode())
    await imported(service, org.id, member)
    async with another(service, IMPORTED_KEY_PATTERN=".*", OPERATOR_TOKEN="") as other:
        assert await answer_to(other, text) == (401, "invalid_credential")


@pytest.mark.parametrize("is_used", [False, True])
async def test_revoked_key_is_rejected_at_the_next_request(
    service: Service, *, is_used: bool
) -> None:
    org = await service.organization()
    key = old_key()
    key_id = await import_key(service, org.id, key)
    async with another(service) as other:
        if is_used:
            assert await answer_to(other, key.secret) == (200, "")
            await use(service, key.secret)
        assert (await org.owner.delete(f"{KEYS}/{key_id}")).status_code == 204
        for process in (service, other):
            assert await answer_to(process, key.secret) == (401, "api_key_revoked")


async def test_use_that_is_stored_after_the_revocation_does_not_undo_it(service: Service) -> None:
    org = await service.organization()
    key = old_key()
    key_id = await import_key(service, org.id, key)
    async with another(service) as other:
        assert await answer_to(other, key.secret) == (200, "")
        await org.owner.delete(f"{KEYS}/{key_id}")
    record = await shown(org, key_id)
    assert (record["status"], record["lastUsedAt"] is None) == ("revoked", False)
    assert await answer_to(service, key.secret) == (401, "api_key_revoked")


async def test_expired_key_is_rejected_as_expired(service: Service) -> None:
    org = await service.organization()
    past, soon = old_key(), old_key()
    key_id = await import_key(service, org.id, past, expiresAt="2020-01-01T00:00:00Z")
    assert (await shown(org, key_id))["status"] == "expired"
    assert await answer_to(service, past.secret) == (401, "api_key_expired")
    end = service.clock.now.replace(microsecond=0)
    await import_key(service, org.id, soon, expiresAt=f"{end.isoformat()}")
    assert await answer_to(service, soon.secret) == (401, "api_key_expired")


async def test_test_mode_key_sees_test_mode_objects_only(service: Service) -> None:
    org = await service.organization()
    key = old_key()
    await import_key(service, org.id, key, mode="test", scopes=["projects:write", "projects:read"])
    caller = service.caller(key.secret)
    project = (await caller.post(PROJECTS, {"name": "of tests"})).json()
    assert project["mode"] == "test"
    assert (await org.owner.get(f"{PROJECTS}/{project['id']}")).status_code == 404


async def test_key_of_a_suspended_tenant_is_refused_until_it_is_resumed(service: Service) -> None:
    org = await service.organization()
    suspension = {"name": "x", "ownerEmail": "owner@x.example", "suspended": True}
    await service.operator.put(org.path, suspension)
    key = old_key()
    await import_key(service, org.id, key)
    assert await answer_to(service, key.secret) == (403, "org_suspended")
    await service.operator.put(org.path, {**suspension, "suspended": False})
    assert await answer_to(service, key.secret) == (200, "")


async def test_key_of_an_ended_tenant_is_rejected(service: Service) -> None:
    org = await service.organization()
    key = old_key()
    await import_key(service, org.id, key)
    await service.operator.delete(org.path)
    assert await answer_to(service, key.secret) == (401, "api_key_revoked")


async def test_of_two_keys_with_one_secret_a_revoked_one_counts(service: Service) -> None:
    first, second = await service.organization(), await service.organization()
    secret = old_key().secret
    ids = [
        await import_key(service, org.id, OldKey(secret, algorithm))
        for org, algorithm in ((first, "sha256"), (second, "sha512"))
    ]
    assert (await service.caller(secret).get(WHOAMI)).json()["orgId"] == first.id
    await use(service, secret)
    assert (await service.caller(secret).get(WHOAMI)).json()["orgId"] == first.id
    assert (await second.owner.delete(f"{KEYS}/{ids[1]}")).status_code == 204
    assert await answer_to(service, secret) == (401, "api_key_revoked")


async def test_of_two_keys_with_one_secret_only_the_first_becomes_like_others(
    service: Service,
) -> None:
    first, second = await service.organization(), await service.organization()
    secret = old_key().secret
    await import_key(service, first.id, OldKey(secret, "sha512"))
    await use(service, secret)
    later_id = await import_key(service, second.id, OldKey(secret, "sha256"))
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        # as if its process had a slow clock
        await connection.execute("UPDATE api_keys SET id = 'key_0' WHERE id = %s", (later_id,))
    await use(service, secret)
    for org, is_native in ((first, True), (second, False)):
        [(_, digest, remembered, _)] = await rows_of(service, org.id)
        assert (digest != remembered) is is_native
    [first_key] = [key_id for key_id, *_ in await rows_of(service, first.id)]
    await first.owner.delete(f"{KEYS}/{first_key}")
    assert await answer_to(service, secret) == (401, "api_key_revoked")


async def test_rotated_key_is_replaced_by_one_of_ours(service: Service) -> None:
    org = await service.organization()
    key = old_key()
    key_id = await import_key(service, org.id, key, externalId="cus_1")
    answer = await org.owner.post(f"{KEYS}/{key_id}/rotate", {"overlapSeconds": 60})
    made = answer.json()
    assert made["secret"].startswith("svc_live_")
    assert (made["rotatedFrom"], made["externalId"], made["importedAs"]) == (key_id, "cus_1", None)
    assert await answer_to(service, key.secret) == (200, "")
    assert await answer_to(service, made["secret"]) == (200, "")
    [again] = await imported(service, org.id, key.member(externalId="cus_1"))
    assert (again["id"], again["status"]) == (key_id, "exists")


async def test_key_rotated_without_overlap_is_rejected(service: Service) -> None:
    org = await service.organization()
    key = old_key()
    key_id = await import_key(service, org.id, key)
    await org.owner.post(f"{KEYS}/{key_id}/rotate", {})
    assert await answer_to(service, key.secret) == (401, "api_key_revoked")


async def test_change_of_an_imported_key_leaves_it_imported(service: Service) -> None:
    org = await service.organization()
    key = old_key()
    key_id = await import_key(service, org.id, key)
    change = {"name": "renamed", "scopes": ["projects:write"]}
    changed = (await org.owner.patch(f"{KEYS}/{key_id}", change)).json()
    assert (changed["name"], changed["importedAs"]) == ("renamed", "sha256")
    assert await answer_to(service, key.secret) == (403, "insufficient_scope")


async def test_leak_report_revokes_it_and_tells_the_owner(service: Service) -> None:
    org = await service.organization()
    unused, used = old_key(), old_key()
    ids = [await import_key(service, org.id, key) for key in (unused, used)]
    await use(service, used.secret)
    for key, key_id in zip((unused, used), ids, strict=True):
        answer = await service.anonymous.post(REPORT, {"secret": key.secret})
        assert (answer.status_code, answer.json()["id"]) == (200, key_id)
        assert await answer_to(service, key.secret) == (401, "api_key_revoked")
    unknown = await service.anonymous.post(REPORT, {"secret": old_key().secret})
    assert refusal(unknown) == (404, "not_found")


async def test_leak_report_of_another_form_is_refused(service: Service) -> None:
    answer = await service.anonymous.post(REPORT, {"secret": "no key"})
    assert refusal(answer) == (422, "validation_failed")


async def test_export_of_the_tenant_has_it(service: Service) -> None:
    org = await service.organization()
    key = old_key()
    key_id = await import_key(service, org.id, key, externalId="cus_1")
    exported = await service.operator.get(f"{org.path}/export")
    [record] = [each for each in exported.json()["apiKeys"] if each["id"] == key_id]
    assert (record["externalId"], record["importedAs"]) == ("cus_1", "sha256")
    assert not any(text in exported.text for text in spellings(key.hash))


@pytest.mark.parametrize("is_used", [False, True])
async def test_pepper_may_change_between_import_and_first_use(
    conninfo: str, *, is_used: bool
) -> None:
    keys = [old_key("sha256"), old_key("sha512")]
    async with running_service(conninfo, API_KEY_PEPPER=OLD, **PATTERN) as before:
        org = await before.organization()
        for key in keys:
            await import_key(before, org.id, key, externalId=key.algorithm)
            if is_used:
                assert await answer_to(before, key.secret) == (200, "")
    async with running_service(conninfo, API_KEY_PEPPER=f"{NEW},{OLD}", **PATTERN) as both:
        for key in keys:
            [result] = await imported(both, org.id, key.member(), algorithm=key.algorithm)
            assert result["status"] == "digest_taken"
            both.clock.advance(seconds=1)
            assert await answer_to(both, key.secret) == (200, "")
    async with running_service(conninfo, API_KEY_PEPPER=NEW, **PATTERN) as after:
        for key in keys:
            assert await answer_to(after, key.secret) == (200, "")
            [result] = await imported(after, org.id, key.member(), algorithm=key.algorithm)
            assert result["status"] == "digest_taken"
            same = key.member(externalId=key.algorithm)
            [result] = await imported(after, org.id, same, algorithm=key.algorithm)
            assert result["status"] == "exists"


async def test_first_use_under_a_former_pepper_moves_the_key_to_the_newest(conninfo: str) -> None:
    key = old_key()
    async with running_service(conninfo, API_KEY_PEPPER=OLD, **PATTERN) as before:
        org = await before.organization()
        await import_key(before, org.id, key)
    async with running_service(conninfo, API_KEY_PEPPER=f"{NEW},{OLD}", **PATTERN) as both:
        assert await answer_to(both, key.secret) == (200, "")
    async with running_service(conninfo, API_KEY_PEPPER=NEW, **PATTERN) as after:
        assert await answer_to(after, key.secret) == (200, "")


async def test_rejection_of_an_imported_key_counts_as_that_of_a_key(service: Service) -> None:
    async with another(service) as other:
        assert await answer_to(other, old_key().secret) == (401, "invalid_credential")
        metrics = Shown((await other.anonymous.get("/metrics")).text)
    refused = "tenantry_credentials_refused_total"
    assert metrics.value(refused, kind="api_key", reason="invalid_credential") == 1
