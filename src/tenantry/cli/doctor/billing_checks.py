"""Checks of the payment provider, of the billing ledger and of the tenants' billing state."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tenantry.billing import ledger_queries_store as billing
from tenantry.billing import reconcile_store as reconcile
from tenantry.cli.doctor import Finding, Subject
from tenantry.cli.doctor import doctor_store as store
from tenantry.cli.doctor.doctor_store import TopNames
from tenantry.db.connection import Connection
from tenantry.domain.billing.events import HANDLED_TYPES, Anomaly
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry.domain.plans import Catalog
from tenantry.integrations.stripe.api import ProviderApi, ProviderEndpoint, ProviderPrice

HOUR: Final = timedelta(hours=1)
LEDGER_DAYS: Final = 30
BODIES_GRACE: Final = timedelta(days=2)
"""How long raw bodies may outlive their retention: the job that removes them may not have run for a while."""
COMPARISONS_MISSED: Final = 3

LEDGER: Final = Subject("billing ledger")
TENANTS: Final = Subject("tenants")
_PROVIDER: Final = Subject("payment provider")
_PRICES: Final = Subject("prices")
_LISTED_TYPES: Final = ", ".join(sorted(HANDLED_TYPES))
_UNSYNCED: Final = "Plans do not follow what is paid."
_SINCE: Final = f"in the last {LEDGER_DAYS} days"
_MODES: Final = {True: "live", False: "test"}
_CHECK_WORKER: Final = "check that `tenantry worker` runs (or `serve` with RUN_JOBS), and its log"
_FREE_THOUGH_PAID: Final = "These tenants pay, and have the plan free."
_CHECK_ENDPOINT: Final = "check in the provider's dashboard that the webhook endpoint is enabled and deliveries succeed"
_UNPAID_CHANGES: Final = "Test payments change plans."

_NO_PROVIDER_KEY: Final = _PROVIDER.warning(
    "no API key is set: no checkout, no customer portal, no reconciliation, and the webhook endpoint is not checked",
    "Tenants whose events get lost keep a plan that they may no longer have.",
    "Set PROVIDER_SECRET_KEY.",
)
_PROVIDER_REFUSES: Final = _PROVIDER.error(
    "{trouble}", "Checkouts fail, and lost events go unnoticed.", "Check PROVIDER_SECRET_KEY."
)
_PROVIDER_UNAVAILABLE: Final = _PROVIDER_REFUSES._replace(
    remedy="Check PROVIDER_API_BASE, and that this machine reaches it."
)
_ENDPOINTS_UNREADABLE: Final = _PROVIDER.warning(
    "the API key may not read webhook endpoints: they are not checked",
    _UNSYNCED,
    f"Grant the restricted key that permission, or compare the event types in the provider's dashboard: "
    f"{_LISTED_TYPES}.",
)
_PRICES_UNREADABLE: Final = _PRICES.warning(
    "the API key may not read prices: they are not checked",
    "A wrong price shows only when a customer wants to buy.",
    "Grant the restricted key that permission, or compare the plan catalog with the provider's dashboard.",
)
_WRONG_PRICE: Final = _PRICES.warning(
    "the plan {plan} has the price {price}, which {fault}",
    "A checkout of this plan fails, and no subscription leads to it.",
    "Correct it in the plan catalog (TENANTRY_PLANS), or create it at the provider, in the mode of the API key.",
)
_NO_ENDPOINT: Final = _PROVIDER.warning(
    "has no endpoint for {url}: no event arrives",
    _UNSYNCED,
    f"Add it in the provider's dashboard, with the types {_LISTED_TYPES}; put its signing secret into "
    "PROVIDER_WEBHOOK_SECRET. For a local address use `tenantry listen` instead.",
)
_WRONG_ENDPOINT: Final = _PROVIDER.warning(
    "the endpoint {url} {faults}",
    f"{_UNSYNCED} Types beyond the five cause needless work.",
    f"Enable it in the provider's dashboard for exactly {_LISTED_TYPES}.",
)
_PARKED: Final = LEDGER.warning(
    "events for a tenant or customer that is not known: {number}",
    "A customer pays, and no tenant gets the plan.",
    "Create the tenant with the id in metadata.orgId (`tenantry admin create-tenant`), or link the customer "
    "(PUT /api/v1/tenants/{{id}}); the events are then applied. They are deleted after 30 days.",
)
_MALFORMED: Final = LEDGER.warning(
    f"events {_SINCE} whose object lacks what its type needs: {{number}}",
    "They have changed no tenant.",
    "See the reason in the table billing_events (outcome 'invalid') and the API version of the endpoint. "
    "`tenantry events replay` decodes them again after an upgrade; a valid event with the same id replaces them.",
)
_NO_TENANT: Final = LEDGER.warning(
    f"events {_SINCE} that name no tenant: {{number}}",
    "The payment cannot be matched to a tenant.",
    "Put the tenant's id into metadata.orgId of the subscription, as checkouts created with "
    "POST /api/v1/billing/checkout-sessions do.",
)
_CUSTOMER_TAKEN: Final = LEDGER.warning(
    f"events {_SINCE} that name a tenant, and a customer of another: {{number}} ({{customers}})",
    "What one tenant pays may count for another.",
    "The customer stays with the tenant that it was linked to first. Correct metadata.orgId of the subscription, or "
    "give each tenant a separate customer at the provider.",
)
_NO_PRICE: Final = LEDGER.warning(
    f"subscription events {_SINCE} without a price: {{number}} (plan free)",
    "The tenant pays, and has the plan free.",
    "Give the subscription's first item a price at the provider; the event of that change sets the plan.",
)
_UNKNOWN_PRICE: Final = LEDGER.warning(
    f"subscription events {_SINCE} with the price {{price!r}}, which no plan has: {{number}} (plan free)",
    _FREE_THOUGH_PAID,
    "Add the price to a plan of the catalog (TENANTRY_PLANS), restart, and run `tenantry events replay`.",
)
_MORE_PRICES: Final = _UNKNOWN_PRICE._replace(message=f"more prices {_SINCE} that no plan has: {{number}}")
_WRONG_MODE: Final = LEDGER.warning(
    f"events {_SINCE} of {{theirs}} mode, while PROVIDER_SECRET_KEY is a key of {{ours}} mode: {{number}} "
    "(applied all the same)",
    f"{_UNPAID_CHANGES} Or live payments are looked up in test mode.",
    "If {theirs} mode is intended, set its key. Otherwise remove the endpoint of {theirs} mode at the provider, and "
    "its signing secret from PROVIDER_WEBHOOK_SECRET.",
)
_BOTH_MODES: Final = LEDGER.warning(
    f"events {_SINCE} are of both modes: live for tenants: {{live}}, test for tenants: {{test}}",
    _UNPAID_CHANGES,
    "Set PROVIDER_SECRET_KEY, whose prefix determines the mode; or remove the endpoint of the other mode at the "
    "provider, and its signing secret from PROVIDER_WEBHOOK_SECRET.",
)
_UNLISTED_ACCOUNTS: Final = LEDGER.warning(
    f"connected accounts {_SINCE} whose events are ignored: {{listed}}",
    "What happens in these accounts changes no tenant.",
    "To use their events, put the accounts into PROVIDER_ACCOUNTS, restart, and run `tenantry events replay`. "
    "Otherwise let the endpoint listen to your own account only.",
)
_FUTURE: Final = LEDGER.warning(
    f"events {_SINCE} dated more than an hour after their arrival: {{listed}}",
    "They count as newer than every event created before their date.",
    "Compare this machine's clock with the provider's. `tenantry reconcile --tenant ORG` fetches the tenant's present "
    "state from the provider.",
)
_AMBIGUOUS: Final = LEDGER.warning(
    "{what}, resolved by the provider: {resolved}; not resolved for {tenants}",
    "The plan may be the former of two.",
    f"`tenantry reconcile --tenant ORG` fetches the state from the provider. The worker does so, too: {_CHECK_WORKER}.",
)
_AMBIGUOUS_WITHOUT_KEY: Final = _AMBIGUOUS._replace(
    remedy="Set PROVIDER_SECRET_KEY: tenantry then fetches the state from the provider."
)
_OLD_BODIES: Final = LEDGER.warning(
    "raw bodies are kept for {days} days; the oldest is {age} days old",
    "Personal data is kept for longer than promised.",
    f"remove_old_data deletes them every ten minutes: {_CHECK_WORKER}.",
)
_DRIFTED: Final = TENANTS.warning(
    f"had drifted from the provider and were repaired {_SINCE}: {{listed}}",
    "Until then they had a plan that they did not pay for, or lacked one that they did.",
    f"Events get lost: {_CHECK_ENDPOINT}. `tenantry tenants explain ORG` shows which events arrived.",
)
_STALE: Final = TENANTS.warning(
    "no billing event more than {hours} h after the end of their period: {listed}",
    "They keep a plan that they may no longer have.",
    f"Run `tenantry reconcile --tenant ORG` (it needs PROVIDER_SECRET_KEY), and {_CHECK_ENDPOINT}.",
)
_NOT_COMPARED: Final = TENANTS.warning(
    "not compared with the provider for more than {hours} h: {listed}",
    "Lost events go unnoticed.",
    f"`tenantry reconcile --tenant ORG` compares one now, or says why it cannot; {_CHECK_WORKER}.",
)
_UNMAPPED_PLAN: Final = TENANTS.warning(
    "on the plan {plan!r}, which is not in the plan catalog: {number} (limits of free)",
    "These tenants have the limits of free, whatever they pay.",
    "Put the plan back into the catalog (TENANTRY_PLANS), or give its prices to another plan and run "
    "`tenantry events replay`.",
)


class BillingTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of billing.

    ``asks_provider``: whether the provider's API can be asked. ``period_news``: how long after the end of a period an
    event must have arrived. ``compared_every`` and ``bodies_kept`` are None for never, or where they are not known.
    """

    policy: BillingPolicy
    asks_provider: bool
    period_news: timedelta
    compared_every: timedelta | None
    bodies_kept: timedelta | None


