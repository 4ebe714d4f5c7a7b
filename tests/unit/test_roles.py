"""Roles of users: which one counts, and what it grants."""

from typing import Any

import msgspec
import pytest

from tenantry.domain.issuers import Issuers
from tenantry.domain.permissions import AccessLevel, role_grants, user_grants
from tenantry.domain.plans import CatalogError, parse_catalog
from tenantry.domain.roles import ADMIN, BUILT_IN_ROLES, MEMBER, OWNER, BuiltInRole, Role, Roles
from tenantry.integrations.oidc.claims import (
    OidcConfig,
    RoleClaim,
    role_claim,
    unmapped_roles,
)
from tests.support.cases import cases
from tests.support.documentation import block_of

CONFIG = OidcConfig(Issuers("https://id.example"), ("api",))
MEMBER_SCOPES = ("projects:*", "tenants:read", "billing:read")


CATALOG = """
[[plans]]
id = "free"

[[roles]]
id = "lead"
name = "Team lead"
scopes = ["projects:*", "tenants:read", "billing:read", "members:*", "api-keys:*"]
gives = ["support", "member"]

[[roles]]
id = "support"
scopes = ["projects:read", "members:read", "members:write"]

[[roles]]
id = "bookkeeper"
scopes = ["billing:*", "projects:read"]
"""
ROLES = parse_catalog(CATALOG).roles


def counting(claimed: str | None, stored: str | None, *, binds_owner: bool = True) -> Role:
    """The role that counts of two."""
    return user_grants(ROLES, claimed, stored, (), binds_owner=binds_owner).role


@cases(
    ("claimed", "stored", "counts"),
    [
        (None, None, "member"),
        ("owner", None, "owner"),
        (None, "owner", "owner"),
        ("owner", "member", "member"),
        ("member", "owner", "member"),
        ("admin", "owner", "admin"),
        ("owner", "admin", "admin"),
        ("lead", "admin", "lead"),
        ("member", "lead", "member"),
        ("owner", "bookkeeper", "bookkeeper"),
    ],
)
def test_lower_role_counts_and_silence_does_not(
    claimed: str | None, stored: str | None, counts: str
) -> None:
    assert counting(claimed, stored) == ROLES.find(counts)


def test_of_two_roles_that_include_neither_counts_what_both_grant() -> None:
    role = counting("bookkeeper", "lead")
    assert role.scopes == ("billing:read", "projects:read")
    assert role.gives == frozenset()
    assert (role.id, role.limited_by) == ("lead", "bookkeeper")


def test_roles_with_the_same_scopes_give_what_both_give() -> None:
    own = Role("one", "One", ("members:write",), frozenset({"a", "b"}))
    other = Role("two", "Two", ("members:write",), frozenset({"b", "c"}))
    roles = Roles([own, other])
    assert user_grants(roles, "one", "two", (), binds_owner=True).role.gives == frozenset({"b"})


def test_only_a_binding_membership_restricts_a_claimed_owner() -> None:
    assert counting("owner", "support", binds_owner=False) == OWNER
    assert counting("admin", "support", binds_owner=False).id == "support"


@cases("other", [None, "owner", "admin", "lead", "gone"])
def test_role_that_left_the_catalog_permits_nothing(other: str | None) -> None:
    assert counting(other, "gone") == Role("gone", "gone")
    assert user_grants(ROLES, other, "gone", (), binds_owner=True).scopes == ()


def test_role_that_left_the_catalog_still_does_not_restrict_an_unbound_owner() -> None:
    assert counting("owner", "gone", binds_owner=False) == OWNER


@cases(
    ("claim", "role"),
    [
        ("owner", BuiltInRole.OWNER),
        ("admin", BuiltInRole.ADMIN),
        ("member", BuiltInRole.MEMBER),
        ("org:owner", BuiltInRole.OWNER),
        ("org:admin", BuiltInRole.ADMIN),
        ("org:member", BuiltInRole.MEMBER),
        (["member", "admin"], BuiltInRole.ADMIN),
        (["reader", "org:owner", "admin", 7], BuiltInRole.OWNER),
    ],
)
def test_known_roles_count_and_of_a_list_the_highest(claim: object, role: str) -> None:
    assert role_claim({"org_role": claim}, CONFIG) == RoleClaim(role)


@cases(
    "claim", ["Owner", "superuser", "team:owner", ["Reader"], {"owner": {}}, 7, True, [["owner"]]]
)
def test_unknown_role_is_member_and_noticed(claim: Any) -> None:
    assert role_claim({"org_role": claim}, CONFIG) == RoleClaim(BuiltInRole.MEMBER, known=False)


@cases("members", [{}, {"org_role": None}, {"org_role": ""}, {"org_role": []}])
def test_absent_role_is_none(members: dict[str, Any]) -> None:
    assert role_claim(members, CONFIG) == RoleClaim(None)


def test_map_replaces_the_names_that_are_known_without_it() -> None:
    mapped = msgspec.structs.replace(
        CONFIG, role_map={"Owner": BuiltInRole.OWNER, "Writer": BuiltInRole.ADMIN}
    )
    assert role_claim({"org_role": ["Writer", "Reader"]}, mapped) == RoleClaim(BuiltInRole.ADMIN)
    assert role_claim({"org_role": "owner"}, mapped) == RoleClaim(BuiltInRole.MEMBER, known=False)


OF_CATALOG = msgspec.structs.replace(CONFIG, roles=ROLES, role_map=unmapped_roles(ROLES))


