"""Requests to the payment provider's API, and its possible answers."""

import asyncio
import logging
import socket
import traceback
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from tenantry.common.secret import Secret
from tenantry.domain.checkout import CheckoutItem, CheckoutRequest
from tenantry.domain.errors import (
    DomainError,
    IdempotencyInFlightError,
    IdempotencyMismatchError,
    ProviderRefusedError,
    ProviderUnavailableError,
)
from tenantry.integrations.stripe.client import ProviderApi, ProviderEndpoint
from tenantry.integrations.stripe.connection import API_VERSION
from tests.support.provider_api import (
    KEY,
    Answer,
    ProviderServer,
    endpoint,
    refusal,
)


@pytest.fixture
async def api(server: ProviderServer) -> AsyncIterator[ProviderApi]:
    async with aclosing(ProviderApi(Secret(KEY), server.url)) as api:
        yield api


async def checkout(
    api: ProviderApi,
    *,
    price_id: str = "price_pro",
    customer_id: str | None = None,
    customer_email: str | None = "owner@acme.example",
    idempotency_key: str | None = None,
) -> str:
    request = CheckoutRequest(
        tenant_id="acme",
        items=[CheckoutItem(price_id, 1)],
        customer_id=customer_id,
        customer_email=customer_email,
        success_url="https://app.example/done?session={CHECKOUT_SESSION_ID}",
        cancel_url="https://app.example/back",
    )
    return (await api.create_checkout_session(request, idempotency_key)).url


async def test_a_checkout_session_says_who_subscribes_to_what(
    api: ProviderApi, server: ProviderServer
) -> None:
    assert await checkout(api) == "https://checkout.provider.example/c/1"
    [request] = server.requests
    assert (request.method, request.path) == ("POST", "/v1/checkout/sessions")
    assert request.params == {
        "mode": "subscription",
        "line_items[0][price]": "price_pro",
        "line_items[0][quantity]": "1",
        "success_url": "https://app.example/done?session={CHECKOUT_SESSION_ID}",
        "cancel_url": "https://app.example/back",
        "client_reference_id": "acme",
        "metadata[orgId]": "acme",
        "subscription_data[metadata][orgId]": "acme",
        "customer_email": "owner@acme.example",
    }


async def test_a_known_customer_is_named_instead_of_the_address(
    api: ProviderApi, server: ProviderServer
) -> None:
    await checkout(api, customer_id="cus_1")
    params = server.requests[0].params
    assert params["customer"] == "cus_1"
    assert "customer_email" not in params


async def test_a_portal_session_is_the_customers(api: ProviderApi, server: ProviderServer) -> None:
    url = await api.create_portal_session(
        customer_id="cus_1", return_url="https://app.example/billing", idempotency_key=None
    )
    assert url == "https://billing.provider.example/p/1"
    assert server.requests[0].params == {
        "customer": "cus_1",
        "return_url": "https://app.example/billing",
    }


async def test_the_api_version_is_pinned_and_no_telemetry_is_sent(
    api: ProviderApi, server: ProviderServer
) -> None:
    await checkout(api)
    await checkout(api)
    for request in server.requests:
        assert request.headers["stripe-version"] == API_VERSION
        assert "x-stripe-client-telemetry" not in request.headers
        assert not [name for name in request.headers if name.startswith("x-stripe-client")]


async def test_webhook_endpoints_are_read_to_the_last_page(
    api: ProviderApi, server: ProviderServer
) -> None:
    server.endpoints = [
        endpoint(number, f"https://{number}.example/", ["*"]) for number in range(101)
    ]
    endpoints = await api.webhook_endpoints()
    assert endpoints is not None
    assert len(endpoints) == 101
    assert endpoints[100] == ProviderEndpoint("https://100.example/", ("*",), "enabled")


async def test_a_restricted_key_may_not_read_webhook_endpoints(
    api: ProviderApi, server: ProviderServer
) -> None:
    server.answers.append(
        refusal(403, message="The provided key does not have the required permissions.")
    )
    assert await api.webhook_endpoints() is None


async def test_the_same_idempotency_key_gives_the_same_session(
    api: ProviderApi, server: ProviderServer
) -> None:
    first = await checkout(api, idempotency_key="k1")
    assert await checkout(api, idempotency_key="k1") == first
    assert [request.headers["idempotency-key"] for request in server.requests] == ["k1", "k1"]


