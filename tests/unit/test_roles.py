"""Roles of users: which one counts, and what it grants."""

from datetime import UTC, datetime

import pytest

from tenantry.domain.permissions import AccessLevel, Role, lower_role, role_grants
from tenantry.integrations.oidc.claims import Claims

MEMBER_SCOPES = ("projects:*", "tenants:read", "billing:read")


@pytest.mark.parametrize(
    ("claimed", "stored", "counts"),
    [
        (None, None, Role.MEMBER),
        (Role.OWNER, None, Role.OWNER),
        (None, Role.OWNER, Role.OWNER),
        (Role.OWNER, Role.MEMBER, Role.MEMBER),
        (Role.MEMBER, Role.OWNER, Role.MEMBER),
        (Role.ADMIN, Role.OWNER, Role.ADMIN),
        (Role.OWNER, Role.ADMIN, Role.ADMIN),
    ],
)
def test_lower_role_counts_and_silence_does_not(claimed: Role | None, stored: Role | None, counts: Role) -> None:
    assert lower_role(claimed, stored) is counts


@pytest.mark.parametrize(
    ("claim", "role"),
    [(None, None), ("owner", Role.OWNER), ("admin", Role.ADMIN), ("member", Role.MEMBER), ("Owner", Role.MEMBER),
     ("superuser", Role.MEMBER), ("", Role.MEMBER)],
)  # fmt: skip
def test_unknown_role_is_the_least(claim: str | None, role: Role | None) -> None:
    now = datetime.now(UTC)
    claims = Claims("https://id.example", "ada", None, claim, (), now, now, None)
    assert claims.claimed_role is role


@pytest.mark.parametrize(
    ("role", "scopes", "level"),
    [
        (Role.OWNER, ("*:*",), AccessLevel.OWNER),
        (Role.ADMIN, ("*:*",), AccessLevel.SCOPED),
        (Role.MEMBER, MEMBER_SCOPES, AccessLevel.SCOPED),
    ],
)
def test_role_grants_its_scopes_and_level(role: Role, scopes: tuple[str, ...], level: AccessLevel) -> None:
    assert role_grants(role, ()) == (scopes, level)


@pytest.mark.parametrize("entries", [("openid", "profile", "email"), ("offline_access",), ("OWNER",)])
def test_foreign_scopes_do_not_narrow(entries: tuple[str, ...]) -> None:
    assert role_grants(Role.OWNER, entries) == (("*:*",), AccessLevel.OWNER)


def test_own_scope_narrows_and_removes_the_owner_level() -> None:
    assert role_grants(Role.OWNER, ("openid", "projects:read")) == (("projects:read",), AccessLevel.SCOPED)


def test_all_scopes_leave_an_owner_whole() -> None:
    assert role_grants(Role.OWNER, ("*:*",)) == (("*:*",), AccessLevel.OWNER)


def test_scope_never_widens_a_role() -> None:
    assert role_grants(Role.MEMBER, ("api-keys:write", "projects:read")) == (("projects:read",), AccessLevel.SCOPED)


def test_scopes_outside_the_role_leave_nothing() -> None:
    assert role_grants(Role.MEMBER, ("api-keys:write",)) == ((), AccessLevel.SCOPED)
