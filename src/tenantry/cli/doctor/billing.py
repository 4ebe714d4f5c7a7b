"""Checks of the billing ledger and of the tenants' billing: what was unexpected lately, and who is left behind."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tenantry.billing import ledger_store as billing
from tenantry.billing import reconcile_store as reconcile
from tenantry.cli.doctor.finding import Finding, ok, warning
from tenantry.db.connection import Connection
from tenantry.domain.billing.events import Anomaly
from tenantry.domain.billing.state import BillingPolicy
from tenantry.jobs import checkup_store as checkup
from tenantry.jobs.checkup_store import Anomalies, Named, Ties

LEDGER_DAYS: Final = 30
"""How far back the ledger is looked through."""
BODIES_GRACE: Final = timedelta(days=2)
"""How long raw bodies may outstay their time: the job that removes them may have been at rest for a while."""
COMPARISONS_MISSED: Final = 3
"""After so many missed comparisons with the provider a tenant is told of."""

_SINCE: Final = f"in the last {LEDGER_DAYS} days"
LEDGER: Final = "billing ledger"
TENANTS: Final = "tenants"
_MODES: Final = {True: "live", False: "test"}
_SEE_WORKER: Final = "See that `tenantry worker` runs (or `serve` with RUN_JOBS), and what its log says"
_UNPLANNED: Final = "These tenants pay, and have the plan free."
_LOST_EVENTS: Final = (
    "look in the provider's dashboard whether the webhook endpoint is enabled and its deliveries succeed"
)


class BillingTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings say of billing.

    ``asks_provider``: whether the provider's API can be asked. ``period_news``: how long after a period's end there
    must be news. ``compared_every`` and ``bodies_kept`` are None where that is never, or not known.
    """

    policy: BillingPolicy
    asks_provider: bool
    period_news: timedelta
    compared_every: timedelta | None
    bodies_kept: timedelta | None


async def check_ledger(connection: Connection, terms: BillingTerms, now: datetime) -> list[Finding]:
    """What the ledger tells that somebody should look at."""
    since = now - timedelta(days=LEDGER_DAYS)
    catalog, livemode, accounts = terms.policy.catalog, terms.policy.livemode, terms.policy.accounts
    prices = [price for plan in catalog.plans for price in plan.stripe_price_ids]
    anomalies = await checkup.read_anomalies(connection, since, prices, livemode=livemode, accounts=accounts)
    events = [
        *judge_parked(await billing.count_parked(connection)),
        *judge_objects(anomalies),
        *judge_prices(anomalies),
        *judge_modes(anomalies, livemode=livemode),
        *judge_accounts(anomalies.accounts),
        *judge_future(anomalies.future),
        *judge_ties(anomalies.ties, asks_provider=terms.asks_provider),
    ]
    if livemode is None:
        events += judge_both_modes(*await checkup.tenants_by_mode(connection, int(since.timestamp())))
    if terms.bodies_kept is not None:
        events += judge_bodies(await checkup.oldest_body(connection), terms.bodies_kept, now)
    return [*(events or [ok(LEDGER, f"nothing unexpected {_SINCE}")]), *judge_drift(anomalies.drifted)]


async def check_tenants(connection: Connection, terms: BillingTerms, now: datetime) -> list[Finding]:
    """What the tenants' records tell of their billing that somebody should look at."""
    silent, number = await reconcile.silent_tenants(
        connection, int((now - terms.period_news).timestamp()), checkup.MOST_LISTED
    )
    tenants = [
        *judge_silence(Named([tenant.id for tenant in silent], number), terms.period_news),
        *judge_plans(await checkup.read_unmapped_plans(connection, [plan.id for plan in terms.policy.catalog.plans])),
    ]
    if terms.compared_every is not None:
        longest = COMPARISONS_MISSED * terms.compared_every
        tenants += judge_comparisons(await checkup.not_compared(connection, now - longest), longest)
    return tenants or [ok(TENANTS, "each has a plan of the catalog, and none waits for news")]


def judge_parked(number: int) -> list[Finding]:
    """Events that wait."""
    if not number:
        return []
    return [
        warning(
            LEDGER,
            f"events that wait for a tenant or customer that is not known: {number}",
            "Make the tenant with the id in metadata.orgId (`tenantry admin create-tenant`), or link the customer "
            "(PUT /api/v1/tenants/{id}); the events then take their place. After 30 days they are let go.",
            why="Somebody pays, and nobody here is known by that.",
        )
    ]