@cases(
    ("claim", "role"),
    [
        ("support", "support"),
        ("org:lead", "lead"),
        (["member", "support", "lead"], "lead"),
        (["bookkeeper", "support"], "support"),
        (["support", "bookkeeper"], "support"),
        (["bookkeeper", "admin"], "admin"),
    ],
)
def test_roles_of_the_catalog_count_and_of_a_list_the_one_that_includes_the_others(
    claim: object, role: str
) -> None:
    assert role_claim({"org_role": claim}, OF_CATALOG) == RoleClaim(role)


def test_role_of_the_catalog_is_unknown_without_it() -> None:
    assert role_claim({"org_role": "lead"}, CONFIG) == RoleClaim(BuiltInRole.MEMBER, known=False)


@cases(
    ("role", "scopes", "level"),
    [
        (OWNER, ("*:*",), AccessLevel.OWNER),
        (ADMIN, ("*:*",), AccessLevel.SCOPED),
        (MEMBER, MEMBER_SCOPES, AccessLevel.SCOPED),
    ],
)
def test_role_grants_its_scopes_and_level(
    role: Role, scopes: tuple[str, ...], level: AccessLevel
) -> None:
    assert role_grants(role, ()) == (scopes, level)


@cases("entries", [("openid", "profile", "email"), ("offline_access",), ("OWNER",)])
def test_foreign_scopes_do_not_narrow(entries: tuple[str, ...]) -> None:
    assert role_grants(OWNER, entries) == (("*:*",), AccessLevel.OWNER)


def test_own_scope_narrows_and_removes_the_owner_level() -> None:
    assert role_grants(OWNER, ("openid", "projects:read")) == (
        ("projects:read",),
        AccessLevel.SCOPED,
    )


def test_all_scopes_leave_an_owner_whole() -> None:
    assert role_grants(OWNER, ("*:*",)) == (("*:*",), AccessLevel.OWNER)


def test_scope_never_widens_a_role() -> None:
    assert role_grants(MEMBER, ("api-keys:write", "projects:read")) == (
        ("projects:read",),
        AccessLevel.SCOPED,
    )


def test_scopes_outside_the_role_leave_nothing() -> None:
    assert role_grants(MEMBER, ("api-keys:write",)) == ((), AccessLevel.SCOPED)


def test_roles_of_the_catalog_have_names_scopes_and_what_they_give() -> None:
    lead = ROLES.find("lead")
    assert (lead.name, lead.gives) == ("Team lead", frozenset({"support", "member"}))
    assert ROLES.find("support").name == "support"
    assert [role.id for role in ROLES] == [
        "owner",
        "admin",
        "lead",
        "support",
        "bookkeeper",
        "member",
    ]


def test_roles_of_the_guide_are_valid() -> None:
    roles = parse_catalog(
        f'[[plans]]\nid = "free"\n{block_of("how-to/members.md", "[[roles]]")}'
    ).roles
    assert [role.id for role in roles] == ["owner", "admin", "lead", "support", "member"]


def test_without_roles_in_the_catalog_there_are_the_built_in_ones() -> None:
    roles = parse_catalog('[[plans]]\nid = "free"\n').roles
    assert list(roles) == list(BUILT_IN_ROLES) == [OWNER, ADMIN, MEMBER]


@cases(
    ("table", "fault"),
    [
        ('id = "Lead"\nscopes = ["a:b"]', "role 'Lead': id must be 1 to 32 of a-z, 0-9"),
        ('id = "admin"\nscopes = ["a:b"]', "role 'admin': is built in: choose another id"),
        ('id = "one"', "role 'one': Object missing required field `scopes`"),
        ('id = "one"\nscopes = []', "role 'one': give 1 to 64 scopes"),
        ('id = "one"\nscopes = ["read"]', "role 'one': 'read' is not a scope"),
        ('id = "one"\nscopes = ["a:b"]\nname = " "', "role 'one': name must not be blank"),
        (
            'id = "one"\nscopes = ["a:b"]\nmay = []',
            "role 'one': Object contains unknown field `may`",
        ),
        (
            'id = "one"\nscopes = ["members:write"]\ngives = ["two"]',
            "role 'one': gives an unknown role 'two'",
        ),
        (
            'id = "one"\nscopes = ["*:*"]\ngives = ["owner"]',
            "role 'one': gives 'owner': only an owner can",
        ),
        (
            'id = "one"\nscopes = ["members:*"]\ngives = ["member"]',
            "role 'one': gives 'member', whose scopes it lacks: projects:*, tenants:read, billing:read",
        ),
        (
            'id = "one"\nscopes = ["members:read"]\ngives = ["one"]',
            "role 'one': gives roles, but lacks the scope members:write",
        ),
        (
            'id = "one"\nscopes = ["a:b"]\n[[roles]]\nid = "one"\nscopes = ["a:b"]',
            "role 'one' occurs twice",
        ),
    ],
)
def test_faulty_role_is_a_fault_of_the_catalog(table: str, fault: str) -> None:
    with pytest.raises(CatalogError) as caught:
        parse_catalog(f'[[plans]]\nid = "free"\n[[roles]]\n{table}\n')
    [found] = caught.value.faults
    assert found.startswith(fault)


def test_each_faulty_role_has_a_message() -> None:
    entries = '[[roles]]\nid = "one"\nscopes = []\n[[roles]]\nid = "owner"\nscopes = ["a:b"]\n'
    with pytest.raises(CatalogError) as caught:
        parse_catalog(f'[[plans]]\nid = "free"\n{entries}')
    assert len(caught.value.faults) == 2
