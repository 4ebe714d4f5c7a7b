"""Read the payment provider's subscriptions and events through its API."""

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tenantry.common.secret import Secret
from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import SubscriptionDetails
from tenantry.domain.billing.snapshot import ProviderSubscription
from tenantry.domain.errors import DomainError, ProviderRefusedError, ProviderUnavailableError
from tenantry.integrations.stripe.client import MOST_EVENT_TYPES, ProviderApi
from tenantry.integrations.stripe.connection import API_VERSION
from tenantry.integrations.stripe.decode import decode_event
from tests.support import events
from tests.support.events import NOW, Shape
from tests.support.provider_api import KEY, Answer, ProviderServer, refusal, running_provider

CUSTOMER: Final = "cus_acme"
PATIENCE: Final = 60
"""More seconds than any answer here takes."""
OUR_CLOCK: Final = datetime(2030, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC)

Read = Callable[[ProviderApi], Any]


@pytest.fixture
async def server() -> AsyncIterator[ProviderServer]:
    async with running_provider() as server:
        server.subscriptions[CUSTOMER] = []
        yield server


@pytest.fixture
async def api(server: ProviderServer) -> AsyncIterator[ProviderApi]:
    async with aclosing(ProviderApi(Secret(KEY), server.url, lambda: OUR_CLOCK)) as api:
        yield api


async def subscriptions(
    api: ProviderApi, customer_id: str = CUSTOMER
) -> Sequence[ProviderSubscription]:
    answer = await api.subscriptions_of(customer_id)
    assert answer is not None
    return answer.subscriptions


async def listed(
    api: ProviderApi, since: int = 0, types: Sequence[str] = (ev.SUBSCRIPTION_UPDATED,)
) -> list[bytes]:
    return [event async for event in api.events_since(since, types)]


READS: Final = [subscriptions, listed]


def page(*objects: bytes, has_more: bool = False) -> Answer:
    """A page with just these objects in it."""
    top = b'{"object": "list", "has_more": %s, "data": [' % (b"true" if has_more else b"false")
    return Answer(200, top + b",\n".join(objects) + b"]}")


def subscription(**fields: Any) -> dict[str, Any]:
    """A subscription of the customer, some of whose fields are others."""
    return {**events.subscription(), **fields}


@pytest.mark.parametrize(
    "too_much", [page(b'{"id": "%b"}' % (b"x" * 2**20)), page(*[b"{}"] * 40_001)]
)
async def test_page_that_is_too_large_is_read_in_smaller_ones(
    api: ProviderApi, server: ProviderServer, too_much: Answer
) -> None:
    server.answers += [too_much, page(b'{"id": "evt_1"}', has_more=True), page(b'{"id": "evt_2"}')]
    assert await listed(api) == [b'{"id": "evt_1"}', b'{"id": "evt_2"}']
    assert [each.params["limit"] for each in server.requests] == ["100", "10", "10"]


async def test_object_that_is_too_large_is_an_error(
    api: ProviderApi, server: ProviderServer
) -> None:
    server.answers += [page(b'{"id": "%b"}' % (b"x" * 2**20))] * 3
    with pytest.raises(ProviderUnavailableError):
        await listed(api)
    assert [each.params["limit"] for each in server.requests] == ["100", "10", "1"]


# Subscriptions


async def test_all_subscriptions_of_a_customer_are_asked_for(
    api: ProviderApi, server: ProviderServer
) -> None:
    server.subscriptions[CUSTOMER] = [
        events.subscription(subscription_id="sub_2"),
        events.subscription(subscription_id="sub_1", status="canceled"),
    ]
    assert [(one.id, one.status) for one in await subscriptions(api)] == [
        ("sub_2", "active"),
        ("sub_1", "canceled"),
    ]
    [request] = server.requests
    assert (request.method, request.path) == ("GET", "/v1/subscriptions")
    assert request.params == {"customer": CUSTOMER, "status": "all", "limit": "100"}
    assert request.headers["stripe-version"] == API_VERSION


