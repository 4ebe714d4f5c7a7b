"""Reading provider events, in both API shapes, and refusing what is none."""

import json
from typing import Any, Final

import pytest

from tenantry.domain.billing.events import (
    NO_DETAILS,
    BillingEvent,
    SubscriptionDetails,
    SubscriptionItem,
)
from tenantry.integrations.stripe.decode import NotAnEventError, decode_event
from tests.support import events
from tests.support.events import NOW, Shape

BOTH_SHAPES: Final = [(shape, expanded) for shape in Shape for expanded in (False, True)]


def decode(event: Any, *, reference_links: bool = False) -> BillingEvent:
    body = event if isinstance(event, bytes) else events.body(event)
    return decode_event(
        body, arrived=NOW + 5, make_up_id=lambda: "evt_made_up", reference_links=reference_links
    )


def changed(event: dict[str, Any], **fields: Any) -> dict[str, Any]:
    event["data"]["object"].update(fields)
    return event


@pytest.mark.parametrize(("shape", "expanded"), BOTH_SHAPES)
def test_a_subscription_in_every_shape(shape: Shape, expanded: bool) -> None:
    event = decode(
        events.updated(
            event_id="evt_1",
            period_end=NOW + 7,
            cancel=True,
            shape=shape,
            expanded=expanded,
            created=NOW,
        )
    )
    assert event == BillingEvent(
        id="evt_1",
        type="customer.subscription.updated",
        created=NOW,
        livemode=False,
        api_version=shape.value,
        org_id="acme",
        customer_id="cus_acme",
        subscription_id="sub_acme",
        subscription_created=NOW - events.MONTH,
        status="active",
        price_id="price_pro",
        current_period_end=NOW + 7,
        cancel_at_period_end=True,
        details=SubscriptionDetails(
            period_start=NOW + 7 - events.MONTH, cancel_at=NOW + 7, anchor=NOW - events.MONTH
        ),
    )


@pytest.mark.parametrize(("shape", "expanded"), BOTH_SHAPES)
def test_an_invoice_in_every_shape(shape: Shape, expanded: bool) -> None:
    event = decode(events.failed(event_id="evt_1", shape=shape, expanded=expanded))
    assert event == BillingEvent(
        id="evt_1",
        type="invoice.payment_failed",
        created=NOW,
        livemode=False,
        api_version=shape.value,
        customer_id="cus_acme",
        subscription_id="sub_acme",
        invoice_id="in_acme",
        invoice_url=events.INVOICE_URL,
        amount_due=2900,
        attempt_count=1,
        status="open",
        amount_remaining=2900,
        currency="eur",
        details=SubscriptionDetails(next_attempt=NOW + 3 * 24 * 3600),
    )


@pytest.mark.parametrize("next_attempt", [None, -1, "soon"])
def test_next_attempt_is_that_of_a_failed_payment_and_optional(next_attempt: Any) -> None:
    event = events.failed(next_attempt=next_attempt)
    assert decode(event).details == NO_DETAILS
    voided = {**events.failed(), "type": "invoice.voided"}
    assert decode(voided).details == NO_DETAILS


@pytest.mark.parametrize("expanded", [False, True])
def test_a_checkout_session(expanded: bool) -> None:
    event = decode(events.completed(expanded=expanded))
    assert (event.org_id, event.customer_id, event.checkout_mode) == (
        "acme",
        "cus_acme",
        "subscription",
    )


def test_the_period_of_the_subscription_counts_before_that_of_its_item() -> None:
    event = events.updated(period_end=NOW + 1)
    assert decode(changed(event, current_period_end=NOW + 2)).current_period_end == NOW + 2


def test_a_subscription_without_items_has_neither_price_nor_period() -> None:
    event = decode(events.updated(price=None))
    assert (event.price_id, event.current_period_end, event.problem) == (None, None, None)


def test_a_deleted_subscription_needs_no_status() -> None:
    event = events.deleted()
    del event["data"]["object"]["status"]
    assert decode(event).problem is None


@pytest.mark.parametrize("shape", list(Shape))
def test_replaced_values_of_an_update_are_kept(shape: Shape) -> None:
    item: dict[str, Any] = {"price": {"id": "price_free"}}
    previous: dict[str, Any] = {
        "status": "trialing",
        "cancel_at_period_end": True,
        "items": {"data": [item]},
    }
    (item if shape is Shape.NEW else previous)["current_period_end"] = NOW
    assert decode(events.updated(shape=shape, previous=previous)).previous == {
        "status": "trialing",
        "cancel_at_period_end": True,
        "price_id": "price_free",
        "items": (),
        "current_period_end": NOW,
    }


