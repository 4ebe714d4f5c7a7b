"""Laws of scopes: covering is an order, and `intersect` is the meet of two sets of grants."""

from hypothesis import given
from hypothesis import strategies as st

from tenantry.domain.permissions import (
    AccessLevel,
    Role,
    covers,
    intersect,
    is_scope,
    lower_role,
    role_grants,
)

# Few names, so that they meet often.
part = st.sampled_from(["*", "a", "b", "c"])
scope = st.builds("{}:{}".format, part, part)
concrete = st.builds("{}:{}".format, st.sampled_from("abc"), st.sampled_from("abc"))
grants = st.lists(scope, max_size=5).map(tuple)


def covers_all(held: tuple[str, ...], needs: tuple[str, ...]) -> bool:
    return all(covers(held, need) for need in needs)


@given(scope)
def test_every_scope_covers_itself(one: str) -> None:
    assert covers((one,), one)


@given(scope, scope, scope)
def test_covering_is_transitive(one: str, other: str, third: str) -> None:
    if covers((one,), other) and covers((other,), third):
        assert covers((one,), third)


@given(scope, scope)
def test_covering_each_other_is_being_the_same(one: str, other: str) -> None:
    if covers((one,), other) and covers((other,), one):
        assert one == other


@given(grants, scope, scope)
def test_more_grants_never_cover_less(held: tuple[str, ...], more: str, need: str) -> None:
    if covers(held, need):
        assert covers((*held, more), need)


@given(grants, grants, scope)
def test_intersection_covers_exactly_the_common_scopes(
    left: tuple[str, ...], right: tuple[str, ...], need: str
) -> None:
    assert covers(intersect(left, right), need) == (covers(left, need) and covers(right, need))


@given(grants, grants)
def test_intersection_has_no_sides(left: tuple[str, ...], right: tuple[str, ...]) -> None:
    assert intersect(left, right) == intersect(right, left)


@given(grants, grants)
def test_intersection_is_made_of_scopes(left: tuple[str, ...], right: tuple[str, ...]) -> None:
    assert all(is_scope(one) for one in intersect(left, right))


roles = st.none() | st.sampled_from(Role)
token_scopes = st.lists(scope | st.sampled_from(["openid", "email", "OWNER"]), max_size=4).map(
    tuple
)


@given(st.sampled_from(Role), token_scopes)
def test_token_scopes_never_widen_a_role(role: Role, entries: tuple[str, ...]) -> None:
    whole, level = role_grants(role, ())
    scopes, narrowed = role_grants(role, entries)
    assert covers_all(whole, scopes)
    assert narrowed is level or narrowed is AccessLevel.SCOPED


@given(roles, roles)
def test_effective_role_is_never_above_a_claimed_role(
    claimed: Role | None, stored: Role | None
) -> None:
    order = list(Role)
    counts = lower_role(claimed, stored)
    assert all(
        order.index(counts) <= order.index(role) for role in (claimed, stored) if role is not None
    )
