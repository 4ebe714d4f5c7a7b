"""``tenantry admin import-keys`` and ``imported-keys``, and requests with the imported keys."""

import base64
import csv
import hashlib
import io
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.app import PEPPER
from tests.support.command_runner import invoke_async
from tests.support.commands import Done
from tests.support.emptying import SharedDatabase
from tests.support.imported_keys import IMPORTED_KEY_PATTERN, OldKey, old_key
from tests.support.postgres import as_url
from tests.support.service import PROJECTS, TENANTS, Organization, Service, running_service

SCOPE: Final = ("--scope", "projects:read")


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    async with running_service(
        shared_database.conninfo, IMPORTED_KEY_PATTERN=IMPORTED_KEY_PATTERN
    ) as service:
        yield service


class Operator:
    """An operator at a shell, with files."""

    def __init__(self, service: Service, folder: Path) -> None:
        self._service = service
        self._folder = folder

    async def run(self, *arguments: str, given: str | None = None, **values: str) -> Done:
        settings = {
            "DATABASE_URL": as_url(self._service.conninfo),
            "API_KEY_PEPPER": PEPPER,
            "IMPORTED_KEY_PATTERN": IMPORTED_KEY_PATTERN,
            **values,
        }
        return await invoke_async("admin", *arguments, folder=self._folder, given=given, **settings)

    async def load(self, content: str, source: str, *options: str, **values: str) -> Done:
        """Import a file with this content."""
        return await self.run(
            "import-keys", "-", "--from", source, *options, given=content, **values
        )

    async def loaded(self, content: str, source: str, *options: str) -> dict[str, Any]:
        """Import a file, and return the summary."""
        done = await self.load(content, source, *options, "--json")
        assert (done.code, done.err) == (0, "")
        summary: dict[str, Any] = json.loads(done.out)
        return summary


@pytest.fixture
def operator(service: Service, tmp_path: Path) -> Operator:
    return Operator(service, tmp_path)


def lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def csv_of(rows: list[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def drf_row(key: OldKey, **fields: Any) -> dict[str, Any]:
    prefix = hashlib.sha256(key.secret.encode()).hexdigest()[:8]
    hashed = f"sha512$${key.hash.hex()}"
    return {
        "id": f"{prefix}.{hashed}",
        "prefix": prefix,
        "hashed_key": hashed,
        "created": "2024-05-06 07:08:09.123+00:00",
        "name": "CI",
        "revoked": "False",
        "expiry_date": None,
        **fields,
    }


def better_auth_row(key: OldKey, org: Organization, **fields: Any) -> dict[str, Any]:
    hashed = base64.urlsafe_b64encode(key.hash).decode().rstrip("=")
    return {
        "id": f"id-{key.secret[-8:]}",
        "name": None,
        "start": key.secret[:6],
        "prefix": "old_",
        "key": hashed,
        "referenceId": org.id,
        "enabled": True,
        "createdAt": "2024-05-06T07:08:09.000Z",
        "expiresAt": None,
        "permissions": '{"projects":["read"]}',
        "metadata": '{"tier":"gold"}',
        **fields,
    }


def unkey_row(key: OldKey, org: Organization, **fields: Any) -> dict[str, Any]:
    return {
        "keyId": f"key_{key.secret[-8:]}",
        "start": key.secret[:6],
        "enabled": True,
        "name": "CI",
        "meta": {"tier": "gold"},
        "createdAt": 1_714_979_289_000,
        "identity": {"id": "id_1", "externalId": org.id},
        "permissions": ["projects.read"],
        "hash": base64.b64encode(key.hash).decode(),
        **fields,
    }


async def status_of(service: Service, key: OldKey) -> int:
    return (await service.caller(key.secret).get(PROJECTS)).status_code


async def keys_of(service: Service, org: Organization) -> list[dict[str, Any]]:
    exported = (await service.operator.get(f"{TENANTS}/{org.id}/export")).json()
    return [key for key in exported["apiKeys"] if key["createdBy"] == "operator"]


async def test_faulty_pattern_is_named(operator: Operator) -> None:
    done = await operator.load("[]", "jsonl", *SCOPE, IMPORTED_KEY_PATTERN="(a*)*")
    assert (done.code, done.out) == (1, "")
    assert "IMPORTED_KEY_PATTERN: has a part that is not allowed" in done.err


@pytest.mark.parametrize("form", [csv_of, lines])
async def test_keys_of_djangorestframework_api_key_work(
    service: Service, operator: Operator, form: Any
) -> None:
    org = await service.organization()
    keys = [old_key("sha512") for _ in range(3)]
    rows = [drf_row(keys[0]), drf_row(keys[1], revoked="True"), drf_row(keys[2])]
    summary = await operator.loaded(form(rows), "drf", "--org", org.id, *SCOPE)
    assert summary == {
        "dryRun": False,
        "created": 2,
        "exists": 0,
        "digestTaken": [],
        "skipped": {"revoked": 1},
    }
    assert [await status_of(service, key) for key in keys] == [200, 401, 200]
    shown = (await keys_of(service, org))[0]
    assert (shown["externalId"], shown["start"]) == (rows[0]["prefix"], rows[0]["prefix"])
    assert shown["createdAt"] == "2024-05-06T07:08:09.123000Z"


async def test_keys_of_better_auth_work_in_the_tenants_that_they_name(
    service: Service, operator: Operator
) -> None:
    orgs = [await service.organization() for _ in range(2)]
    keys = [old_key(), old_key()]
    rows = [better_auth_row(key, org) for key, org in zip(keys, orgs, strict=True)]
    summary = await operator.loaded(json.dumps(rows), "better-auth", "--org-field", "referenceId")
    assert summary["created"] == 2
    for key, org in zip(keys, orgs, strict=True):
        assert await status_of(service, key) == 200
        [shown] = await keys_of(service, org)
        assert shown["metadata"] == {"tier": "gold", "referenceId": org.id}
        assert shown["name"] == shown["start"] == key.secret[:6]


async def test_keys_of_unkey_work(service: Service, operator: Operator) -> None:
    org = await service.organization()
    key = old_key()
    content = json.dumps({"meta": {}, "data": [unkey_row(key, org)]})
    assert (await operator.loaded(content, "unkey", "--org-field", "externalId"))["created"] == 1
    assert await status_of(service, key) == 200


async def test_lines_in_our_own_form_work(service: Service, operator: Operator) -> None:
    org = await service.organization()
    keys = [old_key(), old_key("sha512")]
    rows = [
        keys[0].member(orgId=org.id, externalId="a", mode="test"),
        keys[1].member(orgId=org.id, algorithm="sha512", metadata={"team": "growth"}),
    ]
    assert (await operator.loaded(lines(rows), "jsonl"))["created"] == 2
    assert [await status_of(service, key) for key in keys] == [200, 200]


async def test_csv_in_our_own_form_works(service: Service, operator: Operator) -> None:
    org = await service.organization()
    key = old_key()
    row = key.member(scopes="projects:read reports:write", metadata='{"team":"growth"}')
    content = csv_of([{**row, "expiresAt": "", "orgId": org.id}])
    assert (await operator.loaded(content, "jsonl"))["created"] == 1
    assert await status_of(service, key) == 200
    [shown] = await keys_of(service, org)
    assert shown["scopes"] == ["projects:read", "reports:write"]
    assert shown["metadata"] == {"team": "growth"}


async def test_plaintext_is_hashed_before_it_is_stored(
    service: Service, operator: Operator
) -> None:
    org = await service.organization()
    key = old_key()
    row = {"key": key.secret, "name": "CI", "scopes": ["projects:read"]}
    refused = await operator.load(lines([row]), "jsonl", "--org", org.id)
    assert (refused.code, refused.out) == (2, "")
    assert "line 1: key: pass --plaintext to hash keys in this process" in refused.err
    done = await operator.load(lines([row]), "jsonl", "--org", org.id, "--plaintext")
    assert done.code == 0
    assert key.secret not in refused.err + done.out + done.err
    assert await status_of(service, key) == 200
    [shown] = await keys_of(service, org)
    assert (shown["start"], shown["last4"]) == (key.secret[:9], key.secret[-4:])


@pytest.mark.parametrize(("source", "field"), [("better-auth", "key"), ("unkey", "plaintext")])
async def test_plaintext_of_other_systems_works(
    service: Service, operator: Operator, source: str, field: str
) -> None:
    org = await service.organization()
    key = old_key()
    row = {"id": f"id-{key.secret[-8:]}", field: key.secret, "name": "CI"}
    content = json.dumps([row])
    options = ("--org", org.id, "--plaintext", *SCOPE)
    assert (await operator.loaded(content, source, *options))["created"] == 1
    assert await status_of(service, key) == 200


async def test_key_without_a_hash_is_faulty(service: Service, operator: Operator) -> None:
    org = await service.organization()
    row = unkey_row(old_key(), org, hash=None, plaintext=old_key().secret)
    refused = await operator.load(json.dumps([row]), "unkey", "--org", org.id)
    assert refused.code == 2
    assert "entry 1: digest: is missing: for a file with the keys themselves" in refused.err
    assert row["plaintext"] not in refused.err


async def test_running_it_again_changes_nothing(service: Service, operator: Operator) -> None:
    org = await service.organization()
    content = lines([old_key().member(externalId=f"k{number}") for number in range(3)])
    assert (await operator.loaded(content, "jsonl", "--org", org.id))["created"] == 3
    before = await keys_of(service, org)
    again = await operator.loaded(content, "jsonl", "--org", org.id)
    assert (again["created"], again["exists"]) == (0, 3)
    assert await keys_of(service, org) == before


async def test_dry_run_says_what_would_be_imported_and_writes_nothing(
    service: Service, operator: Operator
) -> None:
    org = await service.organization()
    there = lines([old_key().member(externalId="there")])
    await operator.loaded(there, "jsonl", "--org", org.id)
    content = there + lines([old_key().member(externalId="new")])
    done = await operator.load(content, "jsonl", "--org", org.id, "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "1 key would be imported; 1 imported before; 0 with the hash of another key\n"
    )
    assert len(await keys_of(service, org)) == 1


async def test_every_fault_names_its_line_and_nothing_is_imported(
    service: Service, operator: Operator
) -> None:
    org = await service.organization()
    good = old_key()
    rows = [
        good.member(externalId="good"),
        old_key().member(digest="$2b$12$abcdefghijklmnopqrstuv"),
        old_key().member(digest="ab"),
        old_key().member(scopes=["everything"]),
        old_key().member(scopes=[]),
        old_key().member(name=""),
        old_key().member(name="a\u0007"),
        old_key().member(externalId="a b"),
        old_key().member(metadata={"a": 1}),
        old_key().member(orgId="nobody"),
        old_key().member(orgId=""),
        old_key().member(expiresAt="soon"),
        old_key().member(createdAt="2099-01-01T00:00:00Z"),
        {**good.member(), "digest": base64.b64encode(good.hash).decode()},
        old_key().member(externalId="good"),
        old_key().member(algorithm="md5"),
    ]
    content = lines({"orgId": org.id, **row} for row in rows)
    refused = await operator.load(content, "jsonl")
    assert (refused.code, refused.out) == (2, "")
    first, *found = refused.err.splitlines()
    assert first.endswith("Nothing was imported.")
    assert [line.split(": ")[:2] for line in found if line.startswith("line")] == [
        ["line 2", "digest"],
        ["line 3", "digest"],
        ["line 4", "scopes[0]"],
        ["line 5", "scopes"],
        ["line 6", "name"],
        ["line 8", "externalId"],
        ["line 9", "metadata[...]"],
        ["line 11", "orgId"],
        ["line 12", "expiresAt"],
        ["line 14", "digest"],
        ["line 15", "externalId"],
        ["line 16", "algorithm"],
    ]
    # What only the service and the database know is checked once the file is well-formed.
    rows = [rows[0], rows[6], rows[12], rows[9]]
    refused = await operator.load(lines({"orgId": org.id, **row} for row in rows), "jsonl")
    for fault in (
        "line 2: name: must not contain control characters",
        "line 3: createdAt: must not be in the future",
        "line 4: orgId: there is no tenant nobody",
    ):
        assert fault in refused.err
    assert await keys_of(service, org) == []


async def test_key_of_another_import_is_named_and_stays(
    service: Service, operator: Operator
) -> None:
    orgs = [await service.organization() for _ in range(2)]
    taken = old_key()
    await operator.loaded(lines([taken.member(externalId="a")]), "jsonl", "--org", orgs[0].id)
    content = lines([old_key().member(externalId="b"), taken.member(externalId="a")])
    done = await operator.load(content, "jsonl", "--org", orgs[1].id)
    assert done.code == 1
    assert done.out == (
        "line 2: another key has this hash\n"
        "1 key imported; 0 imported before; 1 with the hash of another key\n"
    )
    assert len(await keys_of(service, orgs[1])) == 1


async def test_more_than_one_batch_is_imported(service: Service, operator: Operator) -> None:
    org = await service.organization()
    keys = [old_key() for _ in range(1001)]
    content = lines(key.member(externalId=key.secret[4:20]) for key in keys)
    assert (await operator.loaded(content, "jsonl", "--org", org.id))["created"] == 1001
    assert await status_of(service, keys[-1]) == 200


async def test_key_in_plain_text_must_match_the_pattern(
    service: Service, operator: Operator
) -> None:
    org = await service.organization()
    row = {"key": old_key().secret, "name": "CI", "scopes": ["projects:read"]}
    options = ("--org", org.id, "--plaintext")
    refused = await operator.load(
        lines([row]), "jsonl", *options, IMPORTED_KEY_PATTERN="other_.{32}"
    )
    assert refused.code == 2
    assert "line 1: key: does not match IMPORTED_KEY_PATTERN" in refused.err


async def test_part_of_a_key_in_plain_text_is_hashed(service: Service, operator: Operator) -> None:
    org = await service.organization()
    pattern = {"IMPORTED_KEY_PATTERN": r"\d+\|(?P<secret>\w+)"}
    key = f"17|{old_key().secret}"
    rows = [
        {"key": one, "name": "CI", "scopes": ["projects:read"]}
        for one in (key, "17|", "no-part", "17|a.b.c")
    ]
    options = ("jsonl", "--org", org.id, "--plaintext")
    refused = await operator.load(lines(rows), *options, **pattern)
    assert refused.code == 2
    assert refused.err.splitlines()[1:] == [
        "line 2: key: does not match IMPORTED_KEY_PATTERN",
        "line 3: key: does not match IMPORTED_KEY_PATTERN",
        "line 4: key: has two dots, as tokens have: no pattern makes it a key",
    ]
    assert (await operator.load(lines(rows[:1]), *options, **pattern)).code == 0
    async with running_service(service.conninfo, **pattern) as other:
        assert (await other.caller(key).get(PROJECTS)).status_code == 200
    [shown] = await keys_of(service, org)
    assert (shown["start"], shown["last4"]) == (key[:9], key[-4:])


async def test_missing_pattern_is_said(service: Service, operator: Operator) -> None:
    org = await service.organization()
    content = lines([old_key().member()])
    done = await operator.load(content, "jsonl", "--org", org.id, IMPORTED_KEY_PATTERN="")
    assert done.code == 0
    assert "IMPORTED_KEY_PATTERN is not set" in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--from", "drf", "--plaintext"), "stores no keys"),
        (("--from", "jsonl", "--scope", "all"), "'all' is not <resource>:<action>"),
        (("--from", "jsonl", "--org", "a b"), "is no tenant id"),
        (("--from", "okta"), "'okta' is not one of"),
    ],
)
async def test_wrong_option_is_a_usage_error(
    operator: Operator, options: tuple[str, ...], message: str
) -> None:
    refused = await operator.run("import-keys", "-", *options, given="")
    assert (refused.code, refused.out) == (2, "")
    assert message in refused.err