ITEM: Final[dict[str, Any]] = {
    "id": "si_1",
    "object": "subscription_item",
    "price": {"id": "price_pro"},
}
PERIOD: Final = {"current_period_end": NOW + 9, "current_period_start": NOW}


@pytest.mark.parametrize(
    ("previous", "expected"),
    [
        ({"cancel_at": None}, {"cancel_at": None}),
        ({"cancel_at": NOW}, {"cancel_at": NOW}),
        ({"trial_end": NOW, "trial_start": 1}, {"trial_end": NOW}),
        ({"current_period_start": NOW}, {"period_start": NOW}),
        ({"billing_cycle_anchor": NOW}, {"anchor": NOW}),
        ({"pause_collection": None}, {"pause": None}),
        ({"pause_collection": {"behavior": "void", "resumes_at": None}}, {"pause": "void"}),
        ({"pause_collection": {"resumes_at": 5}}, {}),
        ({"metadata": {"orgId": "zeta"}}, {"org_id": "zeta"}),
        ({"metadata": {"orgId": None}}, {"org_id": None}),
        ({"metadata": {"orgId": "not a tenant"}}, {"org_id": None}),
        ({"metadata": {"color": "red"}}, {}),
        (
            {
                "quantity": 3,
                "items": {"object": "list", "data": [{**ITEM, "quantity": 3, **PERIOD}]},
            },
            {
                "price_id": "price_pro",
                "items": (SubscriptionItem("price_pro", 3, NOW + 9, NOW, "si_1"),),
                "current_period_end": NOW + 9,
                "period_start": NOW,
            },
        ),
        (
            {
                "items": {
                    "data": [
                        ITEM,
                        {**ITEM, "id": "si_2", "price": {"id": "price_seat"}, "quantity": 2},
                    ]
                }
            },
            {
                "price_id": "price_pro",
                "items": (
                    SubscriptionItem("price_pro", id="si_1"),
                    SubscriptionItem("price_seat", 2, id="si_2"),
                ),
            },
        ),
        ({"quantity": 3}, {"price_id": "price_pro", "items": (SubscriptionItem("price_pro", 3),)}),
        ({"quantity": 1}, {"price_id": "price_pro", "items": ()}),
        (
            {"plan": {"id": "price_free"}},
            {"price_id": "price_free", "items": (SubscriptionItem("price_free", 5),)},
        ),
        (
            {"items": {"data": [{"quantity": 3}]}},
            {"price_id": "price_pro", "items": (SubscriptionItem("price_pro", 3),)},
        ),
        (
            {"items": {"data": [{"price": {"id": "price_free"}}]}},
            {"price_id": "price_free", "items": (SubscriptionItem("price_free", 5),)},
        ),
        (
            {"items": {"data": [{**ITEM, "price": "price_free"}]}},
            {"price_id": "price_free", "items": ()},
        ),
    ],
)
@pytest.mark.parametrize("shape", list(Shape))
def test_every_replaced_fact_is_kept(
    shape: Shape, previous: dict[str, Any], expected: dict[str, Any]
) -> None:
    event = events.updated(shape=shape, previous=previous)
    event["data"]["object"]["items"]["data"][0]["quantity"] = 5
    assert decode(event).previous == expected


@pytest.mark.parametrize(
    "previous",
    [
        {},
        {"status": ["active"]},
        {"status": "a\x00b"},
        {"status": "a" * 300},
        {"status": 1.5},
        {"current_period_end": -1},
        {"current_period_end": 10**30},
        {"items": "x"},
        {"items": {"data": []}},
        {"items": {"data": [{"price": {"id": "a\x00b"}}]}},
        {"items": {"data": [{"price": 7}]}},
        {"items": {"data": [{"quantity": -1}]}},
        {"plan": None, "quantity": None},
        {"quantity": "3"},
        {"cancel_at": "soon"},
        {"trial_end": -1},
        {"pause_collection": "void"},
        {"pause_collection": {"behavior": "a\x00b"}},
        {"metadata": []},
    ],
)
def test_incomparable_values_prove_nothing(previous: dict[str, Any]) -> None:
    event = decode(events.updated(previous=previous))
    assert (event.previous, event.problem) == (None, None)