async def check_ledger(connection: Connection, terms: BillingTerms, now: datetime) -> list[Finding]:
    """Report anomalies of the ledger's last 30 days, and parked events of any age."""
    since = now - timedelta(days=LEDGER_DAYS)
    catalog, livemode = terms.policy.catalog, terms.policy.livemode
    counts = await store.count_anomalies(connection, since, livemode=livemode)
    known = [price for plan in catalog.plans for price in plan.stripe_price_ids]
    prices, more_prices = await store.read_unknown_prices(connection, since, known)
    taken = await store.read_names(connection, store.TAKEN_CUSTOMERS, since, Anomaly.CUSTOMER_TAKEN)
    future = await store.read_names(connection, store.FUTURE_DATED, since, Anomaly.FUTURE_DATED)
    listed = list(terms.policy.accounts)
    accounts = await store.read_names(connection, store.ACCOUNTS, since, Anomaly.CONNECTED_ACCOUNT, listed=listed)
    found = [
        *_PARKED.found_if(await billing.count_parked(connection)),
        *_MALFORMED.found_if(counts.get(Anomaly.UNUSABLE_OBJECT)),
        *_NO_TENANT.found_if(counts.get(Anomaly.MISSING_ORG_ID)),
        *_CUSTOMER_TAKEN.found_if(counts.get(Anomaly.CUSTOMER_TAKEN), customers=taken),
        *_NO_PRICE.found_if(counts.get(Anomaly.MISSING_PRICE)),
        *(_UNKNOWN_PRICE.found(price=price, number=number) for price, number in prices),
        *_MORE_PRICES.found_if(more_prices),
        *_UNLISTED_ACCOUNTS.found_if(accounts.number, listed=accounts.counted),
        *_FUTURE.found_if(future.number, listed=future.counted),
        *await _check_modes(connection, since, counts, livemode=livemode),
        *await _check_ambiguities(connection, since, asks_provider=terms.asks_provider),
    ]
    oldest = await store.oldest_body(connection)
    if terms.bodies_kept and oldest and oldest < now - terms.bodies_kept - BODIES_GRACE:
        found.append(_OLD_BODIES.found(days=terms.bodies_kept.days, age=(now - oldest).days))
    drifted = await store.read_names(connection, store.DRIFTED, since, Anomaly.DRIFT)
    found = found or [LEDGER.ok(f"no anomaly {_SINCE}")]
    return found + _DRIFTED.found_if(drifted.number, listed=drifted.counted)


