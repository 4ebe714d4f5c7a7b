"""Parameters with brackets, and lists in pages."""

import pytest
from msgspec import Struct

from tenantry_devkit.simulator import ApiError
from tenantry_devkit.simulator.requests import Parameters, in_range, page


class Thing(Struct):
    id: str
    created: int = 0


THINGS = [Thing(f"t{number}") for number in range(9, 0, -1)]


def ids(query: str) -> tuple[list[str], bool]:
    found, has_more = page(THINGS, "thing", Parameters.parse(query))
    return [thing.id for thing in found], has_more


def test_brackets_make_objects_and_lists() -> None:
    given = Parameters.parse(
        "items[0][price]=price_pro&items[1][price]=price_free&metadata[orgId]=acme", "types[]=a&types[]=b&expand=c"
    )
    assert [item.required("price") for item in given.each("items")] == ["price_pro", "price_free"]
    assert given.metadata() == {"orgId": "acme"}
    assert given.texts("types") == ["a", "b"]
    assert given.texts("expand") == ["c"]


def test_members_of_a_list_are_in_the_order_of_their_numbers() -> None:
    query = "&".join(f"types[{number}]={number}" for number in (10, 2, 0, 1))
    assert Parameters.parse(query).texts("types") == ["0", "1", "2", "10"]


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("", "parameter_missing", "items[0][price]"),
        ("items[0][price]=", "parameter_missing", "items[0][price]"),
        ("items[0][price][x]=1", None, "items[0][price]"),
        ("items[0]=1&items[0][price]=1", None, "items[0][price]"),
        ("items[[=1", None, "items[["),
    ],
)
def test_error_names_missing_and_malformed_parameters(query: str, code: str | None, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        Parameters.parse(query).inner("items").inner("0").required("price")
    assert (refused.value.status, refused.value.error.get("code"), refused.value.error["param"]) == (400, code, param)


def test_integers_booleans_and_choices_are_checked() -> None:
    given = Parameters.parse("limit=many&all=yes&mode=other")
    with pytest.raises(ApiError, match="Invalid integer: many"):
        given.integer("limit")
    with pytest.raises(ApiError, match="Invalid boolean: yes"):
        given.boolean("all")
    with pytest.raises(ApiError, match="must be one of"):
        given.choice("mode", ("payment", "setup"))


@pytest.mark.parametrize(
    ("query", "expected", "has_more"),
    [
        ("limit=3", ["t9", "t8", "t7"], True),
        ("limit=3&starting_after=t7", ["t6", "t5", "t4"], True),
        ("limit=3&starting_after=t4", ["t3", "t2", "t1"], False),
        ("limit=3&starting_after=t1", [], False),
        ("limit=3&ending_before=t4", ["t7", "t6", "t5"], True),
        ("limit=3&ending_before=t7", ["t9", "t8"], False),
        ("", [f"t{number}" for number in range(9, 0, -1)], False),
    ],
)
def test_pages(query: str, expected: list[str], has_more: bool) -> None:
    assert ids(query) == (expected, has_more)


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "starting_after=t99", "starting_after=t1&ending_before=t2"])
def test_invalid_page_parameters(query: str) -> None:
    with pytest.raises(ApiError):
        ids(query)


@pytest.mark.parametrize(
    ("query", "matches"),
    [
        ("", True),
        ("created=100", True),
        ("created=99", False),
        ("created[gte]=100&created[lt]=101", True),
        ("created[gt]=100", False),
        ("created[lte]=99", False),
    ],
)
def test_ranges(query: str, matches: bool) -> None:
    assert in_range(Parameters.parse(query), "created")(100) is matches