def test_a_change_of_something_else_proves_that_the_tracked_facts_stayed_as_they_were() -> None:
    assert decode(events.updated(previous={"latest_invoice": "in_1"})).previous == {}


def test_the_old_name_of_the_price_is_understood() -> None:
    assert decode(
        events.updated(previous={"plan": {"id": "price_free", "object": "plan"}})
    ).previous == {
        "price_id": "price_free",
        "items": (),
    }
    assert decode(events.updated(previous={"plan": None})).previous is None


@pytest.mark.parametrize("plan", [None, 7, "price_free"])
def test_the_old_name_of_the_price_does_not_count_beside_the_items(plan: object) -> None:
    items = {"data": [{"price": {"id": "price_free"}}]}
    found = decode(events.updated(previous={"items": items, "plan": plan})).previous
    assert found == {"price_id": "price_free", "items": ()}


@pytest.mark.parametrize("version", ["2025-03-31" + "x" * 300, "2025\x0003"])
def test_a_malformed_api_version_is_left_out(version: str) -> None:
    event = decode({**events.updated(), "api_version": version})
    assert (event.api_version, event.problem, event.status) == (None, None, "active")


def test_the_text_of_an_escape_is_no_nul() -> None:
    event = decode(events.updated(status="\\u0000", previous={"status": "\\\\u0000"}))
    assert (event.status, event.previous, event.problem) == (
        "\\u0000",
        {"status": "\\\\u0000"},
        None,
    )


@pytest.mark.parametrize("previous", ["null", "7", '"x"', "[1]", '{"status": {"deep": 1}}'])
def test_previous_attributes_of_another_kind_prove_nothing(previous: str) -> None:
    body = events.body(events.updated(previous={"status": "MARK"})).replace(
        b'{\n      "status": "MARK"\n    }', previous.encode()
    )
    assert b"MARK" not in body
    event = decode(body)
    assert (event.previous, event.status) == (None, "active")


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "javascript:alert(1)",
        "ftp://x.example/1",
        "//x.example",
        "https://x.example/a b",
        "https://x.example/\n",
        "https://x.example/é",
        "https://x.example/" + "a" * 3000,
        7,
        ["https://x.example"],
    ],
)
def test_an_invoice_url_that_is_no_web_address_is_none(url: Any) -> None:
    event = decode(changed(events.failed(), hosted_invoice_url=url))
    assert (event.invoice_url, event.problem, event.customer_id) == (None, None, "cus_acme")


@pytest.mark.parametrize("amount", [2**63, -(2**63) - 1, "2900", 29.5, True, None])
def test_an_amount_that_is_none_costs_no_event(amount: Any) -> None:
    event = decode(changed(events.failed(), amount_due=amount))
    assert (event.amount_due, event.problem) == (None, None)


def test_an_event_without_id_gets_the_made_up_one() -> None:
    event = events.updated()
    del event["id"]
    assert decode(event).id == "evt_made_up"


def test_an_event_without_created_was_created_on_arrival() -> None:
    event = events.updated()
    del event["created"]
    assert decode(event).created == NOW + 5


def test_unknown_fields_are_ignored() -> None:
    event = events.updated()
    event["brand_new"] = {"field": [1, 2, {"x": None}]}
    assert decode(changed(event, brand_new="field")).problem is None


def test_an_unknown_type_is_an_event() -> None:
    assert decode(events.event("charge.captured", {"id": 7})).type == "charge.captured"


@pytest.mark.parametrize("org", [None, ""])
def test_metadata_may_name_no_tenant(org: str | None) -> None:
    event = decode(changed(events.updated(), metadata={"orgId": org}))
    assert (event.org_id, event.problem) == (None, None)


def test_metadata_may_be_missing() -> None:
    assert decode(changed(events.updated(), metadata=None)).org_id is None


def test_a_reference_does_not_name_the_tenant() -> None:
    assert decode(events.completed(org=None, reference="acme")).org_id is None


def test_a_reference_names_the_tenant_where_it_may() -> None:
    assert (
        decode(events.completed(org=None, reference="acme"), reference_links=True).org_id == "acme"
    )


def test_metadata_counts_before_a_reference() -> None:
    assert (
        decode(events.completed(org="acme", reference="evil"), reference_links=True).org_id
        == "acme"
    )