async def _check_modes(
    connection: Connection, since: datetime, counts: Mapping[str, int], *, livemode: bool | None
) -> list[Finding]:
    """Report events of another mode than the API key's, and those that PROVIDER_LIVEMODE has excluded."""
    excluded = counts.get(Anomaly.IGNORED_LIVEMODE, 0)
    found = [LEDGER.ok(f"events {_SINCE} that PROVIDER_LIVEMODE excluded: {excluded}")] if excluded else []
    if livemode is None:
        live, test = await store.tenants_by_mode(connection, int(since.timestamp()))
        return found + _BOTH_MODES.found_if(live and test, live=live, test=test)
    wrong = counts.get(Anomaly.WRONG_LIVEMODE)
    return found + _WRONG_MODE.found_if(wrong, ours=_MODES[livemode], theirs=_MODES[not livemode])


async def _check_ambiguities(connection: Connection, since: datetime, *, asks_provider: bool) -> list[Finding]:
    """Report events of one second in an ambiguous order; a later snapshot of the provider resolves them."""
    number, resolved, tenants = await store.read_ambiguities(connection, since)
    text = f"events {_SINCE} in an ambiguous order within their second: {number}"
    if not number:
        return []
    if resolved == number:
        return [LEDGER.ok(f"{text}, all resolved by the provider")]
    problem = _AMBIGUOUS if asks_provider else _AMBIGUOUS_WITHOUT_KEY
    return [problem.found(what=text, resolved=resolved, tenants=tenants)]


