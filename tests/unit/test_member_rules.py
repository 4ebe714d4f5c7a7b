"""Who may give which role, and change or remove whom."""

import msgspec
import pytest

from tenantry.domain.errors import ScopeEscalationError
from tenantry.domain.members import (
    check_may_change,
    check_may_give,
    check_may_manage,
    role_of_former_owner,
)
from tenantry.domain.permissions import PrincipalKind, RequestPrincipal
from tenantry.domain.roles import ADMIN, MEMBER, OWNER, Role
from tests.support.cases import cases
from tests.support.principals import NOW, make_principal

SUPPORT = Role("support", "Support", ("projects:read",))
BOOKKEEPER = Role("bookkeeper", "Bookkeeper", ("billing:read",))
GONE = Role("gone", "gone")
LEAD = Role(
    "lead",
    "Lead",
    ("members:*", "projects:*", "billing:read", "tenants:read"),
    frozenset({"support", "member"}),
)


def user_with(role: Role) -> RequestPrincipal:
    """A user with this role."""
    principal = make_principal(*role.scopes, owner=role.is_owner, kind=PrincipalKind.USER)
    return msgspec.structs.replace(principal, gives=role.gives, expires_at=NOW)


def test_user_gives_and_manages_only_what_the_role_gives() -> None:
    lead = user_with(LEAD)
    for role in (SUPPORT, MEMBER):
        check_may_give(lead, role)
        check_may_manage(lead, role)
    for role in (BOOKKEEPER, LEAD, GONE):
        with pytest.raises(ScopeEscalationError, match=f"members with the role {role.id}"):
            check_may_give(lead, role)
        with pytest.raises(ScopeEscalationError):
            check_may_manage(lead, role)


@cases(
    ("before", "after"), [(ADMIN, SUPPORT), (SUPPORT, BOOKKEEPER), (MEMBER, LEAD), (GONE, MEMBER)]
)
def test_role_gives_both_the_former_and_the_new_role_of_a_changed_member(
    before: Role, after: Role
) -> None:
    with pytest.raises(ScopeEscalationError):
        check_may_change(user_with(LEAD), before, after)


def test_user_changes_members_between_the_roles_that_the_own_role_gives() -> None:
    check_may_change(user_with(LEAD), SUPPORT, MEMBER)


@cases("role", [ADMIN, LEAD, SUPPORT, BOOKKEEPER, MEMBER, GONE])
def test_admin_gives_every_role_but_owner(role: Role) -> None:
    check_may_give(user_with(ADMIN), role)
    with pytest.raises(ScopeEscalationError):
        check_may_give(user_with(ADMIN), OWNER)


def test_key_gives_the_roles_whose_scopes_it_holds() -> None:
    key = make_principal("members:write", "projects:read")
    check_may_give(key, SUPPORT)
    with pytest.raises(ScopeEscalationError, match="billing:read"):
        check_may_give(key, BOOKKEEPER)


def test_key_restricts_every_member_but_owners() -> None:
    key = make_principal("members:write")
    check_may_change(key, LEAD, SUPPORT)
    with pytest.raises(ScopeEscalationError, match="billing:read"):
        check_may_change(key, SUPPORT, BOOKKEEPER)


@pytest.mark.parametrize(("before", "after"), [("owner", "admin"), ("lead", "lead")])
def test_former_owner_keeps_admin_at_most(before: str, after: str) -> None:
    assert role_of_former_owner(before) == after
