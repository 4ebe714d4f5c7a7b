"""Scopes: their form, what covers what, what two sides have in common."""

import pytest

from tenantry.domain.errors import InsufficientScopeError
from tenantry.domain.scopes import covers, intersect, is_scope
from tests.support.cases import cases
from tests.support.principals import make_principal


@cases(
    "text",
    [
        "projects:read",
        "*:*",
        "projects:*",
        "*:read",
        "a:b",
        "api-keys:write",
        "a_1-b:c9",
        f"{'a' * 32}:b",
    ],
)
def test_scope_is_a_name_or_a_star_on_both_sides(text: str) -> None:
    assert is_scope(text)


@cases(
    "text",
    [
        "",
        ":",
        "a",
        "a:",
        ":a",
        "a:b:c",
        "A:b",
        "a:B",
        "1a:b",
        "-a:b",
        "a b:c",
        "a:b ",
        " a:b",
        "a:b\n",
        "**:a",
        "a*:b",
        f"{'a' * 33}:b",
        f"a:{'b' * 33}",
        "é:b",
        "a:é",
        "OWNER",
        "openid",
    ],
)
def test_anything_else_is_no_scope(text: str) -> None:
    assert not is_scope(text)


@cases(
    ("grant", "need"),
    [
        ("projects:read", "projects:read"),
        ("projects:*", "projects:read"),
        ("*:read", "projects:read"),
        ("*:*", "projects:read"),
        ("*:*", "*:*"),
        ("projects:*", "projects:*"),
    ],
)
def test_grant_covers_a_need_part_by_part(grant: str, need: str) -> None:
    assert covers((grant,), need)


@cases(
    ("grant", "need"),
    [
        ("projects:write", "projects:read"),
        ("projects:read", "projects:write"),
        ("projects:read", "projects:*"),
        ("projects:read", "*:read"),
        ("projects:*", "*:*"),
        ("*:read", "*:*"),
        ("projects:*", "projects-x:read"),
    ],
)
def test_narrower_or_other_grant_does_not_cover(grant: str, need: str) -> None:
    assert not covers((grant,), need)


def test_grants_do_not_add_up_to_a_star() -> None:
    assert not covers(("projects:read", "projects:write"), "projects:*")


def test_no_grant_covers_nothing() -> None:
    assert not covers((), "projects:read")


@cases(
    ("left", "right", "common"),
    [
        (("*:*",), ("projects:read",), ("projects:read",)),
        (("projects:*",), ("*:read",), ("projects:read",)),
        (("projects:read",), ("projects:write",), ()),
        (("projects:*", "billing:read"), ("*:read",), ("billing:read", "projects:read")),
        ((), ("*:*",), ()),
        (("a:b",), ("a:b", "*:*"), ("a:b",)),
    ],
)
def test_intersection_contains_the_common_scopes(
    left: tuple[str, ...], right: tuple[str, ...], common: tuple[str, ...]
) -> None:
    assert intersect(left, right) == common
    assert intersect(right, left) == common


def test_caller_without_the_scope_is_refused_with_its_name() -> None:
    with pytest.raises(InsufficientScopeError) as refusal:
        make_principal("projects:write").require("projects:read")
    assert refusal.value.scope == "projects:read"


def test_caller_with_the_scope_is_authorized() -> None:
    make_principal("projects:read").require("projects:read")