async def test_without_an_idempotency_key_every_call_is_a_new_one(api: ProviderApi) -> None:
    assert await checkout(api) != await checkout(api)


async def test_an_idempotency_key_used_with_other_parameters(api: ProviderApi) -> None:
    await checkout(api, idempotency_key="k1")
    with pytest.raises(IdempotencyMismatchError):
        await checkout(api, price_id="price_business", idempotency_key="k1")


async def test_an_idempotency_key_in_use(api: ProviderApi, server: ProviderServer) -> None:
    server.open.clear()
    first = asyncio.create_task(checkout(api, idempotency_key="k1"))
    await server.until_requested(1)
    with pytest.raises(IdempotencyInFlightError):
        await checkout(api, idempotency_key="k1")
    server.open.set()
    assert await first


@pytest.mark.parametrize(
    "answer",
    [
        refusal(400, code="parameter_missing", param="line_items"),
        refusal(402, type="card_error", code="card_declined"),
        refusal(403),
        refusal(404, code="resource_missing"),
        Answer(418, {"not": "an error"}),
    ],
)
async def test_what_the_provider_refuses(
    api: ProviderApi, server: ProviderServer, answer: Answer
) -> None:
    server.answers.append(answer)
    with pytest.raises(ProviderRefusedError):
        await checkout(api)


async def test_a_refusal_gives_its_code_and_the_request_to_look_for(
    api: ProviderApi, server: ProviderServer
) -> None:
    server.answers.append(
        refusal(404, code="resource_missing", message="No such price: 'price_pro'")
    )
    with pytest.raises(ProviderRefusedError) as refused:
        await checkout(api)
    assert (
        refused.value.detail
        == "The payment provider refused the request (status 404, resource_missing, request req_1)."
    )


@pytest.mark.parametrize(
    "answer",
    [
        refusal(429, code="rate_limit"),
        refusal(400, code="rate_limit"),
        refusal(409, code="lock_timeout"),
        refusal(500, type="api_error"),
        Answer(502, b"<html>Bad gateway</html>", {"Stripe-Should-Retry": "false"}),
        Answer(200, b"not JSON"),
        Answer(200, {"id": "cs_1", "object": "checkout.session", "url": None}),
    ],
)
async def test_what_may_succeed_later(
    api: ProviderApi, server: ProviderServer, answer: Answer
) -> None:
    server.answers.append(answer)
    with pytest.raises(ProviderUnavailableError):
        await checkout(api)


async def test_a_broken_connection_is_tried_again_as_the_same_request(
    api: ProviderApi, server: ProviderServer
) -> None:
    server.hang_up = 2
    assert await checkout(api)
    keys = {request.headers["idempotency-key"] for request in server.requests}
    assert len(server.requests) == 3
    assert len(keys) == 1


async def test_a_provider_that_keeps_hanging_up(api: ProviderApi, server: ProviderServer) -> None:
    server.hang_up = 3
    with pytest.raises(ProviderUnavailableError):
        await checkout(api)
    assert len(server.requests) == 3


async def test_an_unreachable_provider() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with aclosing(ProviderApi(Secret(KEY), f"http://127.0.0.1:{port}")) as api:
        with pytest.raises(ProviderUnavailableError):
            await checkout(api)


async def test_the_key_gets_nowhere_but_to_the_provider(
    server: ProviderServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "sk_test_wrong0123456789"
    caplog.set_level(logging.DEBUG)
    async with aclosing(ProviderApi(Secret(secret), server.url)) as api:
        with pytest.raises(DomainError) as refused:
            await checkout(api)
    assert server.requests[0].headers["authorization"] == f"Bearer {secret}"
    assert secret not in "".join(traceback.format_exception(refused.value))
    assert secret not in repr(vars(api))
    assert secret not in caplog.text
    assert secret not in "".join(capfd.readouterr())


async def test_the_log_has_the_providers_request_id(
    api: ProviderApi, server: ProviderServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers.append(
        refusal(
            400, code="email_invalid", param="customer_email", message="Bad:\nowner@acme.example"
        )
    )
    with pytest.raises(ProviderRefusedError) as refused:
        await checkout(api)
    assert "Bad" not in refused.value.detail
    assert str(refused.value).endswith("It says: Bad: (mail address)")
    text = "".join(
        record.getMessage() for record in caplog.records if record.name.startswith("tenantry")
    )
    assert "parameter customer_email, request req_1: Bad: (mail address)" in text
    assert "acme.example" not in text
