"""Parameters with brackets, and lists in pages."""

import pytest
from msgspec import Struct

from tenantry_devkit.simulator import ApiError, Customer
from tenantry_devkit.simulator.parameters import (
    CheckoutParameters,
    Expansion,
    ListParameters,
    NewSubscription,
    decode,
    in_range,
    page,
    parse,
)
from tests.support.cases import cases


class Thing(Struct):
    id: str


THINGS = [Thing(f"t{number}") for number in range(9, 0, -1)]


def ids(query: str) -> tuple[list[str], bool]:
    found, has_more = page(THINGS, Customer, decode(parse(query), ListParameters))
    return [thing.id for thing in found], has_more


def test_brackets_make_objects_and_lists() -> None:
    form = "customer=cus_a&items[0][price]=price_pro&items[1][price]=price_free&items[1][quantity]=3&metadata[1]=x"
    given = decode(parse(form, "cancel_at_period_end=true"), NewSubscription)
    assert [(item.price, item.quantity) for item in given.items] == [
        ("price_pro", None),
        ("price_free", 3),
    ]
    assert given.metadata == {"1": "x"}
    assert given.cancel_at_period_end
    assert decode(parse("expand[]=a&expand[]=b"), Expansion).expand == ("a", "b")


def test_members_of_a_list_are_in_the_order_of_their_numbers() -> None:
    query = "&".join(f"expand[{number}]={number}" for number in (10, 2, 0, 1))
    assert decode(parse(query), Expansion).expand == ("0", "1", "2", "10")


@cases(
    ("query", "code", "param"),
    [
        ("items[0][price]=p", "parameter_missing", "customer"),
        ("customer=c", "parameter_missing", "items"),
        ("customer=c&items[0][quantity]=1", "parameter_missing", "items[0][price]"),
        ("customer=c&items[0][price]=", "parameter_missing", "items[0][price]"),
        ("customer=c&items[0][price][x]=1", None, "items[0][price]"),
        ("items[0]=1&items[0][price]=1", None, "items[0][price]"),
        ("items[[=1", None, "items[["),
        ("customer=c&items[0][price]=p&items[0][quantity]=many", None, "items[0][quantity]"),
        ("customer=c&items[0][price]=p&cancel_at_period_end=yes", None, "cancel_at_period_end"),
        ("customer=c&items[0][price]=p&payment_behavior=other", None, "payment_behavior"),
    ],
)
def test_error_names_missing_and_invalid_parameters(
    query: str, code: str | None, param: str
) -> None:
    with pytest.raises(ApiError) as refused:
        decode(parse(query), NewSubscription)
    assert (
        refused.value.status,
        refused.value.error.get("code"),
        refused.value.error["param"],
    ) == (400, code, param)


def test_unknown_parameters_are_ignored() -> None:
    query = "mode=subscription&line_items[0][price]=p&line_items[0][adjustable_quantity][enabled]=true&locale=de"
    assert decode(parse(query), CheckoutParameters).mode == "subscription"


@cases(
    ("query", "expected", "has_more"),
    [
        ("limit=3", ["t9", "t8", "t7"], True),
        ("limit=3&starting_after=t7", ["t6", "t5", "t4"], True),
        ("limit=3&starting_after=t4", ["t3", "t2", "t1"], False),
        ("limit=3&starting_after=t1", [], False),
        ("", [f"t{number}" for number in range(9, 0, -1)], False),
    ],
)
def test_pages(query: str, expected: list[str], has_more: bool) -> None:
    assert ids(query) == (expected, has_more)


@cases("query", ["limit=0", "limit=101", "starting_after=t99"])
def test_invalid_page_parameters(query: str) -> None:
    with pytest.raises(ApiError):
        ids(query)


@cases(
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
    assert in_range(100, decode(parse(query), ListParameters).created) is matches
