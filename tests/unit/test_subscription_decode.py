"""Reading a subscription of the provider's API, in both API shapes, and refusing what is none."""

from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenantry.common.clock import EPOCH_MAX
from tenantry.domain.billing.events import SubscriptionDetails
from tenantry.domain.billing.snapshot import ProviderSubscription
from tenantry.integrations.stripe.decode import MalformedObjectError, decode_subscription
from tests.support import events
from tests.support.events import NOW, Shape

BOTH_SHAPES: Final = [(shape, expanded) for shape in Shape for expanded in (False, True)]
FIELDS: Final = (
    "id",
    "customer",
    "created",
    "status",
    "metadata",
    "items",
    "current_period_end",
    "cancel_at_period_end",
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


def decode(subscription: dict[str, Any], **fields: Any) -> ProviderSubscription:
    return decode_subscription(events.body({**subscription, **fields}))


@pytest.mark.parametrize(("shape", "expanded"), BOTH_SHAPES)
def test_a_subscription_in_every_shape(shape: Shape, expanded: bool) -> None:
    subscription = events.subscription(
        period_end=NOW + 7, cancel=True, shape=shape, expanded=expanded
    )
    assert decode(subscription) == ProviderSubscription(
        id="sub_acme",
        customer_id="cus_acme",
        created=NOW - events.MONTH,
        status="active",
        org_id="acme",
        price_id="price_pro",
        current_period_end=NOW + 7,
        cancel_at_period_end=True,
        details=SubscriptionDetails(
            period_start=NOW + 7 - events.MONTH, cancel_at=NOW + 7, anchor=NOW - events.MONTH
        ),
    )


def test_a_subscription_says_what_its_event_says() -> None:
    subscription = decode(events.subscription(org=None, price=None, period_end=None))
    assert (subscription.org_id, subscription.price_id, subscription.current_period_end) == (
        None,
        None,
        None,
    )


def test_a_customer_who_was_deleted() -> None:
    assert (
        decode(events.subscription(), customer={"id": "cus_acme", "deleted": True}).customer_id
        == "cus_acme"
    )


def test_an_empty_organization_is_none() -> None:
    assert decode(events.subscription(), metadata={"orgId": ""}).org_id is None


@pytest.mark.parametrize("name", ["id", "customer", "created", "status"])
def test_missing_fields_are_rejected(name: str) -> None:
    subscription = events.subscription()
    del subscription[name]
    with pytest.raises(MalformedObjectError):
        decode(subscription)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": ""},
        {"id": None},
        {"id": "s" * 256},
        {"id": "sub\x00"},
        {"customer": ""},
        {"customer": None},
        {"customer": {"deleted": True}},
        {"customer": ["cus_acme"]},
        {"created": None},
        {"created": -1},
        {"created": EPOCH_MAX + 1},
        {"created": "2026"},
        {"created": 1.5},
        {"status": None},
        {"status": "s" * 256},
        {"metadata": []},
        {"metadata": {"orgId": "no tenant's id"}},
        {"metadata": {"orgId": ["acme"]}},
        {"items": {"data": [{"price": 7}]}},
        {"items": {"data": [{"current_period_end": "soon"}]}},
        {"current_period_end": EPOCH_MAX + 1},
        {"cancel_at_period_end": 1},
    ],
)
def test_invalid_fields_are_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(MalformedObjectError):
        decode(events.subscription(), **fields)


@pytest.mark.parametrize("raw", [b"", b"null", b"[]", b"{", b'"sub_1"', b"\xff", b"[" * 100_000])
def test_non_objects_are_rejected(raw: bytes) -> None:
    with pytest.raises(MalformedObjectError):
        decode_subscription(raw)


def test_the_reason_holds_no_values() -> None:
    with pytest.raises(MalformedObjectError) as refused:
        decode(events.subscription(), metadata={"orgId": "Private words"})
    assert str(refused.value) == "metadata.orgId is not a tenant id"


@settings(max_examples=100)
@given(st.sampled_from(FIELDS), json_values)
def test_any_value_of_a_field_is_read_or_refused(field: str, value: Any) -> None:
    with suppress(MalformedObjectError):
        subscription = decode_subscription(
            msgspec.json.encode({**events.subscription(), field: value})
        )
        texts = [
            subscription.id,
            subscription.customer_id,
            subscription.status,
            subscription.org_id or "",
        ]
        assert all("\x00" not in text for text in texts)
        assert 0 <= subscription.created <= EPOCH_MAX


@pytest.mark.parametrize(
    ("anchor", "day", "expected"),
    [
        ("2026-02-28 10:30:01", 31, "2026-01-31 10:30:01"),
        ("2028-02-29 10:30:01", 30, "2028-01-30 10:30:01"),
        ("2026-04-30 10:30:01", 31, "2026-03-31 10:30:01"),
        ("2026-04-30 10:30:01", 30, "2026-04-30 10:30:01"),
        ("2026-03-31 10:30:01", 31, "2026-03-31 10:30:01"),
        ("2026-02-27 10:30:01", 31, "2026-02-27 10:30:01"),
    ],
)
def test_anchor_that_the_provider_clipped_has_its_wanted_day(
    anchor: str, day: int, expected: str
) -> None:
    """Of billing days on the 31st, the first may be a 28 February."""
    given, wanted = (
        int(datetime.fromisoformat(f"{text}+00:00").timestamp()) for text in (anchor, expected)
    )
    fields = {"billing_cycle_anchor": given, "billing_cycle_anchor_config": {"day_of_month": day}}
    assert decode(events.subscription(), **fields).details.anchor == wanted


@pytest.mark.parametrize("config", [None, {}, {"day_of_month": None}])
def test_anchor_without_a_wanted_day_is_that_of_the_provider(config: Any) -> None:
    given = events.subscription() | {"billing_cycle_anchor_config": config}
    assert decode(given).details.anchor == NOW - events.MONTH