async def check_tenants(connection: Connection, terms: BillingTerms, now: datetime) -> list[Finding]:
    """Report tenants without billing events, with unknown plans, and not compared with the provider."""
    latest = int((now - terms.period_news).timestamp())
    ids, number = await reconcile.stale_tenants(connection, latest, store.MOST_LISTED)
    stale = TopNames(ids, number)
    found = _STALE.found_if(number, hours=terms.period_news // HOUR, listed=stale.counted)
    known = [plan.id for plan in terms.policy.catalog.plans]
    found += [
        _UNMAPPED_PLAN.found(plan=plan, number=count)
        for plan, count in await store.read_unmapped_plans(connection, known)
    ]
    if terms.compared_every is not None:
        longest = COMPARISONS_MISSED * terms.compared_every
        missed = await store.not_compared(connection, now - longest)
        found += _NOT_COMPARED.found_if(missed.number, hours=longest // HOUR, listed=missed.counted)
    return found or [TENANTS.ok("each has a plan of the catalog and current billing events")]


async def check_provider(api: ProviderApi | None, webhook_url: str, catalog: Catalog) -> list[Finding]:
    """Check that the payment provider accepts the key, has the catalog's prices, and sends its events to us."""
    if api is None:
        return [_NO_PROVIDER_KEY.found()]
    try:
        endpoints = await api.webhook_endpoints()
        plans = {price: plan.id for plan in catalog.plans for price in plan.stripe_price_ids}
        prices = judge_prices(plans, await api.prices(sorted(plans)))
    except ProviderRefusedError as refusal:
        return [_PROVIDER_REFUSES.found(trouble=refusal.detail)]
    except ProviderUnavailableError as refusal:
        return [_PROVIDER_UNAVAILABLE.found(trouble=refusal.detail)]
    if endpoints is None:
        return [_ENDPOINTS_UNREADABLE.found(), *prices]
    return [*judge_endpoints(endpoints, webhook_url), *prices]


def judge_prices(plans: Mapping[str, str], prices: Mapping[str, ProviderPrice | None] | None) -> list[Finding]:
    """Judge whether the provider has the prices of the catalog, given with their plans; None if they cannot be read."""
    if prices is None:
        return [_PRICES_UNREADABLE.found()]
    found = [
        _WRONG_PRICE.found(plan=plans[price_id], price=price_id, fault=fault)
        for price_id, price in prices.items()
        if (fault := _fault_of(price))
    ]
    return found or ([_PRICES.ok(f"the provider has all of the plan catalog: {len(prices)}")] if prices else [])


def _fault_of(price: ProviderPrice | None) -> str | None:
    if price is None:
        return "the provider does not know"
    if not price.recurring:
        return "is not recurring"
    return None if price.active else "is archived"


def judge_endpoints(endpoints: Collection[ProviderEndpoint], webhook_url: str) -> list[Finding]:
    """Judge whether an endpoint for our address exists, is enabled, and gets exactly the five types of SPEC 6.2."""
    found = []
    for endpoint in endpoints:
        if endpoint.url.rstrip("/") != webhook_url.rstrip("/"):
            continue
        enabled = set(endpoint.enabled_events)
        missing = set() if "*" in enabled else HANDLED_TYPES - enabled
        faults = [] if endpoint.status == "enabled" else [f"is {endpoint.status}"]
        faults += [f"lacks {', '.join(sorted(missing))}"] if missing else []
        if surplus := enabled - HANDLED_TYPES:
            faults.append(f"sends needless {', '.join(sorted(surplus))}")
        right = _PROVIDER.ok(f"sends the five event types to {endpoint.url}")
        found.append(_WRONG_ENDPOINT.found(url=endpoint.url, faults="; ".join(faults)) if faults else right)
    return found or [_NO_ENDPOINT.found(url=webhook_url)]
