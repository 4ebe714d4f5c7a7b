"""Checks of the ledger, the tenants and the provider's refusals: what needs the operator's
attention.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from tenantry.billing import ledger_queries_store as billing
from tenantry.billing import provider_refusals_store as refusals
from tenantry.billing import reconcile_store as reconcile
from tenantry.cli.doctor import Finding, ok, problem, problem_if
from tenantry.cli.doctor import doctor_store as store
from tenantry.cli.doctor.doctor_store import AnomalyCount, Names
from tenantry.cli.output import counted, minute
from tenantry.db.connection import Connection
from tenantry.domain.access import NO_SUBSCRIPTION
from tenantry.domain.billing.events import Anomaly
from tenantry.domain.plans import OVER
from tenantry.settings import Settings

LEDGER_PERIOD: Final = timedelta(days=30)
"""How old the events are at most; the texts name it."""
COMPARISONS_MISSED: Final = 3
_REFUSAL_PERIOD: Final = timedelta(days=1)
_MOST_REFUSALS: Final = 5
_REPORTED_ELSEWHERE: Final = frozenset(
    {Anomaly.IGNORED_LIVEMODE, Anomaly.AMBIGUOUS_ORDER, Anomaly.DRIFT}
)
"""Anomalies that are no problem of the ledger, or that another check reports."""
_MODES: Final = {True: "live", False: "test"}


async def check_ledger(
    connection: Connection,
    settings: Settings,
    now: datetime,
) -> list[Finding]:
    """Report anomalies of the ledger's last 30 days, and parked events of any age."""
    anomalies = await store.read_anomalies(connection, now - LEDGER_PERIOD, settings.billing)
    found = await _check_parked(connection)
    found += _judge_anomalies(anomalies, livemode=settings.billing.livemode)
    found += await _check_ambiguities(connection, settings, now)
    found = found or [ok("billing ledger", "no anomaly in the last 30 days")]
    if drift := anomalies.get(Anomaly.DRIFT):
        found.append(problem("tenants.drift", listed=drift.names.counted))
    return found


async def _check_parked(connection: Connection) -> list[Finding]:
    number = await billing.count_parked(connection)
    waited_for = await store.read_names(connection, store.WAITED_FOR)
    return problem_if(number, "billing ledger.parked", listed=waited_for)


def _judge_anomalies(
    anomalies: Mapping[str, AnomalyCount],
    *,
    livemode: bool | None,
) -> list[Finding]:
    modes = {}
    if livemode is not None:
        modes = {"ours": _MODES[livemode], "theirs": _MODES[not livemode]}
    found = []
    for kind in Anomaly:
        count = anomalies.get(kind)
        if count is not None and kind not in _REPORTED_ELSEWHERE:
            facts = {"number": count.events, "listed": count.names.counted, **modes}
            found.append(problem(f"billing ledger.{kind}", **facts))
    return found


async def _check_ambiguities(
    connection: Connection,
    settings: Settings,
    now: datetime,
) -> list[Finding]:
    """Report events of one second in an ambiguous order; a later snapshot of the provider resolves
    them.
    """
    number, resolved, tenants = await store.read_ambiguities(connection, now - LEDGER_PERIOD)
    text = f"events in the last 30 days in an ambiguous order within their second: {number}"
    if not number:
        return []
    if resolved == number:
        return [ok("billing ledger", f"{text}, all resolved by the provider")]
    name = "billing ledger.ambiguous_order"
    if settings.provider_secret_key is None:
        name += "_without_key"
    return [
        problem(
            name,
            what=text,
            resolved=resolved,
            tenants=tenants,
        )
    ]


async def check_tenants(
    connection: Connection,
    settings: Settings,
    now: datetime,
) -> list[Finding]:
    """Report tenants without billing events or customers, with unknown plans or members' roles, and
    not compared with the provider.
    """
    found = await _check_stale(connection, settings, now)
    found += await _check_customers(connection)
    found += await _check_plans(connection, settings)
    found += await _check_roles(connection, settings)
    if settings.provider_secret_key and settings.reconcile_hours:
        found += await _check_comparisons(connection, settings.reconcile_hours, now)
    return found or [ok("tenants", "each has a plan of the catalog and current billing events")]


async def _check_stale(
    connection: Connection,
    settings: Settings,
    now: datetime,
) -> list[Finding]:
    hours = settings.stale_tenant_hours
    latest = int((now - timedelta(hours=hours)).timestamp())
    stale = Names(*await reconcile.stale_tenants(connection, latest, store.MOST_LISTED))
    return problem_if(
        stale.number,
        "tenants.stale",
        hours=hours,
        listed=stale.counted,
    )


async def _check_customers(connection: Connection) -> list[Finding]:
    over = [*OVER, NO_SUBSCRIPTION]
    tenants = await store.read_names(connection, store.ALL_CUSTOMERS_GONE, over=over)
    return problem_if(tenants.number, "tenants.customers_gone", listed=tenants.counted)


async def _check_plans(connection: Connection, settings: Settings) -> list[Finding]:
    known = [plan.id for plan in settings.billing.catalog.plans]
    plans = await store.read_names(connection, store.UNMAPPED_PLANS, known=known)
    return problem_if(plans.number, "tenants.unmapped_plan", listed=plans.counted)


async def _check_roles(connection: Connection, settings: Settings) -> list[Finding]:
    known = [role.id for role in settings.billing.catalog.roles]
    roles = await store.read_names(connection, store.UNKNOWN_ROLES, known=known)
    return problem_if(roles.number, "tenants.unknown_role", listed=roles.counted)


async def _check_comparisons(
    connection: Connection,
    reconcile_hours: int,
    now: datetime,
) -> list[Finding]:
    hours = COMPARISONS_MISSED * reconcile_hours
    until = now - timedelta(hours=hours)
    missed = await store.read_names(connection, store.NOT_COMPARED, until=until)
    return problem_if(
        missed.number,
        "tenants.not_compared",
        hours=hours,
        listed=missed.counted,
    )


async def check_refusals(connection: Connection, now: datetime) -> list[Finding]:
    """Report what the provider refused within the last day, with its own messages."""
    found = await refusals.recent(connection, now - _REFUSAL_PERIOD, _MOST_REFUSALS)
    return [
        problem(
            "payment provider.refused",
            operation=each.operation,
            times=counted(each.number, "time"),
            first=minute(each.first_at),
            last=minute(each.last_at),
            tenant=each.last_tenant,
            code=each.code,
            said=each.message or "no message",
        )
        for each in found
    ]
