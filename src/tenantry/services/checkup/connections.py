"""Checks of the services that we depend on: the mail server, the identity provider, the payment provider."""

import asyncio
from collections.abc import Collection
from typing import Final

import httpx2
import msgspec

from tenantry.domain.billing.events import HANDLED_TYPES
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry.gateways.http_client import new_http_client
from tenantry.gateways.identity.config import OidcConfig
from tenantry.gateways.identity.fetch import TOTAL_SECONDS, FetchError
from tenantry.gateways.identity.jwks import fetch_published_keys
from tenantry.gateways.mail import Mailer, MailError, SmtpConfig
from tenantry.gateways.provider.api import ProviderApi, WebhookEndpoint
from tenantry.services.checkup.finding import Finding, error, ok, warning

_MAIL: Final = "mail"
_IDENTITY: Final = "identity provider"
_PROVIDER: Final = "payment provider"
_ALL_TYPES: Final = "*"


async def check_mail(config: SmtpConfig | None) -> list[Finding]:
    """Whether the mail server lets us in; that none is set is told with the queue."""
    if config is None:
        return []
    try:
        await Mailer(config).probe()
    except MailError as trouble:
        return [error(_MAIL, str(trouble), "Check SMTP_URL, and that the mail server runs.")]
    return [ok(_MAIL, f"{config.host}:{config.port} lets us in")]


async def check_identity(config: OidcConfig | None) -> list[Finding]:
    """Whether the identity provider can be discovered and publishes keys, and whether it fits the settings."""
    if config is None:
        return [
            warning(
                _IDENTITY,
                "none is set: bearer tokens are refused, API keys work",
                "Set OIDC_ISSUER and OIDC_AUDIENCE (and OIDC_CLIENT_ID, OIDC_CLIENT_SECRET for the dashboard).",
            )
        ]
    findings = [await _discover(config)]
    if config.audience == config.client_id:
        findings.append(
            warning(
                _IDENTITY,
                "OIDC_AUDIENCE equals OIDC_CLIENT_ID: tokens for the client alone are ID tokens and are refused",
                "Register an API of its own at the identity provider and set OIDC_AUDIENCE to its identifier.",
            )
        )
    return findings


async def _discover(config: OidcConfig) -> Finding:
    try:
        async with new_http_client() as client, asyncio.timeout(TOTAL_SECONDS):
            published = await fetch_published_keys(config, client)
    except FetchError as trouble:
        why = str(trouble)
    except (msgspec.MsgspecError, RecursionError):
        why = "answered with something else than a discovery document and a key set"
    except (TimeoutError, httpx2.TimeoutException):
        why = "does not answer in time"
    except (httpx2.HTTPError, OSError) as trouble:
        why = f"cannot be reached ({type(trouble).__name__})"
    else:
        if published.by_id:
            return ok(_IDENTITY, f"{config.issuer} publishes its keys")
        why = "publishes no key for RS256, ES256 or EdDSA"
    return error(
        _IDENTITY,
        f"{config.issuer}: {why}",
        "Check that OIDC_ISSUER is exactly the issuer in the provider's /.well-known/openid-configuration, "
        "and that this machine reaches it.",
    )


async def check_provider(api: ProviderApi | None, webhook_url: str) -> list[Finding]:
    """Whether the payment provider's API lets us in, and whether it sends its events to ``webhook_url``."""
    if api is None:
        return [
            warning(
                _PROVIDER,
                "no API key is set: no checkout, no customer portal, no comparison with the provider, and the webhook "
                "endpoint is not checked",
                "Set PROVIDER_SECRET_KEY.",
            )
        ]
    try:
        endpoints = await api.webhook_endpoints()
    except ProviderRefusedError as refusal:
        return [error(_PROVIDER, refusal.detail, "Check PROVIDER_SECRET_KEY.")]
    except ProviderUnavailableError as refusal:
        return [error(_PROVIDER, refusal.detail, "Check PROVIDER_API_BASE, and that this machine reaches it.")]
    if endpoints is None:
        return [
            warning(
                _PROVIDER,
                "the API key has no right to read webhook endpoints: they are not checked",
                "Give the restricted key that right, or compare the event types in the provider's dashboard: "
                f"{_listed(HANDLED_TYPES)}.",
            )
        ]
    return judge_endpoints(endpoints, webhook_url)


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
            "into PROVIDER_WEBHOOK_SECRET. For a local address use the provider's forwarding tool instead.",
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
    )


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
