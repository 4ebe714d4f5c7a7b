"""Roles of users: which one counts, and what it grants."""

from typing import Any

import msgspec
import pytest

from tenantry.domain.issuers import Issuers
from tenantry.domain.permissions import AccessLevel, Role, lower_role, role_grants
from tenantry.integrations.oidc.claims import OidcConfig, RoleClaim, role_claim

CONFIG = OidcConfig(Issuers("https://id.example"), ("api",))
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
def test_lower_role_counts_and_silence_does_not(
    claimed: Role | None, stored: Role | None, counts: Role
) -> None:
    assert lower_role(claimed, stored) is counts


@pytest.mark.parametrize(
    ("claim", "role"),
    [
        ("owner", Role.OWNER),
        ("admin", Role.ADMIN),
        ("member", Role.MEMBER),
        ("org:owner", Role.OWNER),
        ("org:admin", Role.ADMIN),
        ("org:member", Role.MEMBER),
        (["member", "admin"], Role.ADMIN),
        (["reader", "org:owner", "admin", 7], Role.OWNER),
    ],
)
def test_known_roles_count_and_of_a_list_the_highest(claim: object, role: Role) -> None:
    assert role_claim({"org_role": claim}, CONFIG) == RoleClaim(role)


@pytest.mark.parametrize(
    "claim", ["Owner", "superuser", "team:owner", ["Reader"], {"owner": {}}, 7, True, [["owner"]]]
)
def test_unknown_role_is_member_and_noticed(claim: Any) -> None:
    assert role_claim({"org_role": claim}, CONFIG) == RoleClaim(Role.MEMBER, known=False)


@pytest.mark.parametrize("members", [{}, {"org_role": None}, {"org_role": ""}, {"org_role": []}])
def test_absent_role_is_none(members: dict[str, Any]) -> None:
    assert role_claim(members, CONFIG) == RoleClaim(None)


def test_map_replaces_the_names_that_are_known_without_it() -> None:
    mapped = msgspec.structs.replace(CONFIG, roles={"Owner": Role.OWNER, "Writer": Role.ADMIN})
    assert role_claim({"org_role": ["Writer", "Reader"]}, mapped) == RoleClaim(Role.ADMIN)
    assert role_claim({"org_role": "owner"}, mapped) == RoleClaim(Role.MEMBER, known=False)


@pytest.mark.parametrize(
    ("role", "scopes", "level"),
    [
        (Role.OWNER, ("*:*",), AccessLevel.OWNER),
        (Role.ADMIN, ("*:*",), AccessLevel.SCOPED),
        (Role.MEMBER, MEMBER_SCOPES, AccessLevel.SCOPED),
    ],
)
def test_role_grants_its_scopes_and_level(
    role: Role, scopes: tuple[str, ...], level: AccessLevel
) -> None:
    assert role_grants(role, ()) == (scopes, level)


@pytest.mark.parametrize(
    "entries", [("openid", "profile", "email"), ("offline_access",), ("OWNER",)]
)
def test_foreign_scopes_do_not_narrow(entries: tuple[str, ...]) -> None:
    assert role_grants(Role.OWNER, entries) == (("*:*",), AccessLevel.OWNER)


def test_own_scope_narrows_and_removes_the_owner_level() -> None:
    assert role_grants(Role.OWNER, ("openid", "projects:read")) == (
        ("projects:read",),
        AccessLevel.SCOPED,
    )


def test_all_scopes_leave_an_owner_whole() -> None:
    assert role_grants(Role.OWNER, ("*:*",)) == (("*:*",), AccessLevel.OWNER)


def test_scope_never_widens_a_role() -> None:
    assert role_grants(Role.MEMBER, ("api-keys:write", "projects:read")) == (
        ("projects:read",),
        AccessLevel.SCOPED,
    )


def test_scopes_outside_the_role_leave_nothing() -> None:
    assert role_grants(Role.MEMBER, ("api-keys:write",)) == ((), AccessLevel.SCOPED)