@pytest.mark.parametrize("shape", list(Shape))
@pytest.mark.parametrize("expanded", [False, True])
async def test_a_subscription_in_every_shape(
    api: ProviderApi, server: ProviderServer, shape: Shape, expanded: bool
) -> None:
    server.subscriptions[CUSTOMER] = [
        events.subscription(period_end=NOW + 7, cancel=True, shape=shape, expanded=expanded)
    ]
    assert list(await subscriptions(api)) == [
        ProviderSubscription(
            id="sub_acme",
            customer_id=CUSTOMER,
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
    ]


async def test_subscriptions_are_read_to_the_last_page(
    api: ProviderApi, server: ProviderServer
) -> None:
    server.subscriptions[CUSTOMER] = [
        events.subscription(subscription_id=f"sub_{number}") for number in range(1001)
    ]
    assert [one.id for one in await subscriptions(api)] == [
        f"sub_{number}" for number in range(1001)
    ]
    assert len(server.requests) == 11


async def test_a_full_last_page_is_the_last_one(api: ProviderApi, server: ProviderServer) -> None:
    server.subscriptions[CUSTOMER] = [
        events.subscription(subscription_id=f"sub_{number}") for number in range(200)
    ]
    assert len(await subscriptions(api)) == 200
    assert [request.params.get("starting_after") for request in server.requests] == [None, "sub_99"]


async def test_a_customer_without_subscriptions(api: ProviderApi) -> None:
    assert list(await subscriptions(api)) == []


@pytest.mark.parametrize(
    "answer",
    [
        None,
        refusal(400, code="resource_missing", param="customer"),
        refusal(404, code="resource_missing", param="customer"),
        refusal(404, code="resource_missing"),
    ],
)
async def test_a_customer_that_the_provider_does_not_know(
    api: ProviderApi,
    server: ProviderServer,
    answer: Answer | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if answer is not None:
        server.answers.append(answer)
    assert await api.subscriptions_of("cus_nobody") is None
    assert not [record for record in caplog.records if record.name.startswith("tenantry")]


@pytest.mark.parametrize(
    "answer",
    [
        refusal(404, message="Unrecognized request URL"),
        refusal(400, code="resource_missing", param="starting_after"),
        refusal(400, code="parameter_invalid_empty", param="customer"),
    ],
)
async def test_other_refusals_are_no_unknown_customer(
    api: ProviderApi, server: ProviderServer, answer: Answer
) -> None:
    server.answers.append(answer)
    with pytest.raises(ProviderRefusedError):
        await api.subscriptions_of(CUSTOMER)


async def test_a_list_that_breaks_off_is_refused_as_a_whole(
    api: ProviderApi, server: ProviderServer
) -> None:
    first = events.body(events.subscription(subscription_id="sub_gone"))
    server.answers.append(page(first, has_more=True))
    with pytest.raises(ProviderRefusedError):
        await api.subscriptions_of(CUSTOMER)


async def test_the_items_that_a_subscription_leaves_out_are_read(
    api: ProviderApi, server: ProviderServer
) -> None:
    cut = subscription()
    [first] = cut["items"]["data"]
    cut["items"]["has_more"] = True
    rest = [
        {**first, "id": f"si_{number}", "price": {"id": f"price_{number}"}} for number in range(2)
    ]
    pages = [
        page(events.body(first), has_more=True),
        page(*map(events.body, rest)),
    ]
    server.answers += [page(events.body(cut)), *pages]
    [of_customer] = await subscriptions(api)
    server.answers += [page(events.body(cut)), *pages]
    [[of_account]] = [each async for each in api.every_subscription()]
    server.answers += [Answer(200, cut), *pages]
    seats = await api.billed_by("sub_acme")
    prices = ["price_pro", "price_0", "price_1"]
    assert of_account.subscription == of_customer
    assert [item.price_id for item in of_customer.details.items] == prices
    assert not of_customer.details.is_truncated
    assert seats is not None
    assert [item.price_id for item in seats.items] == prices
    assert server.requests[1].path == "/v1/subscription_items"
    assert server.requests[1].params == {"subscription": "sub_acme", "limit": "100"}


async def test_unknown_fields_do_not_matter(api: ProviderApi, server: ProviderServer) -> None:
    server.subscriptions[CUSTOMER] = [subscription(new_field={"deep": [1, None]})]
    server.answers.append(page(events.body(subscription(newer="x")).replace(b'"x"', b"1e400")))
    assert [one.id for one in await subscriptions(api)] == ["sub_acme"]
    assert [one.id for one in await subscriptions(api)] == ["sub_acme"]


@pytest.mark.parametrize(
    "fields",
    [
        {"id": None},
        {"customer": None},
        {"created": None},
        {"status": None},
        {"status": 7},
        {"current_period_end": "soon"},
        {"cancel_at_period_end": "yes"},
        {"items": []},
        {"metadata": {"orgId": "not a tenant's id"}},
        {"metadata": {"orgId": 7}},
        {"customer": "cus_other"},
    ],
)
async def test_a_subscription_that_cannot_be_used(
    api: ProviderApi, server: ProviderServer, fields: dict[str, Any]
) -> None:
    server.answers.append(
        page(events.body(events.subscription()), events.body(subscription(**fields)))
    )
    with pytest.raises(ProviderUnavailableError) as refused:
        await api.subscriptions_of(CUSTOMER)
    assert refused.value.detail == "The payment provider's answer cannot be used."


async def test_why_an_answer_cannot_be_used_is_logged_without_what_it_says(
    api: ProviderApi, server: ProviderServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.subscriptions[CUSTOMER] = [subscription(metadata={"orgId": "Private words"})]
    with pytest.raises(ProviderUnavailableError) as refused:
        await api.subscriptions_of(CUSTOMER)
    text = "".join(
        record.getMessage() for record in caplog.records if record.name.startswith("tenantry")
    )
    assert "/v1/subscriptions: metadata.orgId is not a tenant id, request req_1" in text
    assert "Private words" not in text + "".join(traceback.format_exception(refused.value))


# When an answer was true


async def test_an_answer_is_as_old_as_its_question_by_the_providers_clock(api: ProviderApi) -> None:
    answer = await api.subscriptions_of(CUSTOMER)
    assert answer is not None
    assert NOW - PATIENCE < answer.as_of < NOW


async def test_the_first_page_says_how_old_an_answer_is(
    api: ProviderApi, server: ProviderServer
) -> None:
    server.subscriptions[CUSTOMER] = [events.subscription(subscription_id="sub_2")]
    later = {"Date": "Thu, 01 Jan 2026 13:00:00 GMT"}
    first = events.body(events.subscription(subscription_id="sub_1"))
    server.answers += [page(first, has_more=True), page()._replace(headers=later)]
    answer = await api.subscriptions_of(CUSTOMER)
    assert answer is not None
    assert answer.as_of < NOW


@pytest.mark.parametrize("date", [None, "yesterday"])
async def test_without_the_providers_clock_ours_counts(
    api: ProviderApi, server: ProviderServer, date: str | None
) -> None:
    server.date = date
    answer = await api.subscriptions_of(CUSTOMER)
    assert answer is not None
    assert answer.as_of == int(datetime(2030, 1, 1, tzinfo=UTC).timestamp())


async def test_an_answer_is_as_old_as_the_try_that_got_it(server: ProviderServer) -> None:
    server.hang_up, server.date = 1, None
    times = [OUR_CLOCK, OUR_CLOCK + timedelta(hours=1)]
    tries = iter(times)
    async with aclosing(ProviderApi(Secret(KEY), server.url, lambda: next(tries))) as api:
        answer = await api.subscriptions_of(CUSTOMER)
    assert answer is not None
    assert answer.as_of == int(times[-1].timestamp())


# Events


async def test_events_are_asked_for_by_type_and_time(
    api: ProviderApi, server: ProviderServer
) -> None:
    server.events = [
        events.updated(event_id="evt_4", created=NOW + 1),
        events.failed(event_id="evt_3", created=NOW + 1),
        events.completed(event_id="evt_2", created=NOW),
        events.updated(event_id="evt_1", created=NOW - 1),
    ]
    found = await listed(api, NOW, [ev.SUBSCRIPTION_UPDATED, ev.CHECKOUT_COMPLETED])
    assert [decode(body).id for body in found] == ["evt_4", "evt_2"]
    [request] = server.requests
    assert request.params == {
        "created[gte]": str(NOW),
        "types[0]": ev.CHECKOUT_COMPLETED,
        "types[1]": ev.SUBSCRIPTION_UPDATED,
        "limit": "100",
    }
    assert request.headers["stripe-version"] == API_VERSION


def decode(body: bytes) -> ev.BillingEvent:
    return decode_event(body, arrived=NOW, make_up_id=lambda: "evt_made_up")


async def test_events_are_read_to_the_last_page(api: ProviderApi, server: ProviderServer) -> None:
    server.events = [events.updated(event_id=f"evt_{number}") for number in range(501)]
    assert [decode(body).id for body in await listed(api)] == [
        f"evt_{number}" for number in range(501)
    ]
    assert len(server.requests) == 6


async def test_a_page_is_asked_for_only_when_it_is_needed(
    api: ProviderApi, server: ProviderServer
) -> None:
    server.events = [events.updated(event_id=f"evt_{number}") for number in range(101)]
    async with aclosing(api.events_since(0, [ev.SUBSCRIPTION_UPDATED])) as found:
        for _ in range(100):
            await anext(found)
        assert len(server.requests) == 1
        await anext(found)
    assert len(server.requests) == 2


@pytest.mark.parametrize("shape", list(Shape))
async def test_an_event_comes_as_it_would_be_delivered(
    api: ProviderApi, server: ProviderServer, shape: Shape
) -> None:
    delivered = [
        events.body(events.updated(shape=shape, previous={"status": "trialing"})),
        events.body(events.failed(shape=shape, expanded=True)).replace(b"2900", b"2900.0e0"),
        b'{"id":"evt_1",  "type":"a.b","data":{"object":{"x":"\xc3\xa9\\u00e9"}} }',
    ]
    server.answers.append(page(*delivered))
    assert await listed(api) == delivered


async def test_an_account_without_events(api: ProviderApi) -> None:
    assert await listed(api) == []


@pytest.mark.parametrize("number", [0, MOST_EVENT_TYPES + 1])
async def test_a_number_of_types_that_the_provider_does_not_list(
    api: ProviderApi, server: ProviderServer, number: int
) -> None:
    with pytest.raises(ValueError, match="1 to 20 types"):
        await listed(api, types=[f"type.{one}" for one in range(number)])
    assert server.requests == []


async def test_events_up_to_a_failure_are_given(api: ProviderApi, server: ProviderServer) -> None:
    server.answers += [page(b'{"id": "evt_1"}', has_more=True), refusal(500)]
    async with aclosing(api.events_since(0, [ev.PAYMENT_FAILED])) as found:
        assert await anext(found) == b'{"id": "evt_1"}'
        with pytest.raises(ProviderUnavailableError):
            await anext(found)


# What both have in common


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    "body",
    [
        b"not JSON",
        b"[]",
        b"{}",
        b"null",
        b'{"data": []}',
        b'{"data": null, "has_more": false}',
        b'{"data": {}, "has_more": false}',
        b'{"data": [], "has_more": "false"}',
        b'{"data": [], "has_more": null}',
        b'{"data": [], "has_more": true}',
        b'{"data": [NaN], "has_more": false}',
        b'{"data": [1], "has_more": true}',
        b'{"data": [{}], "has_more": true}',
        b'{"data": [{"id": 7}], "has_more": true}',
        b'{"data": [{"id": ""}], "has_more": true}',
        b'{"data": [' + b"[" * 100_000 + b"]" * 100_000 + b'], "has_more": false}',
        b'{"data": [' + b"9" * 10_000 + b'], "has_more": false}',
    ],
)
async def test_an_answer_that_is_no_list(
    api: ProviderApi, server: ProviderServer, read: Read, body: bytes
) -> None:
    server.answers.append(Answer(200, body))
    with pytest.raises(ProviderUnavailableError):
        await read(api)
    assert len(server.requests) == 1


@pytest.mark.parametrize("read", READS)
async def test_a_list_with_a_cycle(api: ProviderApi, server: ProviderServer, read: Read) -> None:
    server.answers += [page(events.body(events.subscription()), has_more=True)] * 2
    with pytest.raises(ProviderUnavailableError):
        await read(api)
    assert len(server.requests) == 2


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refusal(401), ProviderRefusedError),
        (refusal(403), ProviderRefusedError),
        (refusal(404), ProviderRefusedError),
        (refusal(429, code="rate_limit"), ProviderUnavailableError),
        (refusal(500, type="api_error"), ProviderUnavailableError),
        (Answer(503, b"<html>", {"Stripe-Should-Retry": "false"}), ProviderUnavailableError),
        (Answer(302, b"", {"Location": "http://127.0.0.1:1/"}), ProviderUnavailableError),
    ],
)
async def test_what_is_not_an_answer(
    api: ProviderApi, server: ProviderServer, read: Read, answer: Answer, error: type[DomainError]
) -> None:
    server.answers.append(answer)
    with pytest.raises(error):
        await read(api)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "passing",
    [
        Answer(429, {"error": {"type": "invalid_request_error", "code": "rate_limit"}}),
        Answer(429, {"error": {"code": "lock_timeout"}}, {"Stripe-Should-Retry": "true"}),
        Answer(500, {"error": {"type": "api_error"}}),
        Answer(502, b"<html>Bad gateway \xff</html>"),
    ],
)
async def test_temporary_errors_are_retried(
    api: ProviderApi, server: ProviderServer, passing: Answer
) -> None:
    server.answers.append(passing)
    await subscriptions(api)
    assert len(server.requests) == 2


