"""The webhook endpoint's answers, case by case (CONTRACT 6)."""

import gzip
import logging
from collections.abc import AsyncIterator
from typing import Final

import pytest

from tenantry.integrations.stripe.signature import sign
from tests.support import events
from tests.support.app import WEBHOOK_SECRET
from tests.support.billing import Provider
from tests.support.events import NOW
from tests.support.service import Service, running_service
from tests.support.signing import PATH, PROVIDER_SIGNATURE, STRIPE_SIGNATURE, signature, v1

MISSING: Final = (400, "Missing Provider-Signature header")
INVALID: Final = (400, "Invalid signature")
NO_EVENT: Final = (400, "Invalid payload")
OK: Final = (200, "OK")


@pytest.fixture
def provider(service: Service) -> Provider:
    return Provider(service)


async def answer(
    service: Service, body: bytes, headers: list[tuple[bytes, bytes]]
) -> tuple[int, str]:
    response = await service.client.post(PATH, content=body, headers=headers)
    assert response.headers["content-type"].startswith("text/plain")
    assert response.headers["x-request-id"]
    return response.status_code, response.text


def named(name: str, value: str) -> tuple[bytes, bytes]:
    return name.encode(), value.encode()


def signed() -> tuple[bytes, str]:
    """A body and its signature."""
    body = events.body(events.event("charge.captured", {"id": "ch_1"}))
    return body, signature(body)


@pytest.mark.parametrize(
    "name", [PROVIDER_SIGNATURE, STRIPE_SIGNATURE, "provider-signature", "STRIPE-SIGNATURE"]
)
async def test_either_header_carries_the_signature(service: Service, name: str) -> None:
    body, header = signed()
    assert await answer(service, body, [named(name, header)]) == OK


@pytest.mark.parametrize(
    "headers", [[], [("X-Signature", "t=1,v1=2")], [("Authorization", "Bearer t=1,v1=2")]]
)
async def test_no_signature_header(service: Service, headers: list[tuple[str, str]]) -> None:
    body, _ = signed()
    assert await answer(service, body, [named(*header) for header in headers]) == MISSING


@pytest.mark.parametrize("name", [PROVIDER_SIGNATURE, STRIPE_SIGNATURE])
@pytest.mark.parametrize("value", ["", " "])
async def test_an_empty_signature_header(service: Service, name: str, value: str) -> None:
    body, _ = signed()
    assert await answer(service, body, [named(name, value)]) == MISSING


async def test_of_both_headers_the_first_name_counts(service: Service) -> None:
    body, header = signed()
    wrong = header.replace("v1=", "v1=0")
    assert (
        await answer(
            service, body, [named(STRIPE_SIGNATURE, wrong), named(PROVIDER_SIGNATURE, header)]
        )
        == OK
    )
    assert (
        await answer(
            service, body, [named(STRIPE_SIGNATURE, header), named(PROVIDER_SIGNATURE, wrong)]
        )
        == INVALID
    )
    assert (
        await answer(
            service, body, [named(STRIPE_SIGNATURE, header), named(PROVIDER_SIGNATURE, "")]
        )
        == MISSING
    )


async def test_a_header_that_is_sent_twice_is_no_signature(service: Service) -> None:
    body, header = signed()
    assert await answer(service, body, [named(PROVIDER_SIGNATURE, header)] * 2) == INVALID


@pytest.mark.parametrize(
    "header",
    [
        b"nonsense",
        b"t=1",
        b"\xff\xfe",
        "t=1,v1=é".encode(),
        b"t=%d,v0=" % NOW + b"0" * 64,
        b"t=%d,v1=" % NOW + b"0" * 64,
        b"t=%d,v1=" % NOW + b"\xe9" * 64,
        b"a=" * 20_000,
    ],
)
async def test_a_header_that_does_not_vouch(service: Service, header: bytes) -> None:
    body, _ = signed()
    assert await answer(service, body, [(b"provider-signature", header)]) == INVALID


