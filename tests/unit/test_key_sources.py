"""What other systems export of their keys, in the form of ``import-keys --from jsonl``."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tenantry.cli.key_sources import KeySource, SkippedKeyError, translate
from tenantry.domain.errors import ValidationError
from tests.support.cases import cases

DRF = {
    "prefix": "aBcDeFgH",
    "hashed_key": "sha512$$" + "ab" * 64,
    "created": "2024-05-06T07:08:09.123Z",
    "name": "CI",
    "revoked": False,
    "expiry_date": None,
}
BETTER_AUTH = {
    "id": "k1",
    "configId": "default",
    "name": "CI",
    "start": "shop_aB",
    "referenceId": "acme",
    "prefix": "shop_",
    "key": "jNVfNr2rX5bGzFJmBGnAzzw5bPbDbHmQ0pXQ9OGRbO8",
    "enabled": True,
    "remaining": 5,
    "expiresAt": 1_893_456_000_000,
    "createdAt": "2024-05-06T07:08:09.000Z",
    "permissions": '{"projects":["read","write"]}',
    "metadata": '"{\\"tier\\":\\"gold\\",\\"seats\\":3}"',
}
UNKEY = {
    "keyId": "key_1",
    "start": "shop_aB",
    "enabled": True,
    "name": "CI",
    "meta": {"tier": "gold", "limits": {"rps": 5}, "none": None},
    "createdAt": 1_714_979_289_000,
    "expires": 1_893_456_000_000,
    "identity": {"id": "id_1", "externalId": "acme"},
    "permissions": ["projects.read", "reports:write"],
    "hash": {"value": "3q2+7w==", "variant": "sha256_base64"},
}


def translated(
    source: KeySource, fields: dict[str, Any], org_field: str | None = None
) -> dict[str, Any]:
    return translate(source, fields, org_field)


@pytest.mark.parametrize(
    "fields", [DRF, {"model": "rest_framework_api_key.apikey", "pk": "aBcDeFgH.x", "fields": DRF}]
)
def test_row_of_djangorestframework_api_key(fields: dict[str, Any]) -> None:
    assert translated(KeySource.DRF, fields) == {
        "algorithm": "sha512",
        "digest": "ab" * 64,
        "name": "CI",
        "externalId": "aBcDeFgH",
        "start": "aBcDeFgH",
        "createdAt": datetime(2024, 5, 6, 7, 8, 9, 123000, UTC),
    }


def test_hash_of_its_older_versions_stays_as_it_is() -> None:
    hashed = "pbkdf2_sha256$260000$salt$hash"
    assert translated(KeySource.DRF, {**DRF, "hashed_key": hashed})["digest"] == hashed


def test_row_of_better_auth() -> None:
    assert translated(KeySource.BETTER_AUTH, BETTER_AUTH) == {
        "digest": BETTER_AUTH["key"],
        "key": BETTER_AUTH["key"],
        "name": "CI",
        "externalId": "k1",
        "start": "shop_aB",
        "scopes": ["projects:read", "projects:write"],
        "metadata": {"tier": "gold", "seats": "3", "referenceId": "acme"},
        "createdAt": datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
        "expiresAt": datetime(2030, 1, 1, tzinfo=UTC),
    }


def test_key_of_unkey() -> None:
    assert translated(KeySource.UNKEY, UNKEY) == {
        "digest": "3q2+7w==",
        "name": "CI",
        "externalId": "key_1",
        "start": "shop_aB",
        "scopes": ["projects:read", "reports:write"],
        "metadata": {"tier": "gold", "limits": '{"rps":5}', "externalId": "acme"},
        "createdAt": datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
        "expiresAt": datetime(2030, 1, 1, tzinfo=UTC),
    }


def test_row_of_a_database_names_its_columns_in_snake_case() -> None:
    row = {
        "id": "key_1",
        "hash": "3q2+7w==",
        "start": "shop_aB",
        "enabled": "1",
        "owner_id": "acme",
        "created_at_m": "1714979289000",
        "expires": "2030-01-01 00:00:00",
    }
    found = translated(KeySource.UNKEY, row, "owner_id")
    assert (found["name"], found["externalId"], found["orgId"]) == ("shop_aB", "key_1", "acme")
    assert found["createdAt"] == datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    assert found["expiresAt"] == datetime(2030, 1, 1, tzinfo=UTC)


@cases(
    ("source", "fields", "org_field"),
    [
        (KeySource.BETTER_AUTH, BETTER_AUTH, "referenceId"),
        (KeySource.UNKEY, UNKEY, "externalId"),
        (KeySource.DRF, {**DRF, "organization": "acme"}, "organization"),
        (KeySource.JSONL, {"orgId": "acme"}, None),
        (KeySource.JSONL, {"orgId": "acme"}, "orgId"),
    ],
)
def test_a_field_names_the_tenant(
    source: KeySource, fields: dict[str, Any], org_field: str | None
) -> None:
    assert translated(source, fields, org_field)["orgId"] == "acme"


@cases(
    ("source", "fields", "why"),
    [
        (KeySource.DRF, {**DRF, "revoked": True}, "revoked"),
        (KeySource.DRF, {**DRF, "revoked": "t"}, "revoked"),
        (KeySource.DRF, {**DRF, "revoked": "T"}, "revoked"),
        (KeySource.DRF, {**DRF, "revoked": "yes"}, "revoked"),
        (KeySource.DRF, {"model": "shop.order", "fields": {"id": 1}}, "another model"),
        (KeySource.BETTER_AUTH, {**BETTER_AUTH, "enabled": False}, "disabled"),
        (KeySource.BETTER_AUTH, {**BETTER_AUTH, "enabled": "0"}, "disabled"),
        (KeySource.UNKEY, {**UNKEY, "enabled": False}, "disabled"),
        (KeySource.UNKEY, {**UNKEY, "deletedAt": "2024-01-01"}, "deleted"),
        (KeySource.UNKEY, {**UNKEY, "deleted_at_m": 1}, "deleted"),
    ],
)
def test_key_that_does_not_work_any_more_is_skipped(
    source: KeySource, fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(SkippedKeyError, match=f"^{why}$"):
        translated(source, fields)


@cases(
    ("source", "fields", "location"),
    [
        (KeySource.DRF, {**DRF, "created": "soon"}, "created"),
        (KeySource.DRF, {**DRF, "revoked": "1.0"}, "revoked"),
        (KeySource.DRF, {**DRF, "revoked": None}, "revoked"),
        (KeySource.DRF, {name: DRF[name] for name in ("prefix", "hashed_key", "name")}, "revoked"),
        (KeySource.DRF, {**DRF, "revoked": "WAHR"}, "revoked"),
        (KeySource.BETTER_AUTH, {**BETTER_AUTH, "enabled": "\1"}, "enabled"),
        (KeySource.DRF, {**DRF, "expiry_date": "9" * 30}, "expiry_date"),
        (KeySource.BETTER_AUTH, {**BETTER_AUTH, "permissions": "{"}, "permissions"),
        (
            KeySource.BETTER_AUTH,
            {**BETTER_AUTH, "permissions": {"projects": "read"}},
            "permissions",
        ),
        (KeySource.BETTER_AUTH, {**BETTER_AUTH, "metadata": "[1]"}, "metadata"),
        (KeySource.UNKEY, {**UNKEY, "permissions": {"a": 1}}, "permissions"),
    ],
)
def test_fault_names_the_field_of_the_file(
    source: KeySource, fields: dict[str, Any], location: str
) -> None:
    with pytest.raises(ValidationError) as fault:
        translated(source, fields)
    assert [where for where, _ in fault.value.faults] == [location]
