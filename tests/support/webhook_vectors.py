"""Webhook requests of both senders, and how every verifier judges them: that of the Python SDK, and
that of the TypeScript client.
"""

from datetime import UTC, datetime
from typing import Final, NamedTuple

from tenantry.domain.webhook_deliveries import trial_message
from tenantry.domain.webhooks import signed_headers
from tenantry_sdk import webhooks
from tests.support import webhook_endpoint
from tests.support.webhook_endpoint import OTHER_SECRET, endpoint_at

SECRET: Final = "whsec_of_an_endpoint_0123456789"
NOW: Final = 1_772_366_400
BODY: Final = b'{"id": "evt_1", "type": "invoice.payment_failed", "created": 1, "data": {"object": {"id": "in_1"}}}'
HEADER: Final = "Provider-Signature"


class Delivery(NamedTuple):
    """A request, and the reason why its signature is invalid; None for a valid one."""

    headers: dict[str, str]
    reason: str | None = None


def signed(body: bytes = BODY, secret: str = SECRET, at: int = NOW) -> dict[str, str]:
    return {HEADER: webhooks.sign_provider_event(body, secret, at=at)}


_SIGNATURE: Final = signed()[HEADER]
OWN_SECRET: Final = webhook_endpoint.SECRET
OWN_BODY: Final = trial_message("evt_test_1", "app", datetime.fromtimestamp(NOW, UTC))


def sent(
    body: bytes = OWN_BODY, at: int = NOW, secrets: tuple[str, ...] = (OWN_SECRET,)
) -> dict[str, str]:
    """The headers with which tenantry sends a body."""
    endpoint = endpoint_at("https://app.example/", secrets=secrets)
    return signed_headers(endpoint, "evt_test_1", datetime.fromtimestamp(at, UTC), body)


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
    Delivery(sent(), "tenantry sent it: use webhooks.unwrap"),
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


def _with(**changes: str | None) -> dict[str, str]:
    """The headers of `OWN_BODY` with others in their place; None leaves one out."""
    named = {f"webhook-{name}": value for name, value in changes.items()}
    return {name: value for name, value in {**sent(), **named}.items() if value is not None}


_OWN_SIGNATURE: Final = sent()["webhook-signature"]
_NO_MATCH: Final = "no signature matches"

OWN_DELIVERIES: Final = (
    Delivery(sent()),
    Delivery({name.upper(): value for name, value in sent().items()}),
    Delivery(sent(secrets=(OTHER_SECRET, OWN_SECRET))),
    Delivery(sent(secrets=(OWN_SECRET, OTHER_SECRET))),
    Delivery(_with(signature=f"v1a,x  {_OWN_SIGNATURE}")),
    Delivery({**sent(), **signed()}),
    Delivery(sent(at=NOW - 300)),
    Delivery(sent(at=NOW + 300)),
    Delivery({}, "no webhook-id"),
    Delivery(_with(id=None), "no webhook-id"),
    Delivery(_with(timestamp=None), "no webhook-timestamp"),
    Delivery(_with(signature=""), "no webhook-signature"),
    Delivery(signed(), "the payment provider sent it: use webhooks.verify"),
    Delivery({"stripe-signature": _SIGNATURE}, "the payment provider sent it"),
    Delivery(_with(id="evt_test_2"), _NO_MATCH),
    Delivery(_with(id="é"), _NO_MATCH),
    Delivery(_with(timestamp=str(NOW + 1)), _NO_MATCH),
    Delivery(_with(timestamp="soon"), "malformed"),
    Delivery(_with(timestamp=f"-{NOW}"), "malformed"),
    Delivery(_with(timestamp="9" * 13), "malformed"),
    Delivery(_with(timestamp="\u0661"), "malformed"),
    Delivery(_with(signature=" ".join([_OWN_SIGNATURE] * 17)), "malformed"),
    Delivery(_with(signature=_OWN_SIGNATURE.replace("v1,", "v2,")), _NO_MATCH),
    Delivery(_with(signature=_OWN_SIGNATURE.removeprefix("v1,")), _NO_MATCH),
    Delivery(_with(signature=_OWN_SIGNATURE.rstrip("=")), _NO_MATCH),
    Delivery(_with(signature=_OWN_SIGNATURE.swapcase()), _NO_MATCH),
    Delivery(_with(signature="v1,"), _NO_MATCH),
    Delivery(_with(signature="v1,\u00e9"), _NO_MATCH),
    Delivery(sent(secrets=(OTHER_SECRET,)), _NO_MATCH),
    Delivery(sent(OWN_BODY + b" "), _NO_MATCH),
    Delivery(sent(at=NOW - 301), "too old"),
    Delivery(sent(at=NOW + 301), "from the future"),
)
"""Requests with `OWN_BODY`, for an endpoint with `OWN_SECRET`, at `NOW`."""

NO_CHANGES: Final = (
    *NO_EVENTS,
    OWN_BODY.replace(b'"version":0', b'"version":"0"'),
    OWN_BODY.replace(b'"orgId":""', b'"orgId":null'),
    OWN_BODY.replace(b'"at":', b'"on":'),
    OWN_BODY.replace(b'"data":', b'"object":'),
)
"""Bodies that are no event of tenantry's."""

NOT_OWN_SECRETS: Final = (
    "whsec_",
    OWN_SECRET.removeprefix("whsec_"),
    OWN_SECRET + "!",
    OWN_SECRET[:-1],
    OWN_SECRET + "\n",
    OWN_SECRET[:-1] + "é",
    "whsec_" + "c2hvcnQ=",
    "whsec_" + "a" * 88,
)
"""Secrets that no endpoint of tenantry's has."""

TEXTS: Final = (b"", b"\x00\xff", '{"name": "Zo\u00eb \U0001f511"}'.encode(), b"a" * 100_000)
SECRETS: Final = (SECRET, "whsec_\u00e9\U0001f511", "x" * 200)
"""What a signature is made of."""
