"""The headers that say who asks, and for which tenant."""

import pytest

from tenantry.api.auth import header_text
from tenantry.auth.authentication import requested_organization
from tenantry.auth.credentials import CredentialFinder, CredentialKind
from tenantry.domain.api_keys import KeyFormat
from tenantry.domain.errors import (
    InvalidCredentialError,
    MissingCredentialError,
    NoOrganizationError,
    OrgMismatchError,
)
from tests.support.cases import cases

BEARER_ALONE = CredentialFinder()
WITH_HEADER = CredentialFinder(KeyFormat("acme", ["old"]), "X-API-Key")
KEYS = [b"acme_live_x", b"old_x", b"svc_test_x"]


@cases("value", [b"Bearer abc", b"bearer abc", b"BEARER abc", b"Bearer  abc ", b"Bearer \tabc"])
def test_scheme_has_no_case_and_blanks_do_not_count(value: bytes) -> None:
    assert BEARER_ALONE.find(value).value == b"abc"
    assert WITH_HEADER.find(value).value == b"abc"


@pytest.mark.parametrize("value", [None, b""])
def test_no_header_is_no_credential(value: bytes | None) -> None:
    with pytest.raises(MissingCredentialError):
        BEARER_ALONE.find(value)


@cases(
    "value",
    [
        b"abc",
        b"Basic abc",
        b"Bearer",
        b"Bearer ",
        b"Bearerabc",
        b"Token abc",
        b" Bearer abc",
        b"Bearer \xe9",
        b"Bearer " + b"a" * 16_385,
        b"Api-Key svc_live_x",
        b"ApiKey svc_live_x",
    ],
)
def test_anything_else_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidCredentialError):
        BEARER_ALONE.find(value)


@cases(
    ("finder", "value", "kind"),
    [
        (BEARER_ALONE, b"svc_anything", CredentialKind.API_KEY),
        (BEARER_ALONE, b"acme_live_x", CredentialKind.OTHER),
        (BEARER_ALONE, b"a.b.c", CredentialKind.TOKEN),
        (BEARER_ALONE, b"svc_a.b.c", CredentialKind.API_KEY),
        (BEARER_ALONE, b"operator-token", CredentialKind.OTHER),
        (WITH_HEADER, b"a.b", CredentialKind.OTHER),
        *((WITH_HEADER, key, CredentialKind.API_KEY) for key in KEYS),
    ],
)
def test_form_says_what_a_credential_is(
    finder: CredentialFinder, value: bytes, kind: CredentialKind
) -> None:
    assert finder.find(b"Bearer " + value).kind is kind


@cases("key", KEYS)
def test_key_may_come_in_the_header_for_keys_or_with_their_scheme(key: bytes) -> None:
    wanted = (CredentialKind.API_KEY, key)
    for found in (
        WITH_HEADER.find(None, key),
        WITH_HEADER.find(b"", b" " + key + b"\t"),
        WITH_HEADER.find(b"Api-Key " + key),
        WITH_HEADER.find(b"API-KEY  " + key + b" ", b""),
    ):
        assert (found.kind, found.value) == wanted


@cases(
    ("authorization", "key"),
    [
        (b"Bearer svc_live_x", b"svc_live_x"),
        (b"Bearer a.b.c", b"svc_live_x"),
        (b"Api-Key svc_live_x", b"svc_live_x"),
        (b"Basic eDp5", b"svc_live_x"),
        (b"Bearer", b"x"),
    ],
)
def test_two_credentials_are_refused(authorization: bytes, key: bytes) -> None:
    with pytest.raises(InvalidCredentialError, match=r"one credential.*X-API-Key"):
        WITH_HEADER.find(authorization, key)


@cases("value", [b"a.b.c", b"operator-token", b"Bearer svc_live_x", b" ", b"\xff"])
def test_header_and_scheme_for_keys_take_nothing_else(value: bytes) -> None:
    for authorization, key in ((None, value), (b"Api-Key " + value, None)):
        with pytest.raises(InvalidCredentialError):
            WITH_HEADER.find(authorization, key)


def test_missing_credential_is_told_where_it_may_be() -> None:
    for empty in (None, b""):
        with pytest.raises(MissingCredentialError, match="X-API-Key: <API key>"):
            WITH_HEADER.find(empty, empty)
    with pytest.raises(MissingCredentialError, match=r"<API key or token>\.$"):
        BEARER_ALONE.find(None)


def test_header_for_keys_is_read_only_where_it_is_set() -> None:
    headers = {b"authorization": b"Bearer a.b.c", b"x-api-key": b"svc_live_x"}
    assert BEARER_ALONE.find_in(headers.get).kind is CredentialKind.TOKEN
    with pytest.raises(InvalidCredentialError):
        WITH_HEADER.find_in(headers.get)


@cases(
    ("authorization", "key", "label"),
    [
        (None, None, "none"),
        (b"", b"", "none"),
        (b"Bearer a.b.c", None, "token"),
        (b"Basic eDp5", None, "token"),
        (b"Bearer acme_x", None, "api_key"),
        (b"Basic svc_x", None, "api_key"),
        (b"Api-Key x", None, "api_key"),
        (None, b"x", "api_key"),
        (b"Bearer a.b.c", b"x", "api_key"),
    ],
)
def test_metrics_name_what_a_rejected_request_seems_to_have_sent(
    authorization: bytes | None, key: bytes | None, label: str
) -> None:
    assert WITH_HEADER.label(authorization, key) == label


def test_metrics_name_no_scheme_that_is_not_accepted() -> None:
    assert BEARER_ALONE.label(b"Api-Key x") == "token"
    assert BEARER_ALONE.label(b"Bearer acme_x") == "token"


@cases(
    ("claimed", "header", "wanted"),
    [
        (None, None, None),
        ("acme", None, "acme"),
        (None, b"acme", "acme"),
        ("acme", b"acme", "acme"),
    ],
)
def test_claim_and_header_name_the_tenant(
    claimed: str | None, header: bytes | None, wanted: str | None
) -> None:
    assert requested_organization(claimed, header) == wanted


@cases("header", [b"other", b"", b"ACME", b"acme ", b"acme, acme", b"\xe9"])
def test_header_must_equal_the_claim(header: bytes) -> None:
    with pytest.raises(OrgMismatchError):
        requested_organization("acme", header)


@cases("name", ["", "a b", "é", "a" * 65, "a\n", "a/b"])
def test_invalid_tenant_id_is_no_organization(name: str) -> None:
    with pytest.raises(NoOrganizationError):
        requested_organization(None, name.encode("latin-1"))
    with pytest.raises(NoOrganizationError):
        requested_organization(name, None)


@cases(
    ("text", "shown"),
    [("user_1", b"user_1"), ("a b", b"a?b"), ("é\r\n", b"???"), ("a" * 300, b"a" * 256), ("", b"")],
)
def test_header_to_a_gateway_is_visible_ascii_of_256_bytes(text: str, shown: bytes) -> None:
    assert header_text(text) == shown
