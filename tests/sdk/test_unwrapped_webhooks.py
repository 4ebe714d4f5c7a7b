"""Webhooks of tenantry, as its clients unwrap them."""

import pytest

from tenantry_sdk import ChangeEvent, Secret, webhooks
from tenantry_sdk.webhooks import PayloadError, SignatureError
from tests.support.cases import cases
from tests.support.webhook_vectors import (
    NO_CHANGES,
    NOT_OWN_SECRETS,
    NOW,
    OWN_BODY,
    OWN_DELIVERIES,
    OWN_SECRET,
    Delivery,
    sent,
)


def test_event_of_an_unknown_kind_has_its_fields() -> None:
    event = webhooks.unwrap(OWN_BODY, sent(), OWN_SECRET, now=NOW)
    assert type(event) is ChangeEvent
    assert (event.id, event.type, event.data) == ("evt_test_1", "webhook.test", {"endpoint": "app"})


@cases("delivery", OWN_DELIVERIES)
def test_delivery_is_judged_by_its_signature(delivery: Delivery) -> None:
    if delivery.reason is None:
        event = webhooks.unwrap(OWN_BODY, delivery.headers, OWN_SECRET, now=NOW)
        assert event.id == "evt_test_1"
    else:
        with pytest.raises(SignatureError, match=delivery.reason) as raised:
            webhooks.unwrap(OWN_BODY, delivery.headers, OWN_SECRET, now=NOW)
        assert sent()["webhook-signature"].removeprefix("v1,") not in str(raised.value)


@cases("secrets", [[NOT_OWN_SECRETS[-2], OWN_SECRET], *([each] for each in NOT_OWN_SECRETS)])
def test_faulty_secret_is_an_error_that_does_not_show_it(secrets: list[str]) -> None:
    with pytest.raises(ValueError, match="whsec_ and base64 of 24 to 64 bytes") as raised:
        webhooks.unwrap(OWN_BODY, sent(), secrets, now=NOW)
    assert secrets[0].removeprefix("whsec_")[:4] not in str(raised.value) or secrets == ["whsec_"]


def test_secret_may_be_masked_and_headers_may_be_pairs_of_bytes() -> None:
    pairs = [(name.encode(), value.encode()) for name, value in sent().items()]
    event = webhooks.unwrap(OWN_BODY.decode(), pairs, [Secret(OWN_SECRET)], now=NOW)
    assert event.id == "evt_test_1"


@cases("body", NO_CHANGES)
def test_signed_invalid_body_is_a_different_error(body: bytes) -> None:
    with pytest.raises(PayloadError):
        webhooks.unwrap(body, sent(body), OWN_SECRET, now=NOW)


def test_parsed_body_is_an_error_of_the_caller() -> None:
    for function in (webhooks.unwrap, webhooks.verify_provider_event):
        with pytest.raises(TypeError, match="raw body"):
            function({"id": "evt_1"}, sent(), OWN_SECRET)  # type: ignore[arg-type]