def test_an_invalid_reference_names_no_tenant() -> None:
    event = decode(events.completed(org=None, reference="a b"), reference_links=True)
    assert (event.org_id, event.problem) == (None, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"status": None},
        {"status": 7},
        {"status": "a\x00b"},
        {"status": "a" * 256},
        {"items": []},
        {"items": {"data": [{"price": 7}]}},
        {"items": {"data": [{"price": {"id": "p\x00"}}]}},
        {"current_period_end": "tomorrow"},
        {"current_period_end": -1},
        {"current_period_end": 253_402_300_800},
        {"cancel_at_period_end": "no"},
        {"metadata": []},
        {"metadata": {"orgId": 7}},
        {"metadata": {"orgId": "a b"}},
        {"metadata": {"orgId": "a" * 65}},
        {"metadata": {"orgId": "acme\n"}},
    ],
)
def test_a_subscription_of_no_use_has_a_problem(fields: dict[str, Any]) -> None:
    event = decode(changed(events.updated(event_id="evt_1"), **fields))
    assert event.problem is not None
    assert "\x00" not in event.problem
    assert event == BillingEvent(
        id="evt_1",
        type=event.type,
        created=NOW,
        livemode=False,
        api_version=Shape.NEW.value,
        problem=event.problem,
    )


UNNEEDED: Final[list[dict[str, Any]]] = [
    {"id": ["sub"]},
    {"id": "s" * 256},
    {"created": -1},
    {"created": 2**63},
    {"created": "then"},
    {"customer": 7},
    {"customer": {"name": "no id"}},
    {"customer": "cus\x00"},
]


@pytest.mark.parametrize("fields", UNNEEDED)
def test_a_fact_that_the_handler_of_an_update_can_do_without_may_be_malformed(
    fields: dict[str, Any],
) -> None:
    event = decode(changed(events.updated(period_end=NOW + 7), **fields))
    assert event.problem is None
    assert (event.org_id, event.status, event.price_id, event.current_period_end) == (
        "acme",
        "active",
        "price_pro",
        NOW + 7,
    )
    facts = {"id": "subscription_id", "created": "subscription_created", "customer": "customer_id"}
    assert [getattr(event, facts[name]) for name in fields] == [None]


def test_of_an_updates_items_the_first_alone_counts() -> None:
    event = events.updated(period_end=NOW + 7)
    event["data"]["object"]["items"]["data"].append({"price": 7})
    decoded = decode(event)
    assert (decoded.problem, decoded.price_id, decoded.current_period_end) == (
        None,
        "price_pro",
        NOW + 7,
    )


@pytest.mark.parametrize(
    "fields",
    [
        *UNNEEDED,
        {"status": 7},
        {"status": "a" * 256},
        {"items": "x"},
        {"items": {"data": [{"price": 7}]}},
        {"items": {"data": [{"price": {"id": "p\x00"}}]}},
        {"current_period_end": "tomorrow"},
        {"current_period_end": -1},
        {"cancel_at_period_end": "no"},
    ],
)
def test_of_an_ended_subscription_the_tenant_alone_counts(fields: dict[str, Any]) -> None:
    event = decode(changed(events.deleted(), **fields))
    assert (event.problem, event.org_id, event.status) == (None, "acme", "canceled")


@pytest.mark.parametrize("metadata", [[], {"orgId": 7}, {"orgId": "a b"}])
def test_an_ended_subscription_without_a_tenant_has_a_problem(metadata: Any) -> None:
    assert decode(changed(events.deleted(), metadata=metadata)).problem is not None


@pytest.mark.parametrize(
    "fields", [{"id": 7}, {"id": "i" * 256}, {"subscription": 7}, {"parent": "x"}]
)
def test_of_an_invoice_the_customer_alone_must_be_right(fields: dict[str, Any]) -> None:
    event = decode(changed(events.failed(), **fields))
    assert (event.problem, event.customer_id) == (None, "cus_acme")


def test_a_checkout_that_is_not_for_a_subscription_may_hold_anything() -> None:
    event = decode(
        changed(events.completed(), mode="payment", metadata=[], customer=7, subscription=7)
    )
    assert (event.problem, event.checkout_mode) == (None, "payment")


def test_a_checkout_for_a_subscription_needs_its_customer_and_metadata() -> None:
    assert (
        decode(changed(events.completed(), subscription=7, client_reference_id=7)).problem is None
    )
    assert decode(changed(events.completed(), customer=7)).problem is not None
    assert decode(changed(events.completed(), metadata=[])).problem is not None


