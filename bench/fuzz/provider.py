"""What the payment provider sends, and forgeries of it."""

import json
from typing import Any, Final, cast

import stripe

from bench.fuzz.target import Target, parts, require, require_storable, run_now, text
from tenantry.common.clock import EPOCH_MAX, system_clock
from tenantry.domain.errors import ProviderUnavailableError
from tenantry.integrations.stripe.answers import ListPage, read_pages
from tenantry.integrations.stripe.connection import ProviderResponse, second_sent
from tenantry.integrations.stripe.decode import (
    MalformedObjectError,
    NotAnEventError,
    decode_event,
    decode_subscription,
)
from tenantry.integrations.stripe.signature import SignatureVerifier, sign
from tenantry_sdk import webhooks
from tests.support import events

_SECRETS: Final = ("whsec_of_the_fuzzer_0123456789", "whsec_the_one_before_0123456789")
_NOW: Final = 1_767_268_800
_TOLERANCE: Final = 300
_MAX_TEXT: Final = 2048
_verifier: Final = SignatureVerifier(_SECRETS, _TOLERANCE)


def check_signature(data: bytes) -> None:
    """Require that service, SDK and the provider's package agree; ``@`` is replaced by a valid
    signature.
    """
    header, body = parts(data, 2)
    if b"@" in header:
        stamp = header.partition(b"t=")[2].partition(b",")[0][:20]
        header = header.replace(b"@", sign_bytes(stamp + b"." + body))
    refusal = _verifier.check(header, body, _NOW)
    accepted = refusal is None
    try:
        webhooks.verify_provider_event(
            body, {"Provider-Signature": header.decode("ascii", "replace")}, _SECRETS, now=_NOW
        )
        by_sdk = True
    except webhooks.SignatureError:
        by_sdk = False
    except webhooks.PayloadError:
        by_sdk = True
    require(
        accepted is by_sdk or not header.isascii(),
        "the service and the SDK disagree",
        header,
        body,
        refusal,
    )
    if accepted:
        require(
            any(_by_provider(header, body, secret) for secret in _SECRETS),
            "the provider's package rejects",
            header,
        )


def sign_bytes(signed: bytes) -> bytes:
    """Sign exactly these bytes."""
    stamp, _, body = signed.partition(b".")
    if not stamp.isdigit() or str(int(stamp)).encode() != stamp:
        return b"0" * 64
    return sign(body, _SECRETS[0], int(stamp)).partition("v1=")[2].encode()


def _by_provider(header: bytes, body: bytes, secret: str) -> bool:
    # the service ignores blanks around a part
    header = b",".join(part.strip() for part in header.split(b","))
    try:
        stripe.WebhookSignature.verify_header(
            body.decode("utf-8"), header.decode("ascii"), secret, None
        )
    except stripe.SignatureVerificationError:
        return False
    except UnicodeDecodeError:
        return True  # it supports no other bodies
    return True


def _signature_seeds() -> list[bytes]:
    good = f"t={_NOW},v1=@".encode()
    return [
        good + b"\n{}",
        good + b',v1=@,v0=@\n{"type": "a", "data": {}}',
        b"v1=@, t=%d\n{}" % _NOW,
        b"t=%d,v1=@\n{}" % (_NOW - 301),
        b"t=%d,v1=@\n{}" % (_NOW + 301),
        b"t=0%d,v1=@\n{}" % _NOW,
        b"t=,v1=\n",
        b"",
    ]


def check_event(data: bytes) -> None:
    """Require that an event raises only declared errors, can be stored, and equals the standard
    library's reading.
    """
    event = _decoded(data)
    other = _decoded(
        data.replace(b"customer.subscription.updated", b"customer.subscription.update\\u0064")
    )
    require(event == other, "the two parsers disagree", event, other)
    if event is None:
        return
    require_storable(event, _MAX_TEXT)
    require(0 <= event.created <= EPOCH_MAX, "a time out of bounds", event)
    written = json.loads(text(data))  # ignored parts need not be UTF-8
    require(written["type"] == event.type, "another type", event)
    require(
        written.get("id") in (event.id, None, "") or event.id == "generated", "another id", event
    )
    require(written.get("livemode") == event.livemode, "another mode", event)
    account = written.get("context" if event.is_thin else "account")
    require(account in (event.account, ""), "another account", event)
    if not event.is_thin:  # its time is a text
        require(written.get("created", _NOW) in (event.created, None), "another time", event)


def _decoded(data: bytes) -> Any:  # noqa: ANN401
    try:
        return decode_event(
            data, arrived=_NOW, make_up_id=lambda: "generated", reference_links=True
        )
    except NotAnEventError:
        return None