@pytest.mark.parametrize(
    ("age", "expected"), [(299, OK), (-299, OK), (301, INVALID), (-301, INVALID)]
)
async def test_the_tolerance(service: Service, age: int, expected: tuple[int, str]) -> None:
    body, _ = signed()
    assert (
        await answer(service, body, [named(PROVIDER_SIGNATURE, signature(body, at=NOW - age))])
        == expected
    )


async def test_the_exact_bytes_are_signed(service: Service) -> None:
    body, header = signed()
    assert await answer(service, body + b"\n", [named(PROVIDER_SIGNATURE, header)]) == INVALID


async def test_a_refusal_names_its_reason_in_log_and_metric_alone(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    body, _ = signed()
    stale = signature(body, at=NOW - 1000)
    with caplog.at_level(logging.WARNING):
        await answer(service, body, [named(PROVIDER_SIGNATURE, stale)])
    assert "reason=too_old" in caplog.text
    assert stale.partition("v1=")[2] not in caplog.text
    assert WEBHOOK_SECRET not in caplog.text
    metrics = await service.client.get("/metrics")
    assert 'tenantry_webhook_refusals_total{reason="too_old"}' in metrics.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"[]",
        b"{}",
        b'{"type": "x"}',
        b'{"type": "x", "data": {"object": 1}}',
        b"[" * 100_000,
    ],
)
async def test_signed_but_no_event(service: Service, body: bytes) -> None:
    assert await answer(service, body, [named(PROVIDER_SIGNATURE, signature(body))]) == NO_EVENT


async def test_signed_but_not_utf8(service: Service) -> None:
    body = b'{"id": "evt_\xff", "type": "charge.captured", "data": {"object": {}}}'
    header = sign(body, WEBHOOK_SECRET, NOW)  # the provider's package signs nothing but text
    assert await answer(service, body, [named(PROVIDER_SIGNATURE, header)]) == NO_EVENT


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]
)
async def test_any_method_but_post(service: Service, method: str) -> None:
    body, header = signed()
    response = await service.client.request(
        method, PATH, content=body, headers={PROVIDER_SIGNATURE: header}
    )
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.headers["content-type"].startswith("text/plain")


async def test_a_body_of_one_mebibyte_is_read(service: Service) -> None:
    thing = {"id": "ch_1", "padding": ""}
    size = len(events.body(events.event("charge.captured", thing, event_id="evt_big")))
    thing["padding"] = "x" * (2**20 - size)
    body = events.body(events.event("charge.captured", thing, event_id="evt_big"))
    assert len(body) == 2**20
    assert await answer(service, body, [named(PROVIDER_SIGNATURE, signature(body))]) == OK


async def test_a_larger_body_is_refused(service: Service) -> None:
    body = b" " * (2**20 + 1)
    assert (await answer(service, body, [named(PROVIDER_SIGNATURE, signature(body))]))[0] == 413


async def test_a_larger_body_is_refused_before_it_is_read_whole(service: Service) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 2**26:
            sent += 2**16
            yield b" " * 2**16

    response = await service.client.post(
        PATH, content=endless(), headers={PROVIDER_SIGNATURE: "t=1,v1=0"}
    )
    assert "content-length" not in response.request.headers
    assert response.status_code == 413
    assert response.headers["content-type"].startswith("text/plain")
    assert sent < 2**21


async def test_a_body_that_says_it_is_larger_is_not_read(service: Service) -> None:
    async def never() -> AsyncIterator[bytes]:
        nothing: tuple[bytes, ...] = ()
        for part in nothing:
            yield part
        pytest.fail("the body was read")

    headers = {PROVIDER_SIGNATURE: "t=1,v1=0", "Content-Length": str(2**30)}
    assert (await service.client.post(PATH, content=never(), headers=headers)).status_code == 413


async def test_a_compressed_body_is_refused_in_plain_text_and_logged(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    body, header = signed()
    headers = {PROVIDER_SIGNATURE: header, "Content-Encoding": "gzip"}
    with caplog.at_level(logging.WARNING):
        response = await service.client.post(PATH, content=gzip.compress(body), headers=headers)
    assert (response.status_code, response.text) == (
        415,
        "Send the body uncompressed, without Content-Encoding.",
    )
    assert response.headers["content-type"].startswith("text/plain")
    assert response.headers["accept-encoding"] == "identity"
    assert f"reason=compressed request={response.headers['x-request-id']}" in caplog.text


async def test_a_streamed_body_is_read_whole(service: Service) -> None:
    body, header = signed()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 100):
            yield body[start : start + 100]

    response = await service.client.post(
        PATH, content=pieces(), headers={PROVIDER_SIGNATURE: header}
    )
    assert (response.status_code, response.text) == OK


