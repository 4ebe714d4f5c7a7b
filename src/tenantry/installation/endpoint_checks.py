"""Checks of the payment provider: the API key, the webhook endpoint with its event types, and the
prices of the plan catalog.
"""

from collections.abc import Collection, Mapping
from contextlib import aclosing
from typing import Final

from tenantry.billing.prices import fault_of
from tenantry.domain.billing.events import HANDLED_TYPES, REQUIRED_TYPES
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry.domain.plans import Catalog
from tenantry.installation.findings import CheckedSettings, Finding, Level, ok, problem, problem_if
from tenantry.integrations.stripe.client import ProviderApi, ProviderEndpoint, ProviderPrice

_SUBJECT: Final = "payment provider"
_EVERY_TYPE: Final = "*"


async def check_provider(settings: CheckedSettings, webhook_path: str) -> list[Finding]:
    """Check that the payment provider accepts the key, has the catalog's prices, and sends its
    events to ``webhook_path``.
    """
    if settings.provider_secret_key is None:
        return [
            problem("payment provider.no_key"),
            *problem_if(
                settings.billing.catalog.has_member_seats, "payment provider.seats_without_key"
            ),
        ]
    items = _priced_items(settings.billing.catalog)
    api = ProviderApi(settings.provider_secret_key, settings.provider_api_base)
    async with aclosing(api):
        try:
            endpoints = await api.webhook_endpoints()
            prices = await api.prices(sorted(items))
        except ProviderRefusedError as refusal:
            return [problem("payment provider.refuses", trouble=str(refusal))]
        except ProviderUnavailableError as refusal:
            return [problem("payment provider.unavailable", trouble=refusal.detail)]
    return [
        *judge_endpoints(endpoints, settings.base_url + webhook_path),
        *judge_prices(items, prices),
    ]


def _priced_items(catalog: Catalog) -> dict[str, str]:
    """Return what each price of the catalog is for."""
    plans = {price: f"plan {plan.id}" for plan in catalog.plans for price in plan.stripe_price_ids}
    addons = {
        price: f"add-on {addon.id}" for addon in catalog.addons for price in addon.stripe_price_ids
    }
    return plans | addons


# Endpoints


def judge_endpoints(
    endpoints: Collection[ProviderEndpoint] | None, webhook_url: str
) -> list[Finding]:
    """Judge whether an endpoint for our address exists, is enabled, and sends the required types.

    ``endpoints`` is None if the API key may not read them. Further types that they do not send are
    reported as information.
    """
    required = _listed(REQUIRED_TYPES)
    if endpoints is None:
        return [problem("payment provider.endpoints_unreadable", types=required)]
    ours = endpoints_at(endpoints, webhook_url)
    if not ours:
        return [problem("payment provider.no_endpoint", url=webhook_url, types=required)]
    findings = [_judge_endpoint(endpoint) for endpoint in ours]
    if further := HANDLED_TYPES - REQUIRED_TYPES - known_types_of(ours):
        text = f"can also send {_listed(further)} (docs/how-to/stripe.md)"
        findings.append(Finding(Level.INFO, _SUBJECT, text))
    return findings


def _judge_endpoint(endpoint: ProviderEndpoint) -> Finding:
    faults = _faults_of(endpoint)
    if faults:
        return problem(
            "payment provider.wrong_endpoint",
            url=endpoint.url,
            faults=" and ".join(faults),
            types=_listed(REQUIRED_TYPES),
        )
    if _EVERY_TYPE in endpoint.enabled_events:
        text = f"sends every event type to {endpoint.url}; tenantry ignores those that it does not know"
        return ok(_SUBJECT, text)
    text = f"sends the {len(REQUIRED_TYPES)} required event types to {endpoint.url}"
    unknown = set(endpoint.enabled_events) - HANDLED_TYPES
    return ok(_SUBJECT, f"{text}; tenantry ignores {_listed(unknown)}" if unknown else text)


def _faults_of(endpoint: ProviderEndpoint) -> list[str]:
    faults = []
    if endpoint.status != "enabled":
        faults.append(f"is {endpoint.status}")
    if missing := REQUIRED_TYPES - known_types_of([endpoint]):
        faults.append(f"lacks {_listed(missing)}")
    return faults


def endpoints_at(
    endpoints: Collection[ProviderEndpoint], webhook_url: str
) -> list[ProviderEndpoint]:
    """Return the endpoints with this address."""
    wanted = webhook_url.rstrip("/")
    return [endpoint for endpoint in endpoints if endpoint.url.rstrip("/") == wanted]


def known_types_of(endpoints: Collection[ProviderEndpoint]) -> frozenset[str]:
    """Return the types that tenantry knows and that one of these endpoints sends."""
    enabled = {event_type for endpoint in endpoints for event_type in endpoint.enabled_events}
    return HANDLED_TYPES if _EVERY_TYPE in enabled else HANDLED_TYPES & enabled


def _listed(types: Collection[str]) -> str:
    return ", ".join(sorted(types))


# Prices


def judge_prices(
    items: Mapping[str, str], prices: Mapping[str, ProviderPrice | None] | None
) -> list[Finding]:
    """Judge whether the provider has the prices of the catalog's ``items``; None if they cannot be
    read.
    """
    if prices is None:
        return [problem("prices.unreadable")]
    faults = {price_id: fault_of(price) for price_id, price in prices.items()}
    if prices and not any(faults.values()):
        return [ok("prices", f"the provider has all of the plan catalog: {len(prices)}")]
    return [
        problem(
            "prices.wrong",
            item=items[price_id],
            price=price_id,
            fault=fault,
        )
        for price_id, fault in faults.items()
        if fault
    ]