@pytest.mark.parametrize("options", [(), ("--plaintext",)])
async def test_file_without_a_line_of_names_shows_no_key(
    operator: Operator, options: tuple[str, ...]
) -> None:
    key = old_key()
    content = f"{key.secret},CI\n{old_key().secret},other\n"
    refused = await operator.load(content, "jsonl", "--org", "acme", *options, *SCOPE)
    assert refused.code == 2
    assert key.secret not in refused.err


async def test_key_that_is_the_name_of_a_field_is_not_shown(operator: Operator) -> None:
    key, other = old_key(), old_key()
    content = lines([{**other.member(), key.secret: "CI"}])
    refused = await operator.load(content, "jsonl", "--org", "acme", *SCOPE)
    assert refused.code == 2
    assert "has a field that is none of an imported key" in refused.err
    assert key.secret not in refused.err


async def test_imported_keys_are_listed_by_use(service: Service, operator: Operator) -> None:
    org = await service.organization()
    used, unused, ended = (old_key() for _ in range(3))
    rows = [
        used.member(externalId="used"),
        unused.member(externalId="unused"),
        ended.member(externalId="ended", expiresAt="2020-01-01T00:00:00Z"),
    ]
    await operator.loaded(lines(rows), "jsonl", "--org", org.id)
    async with running_service(  # its end stores the use
        service.conninfo, IMPORTED_KEY_PATTERN=IMPORTED_KEY_PATTERN
    ) as other:
        assert await status_of(other, used) == 200
    counts = [
        json.loads(line)
        for line in (await operator.run("imported-keys", "--json")).out.splitlines()
    ]
    assert {"orgId": org.id, "used": 1, "unused": 1, "ended": 1} in counts
    listed = await operator.run("imported-keys", "--org", org.id)
    rows_of = {line.split()[1]: line for line in listed.out.splitlines()[1:]}
    assert rows_of.keys() == {"used", "unused", "ended"}
    assert "not yet" in rows_of["unused"]
    assert "not yet" not in rows_of["used"]
    left = await operator.run("imported-keys", "--org", org.id, "--unused", "--json")
    assert [json.loads(line)["externalId"] for line in left.out.splitlines()] == ["unused"]
