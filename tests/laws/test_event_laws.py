"""Laws of untrusted input: signatures and event bodies."""

import json
from contextlib import suppress
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from tenantry.domain.billing.events import REQUIRED_TYPES
from tenantry.integrations.stripe.decode import NotAnEventError, decode_event
from tenantry.integrations.stripe.signature import SignatureFault, SignatureVerifier, sign
from tests.support import events
from tests.support.signing import signature

secrets = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80)
moments = st.integers(0, 10**11)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
EVENTS: Final = (events.updated, events.deleted, events.failed, events.succeeded, events.completed)


def decode(body: bytes) -> None:
    """Read a body; what comes out must go into the database, whatever it is."""
    with suppress(NotAnEventError):
        event = decode_event(body, arrived=events.NOW, make_up_id=lambda: "evt_made_up")
        assert all("\x00" not in fact for fact in _texts(event))
        assert json.dumps([event.previous, event.created])


def _texts(event: Any) -> list[str]:
    facts = [getattr(event, name) for name in event.__struct_fields__]
    facts += (event.previous or {}).values()
    return [fact for fact in facts if isinstance(fact, str)]


@given(st.text(st.characters(exclude_categories=["Cs"])), secrets, moments)
def test_signatures_of_the_provider_are_accepted(text: str, secret: str, at: int) -> None:
    body = text.encode()
    assert (
        SignatureVerifier([secret], 300).check(
            signature(body, secret=secret, at=at).encode(), body, at
        )
        is None
    )


@given(st.binary(), secrets, moments, st.integers(-(10**6), 10**6))
def test_own_signatures_are_accepted_only_within_the_tolerance(
    body: bytes, secret: str, at: int, age: int
) -> None:
    refusal = SignatureVerifier([secret], 300).check(
        sign(body, secret, at).encode(), body, at + age
    )
    assert (refusal is None) == (abs(age) <= 300)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_other_header_is_accepted(header: bytes, body: bytes) -> None:
    assert SignatureVerifier(["whsec_0123456789"], 300).check(header, body, events.NOW) in set(
        SignatureFault
    )


@given(st.binary(max_size=500))
def test_any_bytes_are_an_event_or_refused(body: bytes) -> None:
    decode(body)


@given(json_values)
def test_any_json_is_an_event_or_refused(value: Any) -> None:
    decode(json.dumps(value).encode())


@given(st.sampled_from(sorted(REQUIRED_TYPES)), json_values, json_values)
def test_any_object_and_previous_attributes_make_an_event_or_are_refused(
    event_type: str, thing: Any, previous: Any
) -> None:
    decode(
        json.dumps(
            {"type": event_type, "data": {"object": thing, "previous_attributes": previous}}
        ).encode()
    )


@given(st.sampled_from(EVENTS), st.data(), json_values)
def test_an_event_with_any_field_replaced_is_an_event_or_refused(
    make: Any, data: st.DataObject, value: Any
) -> None:
    event = make(previous={"status": "x"}) if make is events.updated else make()
    target = event
    while isinstance(target, dict) and target:
        key = data.draw(st.sampled_from(sorted(target)))
        if not isinstance(target[key], dict) or not target[key] or data.draw(st.booleans()):
            target[key] = value
            break
        target = target[key]
    decode(json.dumps(event).encode())


@given(st.sampled_from(EVENTS), st.data())
def test_an_event_with_any_bytes_replaced_is_an_event_or_refused(
    make: Any, data: st.DataObject
) -> None:
    body = bytearray(events.body(make()))
    for position in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=5)):
        body[position] = data.draw(st.integers(0, 255))
    decode(bytes(body))
