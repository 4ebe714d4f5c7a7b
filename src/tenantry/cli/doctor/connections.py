"""Checks of the services that we depend on: the mail server, the identity provider, the payment provider."""

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

import httpx2

from tenantry.cli.doctor.finding import Finding, error, ok, warning
from tenantry.common.json import NOT_JSON
from tenantry.common.timeouts import DEFAULT_TIMEOUTS
from tenantry.domain.billing.events import HANDLED_TYPES
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry.domain.plans import Catalog
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.oidc.config import OidcConfig
from tenantry.integrations.oidc.fetch import FetchError
from tenantry.integrations.oidc.jwks import fetch_published_keys
from tenantry.integrations.smtp import Mailer, MailError, Probed, SmtpConfig
from tenantry.integrations.stripe.api import Price, ProviderApi, WebhookEndpoint

_MAIL: Final = "mail"
_IDENTITY: Final = "identity provider"
_PROVIDER: Final = "payment provider"
_PRICES: Final = "prices"
CERTIFICATE_DAYS: Final = timedelta(days=14)
"""How long a certificate must still be good."""
_ALL_TYPES: Final = "*"


async def check_mail(config: SmtpConfig | None, now: datetime) -> list[Finding]:
    """Whether the mail server lets us in; that none is set is told with the queue."""
    if config is None:
        return []
    try:
        probed = await Mailer(config).probe()
    except MailError as trouble:
        why = "Mail stays queued: nobody is told that a payment failed, or that a key leaked."
        return [error(_MAIL, str(trouble), "Check SMTP_URL, and that the mail server runs.", why=why)]
    return judge_mail_server(config, probed, now)


def judge_mail_server(config: SmtpConfig, probed: Probed, now: datetime) -> list[Finding]:
    """Whether mails are handed over where nobody else reads them, and will be tomorrow."""
    where = f"{config.host}:{config.port}"
    if not probed.over_tls and not config.on_loopback:
        return [
            warning(
                _MAIL,
                f"{where} lets us in, without TLS",
                "Use a mail server with TLS, and unset SMTP_ALLOW_PLAINTEXT.",
                why="The password and every mail can be read on the way.",
            )
        ]
    if probed.good_until is not None and probed.good_until - now < CERTIFICATE_DAYS:
        return [
            warning(
                _MAIL,
                f"the certificate of {where} is good until {probed.good_until:%Y-%m-%d} only",
                "Have it renewed.",
                why="From then on no mail leaves.",
            )
        ]
    return [ok(_MAIL, f"{where} lets us in{', over TLS' if probed.over_tls else ''}")]


async def check_identity(config: OidcConfig | None) -> list[Finding]:
    """Whether the identity provider can be discovered and publishes keys, and whether it fits the settings."""
    if config is None:
        return [
            warning(
                _IDENTITY,
                "none is set: bearer tokens are refused, API keys work",
                "Set OIDC_ISSUER and OIDC_AUDIENCE (and OIDC_CLIENT_ID, OIDC_CLIENT_SECRET for the dashboard).",
                why="People cannot sign in, neither to the API nor to the dashboard.",
            )
        ]
    findings = [await _discover(config)]
    if config.audience == config.client_id:
        findings.append(
            warning(
                _IDENTITY,
                "OIDC_AUDIENCE equals OIDC_CLIENT_ID: tokens for the client alone are ID tokens and are refused",
                "Register an API of its own at the identity provider and set OIDC_AUDIENCE to its identifier.",
                why="People with a good token are turned away.",
            )
        )
    return findings


async def _discover(config: OidcConfig) -> Finding:
    try:
        async with new_http_client() as client, asyncio.timeout(DEFAULT_TIMEOUTS.identity_provider):
            published = await fetch_published_keys(config, client)
    except FetchError as trouble:
        why = str(trouble)
    except NOT_JSON:
        why = "answered with something else than a discovery document and a key set"
    except (TimeoutError, httpx2.TimeoutException):
        why = "does not answer in time"
    except (httpx2.HTTPError, OSError) as trouble:
        why = f"cannot be reached ({type(trouble).__name__})"
    else:
        if published.by_id and config.client_id and not published.metadata.can_sign_in:
            return error(
                _IDENTITY,
                f"{config.issuer} names no authorization_endpoint and token_endpoint",
                "Set OIDC_ISSUER to a provider that signs people in, or unset OIDC_CLIENT_ID.",
                why="Nobody can sign in to the dashboard.",
            )
        if published.by_id:
            return ok(_IDENTITY, f"{config.issuer} publishes its keys")
        why = "publishes no key for RS256, ES256 or EdDSA"
    return error(
        _IDENTITY,
        f"{config.issuer}: {why}",
        "Check that OIDC_ISSUER is exactly the issuer in the provider's /.well-known/openid-configuration, "
        "and that this machine reaches it.",
        why="Tokens are refused once the keys at hand are a day old, and nobody signs in.",
    )