def judge_objects(anomalies: Anomalies) -> list[Finding]:
    """Events whose object does not say what it should, or says what cannot be."""
    findings = []
    if number := anomalies.counts.get(Anomaly.UNUSABLE_OBJECT, 0):
        findings.append(
            warning(
                LEDGER,
                f"events {_SINCE} whose object lacks what its type needs: {number}",
                "See the reason in the table billing_events (outcome 'invalid') and the API version of the endpoint. "
                "`tenantry events replay` reads them again after an upgrade; a valid event of their id replaces them.",
                why="What they said has changed no tenant.",
            )
        )
    if number := anomalies.counts.get(Anomaly.MISSING_ORG_ID, 0):
        findings.append(
            warning(
                LEDGER,
                f"events {_SINCE} that name no tenant: {number}",
                "Put the tenant's id into metadata.orgId of the subscription, as checkouts made through "
                "POST /api/v1/billing/checkout-sessions do.",
                why="Nobody can tell who pays.",
            )
        )
    if number := anomalies.counts.get(Anomaly.CUSTOMER_TAKEN, 0):
        findings.append(
            warning(
                LEDGER,
                f"events {_SINCE} that name a tenant, and a customer of another: {number} ({_shown(anomalies.taken)})",
                "The customer stays with the tenant that it was linked to first. Correct metadata.orgId of the "
                "subscription, or let each tenant have a customer of its own at the provider.",
                why="What one tenant pays may count for another.",
            )
        )
    return findings


def judge_prices(anomalies: Anomalies) -> list[Finding]:
    """Subscriptions that lead to no plan."""
    findings = []
    if number := anomalies.counts.get(Anomaly.MISSING_PRICE, 0):
        findings.append(
            warning(
                LEDGER,
                f"subscription events {_SINCE} without a price: {number} (plan free)",
                "Give the subscription's first item a price at the provider; the event of that change brings the plan.",
                why="The tenant pays, and has the plan free.",
            )
        )
    remedy = "Add the price to a plan of the catalog (TENANTRY_PLANS), restart, and run `tenantry events replay`."
    findings += [
        warning(
            LEDGER, f"subscription events {_SINCE} with the price {price!r}, which no plan has: {count} (plan free)",
            remedy,
            why=_UNPLANNED,
        )
        for price, count in anomalies.prices
    ]  # fmt: skip
    if anomalies.more_prices:
        message = f"prices {_SINCE} that no plan has, besides those: {anomalies.more_prices}"
        findings.append(warning(LEDGER, message, remedy, why=_UNPLANNED))
    return findings


def judge_modes(anomalies: Anomalies, *, livemode: bool | None) -> list[Finding]:
    """Events of the mode that the API key is not of."""
    number, left_out = (anomalies.counts.get(kind, 0) for kind in (Anomaly.WRONG_LIVEMODE, Anomaly.IGNORED_LIVEMODE))
    ignored = [ok(LEDGER, f"events {_SINCE} that PROVIDER_LIVEMODE left out: {left_out}")] if left_out else []
    if livemode is None or not number:
        return ignored
    ours, theirs = _MODES[livemode], _MODES[not livemode]
    return [
        *ignored,
        warning(
            LEDGER,
            f"events {_SINCE} of {theirs} mode, while PROVIDER_SECRET_KEY is a key of {ours} mode: {number} "
            "(handled all the same)",
            f"Set the key of {theirs} mode if that is the one meant. Else remove the endpoint of {theirs} mode at the "
            "provider, and its signing secret from PROVIDER_WEBHOOK_SECRET.",
            why="Payments that nobody made change plans, or those that were made are asked for in the wrong place.",
        ),
    ]


def judge_accounts(accounts: Named) -> list[Finding]:
    """Connected accounts whose events are ignored."""
    if not accounts.number:
        return []
    return [
        warning(
            LEDGER,
            f"connected accounts {_SINCE} whose events are ignored: {_counted(accounts)}",
            "If their events are to count, put the accounts into PROVIDER_ACCOUNTS, restart, and run `tenantry events "
            "replay`, which lets these events take their place. Else have the endpoint listen to your "
            "own account alone.",
            why="What happens in these accounts changes no tenant.",
        )
    ]


def judge_future(future: Named) -> list[Finding]:
    """Events that are dated more than an hour ahead of their arrival."""
    if not future.number:
        return []
    return [
        warning(
            LEDGER,
            f"events {_SINCE} dated more than an hour ahead of their arrival: {_counted(future)}",
            "Compare this machine's clock with the provider's. `tenantry reconcile --tenant ORG` gets the tenant's "
            "present state from the provider.",
            why="They count as newer than all events that are created before their date, which change nothing then.",
        )
    ]


