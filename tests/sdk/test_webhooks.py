"""Signatures of provider events, for users' own endpoints."""

from datetime import UTC, datetime

import pytest
import stripe

from tenantry.integrations.stripe import signature
from tenantry_sdk import Secret, webhooks
from tenantry_sdk.webhooks import PayloadError, SignatureError
from tests.support.cases import cases
from tests.support.webhook_vectors import BODY, DELIVERIES, NO_EVENTS, NOW, SECRET, Delivery, signed


def test_signed_event_is_returned() -> None:
    event = webhooks.verify_provider_event(BODY, signed(), SECRET, now=NOW)
    assert (event.id, event.type, event.data["object"]["id"]) == (
        "evt_1",
        "invoice.payment_failed",
        "in_1",
    )


def test_signature_is_the_one_of_the_service_and_of_the_provider() -> None:
    header = webhooks.sign_provider_event(BODY, SECRET, at=NOW)
    assert header == signature.sign(BODY, SECRET, NOW)
    assert signature.SignatureVerifier([SECRET], 300).check(header.encode(), BODY, NOW) is None
    present = webhooks.sign_provider_event(BODY, SECRET)
    assert stripe.Webhook.construct_event(BODY, present, SECRET)["id"] == "evt_1"


@cases("at", [NOW, float(NOW) + 0.9, datetime.fromtimestamp(NOW, UTC)])
def test_moment_of_a_signature_in_any_form(at: float | datetime) -> None:
    assert webhooks.sign_provider_event(BODY, SECRET, at=at).startswith(f"t={NOW},v1=")


@cases("secrets", [["whsec_new", SECRET], [SECRET, "whsec_new"], Secret(SECRET), [Secret(SECRET)]])
def test_any_of_several_secrets_may_have_signed(secrets: list[str | Secret]) -> None:
    assert webhooks.verify_provider_event(BODY, signed(), secrets, now=NOW).id == "evt_1"


def test_text_is_as_good_as_bytes() -> None:
    body = '{"type": "x", "data": {"object": {"name": "Zoë"}}}'
    header = webhooks.sign_provider_event(body, SECRET, at=NOW)
    event = webhooks.verify_provider_event(
        body.encode(), {"Provider-Signature": header}, SECRET, now=NOW
    )
    assert event.data["object"]["name"] == "Zoë"


@cases("delivery", DELIVERIES)
def test_delivery_is_judged_by_its_signature(delivery: Delivery) -> None:
    if delivery.reason is None:
        assert webhooks.verify_provider_event(BODY, delivery.headers, SECRET, now=NOW).id == "evt_1"
    else:
        with pytest.raises(SignatureError, match=delivery.reason):
            webhooks.verify_provider_event(BODY, delivery.headers, SECRET, now=NOW)


@cases("secrets", ["", " ", [], ["", SECRET], Secret(""), b"whsec_bytes"])
def test_empty_secret_is_never_a_key(secrets: list[str]) -> None:
    with pytest.raises(ValueError, match="secret"):
        webhooks.verify_provider_event(BODY, signed(secret="x"), secrets, now=NOW)


@cases("body", NO_EVENTS)
def test_signed_invalid_body_is_a_different_error(body: bytes) -> None:
    with pytest.raises(PayloadError):
        webhooks.verify_provider_event(body, signed(body), SECRET, now=NOW)


def test_text_that_no_event_is_made_of_is_refused() -> None:
    with pytest.raises(SignatureError, match="no signature matches"):
        webhooks.verify_provider_event("\udcff", signed(), SECRET, now=NOW)


def test_headers_may_be_bytes_as_servers_have_them() -> None:
    header = webhooks.sign_provider_event(BODY, SECRET, at=NOW).encode()
    assert (
        webhooks.verify_provider_event(BODY, {b"provider-signature": header}, SECRET, now=NOW).id
        == "evt_1"
    )


def test_invalid_tolerance_rejects_everything() -> None:
    with pytest.raises(SignatureError):
        webhooks.verify_provider_event(BODY, signed(at=1), SECRET, now=NOW, tolerance=float("nan"))


def test_refusal_holds_no_secret_and_no_signature() -> None:
    header = signed(secret="whsec_another")
    with pytest.raises(SignatureError) as raised:
        webhooks.verify_provider_event(BODY, header, SECRET, now=NOW)
    assert SECRET not in str(raised.value)
    assert header["Provider-Signature"].rpartition("=")[2] not in str(raised.value)
