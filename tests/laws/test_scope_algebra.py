"""Laws of scopes: covering is an order, and `intersect` is the meet of two sets of grants."""

from hypothesis import given
from hypothesis import strategies as st

from tenantry.domain.permissions import AccessLevel, role_grants, user_grants
from tenantry.domain.roles import MEMBER, BuiltInRole, Role, Roles
from tenantry.domain.scopes import covers, covers_all, intersect, is_scope

# Few names, so that they meet often.
part = st.sampled_from(["*", "a", "b", "c"])
scope = st.builds("{}:{}".format, part, part)
concrete = st.builds("{}:{}".format, st.sampled_from("abc"), st.sampled_from("abc"))
grants = st.lists(scope, max_size=5).map(tuple)


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


IDS = ("one", "two", "three", "gone")
built_in = st.sampled_from([*BuiltInRole])
role_ids = built_in | st.sampled_from(IDS)
catalogs = st.tuples(grants, grants, grants, st.frozensets(st.sampled_from(IDS))).map(
    lambda drawn: Roles(
        [
            Role(IDS[0], "One", drawn[0], drawn[3]),
            Role(IDS[1], "Two", drawn[1], frozenset()),
            Role(IDS[2], "Three", drawn[2], frozenset(IDS)),
        ]
    )
)
token_scopes = st.lists(scope | st.sampled_from(["openid", "email", "OWNER"]), max_size=4).map(
    tuple
)


@given(catalogs, role_ids, token_scopes)
def test_token_scopes_never_widen_a_role(
    roles: Roles, role_id: str, entries: tuple[str, ...]
) -> None:
    whole, level = role_grants(roles.find(role_id), ())
    scopes, narrowed = role_grants(roles.find(role_id), entries)
    assert covers_all(whole, scopes)
    assert narrowed is level or narrowed is AccessLevel.SCOPED


@given(catalogs, st.none() | role_ids, st.none() | role_ids, scope)
def test_two_roles_permit_exactly_what_both_permit(
    roles: Roles, claimed: str | None, stored: str | None, need: str
) -> None:
    granted = user_grants(roles, claimed, stored, (), binds_owner=True)
    said = [roles.find(one) for one in (claimed, stored) if one is not None] or [MEMBER]
    assert covers(granted.scopes, need) == all(covers(role.scopes, need) for role in said)
    assert (granted.access_level is AccessLevel.OWNER) == all(role.is_owner for role in said)
    for given_role in (*IDS, *BuiltInRole):
        assert _gives(granted.role, given_role) == all(_gives(role, given_role) for role in said)


def _gives(role: Role, given_role: str) -> bool:
    return role.gives is None or given_role in role.gives


@given(catalogs, st.lists(role_ids, max_size=4))
def test_no_role_of_a_claim_includes_the_one_that_counts(roles: Roles, claimed: list[str]) -> None:
    highest = roles.highest(claimed)
    known = [roles.find(one) for one in claimed if one in roles]
    assert highest in (known or [MEMBER])
    assert all(highest.includes(role) for role in known if role.includes(highest))
