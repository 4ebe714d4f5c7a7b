"""The operator imports keys that another system made: what is imported, refused and repeated."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import psycopg
import pytest

from tests.support.cases import cases
from tests.support.emptying import SharedDatabase
from tests.support.imported_keys import (
    IMPORTED_KEY_PATTERN,
    import_key,
    import_members,
    imported,
    old_key,
    spellings,
)
from tests.support.service import KEYS, PROJECTS, TENANTS, Service, refusal, running_service

PASSWORD_HASHES: Final = {
    "bcrypt": "$2b$12$C6UzMDM.H6dfI/f/IKxGhuGVd3Qz8u0S7V1U0l3mpcvVXq3FOaJ5e",
    "argon2": "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$RdescudvJCsgt3ub+b7dWRWJTmaaJObG",
    "argon2 of Django": "argon2$argon2id$v=19$m=102400,t=2,p=8$c29tZXNhbHQ$RdescudvJCsgt3ub",
    "scrypt": "scrypt:32768:8:1$yKq1IvsSzZ5n$7d2bf8cbc1e5a6a5e7a3b2f8",
    "PBKDF2": "pbkdf2_sha256$870000$yKq1IvsSzZ5n$0zQ1v0J1w0aQ5r7m0vQ7h7yQm2kq5p3e",
    "sha-crypt": "$6$rounds=5000$saltsalt$hash",
}


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    async with running_service(
        shared_database.conninfo, IMPORTED_KEY_PATTERN=IMPORTED_KEY_PATTERN
    ) as service:
        yield service


async def keys_of(service: Service, org_id: str) -> list[dict[str, Any]]:
    """The keys of a tenant, oldest first, as the operator exports them."""
    exported = (await service.operator.get(f"{TENANTS}/{org_id}/export")).json()
    return [key for key in exported["apiKeys"] if key["createdBy"] == "operator"]


async def faults_of(service: Service, *members: dict[str, Any], **options: Any) -> dict[str, str]:
    """The faults of a refused import, by location."""
    org = await service.organization()
    answer = await import_members(service, org.id, *members, **options)
    assert refusal(answer) == (422, "validation_failed")
    assert await keys_of(service, org.id) == []
    return {fault["location"]: fault["message"] for fault in answer.json()["errors"]}


async def test_imported_key_has_the_fields_that_were_sent(service: Service) -> None:
    org = await service.organization()
    key_id = await import_key(
        service,
        org.id,
        old_key("sha512"),
        name="CI deploys",
        scopes=["projects:read", "projects:write", "projects:read"],
        mode="test",
        expiresAt="2099-01-01T00:00:00Z",
        createdAt="2019-05-06T08:00:00+01:00",
        externalId="cus_4711",
        metadata={"team": "growth"},
        allowedAddresses=["192.0.2.0/24"],
        enabled=False,
        requestsPerMinute=120,
        start="old_",
        last4="x9Qz",
    )
    shown = (await org.owner.get(f"{KEYS}/{key_id}")).json()
    assert shown == {
        "id": key_id,
        "orgId": org.id,
        "name": "CI deploys",
        "scopes": ["projects:read", "projects:write"],
        "accessLevel": "SCOPED",
        "mode": "test",
        "expiresAt": "2099-01-01T00:00:00Z",
        "status": "active",
        "start": "old_",
        "last4": "x9Qz",
        "createdAt": "2019-05-06T07:00:00Z",
        "createdBy": "operator",
        "lastUsedAt": None,
        "revokedAt": None,
        "rotatedFrom": None,
        "supersededBy": None,
        "lastUsedAddress": None,
        "externalId": "cus_4711",
        "metadata": {"team": "growth"},
        "allowedAddresses": ["192.0.2.0/24"],
        "enabled": False,
        "requestsPerMinute": 120,
        "importedAs": "sha512",
        "rotatedFromLastUsedAt": None,
        "leakReportedAt": None,
    }


async def test_key_without_optional_fields_gets_their_defaults(service: Service) -> None:
    org = await service.organization()
    key_id = await import_key(service, org.id, old_key())
    shown = (await org.owner.get(f"{KEYS}/{key_id}")).json()
    optional = ("mode", "expiresAt", "externalId", "metadata", "start", "last4")
    assert [shown[name] for name in optional] == ["live", None, None, {}, "", ""]
    assert shown["createdAt"] > org.key.record["createdAt"]


@cases(
    "fields",
    [{"accessLevel": "OWNER", "scopes": []}, {"scopes": ["OWNER"]}, {"scopes": ["*:*", "OWNER"]}],
)
async def test_owner_keys_can_be_imported(service: Service, fields: dict[str, object]) -> None:
    org = await service.organization()
    key_id = await import_key(service, org.id, old_key(), **fields)
    shown = (await org.owner.get(f"{KEYS}/{key_id}")).json()
    assert (shown["accessLevel"], shown["scopes"]) == ("OWNER", ["*:*"])


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
async def test_hash_may_be_hex_base64_or_base64url(service: Service, algorithm: str) -> None:
    org = await service.organization()
    keys = [old_key(algorithm) for _ in range(6)]
    members = [key.member(digest=spellings(key.hash)[number]) for number, key in enumerate(keys)]
    await imported(service, org.id, *members, algorithm=algorithm)
    for key in keys:
        assert (await service.caller(key.secret).get(PROJECTS)).status_code == 200


@cases("name", PASSWORD_HASHES)
async def test_password_hash_is_refused_with_the_reason(service: Service, name: str) -> None:
    text = PASSWORD_HASHES[name]
    faults = await faults_of(service, old_key().member(digest=text))
    assert name.split(maxsplit=1)[0] in faults["keys[0].digest"]
    assert "100 ms" in faults["keys[0].digest"]
    assert text not in faults["keys[0].digest"]


@cases("algorithm", ["bcrypt", "argon2id", "scrypt", "pbkdf2_sha256"])
async def test_algorithm_of_passwords_is_refused_with_the_reason(
    service: Service, algorithm: str
) -> None:
    faults = await faults_of(service, old_key().member(), algorithm=algorithm)
    assert "100 ms" in faults["algorithm"]


@cases("algorithm", ["md5", "sha1", "SHA256", ""])
async def test_other_algorithms_are_refused(service: Service, algorithm: str) -> None:
    faults = await faults_of(service, old_key().member(), algorithm=algorithm)
    assert faults == {"algorithm": "must be sha256 or sha512"}


async def test_each_faulty_member_is_named_and_nothing_is_imported(service: Service) -> None:
    good, twice, same_id = old_key(), old_key(), old_key()
    digest = old_key().hash.hex()
    faults = await faults_of(
        service,
        good.member(),
        old_key().member(digest="not a hash"),
        old_key().member(digest=old_key("sha512").hash.hex()),
        old_key().member(digest=f"sha256$${digest}"),
        old_key().member(scopes=[]),
        old_key().member(accessLevel="OWNER"),
        old_key().member(name="a\nb"),
        old_key().member(createdAt="2100-01-01T00:00:00Z"),
        old_key().member(metadata={"notes": "x" * 2100}),
        old_key().member(digest=digest, externalId=f"prefix.{digest}"),
        twice.member(externalId="1"),
        twice.member(externalId="2"),
        same_id.member(externalId="1"),
    )
    assert faults == {
        "keys[1].digest": "is neither hex, base64 nor base64url",
        "keys[2].digest": "must have 32 bytes for sha256; it has 64",
        "keys[3].digest": "must be the hash alone, without its algorithm or a salt before it",
        "keys[4].scopes": "give at least one scope",
        "keys[5].scopes": "OWNER stands alone: give no other scopes with it",
        "keys[6].name": faults["keys[6].name"],
        "keys[7].createdAt": "must not be in the future",
        "keys[8].metadata": faults["keys[8].metadata"],
        "keys[9].externalId": "contains the hash: leave it out",
        "keys[11].digest": "is that of keys[10] too",
        "keys[12].externalId": "is that of keys[10] too",
    }


@cases(
    ("fields", "location"),
    [
        ({"scopes": ["projects"]}, "keys[1].scopes[0]"),
        ({"start": "longer than 13"}, "keys[1].start"),
        ({"last4": "12345"}, "keys[1].last4"),
        ({"mode": "both"}, "keys[1].mode"),
        ({"createdAt": "2019-05-06T08:00:00"}, "keys[1].createdAt"),
        ({"externalId": "two words"}, "keys[1].externalId"),
        ({"secret": "x"}, "keys[1].secret"),
    ],
)
async def test_malformed_member_is_named(
    service: Service, fields: dict[str, object], location: str
) -> None:
    assert list(await faults_of(service, old_key().member(), old_key().member(**fields))) == [
        location
    ]


async def test_a_thousand_keys_are_imported_and_one_more_is_refused(service: Service) -> None:
    org = await service.organization()
    metadata = {"team": "growth", "region": "eu"}
    members = [
        old_key().member(externalId=f"{number}", metadata=metadata, start="old_")
        for number in range(1001)
    ]
    answer = await import_members(service, org.id, *members)
    assert refusal(answer) == (422, "validation_failed")
    results = await imported(service, org.id, *members[:1000])
    assert {result["status"] for result in results} == {"created"}
    assert len(await keys_of(service, org.id)) == 1000


@pytest.mark.parametrize("external_id", ["cus_1", None])
async def test_repeated_import_changes_nothing(service: Service, external_id: str | None) -> None:
    org = await service.organization()
    member = old_key().member(externalId=external_id)
    [first] = await imported(service, org.id, member)
    before = await keys_of(service, org.id)
    [again] = await imported(service, org.id, {**member, "name": "other", "scopes": ["*:*"]})
    assert again == {"externalId": external_id, "id": first["id"], "status": "exists"}
    assert await keys_of(service, org.id) == before


async def test_key_is_recognized_by_its_external_id(service: Service) -> None:
    org = await service.organization()
    key_id = await import_key(service, org.id, old_key(), externalId="cus_1")
    [again] = await imported(service, org.id, old_key().member(externalId="cus_1"))
    assert (again["id"], again["status"]) == (key_id, "exists")


async def test_external_id_of_a_key_that_was_not_imported_is_free(service: Service) -> None:
    org = await service.organization()
    await service.key(org.owner, org.id, "projects:read", externalId="cus_1")
    await import_key(service, org.id, old_key(), externalId="cus_1")


async def test_external_id_of_another_tenant_is_free(service: Service) -> None:
    first, second = await service.organization(), await service.organization()
    await import_key(service, first.id, old_key(), externalId="cus_1")
    await import_key(service, second.id, old_key(), externalId="cus_1")


async def test_each_member_has_its_own_result(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    known, taken, new = old_key(), old_key(), old_key()
    known_id = await import_key(service, org.id, known, externalId="known")
    taken_id = await import_key(service, other.id, taken)
    results = await imported(
        service,
        org.id,
        taken.member(externalId="taken"),
        known.member(externalId="known"),
        new.member(),
    )
    assert results[:2] == [
        {"externalId": "taken", "id": taken_id, "status": "digest_taken"},
        {"externalId": "known", "id": known_id, "status": "exists"},
    ]
    assert (results[2]["externalId"], results[2]["status"]) == (None, "created")


async def test_the_key_itself_is_refused_in_every_field(service: Service) -> None:
    keys = [old_key() for _ in range(4)]
    members = [
        keys[0].member(name=keys[0].secret),
        keys[1].member(externalId=keys[1].secret),
        keys[2].member(metadata={"key": keys[2].secret}),
        keys[3].member(metadata={keys[3].secret: ""}),
    ]
    faults = await faults_of(service, *members)
    assert faults == dict.fromkeys(
        ["keys[0].name", "keys[1].externalId", "keys[2].metadata", "keys[3].metadata"],
        "is the key itself: never store a secret here",
    )


async def test_the_hash_is_refused_in_every_other_field(service: Service) -> None:
    keys = [old_key() for _ in range(4)]
    texts = [f"old {key.hash.hex().upper()}" for key in keys]
    members = [
        keys[0].member(name=texts[0]),
        keys[1].member(externalId=texts[1].replace(" ", ".")),
        keys[2].member(metadata={"hash": texts[2]}),
        keys[3].member(metadata={texts[3]: ""}),
    ]
    faults = await faults_of(service, *members)
    assert faults == dict.fromkeys(
        ["keys[0].name", "keys[1].externalId", "keys[2].metadata", "keys[3].metadata"],
        "contains the hash: leave it out",
    )


async def used(service: Service, _org: str, secret: str, _key_id: str) -> None:
    """Use a key, and wait until that is stored."""
    async with running_service(
        service.conninfo, IMPORTED_KEY_PATTERN=IMPORTED_KEY_PATTERN
    ) as other:
        assert (await other.caller(secret).get(PROJECTS)).status_code == 200


async def revoked(service: Service, org: str, _secret: str, key_id: str) -> None:
    owner = service.user("first", org=org, role="owner")
    assert (await owner.delete(f"{KEYS}/{key_id}")).status_code == 204


async def used_and_revoked(service: Service, org: str, secret: str, key_id: str) -> None:
    await used(service, org, secret, key_id)
    await revoked(service, org, secret, key_id)


async def nothing(_service: Service, _org: str, _secret: str, _key_id: str) -> None:
    """Leave the key as it is."""


@cases("happens", [nothing, used, revoked, used_and_revoked])
async def test_no_hash_is_imported_twice(
    service: Service, happens: Callable[[Service, str, str, str], Awaitable[None]]
) -> None:
    org, other = await service.organization(), await service.organization()
    key = old_key()
    key_id = await import_key(service, org.id, key, externalId="first")
    await happens(service, org.id, key.secret, key_id)
    for tenant, external_id in ((org.id, "second"), (org.id, None), (other.id, "first")):
        [result] = await imported(service, tenant, key.member(externalId=external_id))
        assert (result["id"], result["status"]) == (key_id, "digest_taken")
    [same] = await imported(service, org.id, key.member(externalId="first"))
    assert (same["id"], same["status"]) == (key_id, "exists")


async def test_two_imports_at_once_create_each_key_once(service: Service) -> None:
    org = await service.organization()
    members = [old_key().member(externalId=f"cus_{number}") for number in range(50)]
    results = await asyncio.gather(*(imported(service, org.id, *members) for _ in range(2)))
    statuses = [{result["status"] for result in each} for each in results]
    assert sorted(map(sorted, statuses)) == [["created"], ["exists"]]
    assert len(await keys_of(service, org.id)) == 50


async def test_imports_of_two_tenants_at_once_create_each_key_once(service: Service) -> None:
    tenants = [await service.organization() for _ in range(2)]
    members = [old_key().member() for _ in range(50)]
    orders = members, members[::-1]
    results = await asyncio.gather(
        *(imported(service, org.id, *order) for org, order in zip(tenants, orders, strict=True))
    )
    statuses = [result["status"] for each in results for result in each]
    assert (statuses.count("created"), statuses.count("digest_taken")) == (50, 50)
    assert sum([len(await keys_of(service, org.id)) for org in tenants]) == 50


async def test_import_that_breaks_off_leaves_nothing_and_can_be_repeated(service: Service) -> None:
    org = await service.organization()
    members = [old_key().member(externalId=f"cus_{number}") for number in range(3)]
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute(
            "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN "
            "PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
        )
        await connection.execute(
            "CREATE TRIGGER breaks AFTER INSERT ON audit_events FOR EACH ROW "
            f"WHEN (NEW.org_id = '{org.id}') EXECUTE FUNCTION broken()"
        )
        await connection.commit()
        answer = await import_members(service, org.id, *members)
        await connection.execute("DROP FUNCTION broken CASCADE")
    assert answer.status_code == 503
    assert await keys_of(service, org.id) == []
    assert {result["status"] for result in await imported(service, org.id, *members)} == {"created"}


async def test_only_the_operator_imports_keys(service: Service) -> None:
    org = await service.organization()
    path = f"{TENANTS}/{org.id}/api-keys/import"
    body = {"algorithm": "sha256", "keys": [old_key().member()]}
    assert refusal(await org.owner.post(path, body)) == (401, "invalid_credential")
    assert refusal(await service.anonymous.post(path, body)) == (401, "missing_credential")


@pytest.mark.parametrize("tenant_id", ["unknown", "no.tenant"])
async def test_unknown_tenant_is_not_found(service: Service, tenant_id: str) -> None:
    answer = await import_members(service, tenant_id, old_key().member())
    assert refusal(answer) == (404, "not_found")


async def test_ended_tenant_is_not_found(service: Service) -> None:
    org = await service.organization()
    await service.operator.delete(org.path)
    answer = await import_members(service, org.id, old_key().member())
    assert refusal(answer) == (404, "not_found")


async def test_audit_trail_has_each_imported_key_without_its_hash(service: Service) -> None:
    org = await service.organization()
    key = old_key()
    key_id = await import_key(service, org.id, key, name="CI", externalId="cus_1")
    page = (await org.owner.get("/api/v1/audit-events", action="api_key.imported")).json()
    [entry] = page["data"]
    assert (entry["targetId"], entry["actorKind"], entry["before"]) == (key_id, "operator", None)
    assert (entry["after"]["name"], entry["after"]["externalId"]) == ("CI", "cus_1")
    assert entry["after"]["importedAs"] == "sha256"
    assert not any(text in str(entry) for text in spellings(key.hash))


async def test_database_has_no_imported_hash(service: Service) -> None:
    org = await service.organization()
    key = old_key()
    await import_key(service, org.id, key)
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        rows = await (
            await connection.execute("SELECT k::text FROM api_keys k WHERE org_id = %s", (org.id,))
        ).fetchall()
    assert len(rows) == 2
    assert not any(key.hash.hex() in row for (row,) in rows)


async def test_limit_of_the_plan_stops_no_import_and_counts_imported_keys(service: Service) -> None:
    org = await service.organization()
    await imported(service, org.id, *(old_key().member() for _ in range(15)))
    more = await org.owner.post(
        KEYS, {"orgId": org.id, "name": "one more", "scopes": ["projects:read"]}
    )
    assert refusal(more) == (409, "key_limit_reached")
