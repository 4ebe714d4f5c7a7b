"""The checks of the mail server, the identity provider and the payment provider."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tenantry.api.webhooks import PATH
from tenantry.domain.billing import events as ev
from tenantry.domain.issuers import Issuers
from tenantry.domain.plans import Catalog, parse_catalog
from tenantry.installation.endpoint_checks import check_provider, judge_endpoints
from tenantry.installation.findings import Finding, Level
from tenantry.installation.identity_checks import check_identity, check_mail
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.smtp import parse_smtp_url
from tenantry.integrations.stripe.client import ProviderEndpoint
from tests.support.cases import cases
from tests.support.findings import checked_settings, levels, only
from tests.support.issuer import DISCOVERY, JWKS, Answer, Issuer, running_issuer, signing_key
from tests.support.ports import free_port
from tests.support.provider_api import KEY, ProviderServer, endpoint, refusal, running_provider
from tests.support.provider_api import Answer as ProviderAnswer
from tests.support.smtp import LOOPBACK_IN_DISGUISE, MailServer, running

SENDER = "billing@example.com"
HOOK = "https://api.example/api/v1/webhooks/payment-provider"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
PRICELESS = parse_catalog('[[plans]]\nid = "free"\n')
PRICED = parse_catalog("""
[[plans]]
id = "free"
[[plans]]
id = "pro"
stripe_price_id = ["price_pro", "price_pro_yearly"]
""")
SOLD = {"active": True, "currency": "eur", "recurring": {"interval": "month"}}


# The mail server


async def test_a_mail_server_that_accepts_the_login() -> None:
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


async def test_a_mail_server_that_does_not_answer() -> None:
    port = free_port()
    finding = only(
        await check_mail(parse_smtp_url(f"smtp://127.0.0.1:{port}", SENDER)), Level.ERROR
    )
    assert f"127.0.0.1:{port} cannot be reached" in finding.message


async def test_without_a_mail_server() -> None:
    finding = only(await check_mail(None), Level.WARNING)
    assert finding.message == "no mail server is set: mail stays queued"
    assert "SMTP_URL" in (finding.remedy or "")


# The identity provider


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer() as issuer:
        yield issuer


async def test_an_identity_provider_in_order(issuer: Issuer) -> None:
    said = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}{JWKS}"}
    endpoints = {
        "authorization_endpoint": f"{issuer.url}/authorize",
        "token_endpoint": f"{issuer.url}/token",
    }
    issuer.answers[DISCOVERY] = Answer(200, json.dumps({**said, **endpoints}).encode())
    assert levels(
        await check_identity(OidcConfig(Issuers(issuer.url), ("api",), client_id="dashboard"))
    ) == {Level.OK}


async def test_without_an_identity_provider() -> None:
    assert "OIDC_ISSUER" in (only(await check_identity(None), Level.WARNING).remedy or "")


async def test_an_audience_that_is_the_client_id(issuer: Issuer) -> None:
    config = OidcConfig(Issuers(issuer.url), ("dashboard",), client_id="dashboard")
    finding = only(await check_identity(config), Level.WARNING)
    assert "ID tokens" in finding.message


@cases(
    ("path", "answer", "message"),
    [
        (DISCOVERY, Answer(404, b""), "answered 404"),
        (DISCOVERY, Answer(200, b"<html>"), "neither a discovery document"),
        (
            DISCOVERY,
            Answer(200, b'{"issuer": "https://b.example", "jwks_uri": ""}'),
            "names another issuer",
        ),
        (JWKS, Answer(500, b""), "answered 500"),
        (
            JWKS,
            Answer(200, b'{"keys": []}'),
            "publishes no key that tenantry can verify tokens with: the key set is empty",
        ),
    ],
)
async def test_an_identity_provider_that_is_not_in_order(
    issuer: Issuer, path: str, answer: Answer, message: str
) -> None:
    issuer.answers = {path: answer}
    assert (
        message
        in only(
            await check_identity(OidcConfig(Issuers(issuer.url), ("api",))), Level.ERROR
        ).message
    )


async def test_keys_of_unusable_kinds_get_advice_about_keys(issuer: Issuer) -> None:
    rsa = signing_key("RS256", "rsa-1").jwk()
    keys = [
        {**rsa, "use": "enc"},
        {**rsa, "alg": "RSA-OAEP"},
        {"kty": "oct", "kid": "shared", "alg": "HS256"},
    ]
    issuer.answers[JWKS] = Answer(200, json.dumps({"keys": keys}).encode())
    finding = only(await check_identity(OidcConfig(Issuers(issuer.url), ("api",))), Level.ERROR)
    reasons = (
        "'rsa-1': it is for another use: 'enc'; 'rsa-1': its algorithm does not fit its type: 'RSA-OAEP'; "
        "'shared': its type is not supported: 'oct'"
    )
    assert finding.message.endswith(
        f"publishes no key that tenantry can verify tokens with: {reasons}"
    )
    assert "OIDC_ISSUER" not in (finding.remedy or "")
    assert "a published key for one of RS256," in (finding.remedy or "")


async def test_several_directories_whose_claim_names_the_tenant_are_warned_about(
    issuer: Issuer,
) -> None:
    template = issuer.url + "/{tenantid}"
    document = {"issuer": template, "jwks_uri": issuer.url + JWKS}
    issuer.answers["/organizations" + DISCOVERY] = Answer(200, json.dumps(document).encode())
    assert levels(await check_identity(OidcConfig(Issuers(template, ("a-1",)), ("api",)))) == {
        Level.OK
    }
    for directories in (("*",), ("a-1", "b-1")):
        issuers = Issuers(template, directories)
        findings = await check_identity(OidcConfig(issuers, ("api",), org_claim="extension_org"))
        (warning,) = [finding for finding in findings if finding.level is Level.WARNING]
        assert (
            "several directories, and their claim extension_org names the tenant" in warning.message
        )
        assert levels(await check_identity(OidcConfig(issuers, ("api",), org_claim="tid"))) == {
            Level.OK
        }


async def test_client_may_be_the_audience_where_another_claim_holds_it(issuer: Issuer) -> None:
    said = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}{JWKS}"}
    endpoints = {
        "authorization_endpoint": f"{issuer.url}/authorize",
        "token_endpoint": f"{issuer.url}/token",
    }
    issuer.answers[DISCOVERY] = Answer(200, json.dumps({**said, **endpoints}).encode())
    config = OidcConfig(Issuers(issuer.url), ("app",), audience_claim="client_id", client_id="app")
    assert levels(await check_identity(config)) == {Level.OK}


async def test_an_identity_provider_that_does_not_answer(issuer: Issuer) -> None:
    await issuer.stop()
    finding = only(await check_identity(OidcConfig(Issuers(issuer.url), ("api",))), Level.ERROR)
    assert "cannot be reached" in finding.message


async def test_a_provider_without_sign_in_is_an_error_where_the_dashboard_needs_it(
    issuer: Issuer,
) -> None:
    said = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}{JWKS}"}
    issuer.answers[DISCOVERY] = Answer(200, json.dumps(said).encode())
    assert levels(await check_identity(OidcConfig(Issuers(issuer.url), ("api",)))) == {Level.OK}
    finding = only(
        await check_identity(OidcConfig(Issuers(issuer.url), ("api",), client_id="dashboard")),
        Level.ERROR,
    )
    assert "authorization_endpoint" in finding.message


# The payment provider


@pytest.fixture
async def provider() -> AsyncIterator[ProviderServer]:
    async with running_provider() as provider:
        yield provider


async def checked(
    provider: ProviderServer, key: str = KEY, catalog: Catalog | None = None
) -> list[Finding]:
    values: dict[str, Any] = {
        "PROVIDER_SECRET_KEY": key,
        "PROVIDER_API_BASE": provider.url,
        "BASE_URL": "https://api.example",
    }
    return await check_provider(checked_settings(catalog or PRICELESS, **values), PATH)


async def test_without_a_provider_key() -> None:
    assert "PROVIDER_SECRET_KEY" in (
        only(
            await check_provider(checked_settings(PROVIDER_SECRET_KEY=""), PATH), Level.WARNING
        ).remedy
        or ""
    )


async def test_seats_that_follow_members_need_a_provider_key() -> None:
    catalog = parse_catalog(
        '[[plans]]\nid = "free"\n[[plans]]\nid = "pro"\nstripe_price_id = "p"\nseats = "members"\n'
    )
    findings = await check_provider(checked_settings(catalog, PROVIDER_SECRET_KEY=""), PATH)
    assert "quantity" in (only(findings, Level.ERROR).why or "")


async def test_the_five_types_are_subscribed_to(provider: ProviderServer) -> None:
    provider.endpoints = [
        endpoint(1, "https://elsewhere.example/", ["*"]),
        endpoint(2, HOOK, sorted(ev.REQUIRED_TYPES)),
    ]
    sends, further = await checked(provider)
    assert (sends.level, sends.message) == (Level.OK, f"sends the 5 required event types to {HOOK}")
    assert further.level is Level.INFO
    assert all(name in further.message for name in ev.HANDLED_TYPES - ev.REQUIRED_TYPES)


def test_only_further_types_that_no_endpoint_sends_are_offered() -> None:
    first = ProviderEndpoint(
        HOOK, tuple(ev.HANDLED_TYPES - {ev.INVOICE_PAID, ev.SUBSCRIPTION_CREATED}), "enabled"
    )
    second = ProviderEndpoint(HOOK, tuple(ev.REQUIRED_TYPES | {ev.INVOICE_PAID}), "enabled")
    *sending, offered = judge_endpoints([first, second], HOOK)
    assert levels(sending) == {Level.OK}
    assert offered.level is Level.INFO
    assert offered.message == "can also send customer.subscription.created (docs/how-to/stripe.md)"


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (ev.HANDLED_TYPES | {"charge.captured", "a.a"}, "; tenantry ignores a.a, charge.captured"),
        ({"*"}, "sends every event type"),
    ],
)
def test_types_that_tenantry_does_not_know_are_harmless(events: set[str], message: str) -> None:
    [finding] = judge_endpoints([ProviderEndpoint(HOOK, tuple(events), "enabled")], HOOK)
    assert (finding.level, finding.remedy) == (Level.OK, None)
    assert message in finding.message


async def test_an_endpoint_that_is_missing(provider: ProviderServer) -> None:
    provider.endpoints = [endpoint(1, "https://elsewhere.example/", sorted(ev.REQUIRED_TYPES))]
    finding = only(await checked(provider), Level.WARNING)
    assert HOOK in finding.message
    assert all(name in (finding.remedy or "") for name in ev.REQUIRED_TYPES)


@cases(
    ("events", "status", "fault"),
    [
        (ev.REQUIRED_TYPES - {ev.PAYMENT_FAILED}, "enabled", "lacks invoice.payment_failed"),
        (ev.KNOWN_TYPES, "disabled", "is disabled"),
        (
            ev.KNOWN_TYPES - {ev.PAYMENT_FAILED, ev.PAYMENT_SUCCEEDED},
            "disabled",
            "is disabled and lacks invoice.payment_failed, invoice.payment_succeeded",
        ),
    ],
)
def test_faults_of_an_endpoint_are_named(events: set[str], status: str, fault: str) -> None:
    finding, *further = judge_endpoints([ProviderEndpoint(HOOK, tuple(events), status)], HOOK)
    assert (finding.level, finding.remedy is None) == (Level.WARNING, False)
    assert levels(further) <= {Level.INFO}
    assert finding.message == f"the endpoint {HOOK} {fault}"


def test_without_an_endpoint_the_remedy_names_listen() -> None:
    finding = only(judge_endpoints([], HOOK), Level.WARNING)
    assert finding.message == f"has no endpoint for {HOOK}: no event arrives"
    assert "`tenantry listen`" in (finding.remedy or "")


async def test_a_provider_key_that_is_not_accepted(provider: ProviderServer) -> None:
    finding = only(await checked(provider, "sk_test_wrong"), Level.ERROR)
    assert "does not accept" in finding.message
    assert "sk_test_wrong" not in repr(finding)


async def test_a_provider_key_that_may_not_look(provider: ProviderServer) -> None:
    provider.answers.append(refusal(403))
    assert "may not read" in only(await checked(provider), Level.WARNING).message


async def test_a_provider_that_is_out_of_order(provider: ProviderServer) -> None:
    provider.answers.append(refusal(500))
    assert "out of reach" in only(await checked(provider), Level.ERROR).message


def by_price(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.subject == "prices"]


async def test_prices_that_the_provider_has_are_in_order(provider: ProviderServer) -> None:
    provider.prices = {"price_pro": SOLD, "price_pro_yearly": SOLD}
    assert levels(by_price(await checked(provider, catalog=PRICED))) == {Level.OK}


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        (None, "the provider does not know"),
        ({**SOLD, "active": False}, "is archived"),
        ({**SOLD, "recurring": None}, "is not recurring"),
    ],
)
async def test_a_price_that_cannot_be_bought_is_named_with_its_plan(
    provider: ProviderServer, told: dict[str, object] | None, fault: str
) -> None:
    provider.prices = {"price_pro": SOLD, **({} if told is None else {"price_pro_yearly": told})}
    finding = only(by_price(await checked(provider, catalog=PRICED)), Level.WARNING)
    assert finding.message.startswith(f"the plan pro has the price price_pro_yearly, which {fault}")
    assert "checkout" in (finding.why or "")


async def test_a_provider_key_that_may_not_see_prices(provider: ProviderServer) -> None:
    listed = {"object": "list", "data": [], "has_more": False, "url": "/v1/webhook_endpoints"}
    provider.answers.append(ProviderAnswer(200, listed))
    provider.price_answers.append(refusal(403))
    assert (
        "may not read"
        in only(by_price(await checked(provider, catalog=PRICED)), Level.WARNING).message
    )
