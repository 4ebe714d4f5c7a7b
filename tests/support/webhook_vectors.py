"""Webhook requests, and how every verifier judges them: that of the Python SDK, and that of the
TypeScript client.
"""

from typing import Final, NamedTuple

from tenantry_sdk import webhooks

SECRET: Final = "whsec_of_an_endpoint_0123456789"
NOW: Final = 1_772_366_400
BODY: Final = b'{"id": "evt_1", "type": "invoice.payment_failed", "created": 1, "data": {"object": {"id": "in_1"}}}'
HEADER: Final = "Provider-Signature"


class Delivery(NamedTuple):
    """A request, and the reason why its signature is invalid; None for a valid one."""

    headers: dict[str, str]
    reason: str | None = None


def signed(body: bytes = BODY, secret: str = SECRET, at: int = NOW) -> dict[str, str]:
    return {HEADER: webhooks.sign(body, secret, at=at)}


_SIGNATURE: Final = signed()[HEADER]


def _altered(place: int) -> dict[str, str]:
    """The headers of `BODY` with one character of the signature changed."""
    stamp, digits = _SIGNATURE.split(",v1=")
    other = "0" if digits[place] != "0" else "1"
    return {HEADER: f"{stamp},v1={digits[:place]}{other}{digits[place + 1 :]}"}


DELIVERIES: Final = (
    Delivery({HEADER: _SIGNATURE}),
    Delivery({"provider-signature": _SIGNATURE}),
    Delivery({"Stripe-Signature": _SIGNATURE}),
    Delivery({"STRIPE-SIGNATURE": _SIGNATURE}),
    Delivery({HEADER: " " + _SIGNATURE.replace(",", " ,\t") + " , v0=x"}),
    Delivery({HEADER: f"{_SIGNATURE.partition(',')[0]},v1=00,{_SIGNATURE.partition(',')[2]}"}),
    Delivery(signed(at=NOW - 300)),
    Delivery(signed(at=NOW + 300)),
    Delivery({}, "no Provider-Signature"),
    Delivery({HEADER: ""}, "no Provider-Signature"),
    Delivery({HEADER: "", "Stripe-Signature": _SIGNATURE}, "no Provider-Signature"),
    Delivery(
        {**signed(secret="whsec_another"), "Stripe-Signature": _SIGNATURE}, "no signature matches"
    ),
    Delivery({HEADER: "v1=00"}, "malformed"),
    Delivery({HEADER: f"t={NOW}"}, "malformed"),
    Delivery({HEADER: f"{_SIGNATURE},v0"}, "malformed"),
    Delivery({HEADER: f"{_SIGNATURE},"}, "malformed"),
    Delivery({HEADER: f"{_SIGNATURE}, {_SIGNATURE}"}, "malformed"),
    Delivery({HEADER: f"t={NOW},t={NOW},v1=00"}, "malformed"),
    Delivery({HEADER: "t=soon,v1=00"}, "malformed"),
    Delivery({HEADER: "t=,v1=00"}, "malformed"),
    Delivery({HEADER: f"t=-{NOW},v1=00"}, "malformed"),
    Delivery({HEADER: f"t={'9' * 13},v1=00"}, "malformed"),
    Delivery({HEADER: "t=\u0661,v1=00"}, "malformed"),
    Delivery({HEADER: f"t={NOW}," + ",".join(["v1=00"] * 17)}, "malformed"),
    Delivery({HEADER: f"t={NOW},v0={'0' * 64}"}, "malformed"),
    Delivery({HEADER: f"t={NOW},v1=00"}, "no signature matches"),
    Delivery({HEADER: f"t={NOW},v1="}, "no signature matches"),
    Delivery({HEADER: f"t={NOW},v1=\u00e9"}, "no signature matches"),
    Delivery({HEADER: f"t={NOW},v1=\udcff"}, "no signature matches"),
    Delivery(
        {HEADER: _SIGNATURE.upper().replace("T=", "t=").replace("V1=", "v1=")},
        "no signature matches",
    ),
    *(Delivery(_altered(place), "no signature matches") for place in range(64)),
    Delivery({HEADER: _SIGNATURE[:-1]}, "no signature matches"),
    Delivery({HEADER: f"{_SIGNATURE}{_SIGNATURE.rpartition('=')[2]}"}, "no signature matches"),
    Delivery(signed(secret="whsec_another"), "no signature matches"),
    Delivery(signed(BODY + b" "), "no signature matches"),
    Delivery(signed(at=NOW - 301), "too old"),
    Delivery(signed(at=NOW + 301), "from the future"),
)
"""Requests with `BODY`, for an endpoint with `SECRET`, at `NOW`."""

NO_EVENTS: Final = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b'{"type": 1, "data": {}}',
    b'{"type": "x"}',
    b'{"type": "x", "data": []}',
    b'{"type": "x", "data": null}',
    b'{"type": "x", "data": {}, "id": 1}',
    b'{"type": "x", "data": {}, "created": "1"}',
    b'{"type": "x", "data": {}, "livemode": 0}',
    b"\xff",
    b'\xef\xbb\xbf{"type": "x", "data": {}}',
    b'{"data":' + b"[" * 100_000,
)
"""Bodies that are not an event."""

TEXTS: Final = (b"", b"\x00\xff", '{"name": "Zo\u00eb \U0001f511"}'.encode(), b"a" * 100_000)
SECRETS: Final = (SECRET, "whsec_\u00e9\U0001f511", "x" * 200)
"""What a signature is made of."""