def _event_seeds() -> list[bytes]:
    seeds = []
    for shape in events.Shape:
        subscription = events.subscription(shape=shape)
        invoice = events.invoice(shape=shape)
        seeds += [
            events.body(
                events.event(
                    "customer.subscription.updated", subscription, previous={"status": "trialing"}
                )
            ),
            events.body(
                events.event(
                    "customer.subscription.deleted", events.subscription(shape=shape, expanded=True)
                )
            ),
            events.body(events.event("invoice.payment_failed", invoice)),
            events.body(events.event("invoice.paid", events.invoice(shape=shape, expanded=True))),
        ]
    small = {
        "status": "active",
        "items": {"data": [{"price": {"id": "p"}, "current_period_end": 1}]},
    }
    for kind in ("customer.subscription.updated", "customer.subscription.created"):
        seeds.append(
            json.dumps(
                {"type": kind, "data": {"object": small, "previous_attributes": {}}}
            ).encode()
        )
    session = {
        "mode": "subscription",
        "customer": "cus_1",
        "client_reference_id": "acme",
        "metadata": {"orgId": "a"},
    }
    seeds.append(
        json.dumps({"type": "checkout.session.completed", "data": {"object": session}}).encode()
    )
    seeds += [
        events.body(events.thin(context="acct_1")),
        events.body(
            events.event("customer.subscription.deleted", {"metadata": {"orgId": "a"}, "status": 7})
            | {"account": "acct_1"}
        ),
        b'{"type":"a","data":{"object":{}},"id":"\\ud800"}',
        b'{"type":"\xff","data":{"object":{}}}',
        b'{"type":"a","data":{"object":' + b"[" * 1500 + b"]" * 1500 + b"}}",
        b'{"type":"a","type":"b","data":{"object":{}}}',
    ]
    return seeds


def check_subscription(data: bytes) -> None:
    """Require that a subscription raises only declared errors and can be stored."""
    try:
        subscription = decode_subscription(data)
    except MalformedObjectError as error:
        require(len(str(error)) < 1000, "a long message", error)
        return
    require_storable(subscription, _MAX_TEXT)


def check_list(data: bytes) -> None:
    """Require the same for a page of a list and the answer's date."""
    date, body = parts(data, 2)
    sent_at = second_sent(text(date), 0.0, system_clock())
    answer = ProviderResponse(body, "req_1", sent_at)

    class Connection:
        async def send(self, *_: object, **__: object) -> object:
            return answer

    async def pages() -> list[ListPage]:
        reading = read_pages(cast("Any", Connection()), "/v1/events", {})
        return [page async for page in reading]

    try:
        [page] = run_now(pages())
    except ProviderUnavailableError:
        return
    require(0 <= page.sent_at <= EPOCH_MAX, "a second out of bounds")


def _list_seeds() -> list[bytes]:
    date = b"Thu, 01 Jan 2026 12:00:00 GMT\n"
    return [
        date + b'{"data": [{"id": "sub_1"}, {"id": "sub_2"}], "has_more": true}',
        b"Thu, 01 Jan 9999 23:59:59 -2359\n" + b'{"data": [], "has_more": false}',
        b'01 Jan 1 00:00:00 +9999\n{"data": [{}], "has_more": false}',
        date + b'{"data": [{"id": "\xff"}], "has_more": true}',
        date + b'{"data": [{"id": "\\ud800"}], "has_more": true}',
        date + b'{"data": [' + b"[" * 2000 + b"]" * 2000 + b'], "has_more": true}',
    ]


_FIELDS: Final = tuple(
    b'"%s"' % name
    for name in (
        b"type data object id created livemode api_version previous_attributes status metadata orgId items price plan "
        b"current_period_end cancel_at_period_end customer subscription parent subscription_details hosted_invoice_url "
        b"amount_due currency mode client_reference_id has_more \\ud800 \\u0000"
    ).split()
)
_TYPES: Final = tuple(
    b"customer.subscription.updated customer.subscription.created customer.subscription.deleted "
    b"invoice.payment_failed invoice.paid checkout.session.completed".split()
)

TARGETS: Final = (
    Target(
        name="signature",
        reads="Provider-Signature, from any client; compared with the SDK and the provider's package",
        check=check_signature,
        seeds=_signature_seeds,
        words=(b"t=", b"v1=@", b",", b"v0=", b" ", b"\t", b"t=1767268800", b"+", b"\xc2\xb2"),
        max_size=512,
    ),
    Target(
        name="event",
        reads="the body of an event, from the provider; compared with the standard library",
        check=check_event,
        seeds=_event_seeds,
        words=_FIELDS + _TYPES,
    ),
    Target(
        name="subscription",
        reads="a subscription, from the provider's API",
        check=check_subscription,
        seeds=lambda: [events.body(events.subscription(shape=shape)) for shape in events.Shape],
        words=_FIELDS,
    ),
    Target(
        name="provider-list",
        reads="a page of a list and its date, from the provider's API",
        check=check_list,
        seeds=_list_seeds,
        words=_FIELDS,
    ),
)