def test_an_event_of_a_connected_account_names_the_account() -> None:
    assert decode(events.updated() | {"account": "acct_1"}).account == "acct_1"
    assert decode(events.failed() | {"account": None}).account is None


def test_a_thin_event_is_an_event() -> None:
    event = decode(events.thin(event_id="evt_1", context="acct_1"))
    assert event == BillingEvent(
        id="evt_1",
        type="v1.billing.meter.error_report_triggered",
        created=NOW,
        livemode=False,
        account="acct_1",
        is_thin=True,
    )


def test_a_thin_event_may_have_a_number_as_its_time() -> None:
    assert decode(events.thin() | {"created": NOW}).created == NOW


@pytest.mark.parametrize(
    "fields", [{"object": "event"}, {"object": None}, {"type": 7}, {"created": "now"}, {"id": 7}]
)
def test_malformed_thin_event_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(NotAnEventError):
        decode(events.thin() | fields)


@pytest.mark.parametrize("fields", [{"customer": 7}, {"customer": {}}, {"customer": "c" * 256}])
def test_an_invoice_of_no_use_has_a_problem(fields: dict[str, Any]) -> None:
    assert decode(changed(events.failed(), **fields)).problem is not None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"7",
        b'"evt"',
        b"{}",
        b"{",
        b"hello",
        b'{"type": "x"}',
        b'{"type": "x", "data": null}',
        b'{"type": "x", "data": {}}',
        b'{"type": "x", "data": {"object": null}}',
        b'{"type": "x", "data": {"object": []}}',
        b'{"type": "x", "data": {"object": "sub_1"}}',
        b'{"type": 7, "data": {"object": {}}}',
        b'{"type": null, "data": {"object": {}}}',
        b'{"data": {"object": {}}}',
        b'{"id": 7, "type": "x", "data": {"object": {}}}',
        b'{"id": "evt\\u0000", "type": "x", "data": {"object": {}}}',
        b'{"type": "x\\u0000", "data": {"object": {}}}',
        b'{"id": "' + b"e" * 256 + b'", "type": "x", "data": {"object": {}}}',
        b'{"created": -1, "type": "x", "data": {"object": {}}}',
        b'{"created": 253402300800, "type": "x", "data": {"object": {}}}',
        b'{"created": 1' + b"0" * 5000 + b', "type": "x", "data": {"object": {}}}',
        b'{"created": "now", "type": "x", "data": {"object": {}}}',
        b'{"id": "\\ud800", "type": "x", "data": {"object": {}}}',
        b'{"id": "\xff", "type": "x", "data": {"object": {}}}',
        b'\xef\xbb\xbf{"type": "x", "data": {"object": {}}}',
        b'{"type": "x", "data": {"object": {}}} trailing',
        b'{"type": "x", "data": {"object": {}}}\x00',
        b"[" * 500_000,
        b'{"type": "x", "data": {"object": '
        + b'{"a":' * 1_000_000
        + b"1"
        + b"}" * 1_000_000
        + b"}}",
        '{"type": "x", "data": {"object": {}}}'.encode("utf-16"),
    ],
)
def test_malformed_event_is_rejected(body: bytes) -> None:
    with pytest.raises(NotAnEventError):
        decode(body)


@pytest.mark.parametrize("event", [events.updated(), events.failed(), events.completed()])
def test_a_truncated_event_is_refused(event: dict[str, Any]) -> None:
    body = json.dumps(event).encode()
    for length in range(0, len(body), 97):
        with pytest.raises(NotAnEventError):
            decode(body[:length])


def test_invalid_utf8_in_ignored_fields_is_accepted() -> None:
    body = events.body(events.failed()).replace(b'"Acme Corp"', b'"Acme \xff"')
    assert decode(body).customer_id == "cus_acme"


def test_nul_in_ignored_fields_is_accepted() -> None:
    assert decode(changed(events.failed(), customer_name="A\x00B")).customer_id == "cus_acme"


def test_a_list_of_items_that_goes_on_is_marked_and_keeps_a_single_item() -> None:
    event = events.updated()
    event["data"]["object"]["items"]["has_more"] = True
    details = decode(event).details
    assert details.is_truncated
    assert [(item.id, item.price_id) for item in details.items] == [
        ("si_QhR7sT2uV3wX4y", "price_pro")
    ]
