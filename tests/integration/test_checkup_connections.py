"""The check-up of the services that we depend on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from tenantry.domain.billing import events as ev
from tenantry.gateways.identity.config import OidcConfig
from tenantry.gateways.mail import parse_smtp_url
from tenantry.gateways.provider.api import ProviderApi, WebhookEndpoint
from tenantry.kit.secret import Secret
from tenantry.services.checkup.connections import check_identity, check_mail, check_provider, judge_endpoints
from tenantry.services.checkup.finding import Finding, Level
from tests.support.findings import free_port, levels, only
from tests.support.issuer import DISCOVERY, JWKS, Answer, Issuer, running_issuer
from tests.support.provider_api import KEY, ProviderServer, endpoint, refusal, running_provider
from tests.support.smtp import LOOPBACK_IN_DISGUISE, MailServer, running

SENDER = "billing@example.com"
HOOK = "https://api.example/api/v1/webhooks/payment-provider"


# The mail server


async def test_a_mail_server_that_lets_us_in() -> None:
    async with running(MailServer(account=("app", "hunter2"))) as server:
        config = parse_smtp_url(f"smtp://app:hunter2@127.0.0.1:{server.port}", SENDER)
        assert levels(await check_mail(config)) == {Level.OK}
    assert server.received == []


async def test_a_mail_server_that_refuses_the_password() -> None:
    async with running(MailServer(account=("app", "secret"))) as server:
        server.replies_to_auth.append("535 no, not hunter2")
        config = parse_smtp_url(f"smtp://app:hunter2@127.0.0.1:{server.port}", SENDER)
        finding = only(await check_mail(config), Level.ERROR)
    assert "refused the user or password (535)" in finding.message
    assert "hunter2" not in repr(finding)


async def test_a_mail_server_without_tls_elsewhere() -> None:
    async with running(MailServer()) as server:
        config = parse_smtp_url(f"smtp://{LOOPBACK_IN_DISGUISE}:{server.port}", SENDER)
        assert "TLS" in only(await check_mail(config), Level.ERROR).message


async def test_a_mail_server_that_is_busy() -> None:
    async def turn_away(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"421 come back later\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(turn_away, "127.0.0.1", 0) as server:
        config = parse_smtp_url(f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}", SENDER)
        assert "refused the connection (421)" in only(await check_mail(config), Level.ERROR).message


async def test_a_mail_server_that_is_away() -> None:
    port = free_port()
    finding = only(await check_mail(parse_smtp_url(f"smtp://127.0.0.1:{port}", SENDER)), Level.ERROR)
    assert f"127.0.0.1:{port} cannot be reached" in finding.message


# The identity provider


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer() as issuer:
        yield issuer


async def test_an_identity_provider_in_order(issuer: Issuer) -> None:
    assert levels(await check_identity(OidcConfig(issuer.url, "api", "dashboard"))) == {Level.OK}


async def test_without_an_identity_provider() -> None:
    assert "OIDC_ISSUER" in (only(await check_identity(None), Level.WARNING).remedy or "")


async def test_an_audience_that_is_the_client_id(issuer: Issuer) -> None:
    finding = only(await check_identity(OidcConfig(issuer.url, "dashboard", "dashboard")), Level.WARNING)
    assert "ID tokens" in finding.message


@pytest.mark.parametrize(
    ("path", "answer", "message"),
    [
        (DISCOVERY, Answer(404, b""), "answered 404"),
        (DISCOVERY, Answer(200, b"<html>"), "something else"),
        (DISCOVERY, Answer(200, b'{"issuer": "https://b.example", "jwks_uri": ""}'), "names another issuer"),
        (JWKS, Answer(500, b""), "answered 500"),
        (JWKS, Answer(200, b'{"keys": []}'), "publishes no key"),
    ],
)
async def test_an_identity_provider_that_is_not_in_order(
    issuer: Issuer, path: str, answer: Answer, message: str
) -> None:
    issuer.answers[path] = answer
    assert message in only(await check_identity(OidcConfig(issuer.url, "api")), Level.ERROR).message


async def test_an_identity_provider_that_is_away(issuer: Issuer) -> None:
    await issuer.stop()
    assert "cannot be reached" in only(await check_identity(OidcConfig(issuer.url, "api")), Level.ERROR).message


# The payment provider


@pytest.fixture
async def provider() -> AsyncIterator[ProviderServer]:
    async with running_provider() as provider:
        yield provider


async def checked(provider: ProviderServer, key: str = KEY) -> list[Finding]:
    async with aclosing(ProviderApi(Secret(key), provider.url)) as api:
        return await check_provider(api, HOOK)


async def test_without_a_provider_key() -> None:
    assert "PROVIDER_SECRET_KEY" in (only(await check_provider(None, HOOK), Level.WARNING).remedy or "")


async def test_the_five_types_are_subscribed_to(provider: ProviderServer) -> None:
    provider.endpoints = [
        endpoint(1, "https://elsewhere.example/", ["*"]),
        endpoint(2, HOOK, sorted(ev.HANDLED_TYPES)),
    ]
    assert levels(await checked(provider)) == {Level.OK}


async def test_an_endpoint_that_is_missing(provider: ProviderServer) -> None:
    provider.endpoints = [endpoint(1, "https://elsewhere.example/", sorted(ev.HANDLED_TYPES))]
    finding = only(await checked(provider), Level.WARNING)
    assert HOOK in finding.message
    assert all(name in (finding.remedy or "") for name in ev.HANDLED_TYPES)


@pytest.mark.parametrize(
    ("events", "status", "fault"),
    [
        (ev.HANDLED_TYPES - {ev.PAYMENT_FAILED}, "enabled", "lacks invoice.payment_failed"),
        (ev.HANDLED_TYPES | {"charge.refunded"}, "enabled", "has beyond need charge.refunded"),
        ({"*"}, "enabled", "has beyond need *"),
        (ev.HANDLED_TYPES, "disabled", "is disabled"),
        (
            (ev.HANDLED_TYPES - {ev.PAYMENT_FAILED, ev.PAYMENT_SUCCEEDED}) | {"b.b", "a.a"},
            "disabled",
            "is disabled; lacks invoice.payment_failed, invoice.payment_succeeded; has beyond need a.a, b.b",
        ),
    ],
)
def test_an_endpoint_that_is_not_as_it_should_be(events: set[str], status: str, fault: str) -> None:
    finding = only(judge_endpoints([WebhookEndpoint(HOOK, tuple(events), status)], HOOK), Level.WARNING)
    assert finding.message == f"the endpoint {HOOK} {fault}"


async def test_a_provider_key_that_is_not_accepted(provider: ProviderServer) -> None:
    finding = only(await checked(provider, "sk_test_wrong"), Level.ERROR)
    assert "does not accept" in finding.message
    assert "sk_test_wrong" not in repr(finding)


async def test_a_provider_key_that_may_not_look(provider: ProviderServer) -> None:
    provider.answers.append(refusal(403))
    assert "no right" in only(await checked(provider), Level.WARNING).message


async def test_a_provider_that_is_out_of_order(provider: ProviderServer) -> None:
    provider.answers.append(refusal(500))
    assert "out of reach" in only(await checked(provider), Level.ERROR).message