async def test_lasting_errors_are_tried_three_times(
    api: ProviderApi, server: ProviderServer
) -> None:
    server.answers += [Answer(429, {"error": {"code": "rate_limit"}})] * 3
    with pytest.raises(ProviderUnavailableError):
        await subscriptions(api)
    assert len(server.requests) == 3


@pytest.mark.parametrize("read", READS)
async def test_a_connection_that_is_cut_is_tried_again(
    api: ProviderApi, server: ProviderServer, read: Read
) -> None:
    server.hang_up = 1
    await read(api)
    assert len(server.requests) == 2


async def test_an_answer_in_the_middle_of_which_the_connection_is_cut(
    api: ProviderApi, server: ProviderServer
) -> None:
    server.answers.append(
        Answer(200, b'{"data": [', {"Content-Length": "1000", "Connection": "close"})
    )
    await subscriptions(api)
    assert len(server.requests) == 2


@pytest.mark.parametrize("read", READS)
async def test_a_slow_answer_is_waited_for(
    api: ProviderApi, server: ProviderServer, read: Read
) -> None:
    server.open.clear()
    reading = asyncio.create_task(read(api))
    await server.until_requested(1)
    server.open.set()
    await reading
    assert len(server.requests) == 1


async def test_an_answer_that_does_not_come(server: ProviderServer) -> None:
    server.open.clear()
    async with aclosing(ProviderApi(Secret(KEY), server.url, timeout=0.2)) as api:
        with pytest.raises(ProviderUnavailableError):
            await subscriptions(api)
    assert len(server.requests) == 3


