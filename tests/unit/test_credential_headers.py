"""The headers that say who asks, and for which tenant."""

import pytest

from tenantry.api.auth import header_text
from tenantry.auth.authentication import bearer_credential, requested_organization
from tenantry.domain.errors import (
    InvalidCredentialError,
    MissingCredentialError,
    NoOrganizationError,
    OrgMismatchError,
)


@pytest.mark.parametrize(
    "value", [b"Bearer abc", b"bearer abc", b"BEARER abc", b"Bearer  abc ", b"Bearer \tabc"]
)
def test_scheme_has_no_case_and_blanks_do_not_count(value: bytes) -> None:
    assert bearer_credential(value) == b"abc"


@pytest.mark.parametrize("value", [None, b""])
def test_no_header_is_no_credential(value: bytes | None) -> None:
    with pytest.raises(MissingCredentialError):
        bearer_credential(value)


@pytest.mark.parametrize(
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
    ],
)
def test_anything_else_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidCredentialError):
        bearer_credential(value)


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("header", [b"other", b"", b"ACME", b"acme ", b"acme, acme", b"\xe9"])
def test_header_must_equal_the_claim(header: bytes) -> None:
    with pytest.raises(OrgMismatchError):
        requested_organization("acme", header)


@pytest.mark.parametrize("name", ["", "a b", "é", "a" * 65, "a\n", "a/b"])
def test_invalid_tenant_id_is_no_organization(name: str) -> None:
    with pytest.raises(NoOrganizationError):
        requested_organization(None, name.encode("latin-1"))
    with pytest.raises(NoOrganizationError):
        requested_organization(name, None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("user_1", b"user_1"), ("a b", b"a?b"), ("é\r\n", b"???"), ("a" * 300, b"a" * 256), ("", b"")],
)
def test_header_to_a_gateway_is_visible_ascii_of_256_bytes(text: str, shown: bytes) -> None:
    assert header_text(text) == shown
