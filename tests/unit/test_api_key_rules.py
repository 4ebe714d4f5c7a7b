"""What a caller may make a key into, and what a key is at a moment."""

from datetime import datetime, timedelta

import msgspec
import pytest

from tenantry.auth.api_keys import normalize
from tenantry.domain.api_keys import KeyStatus, check_may_change, check_may_create, status_at
from tenantry.domain.errors import ModeMismatchError, ScopeEscalationError, ValidationError
from tenantry.domain.permissions import AccessLevel, Mode, PrincipalKind, RequestPrincipal
from tests.support.cases import cases
from tests.support.principals import NOW, make_key, make_principal

SOON, LATER = NOW + timedelta(hours=1), NOW + timedelta(hours=2)
LIVE, TEST, SCOPED, OWNER = Mode.LIVE, Mode.TEST, AccessLevel.SCOPED, AccessLevel.OWNER


def may_make(
    maker: RequestPrincipal,
    *scopes: str,
    level: AccessLevel = SCOPED,
    mode: Mode = LIVE,
    expires_at: datetime | None = None,
) -> None:
    key = make_key(*scopes, owner=level is OWNER, mode=mode, expires_at=expires_at)
    check_may_create(maker, key)


def test_caller_creates_keys_with_its_own_scopes() -> None:
    may_make(make_principal("projects:*"), "projects:read", "projects:*")


def test_missing_scopes_are_named() -> None:
    with pytest.raises(ScopeEscalationError, match="billing:read") as refusal:
        may_make(make_principal("projects:read"), "projects:read", "billing:read")
    assert "projects:read" not in refusal.value.detail


def test_all_scopes_are_not_the_owner_level() -> None:
    with pytest.raises(ScopeEscalationError):
        may_make(make_principal("*:*"), "*:*", level=OWNER)


def test_owner_creates_an_owner_key() -> None:
    may_make(make_principal(owner=True), "*:*", level=OWNER)


def test_test_mode_creates_no_live_keys() -> None:
    with pytest.raises(ModeMismatchError):
        may_make(make_principal(owner=True, mode=TEST), "a:b", mode=LIVE)


def test_live_mode_creates_test_keys() -> None:
    may_make(make_principal(owner=True), "a:b", mode=TEST)


@pytest.mark.parametrize("expires_at", [None, LATER])
def test_key_creates_no_key_that_outlives_it(expires_at: datetime | None) -> None:
    with pytest.raises(ScopeEscalationError, match="expires later"):
        may_make(make_principal("a:b", expires_at=SOON), "a:b", expires_at=expires_at)


def test_key_creates_a_key_with_the_same_expiry() -> None:
    may_make(make_principal("a:b", expires_at=SOON), "a:b", expires_at=SOON)


def test_user_creates_a_key_that_outlives_the_token() -> None:
    may_make(make_principal("a:b", kind=PrincipalKind.USER, expires_at=SOON), "a:b")


@cases("scope", ["members:write", "members:*", "*:write", "*:*"])
def test_user_whose_role_gives_some_roles_makes_no_key_that_manages_members(scope: str) -> None:
    lead = msgspec.structs.replace(
        make_principal("*:*", kind=PrincipalKind.USER), gives=frozenset({"support"})
    )
    with pytest.raises(ScopeEscalationError, match="cannot put members:write into a key"):
        may_make(lead, "projects:read", scope)
    may_make(lead, "projects:read", "members:read")


def test_only_an_owner_changes_an_owner_key() -> None:
    key = make_key(owner=True)
    with pytest.raises(ScopeEscalationError):
        check_may_change(make_principal("*:*"), key, msgspec.structs.replace(key, name="mine"))


def test_caller_with_fewer_scopes_renames_and_shortens_a_key() -> None:
    key = make_key("projects:*", expires_at=LATER)
    check_may_change(
        make_principal("api-keys:write"),
        key,
        msgspec.structs.replace(key, name="mine", expires_at=SOON),
    )


def test_caller_with_fewer_scopes_cannot_prolong_a_key() -> None:
    key = make_key("projects:*", expires_at=SOON)
    with pytest.raises(ScopeEscalationError):
        check_may_change(
            make_principal("api-keys:write"), key, msgspec.structs.replace(key, expires_at=LATER)
        )


def test_caller_adds_no_scopes_to_a_key_that_outlives_it() -> None:
    key = make_key("a:b")
    with pytest.raises(ScopeEscalationError, match="expires later"):
        check_may_change(
            make_principal("*:*", expires_at=SOON),
            key,
            msgspec.structs.replace(key, scopes=("c:d",)),
        )


def test_only_an_owner_raises_a_key_to_owner() -> None:
    key = make_key("*:*")
    raised = msgspec.structs.replace(key, access_level=OWNER)
    check_may_change(make_principal(owner=True), key, raised)
    with pytest.raises(ScopeEscalationError):
        check_may_change(make_principal("*:*"), key, raised)


@cases(
    ("revoked_at", "expires_at", "status"),
    [
        (None, None, KeyStatus.ACTIVE),
        (None, SOON, KeyStatus.ACTIVE),
        (None, NOW, KeyStatus.EXPIRED),
        (NOW, None, KeyStatus.REVOKED),
        (NOW, NOW - timedelta(days=1), KeyStatus.REVOKED),
    ],
)
def test_status_of_a_key(
    revoked_at: datetime | None, expires_at: datetime | None, status: KeyStatus
) -> None:
    assert status_at(NOW, revoked_at, expires_at) is status


@cases(
    ("scopes", "level"),
    [
        (("OWNER",), None),
        (("OWNER",), OWNER),
        ((), OWNER),
        (("*:*",), OWNER),
        (("OWNER", "*:*"), None),
    ],
)
def test_owner_has_several_spellings(scopes: tuple[str, ...], level: AccessLevel | None) -> None:
    assert normalize(scopes, level) == (("*:*",), OWNER)


@cases(
    ("scopes", "level"),
    [((), None), ((), SCOPED), (("OWNER",), SCOPED), (("OWNER", "a:b"), None), (("a:b",), OWNER)],
)
def test_contradictory_and_empty_scopes_are_rejected(
    scopes: tuple[str, ...], level: AccessLevel | None
) -> None:
    with pytest.raises(ValidationError) as refusal:
        normalize(scopes, level)
    assert [where for where, _ in refusal.value.faults] == ["scopes"]


def test_scopes_keep_their_order_without_duplicates() -> None:
    assert normalize(("b:c", "a:b", "b:c"), None) == (("b:c", "a:b"), SCOPED)


def test_all_scopes_alone_are_not_owner() -> None:
    assert normalize(("*:*",), None) == (("*:*",), SCOPED)
