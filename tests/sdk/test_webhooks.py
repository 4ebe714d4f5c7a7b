"""Signatures of provider events, for users' own endpoints."""

from datetime import UTC, datetime
from typing import Final

import pytest
import stripe

from tenantry.integrations.stripe import signature
from tenantry_sdk import Secret, webhooks
from tenantry_sdk.webhooks import PayloadError, SignatureError

SECRET: Final = "whsec_of_an_endpoint_0123456789"
NOW: Final = 1_772_366_400
BODY: Final = b'{"id": "evt_1", "type": "invoice.payment_failed", "created": 1, "data": {"object": {"id": "in_1"}}}'


def signed(body: bytes = BODY, secret: str = SECRET, at: int = NOW) -> dict[str, str]:
    return {"Provider-Signature": webhooks.sign(body, secret, at=at)}


def test_signed_event_is_returned() -> None:
    event = webhooks.verify(BODY, signed(), SECRET, now=NOW)
    assert (event.id, event.type, event.data["object"]["id"]) == ("evt_1", "invoice.payment_failed", "in_1")


def test_signature_is_the_one_of_the_service_and_of_the_provider() -> None:
    header = webhooks.sign(BODY, SECRET, at=NOW)
    assert header == signature.sign(BODY, SECRET, NOW)
    assert signature.SignatureVerifier([SECRET], 300).check(header.encode(), BODY, NOW) is None
    present = webhooks.sign(BODY, SECRET)
    assert stripe.Webhook.construct_event(BODY, present, SECRET)["id"] == "evt_1"


@pytest.mark.parametrize("at", [NOW, float(NOW) + 0.9, datetime.fromtimestamp(NOW, UTC)])
def test_moment_of_a_signature_in_any_form(at: float | datetime) -> None:
    assert webhooks.sign(BODY, SECRET, at=at).startswith(f"t={NOW},v1=")


@pytest.mark.parametrize("name", ["Provider-Signature", "provider-signature", "Stripe-Signature", "STRIPE-SIGNATURE"])
def test_header_in_any_case_and_by_either_name(name: str) -> None:
    assert webhooks.verify(BODY, {name: webhooks.sign(BODY, SECRET, at=NOW)}, SECRET, now=NOW).id == "evt_1"


def test_of_both_headers_the_first_one_counts() -> None:
    both = {**signed(secret="whsec_another"), "Stripe-Signature": webhooks.sign(BODY, SECRET, at=NOW)}
    with pytest.raises(SignatureError):
        webhooks.verify(BODY, both, SECRET, now=NOW)


@pytest.mark.parametrize("secrets", [["whsec_new", SECRET], [SECRET, "whsec_new"], Secret(SECRET), [Secret(SECRET)]])
def test_any_of_several_secrets_may_have_signed(secrets: list[str | Secret]) -> None:
    assert webhooks.verify(BODY, signed(), secrets, now=NOW).id == "evt_1"


def test_text_is_as_good_as_bytes() -> None:
    body = '{"type": "x", "data": {"object": {"name": "Zoë"}}}'
    header = webhooks.sign(body, SECRET, at=NOW)
    event = webhooks.verify(body.encode(), {"Provider-Signature": header}, SECRET, now=NOW)
    assert event.data["object"]["name"] == "Zoë"


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, "no Provider-Signature"),
        ({"Provider-Signature": ""}, "no Provider-Signature"),
        ({"Provider-Signature": "v1=00"}, "malformed"),
        ({"Provider-Signature": f"t={NOW}"}, "malformed"),
        ({"Provider-Signature": f"{signed()['Provider-Signature']},v0"}, "malformed"),
        ({"Provider-Signature": f"t={NOW},t={NOW},v1=00"}, "malformed"),
        ({"Provider-Signature": "t=soon,v1=00"}, "malformed"),
        ({"Provider-Signature": f"t={'9' * 13},v1=00"}, "malformed"),
        ({"Provider-Signature": "t=\u0661,v1=00"}, "malformed"),
        ({"Provider-Signature": f"t={NOW}," + ",".join(["v1=00"] * 17)}, "malformed"),
        ({"Provider-Signature": f"t={NOW},v1=00"}, "no signature matches"),
        ({"Provider-Signature": f"t={NOW},v1=\u00e9"}, "no signature matches"),
        ({"Provider-Signature": f"t={NOW},v1=\udcff"}, "no signature matches"),
        ({"Provider-Signature": f"t={NOW},v0={'0' * 64}"}, "malformed"),
        (signed(secret="whsec_another"), "no signature matches"),
        (signed(BODY + b" "), "no signature matches"),
        (signed(at=NOW - 301), "too old"),
        (signed(at=NOW + 301), "from the future"),
    ],
)
def test_unsigned_event_is_rejected(headers: dict[str, str], reason: str) -> None:
    with pytest.raises(SignatureError, match=reason):
        webhooks.verify(BODY, headers, SECRET, now=NOW)


@pytest.mark.parametrize("at", [NOW - 300, NOW + 300])
def test_tolerance_is_kept_to_the_second(at: int) -> None:
    assert webhooks.verify(BODY, signed(at=at), SECRET, now=NOW).id == "evt_1"


@pytest.mark.parametrize("secrets", ["", " ", [], ["", SECRET], Secret(""), b"whsec_bytes"])
def test_empty_secret_is_never_a_key(secrets: list[str]) -> None:
    with pytest.raises(ValueError, match="secret"):
        webhooks.verify(BODY, signed(secret="x"), secrets, now=NOW)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"type": 1, "data": {}}', b'{"type": "x"}', b"\xff", b'{"data":' + b"[" * 100_000]
)
def test_signed_invalid_body_is_a_different_error(body: bytes) -> None:
    with pytest.raises(PayloadError):
        webhooks.verify(body, signed(body), SECRET, now=NOW)


def test_text_that_no_event_is_made_of_is_refused() -> None:
    with pytest.raises(SignatureError, match="no signature matches"):
        webhooks.verify("\udcff", signed(), SECRET, now=NOW)


def test_headers_may_be_bytes_as_servers_have_them() -> None:
    header = webhooks.sign(BODY, SECRET, at=NOW).encode()
    assert webhooks.verify(BODY, {b"provider-signature": header}, SECRET, now=NOW).id == "evt_1"


def test_invalid_tolerance_rejects_everything() -> None:
    with pytest.raises(SignatureError):
        webhooks.verify(BODY, signed(at=1), SECRET, now=NOW, tolerance=float("nan"))


def test_refusal_holds_no_secret_and_no_signature() -> None:
    header = signed(secret="whsec_another")
    with pytest.raises(SignatureError) as raised:
        webhooks.verify(BODY, header, SECRET, now=NOW)
    assert SECRET not in str(raised.value)
    assert header["Provider-Signature"].rpartition("=")[2] not in str(raised.value)