async def check_provider(api: ProviderApi | None, webhook_url: str, catalog: Catalog) -> list[Finding]:
    """Whether the payment provider's API lets us in, has the catalog's prices, and sends its events to us."""
    if api is None:
        return [
            warning(
                _PROVIDER,
                "no API key is set: no checkout, no customer portal, no comparison with the provider, and the webhook "
                "endpoint is not checked",
                "Set PROVIDER_SECRET_KEY.",
                why="Tenants whose events get lost keep a plan that they may not have any more.",
            )
        ]
    try:
        endpoints = await api.webhook_endpoints()
        plans = {price: plan.id for plan in catalog.plans for price in plan.stripe_price_ids}
        prices = judge_prices(plans, await api.prices(sorted(plans)))
    except ProviderRefusedError as refusal:
        return [
            error(
                _PROVIDER,
                refusal.detail,
                "Check PROVIDER_SECRET_KEY.",
                why="Checkouts fail, and nobody notices events that were lost.",
            )
        ]
    except ProviderUnavailableError as refusal:
        return [
            error(
                _PROVIDER,
                refusal.detail,
                "Check PROVIDER_API_BASE, and that this machine reaches it.",
                why="Checkouts fail, and nobody notices events that were lost.",
            )
        ]
    if endpoints is None:
        return [
            warning(
                _PROVIDER,
                "the API key has no right to read webhook endpoints: they are not checked",
                "Give the restricted key that right, or compare the event types in the provider's dashboard: "
                f"{_listed(HANDLED_TYPES)}.",
                why="Without all five types plans do not follow what is paid.",
            ),
            *prices,
        ]
    return [*judge_endpoints(endpoints, webhook_url), *prices]


def judge_prices(plans: Mapping[str, str], prices: Mapping[str, Price | None] | None) -> list[Finding]:
    """Whether the provider has the prices of the catalog, given with their plans; None where we may not know."""
    if prices is None:
        return [
            warning(
                _PRICES,
                "the API key has no right to read prices: they are not checked",
                "Give the restricted key that right, or compare the plan catalog with the provider's dashboard.",
                why="A price that is wrong shows only when somebody wants to buy.",
            )
        ]
    found = [
        warning(
            _PRICES,
            f"the plan {plans[price_id]} has the price {price_id}, which {fault}",
            "Correct it in the plan catalog (TENANTRY_PLANS), or make it at the provider, in the mode of the API key.",
            why="A checkout of this plan fails, and a subscription never leads to it.",
        )
        for price_id, price in prices.items()
        if (fault := _fault_of(price))
    ]
    return found or [ok(_PRICES, f"the provider has all of the plan catalog: {len(prices)}")] if prices else []


def _fault_of(price: Price | None) -> str | None:
    if price is None:
        return "the provider does not know"
    if not price.recurring:
        return "is none of a subscription"
    return None if price.active else "is archived: nobody can buy it any more"


def judge_endpoints(endpoints: Collection[WebhookEndpoint], webhook_url: str) -> list[Finding]:
    """Whether an endpoint for our address is there, enabled, and subscribed to exactly the five types of SPEC 6.2."""
    ours = [endpoint for endpoint in endpoints if endpoint.url.rstrip("/") == webhook_url.rstrip("/")]
    if ours:
        return [_judge_endpoint(endpoint) for endpoint in ours]
    return [
        warning(
            _PROVIDER,
            f"has no endpoint for {webhook_url}: no event arrives",
            f"Add it in the provider's dashboard, with the types {_listed(HANDLED_TYPES)}; its signing secret goes "
            "into PROVIDER_WEBHOOK_SECRET. For a local address use `tenantry listen` instead.",
            why="Plans do not follow what is paid.",
        )
    ]


def _judge_endpoint(endpoint: WebhookEndpoint) -> Finding:
    enabled = set(endpoint.enabled_events)
    missing = set() if _ALL_TYPES in enabled else HANDLED_TYPES - enabled
    surplus = enabled - HANDLED_TYPES
    faults = []
    if endpoint.status != "enabled":
        faults.append(f"is {endpoint.status}")
    if missing:
        faults.append(f"lacks {_listed(missing)}")
    if surplus:
        faults.append(f"has beyond need {_listed(surplus)}")
    if not faults:
        return ok(_PROVIDER, f"sends the five event types to {endpoint.url}")
    return warning(
        _PROVIDER,
        f"the endpoint {endpoint.url} {'; '.join(faults)}",
        f"Enable it in the provider's dashboard for exactly {_listed(HANDLED_TYPES)}.",
        why="Plans do not follow what is paid; types beyond the five are work for nothing.",
    )


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
