"""The rules of a key's external id and metadata."""

import pytest

from tenantry.domain.api_keys import DEFAULT_FORMAT, KeyChanges, KeyFormat, check_optional_terms
from tenantry.domain.errors import ValidationError
from tenantry.domain.permissions import Mode
from tests.support.cases import cases

SECRET = DEFAULT_FORMAT.compose(Mode.LIVE, bytes(range(32)))


@cases("external_id", ["a", "!", "~" * 255, "cus_4711", "svc_live_AbCd...wxyz", None])
def test_external_id_is_up_to_255_visible_characters(external_id: str | None) -> None:
    check_optional_terms(KeyChanges(external_id=external_id))


@cases("external_id", ["", "a" * 256, "a b", "a\n", "a\x00", "\x7f", "Müller", "a\u202eb"])
def test_other_external_ids_are_refused(external_id: str) -> None:
    with pytest.raises(ValidationError) as refused:
        check_optional_terms(KeyChanges(external_id=external_id))
    assert [location for location, _ in refused.value.faults] == ["externalId"]


@cases(
    "metadata",
    [None, {}, {"a": ""}, {"Straße 7": "Zürich, 3. Stock"}, {"k": "v" * 2040}, {"k": "é" * 1020}],
)
def test_metadata_is_at_most_2_kib_of_json(metadata: dict[str, str]) -> None:
    check_optional_terms(KeyChanges(metadata=metadata))


@cases(
    "metadata",
    [
        {"k": "v" * 2041},
        {"k": "é" * 1021},
        {f"k{number}": "" for number in range(300)},
        {"": "v"},
        {"a\n": "v"},
        {"a": "v\x00"},
        {"a": "v\u202e"},
        {"a\x1b[2J": "v"},
    ],
)
def test_other_metadata_are_refused(metadata: dict[str, str]) -> None:
    with pytest.raises(ValidationError) as refused:
        check_optional_terms(KeyChanges(metadata=metadata))
    assert [location for location, _ in refused.value.faults] == ["metadata"]


@cases(
    ("external_id", "metadata"),
    [
        (SECRET, {}),
        (f"key={SECRET}", {}),
        (None, {"key": SECRET}),
        (None, {"curl": f"-H 'Authorization: Bearer {SECRET}'"}),
        (None, {SECRET: ""}),
        (KeyFormat("acme").compose(Mode.TEST, bytes(32)), {}),
    ],
)
def test_a_whole_key_is_refused_and_not_repeated(
    external_id: str | None, metadata: dict[str, str]
) -> None:
    with pytest.raises(ValidationError) as refused:
        check_optional_terms(KeyChanges(external_id=external_id, metadata=metadata))
    [(_, message)] = refused.value.faults
    assert message == "contains an API key: never store a secret here"