@pytest.mark.parametrize("read", READS)
async def test_the_key_gets_nowhere_but_to_the_provider(
    server: ProviderServer,
    read: Read,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    secret = "sk_test_wrong0123456789"
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.WARNING, "stripe")  # as `tenantry.common.logs` has it
    async with aclosing(ProviderApi(Secret(secret), server.url)) as api:
        with pytest.raises(ProviderRefusedError) as refused:
            await read(api)
        assert secret not in repr(vars(api))
    assert server.requests[0].headers["authorization"] == f"Bearer {secret}"
    assert secret not in "".join(traceback.format_exception(refused.value))
    assert secret not in caplog.text
    assert secret not in "".join(capfd.readouterr())


async def test_event_is_read_by_its_id(server: ProviderServer, api: ProviderApi) -> None:
    server.answers.append(Answer(200, {"id": "evt_1", "object": "event", "name": "ü"}))
    body = await api.event("evt_1")
    assert body is not None
    assert json.loads(body) == {"id": "evt_1", "object": "event", "name": "ü"}
    assert [(request.method, request.path) for request in server.requests] == [
        ("GET", "/v1/events/evt_1")
    ]


async def test_unknown_event_is_none(server: ProviderServer, api: ProviderApi) -> None:
    server.answers.append(refusal(404, code="resource_missing", param="id"))
    assert await api.event("evt_1") is None


@pytest.mark.parametrize("body", [{"id": "evt_2"}, {"id": None}, [], {}])
async def test_answer_that_is_not_the_event_is_an_error(
    server: ProviderServer, api: ProviderApi, body: object
) -> None:
    server.answers.append(Answer(200, body))
    with pytest.raises(ProviderUnavailableError):
        await api.event("evt_1")