def judge_both_modes(live: int, test: int) -> list[Finding]:
    """Events of both modes, where nothing tells which is right: the numbers of tenants with events of each."""
    if not live or not test:
        return []
    return [
        warning(
            LEDGER,
            f"events {_SINCE} are of both modes: live for tenants: {live}, test for tenants: {test}",
            "Set PROVIDER_SECRET_KEY, whose beginning tells which mode is right; or remove the endpoint of the other "
            "mode at the provider, and its signing secret from PROVIDER_WEBHOOK_SECRET.",
            why="Payments that nobody made change plans.",
        )
    ]


def judge_ties(ties: Ties, *, asks_provider: bool) -> list[Finding]:
    """Events of one second in an order that nothing proves; all is well once the provider has been asked since."""
    what = f"events {_SINCE} whose place within their second nothing proves: {ties.number}"
    if not ties.number:
        return []
    if ties.settled == ties.number:
        return [ok(LEDGER, f"{what}, all settled by asking the provider")]
    return [
        warning(
            LEDGER,
            f"{what}, settled by asking the provider: {ties.settled}; not settled for {_shown(ties.open_tenants)}",
            f"`tenantry reconcile --tenant ORG` asks the provider. tenantry does so by itself: {_lowered(_SEE_WORKER)}."
            if asks_provider
            else "Set PROVIDER_SECRET_KEY: tenantry then settles them by asking the provider.",
            why="The plan may be the former of two.",
        )
    ]


def judge_bodies(oldest: datetime | None, kept: timedelta, now: datetime) -> list[Finding]:
    """Raw bodies that should have gone days ago."""
    if oldest is None or oldest >= now - kept - BODIES_GRACE:
        return []
    return [
        warning(
            LEDGER,
            f"days that raw bodies are kept: {kept.days}; age of the oldest one: {(now - oldest).days}",
            f"{_SEE_WORKER} of remove_old_data, which removes them every ten minutes.",
            why="They hold what people were told they would not be kept for.",
        )
    ]


def judge_drift(drifted: Named) -> list[Finding]:
    """Tenants that a comparison with the provider has repaired."""
    return _of_tenants(
        f"had drifted from the provider and were repaired {_SINCE}",
        drifted,
        f"Events get lost: {_LOST_EVENTS}. `tenantry tenants explain ORG` shows what came, and what never did.",
        "Until the comparison they had a plan that they did not pay for, or lacked one that they did.",
    )


def judge_silence(silent: Named, patience: timedelta) -> list[Finding]:
    """Tenants whose period is over without a word of what comes next."""
    return _of_tenants(
        f"without news more than {_hours(patience)} h after the end of their period",
        silent,
        f"Run `tenantry reconcile --tenant ORG` (it needs PROVIDER_SECRET_KEY), and {_LOST_EVENTS}.",
        "They keep a plan that they may not have any more.",
    )


def judge_comparisons(missed: Named, longest: timedelta) -> list[Finding]:
    """Tenants that should have been compared with the provider by now."""
    return _of_tenants(
        f"not compared with the provider for more than {_hours(longest)} h",
        missed,
        f"{_SEE_WORKER}; `tenantry reconcile --tenant ORG` compares one now, or says why it cannot be.",
        "Should their events get lost, nobody notices.",
    )


def _of_tenants(what: str, named: Named, remedy: str, why: str) -> list[Finding]:
    return [warning(TENANTS, f"{what}: {_counted(named)}", remedy, why=why)] if named.number else []


def judge_plans(unmapped: Sequence[tuple[str, int]]) -> list[Finding]:
    """Plans of tenants that the catalog does not have."""
    return [
        warning(
            TENANTS,
            f"on the plan {plan!r}, which is not in the plan catalog: {number} (limits of free)",
            "Put the plan back into the catalog (TENANTRY_PLANS), or give its prices to another plan and run "
            "`tenantry events replay`.",
            why="These tenants have the limits of free, whatever they pay.",
        )
        for plan, number in unmapped
    ]


def _hours(time: timedelta) -> int:
    return time // timedelta(hours=1)


def _shown(named: Named) -> str:
    more = named.number - len(named.first)
    return ", ".join(named.first) + (f" and {more} more" if more else "")


def _counted(named: Named) -> str:
    return f"{named.number} ({_shown(named)})"


def _lowered(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
