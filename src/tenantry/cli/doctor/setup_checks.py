"""Checks of the settings and the plan catalog, the mail server, the identity provider and the
payment provider.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Final

import httpx2

from tenantry.api.webhooks import PATH as WEBHOOK_PATH
from tenantry.cli.demo_folder import is_loopback_url
from tenantry.cli.doctor import Finding, Level, ok, problem, problem_if
from tenantry.cli.doctor.endpoint_checks import judge_endpoints
from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.common.encoding import NOT_JSON
from tenantry.common.secret import Secret
from tenantry.common.tracing import is_installed
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry.domain.issuers import DIRECTORY_CLAIM
from tenantry.domain.plans import FREE, Catalog
from tenantry.integrations.http_client import FetchError, new_http_client
from tenantry.integrations.oidc.claims import STANDARD_AUDIENCE, OidcConfig
from tenantry.integrations.oidc.keys import ALGORITHMS, fetch_published_keys
from tenantry.integrations.smtp import MailDeliveryError, Mailer, SmtpConfig, SmtpProbe
from tenantry.integrations.stripe.client import ProviderApi, ProviderPrice
from tenantry.settings import Settings

SHORTEST: Final = 16
"""Characters of a secret."""
CERTIFICATE_DAYS: Final = timedelta(days=14)
"""How long a certificate must still be valid."""
_MOST_REASONS: Final = 5

_GENERATE: Final = (
    "Generate a secret with `openssl rand -hex 32` and use the same one in every process."
)
_REMEDIES: Final = {
    "PROVIDER_WEBHOOK_SECRET": "Copy the endpoint's signing secret (whsec_...) from the payment provider's dashboard, "
    "or from the tool that forwards events to a local address.",
    "DATABASE_URL": "Set it in the environment or in .env.",
    "API_KEY_PEPPER": _GENERATE,
    "SESSION_SECRET": _GENERATE,
    "OPERATOR_TOKEN": _GENERATE,
    "TENANTRY_PLANS": "Correct the plan catalog, or unset TENANTRY_PLANS to use the built-in one.",
}


def judge_settings(faults: Sequence[str]) -> list[Finding]:
    """Report each faulty setting (``NAME: what is wrong``)."""
    findings = []
    for fault in faults:
        name, _, message = fault.partition(": ")
        remedy = _REMEDIES.get(name, f"Correct {name} in the environment or in .env.")
        findings.append(Finding(Level.ERROR, name, message, remedy, "The service does not start."))
    return findings or [ok("settings", "complete and well-formed")]


def check_values(settings: Settings) -> list[Finding]:
    """Check what the settings themselves show, once they are well-formed."""
    return [
        *([] if settings.demo else [judge_address(settings.base_url)]),
        *judge_secrets(settings.named_secrets()),
        *problem_if(settings.traces and not is_installed(), "traces.not_installed"),
        *judge_catalog(settings.billing.catalog),
    ]


def judge_address(base_url: str) -> Finding:
    """Judge whether BASE_URL is https, or an address of this machine."""
    if is_loopback_url(base_url):
        return ok("BASE_URL", f"{base_url} is reachable from this machine only")
    is_encrypted = base_url.startswith("https:")
    return (
        ok("BASE_URL", base_url)
        if is_encrypted
        else problem("BASE_URL.not_https", base_url=base_url)
    )


def judge_secrets(secrets: Sequence[tuple[str, Secret]]) -> list[Finding]:
    """Judge whether each secret, given with its variable, is unique and long enough."""
    names: dict[Secret, list[str]] = {}
    for name, secret in secrets:
        names.setdefault(secret, []).append(name)
    findings = list[Finding]()
    for alike in names.values():
        if len(alike) > 1:
            kind = "secrets.shared" if len(set(alike)) > 1 else "secrets.repeated"
            findings.append(problem(kind, names=" and ".join(dict.fromkeys(alike))))
    findings += [
        problem("secrets.short", name=name, shortest=SHORTEST)
        for name, secret in dict.fromkeys(secrets)
        if len(secret.reveal()) < SHORTEST
    ]
    return findings or [ok("secrets", "all different and long enough")]


def judge_catalog(catalog: Catalog) -> list[Finding]:
    unpriced = [plan.id for plan in catalog.plans if not plan.stripe_price_ids and plan.id != FREE]
    findings = [problem("plans.no_price", plan=plan) for plan in unpriced]
    return findings or [ok("plans", ", ".join(plan.id for plan in catalog.plans))]


async def check_mail(config: SmtpConfig | None, now: datetime) -> list[Finding]:
    """Check that the mail server accepts the login; a missing one is reported with the mail
    queue.
    """
    if config is None:
        return []
    try:
        probed = await Mailer(config).probe()
    except MailDeliveryError as trouble:
        return [problem("mail.fails", trouble=trouble)]
    return [judge_mail_server(config, probed, now)]


def judge_mail_server(config: SmtpConfig, probed: SmtpProbe, now: datetime) -> Finding:
    """Judge whether the connection to the mail server is encrypted, with a certificate that stays
    valid.
    """
    where = f"{config.host}:{config.port}"
    if not probed.over_tls and not config.on_loopback:
        return problem("mail.without_tls", where=where)
    if probed.good_until is not None and probed.good_until - now < CERTIFICATE_DAYS:
        return problem("mail.certificate_expires", where=where, expires=probed.good_until)
    return ok("mail", f"{where} accepts the login{' over TLS' if probed.over_tls else ''}")


async def check_identity(config: OidcConfig | None) -> list[Finding]:
    """Check that the identity provider publishes its metadata and keys, and fits the settings."""
    if config is None:
        return [problem("identity provider.not_set")]
    is_client = config.audience_claim == STANDARD_AUDIENCE and config.audiences == (
        config.client_id,
    )
    is_shared = config.issuers.only is None and config.org_claim != DIRECTORY_CLAIM
    return [
        await _discover(config),
        *problem_if(is_client, "identity provider.audience_is_client"),
        *problem_if(is_shared, "identity provider.several_directories", org_claim=config.org_claim),
    ]


async def _discover(config: OidcConfig) -> Finding:
    try:
        async with new_http_client() as client, asyncio.timeout(DEFAULT_TIMEOUTS.identity_provider):
            published = await fetch_published_keys(config, client)
    except FetchError as error:
        trouble = str(error)
    except NOT_JSON:
        trouble = "the answer is neither a discovery document nor a key set"
    except (TimeoutError, httpx2.TimeoutException):
        trouble = "does not answer in time"
    except (httpx2.HTTPError, OSError) as error:
        trouble = f"cannot be reached ({type(error).__name__})"
    else:
        if published.by_id and config.client_id and not published.metadata.can_sign_in:
            return problem("identity provider.no_sign_in", issuer=config.issuer)
        if published.by_id:
            return ok("identity provider", f"{config.issuer} publishes its keys")
        reasons = "; ".join(map(str, published.ignored[:_MOST_REASONS])) or "the key set is empty"
        algorithms = ", ".join(ALGORITHMS)
        return problem(
            "identity provider.no_usable_key",
            issuer=config.issuer,
            reasons=reasons,
            algorithms=algorithms,
        )
    return problem("identity provider.fails", issuer=config.issuer, trouble=trouble)


async def check_provider(settings: Settings) -> list[Finding]:
    """Check that the payment provider accepts the key, has the catalog's prices, and sends its
    events to us.
    """
    if settings.provider_secret_key is None:
        return [problem("payment provider.no_key")]
    catalog = settings.billing.catalog
    items = {price: f"plan {plan.id}" for plan in catalog.plans for price in plan.stripe_price_ids}
    items |= {
        price: f"add-on {addon.id}" for addon in catalog.addons for price in addon.stripe_price_ids
    }
    async with aclosing(
        ProviderApi(settings.provider_secret_key, settings.provider_api_base)
    ) as api:
        try:
            endpoints = await api.webhook_endpoints()
            prices = await api.prices(sorted(items))
        except ProviderRefusedError as refusal:
            return [problem("payment provider.refuses", trouble=refusal.detail)]
        except ProviderUnavailableError as refusal:
            return [problem("payment provider.unavailable", trouble=refusal.detail)]
    return [
        *judge_endpoints(endpoints, settings.base_url + WEBHOOK_PATH),
        *judge_prices(items, prices),
    ]


def judge_prices(
    items: Mapping[str, str], prices: Mapping[str, ProviderPrice | None] | None
) -> list[Finding]:
    """Judge whether the provider has the prices of the catalog's ``items``; None if they cannot be
    read.
    """
    if prices is None:
        return [problem("prices.unreadable")]
    found = [
        problem("prices.wrong", item=items[price_id], price=price_id, fault=fault)
        for price_id, price in prices.items()
        if (fault := _fault_of(price))
    ]
    return found or (
        [ok("prices", f"the provider has all of the plan catalog: {len(prices)}")] if prices else []
    )


def _fault_of(price: ProviderPrice | None) -> str | None:
    if price is None:
        return "the provider does not know"
    if not price.recurring:
        return "is not recurring"
    return None if price.active else "is archived"