async def test_a_duplicate(provider: Provider) -> None:
    event = events.updated(org="missing")
    await provider.send(event, event)


async def test_an_unknown_type_is_kept_as_ignored(provider: Provider) -> None:
    event = events.event("charge.captured", {"id": "ch_1"})
    await provider.send(event)
    stored = await provider.stored(event["id"])
    assert stored is not None
    assert (stored["outcome"], stored["tenant_id"], stored["type"]) == (
        "ignored",
        None,
        "charge.captured",
    )


async def test_an_unknown_tenant_and_an_unknown_customer_are_kept_as_parked(
    provider: Provider,
) -> None:
    for event in (events.updated(org="missing"), events.failed(customer="cus_missing")):
        await provider.send(event)
        stored = await provider.stored(event["id"])
        assert stored is not None
        assert (stored["outcome"], stored["tenant_id"]) == ("parked", None)


async def test_an_object_of_no_use_is_kept_as_invalid(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    event = events.updated(**subscriber.names)
    event["data"]["object"]["status"] = 7
    await provider.send(event)
    stored = await provider.stored(event["id"])
    assert stored is not None
    assert (stored["outcome"], stored["body"]) == ("invalid", events.body(event))
    assert await provider.state(subscriber) == ("free", "none")


async def test_an_event_without_an_id_is_handled_without_deduplication(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    event = events.failed(customer=subscriber.customer)
    del event["id"]
    await provider.send(event, event)
    assert await provider.state(subscriber) == ("free", "past_due")
    assert len(await provider.notifications(subscriber)) == 2


async def test_any_of_several_secrets_may_sign(conninfo: str) -> None:
    secrets = ("whsec_first_0123456789", "whsec_second_0123456789")
    async with running_service(conninfo, PROVIDER_WEBHOOK_SECRET=",".join(secrets)) as service:
        body, _ = signed()
        for secret in secrets:
            assert (
                await answer(
                    service, body, [named(PROVIDER_SIGNATURE, signature(body, secret=secret))]
                )
                == OK
            )
        both = f"t={NOW},v1={v1(body, secret='whsec_gone_0123456789')},v1={v1(body, secret=secrets[1])}"
        assert await answer(service, body, [named(PROVIDER_SIGNATURE, both)]) == OK
        assert await answer(service, body, [named(PROVIDER_SIGNATURE, signature(body))]) == INVALID


async def test_another_tolerance(conninfo: str) -> None:
    async with running_service(conninfo, PROVIDER_WEBHOOK_TOLERANCE="10") as service:
        body, _ = signed()
        assert (
            await answer(service, body, [named(PROVIDER_SIGNATURE, signature(body, at=NOW - 9))])
            == OK
        )
        assert (
            await answer(service, body, [named(PROVIDER_SIGNATURE, signature(body, at=NOW - 11))])
            == INVALID
        )


async def test_events_are_counted_by_type_outcome_and_mode(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        provider = Provider(service)
        event = events.updated(org="missing", price="price_other")
        live = events.updated(org="missing")
        live["livemode"] = True
        await provider.send(event, event, live, events.event("charge.captured", {}))
        metrics = (await service.client.get("/metrics")).text
    counted = 'tenantry_webhook_events_total{mode="%s",outcome="%s",type="%s"} 1.0'
    updated = "customer.subscription.updated"
    assert counted % ("test", "parked", updated) in metrics
    assert counted % ("test", "duplicate", updated) in metrics
    assert counted % ("live", "parked", updated) in metrics
    assert counted % ("test", "ignored", "other") in metrics
    assert 'tenantry_webhook_anomalies_total{kind="unknown_price"} 1.0' in metrics
