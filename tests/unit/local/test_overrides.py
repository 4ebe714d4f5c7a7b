"""Setting single values of an event."""

import copy
from typing import Any

import pytest

from tenantry_devkit.local.samples import OverrideError, override
from tests.support.cases import cases

EVENT: dict[str, Any] = {
    "id": "evt_1",
    "livemode": False,
    "data": {
        "object": {
            "status": "active",
            "cancel_at": None,
            "quantity": 1,
            "items": {"data": [{"price": {"id": "price_pro"}}]},
            "metadata": {"orgId": "acme"},
        }
    },
}


def overridden(*texts: str) -> dict[str, Any]:
    event = copy.deepcopy(EVENT)
    override(event, texts)
    return event


def test_values_are_json_or_strings() -> None:
    event = overridden(
        "status=past_due", "quantity=2", "cancel_at=1735689600", "metadata.orgId=null"
    )
    assert event["data"]["object"] == {
        **EVENT["data"]["object"],
        "status": "past_due",
        "quantity": 2,
        "cancel_at": 1735689600,
        "metadata": {"orgId": None},
    }
    assert overridden('status="1"')["data"]["object"]["status"] == "1"
    assert overridden("status=")["data"]["object"]["status"] == ""
    assert overridden("status=a=b")["data"]["object"]["status"] == "a=b"
    assert overridden("items={}")["data"]["object"]["items"] == {}
    assert overridden(f"status={'[' * 5000}")["data"]["object"]["status"] == "[" * 5000


def test_path_may_contain_list_positions_and_the_event() -> None:
    event = overridden(
        "items.data.0.price.id=price_x", "event.livemode=true", "event.data.object.quantity=3"
    )
    assert event["data"]["object"]["items"]["data"][0]["price"]["id"] == "price_x"
    assert event["livemode"] is True
    assert event["data"]["object"]["quantity"] == 3


def test_metadata_and_previous_attributes_accept_new_names() -> None:
    event = overridden("metadata.note=ü", "event.data.previous_attributes.status=trialing")
    assert event["data"]["object"]["metadata"] == {"orgId": "acme", "note": "ü"}
    assert event["data"]["previous_attributes"] == {"status": "trialing"}


@cases(
    ("text", "message"),
    [
        ("status", "must be path=value"),
        ("=x", "must be path=value"),
        ("items..data=1", "must be path=value"),
        (
            "statsu=x",
            "there is no 'statsu'; there are cancel_at, items, metadata, quantity, status",
        ),
        ("zzz=x", "there is no 'zzz'; there are cancel_at, items, metadata, quantity, status"),
        ("items.data.1=x", "there is no '1'; there are 0"),
        ("items.data.first=x", "there is no 'first'; there are 0"),
        ("items.dat=x", "there is no 'dat'; there are data"),
        ("status.x=1", "there is no 'x'; nothing is below it"),
        ("cancel_at.x=1", "there is no 'x'; nothing is below it"),
        ("quantity.x=1", "there is no 'x'; nothing is below it"),
        ("event.livemode.x=1", "there is no 'x'; nothing is below it"),
        ("event.lifemode=1", "there is no 'lifemode'; there are data, id, livemode"),
        ("event=1", "there is no 'event'"),
    ],
)
def test_unknown_path_is_an_error_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(OverrideError) as refused:
        overridden(text)
    assert repr(text) in str(refused.value)
    assert message in str(refused.value)
