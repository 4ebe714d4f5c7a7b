"""Checks of the ledger, the tenants and the provider's refusals: what needs the operator's
attention.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, LiteralString

from tenantry.billing import ledger_queries_store as ledger
from tenantry.billing import provider_refusals_store as refusals
from tenantry.billing import reconcile_store as reconcile
from tenantry.common.text_formats import counted, minute
from tenantry.db.connection import Connection
from tenantry.domain.access import NO_SUBSCRIPTION
from tenantry.domain.billing.events import Anomaly
from tenantry.domain.plans import OVER
from tenantry.installation import checks_store as store
from tenantry.installation.checks_store import AnomalyCount, Names
from tenantry.installation.findings import CheckedDatabase, Finding, ok, problem, problem_if

LEDGER_PERIOD: Final = timedelta(days=30)
"""How old the events are at most; the texts name it."""
COMPARISONS_MISSED: Final = 3
_REFUSAL_PERIOD: Final = timedelta(days=1)
_MOST_REFUSALS: Final = 5
_REJECTION_HOURS: Final = 3
_MANY_REJECTIONS: Final = 1000
_REPORTED_ELSEWHERE: Final = frozenset(
    {Anomaly.IGNORED_LIVEMODE, Anomaly.AMBIGUOUS_ORDER, Anomaly.DRIFT}
)
"""Anomalies that are no problem of the ledger, or that another check reports."""
_MODES: Final = {True: "live", False: "test"}
_LISTS_TENANTS: Final = (store.ALL_CUSTOMERS_GONE, store.NOT_COMPARED)


async def check_ledger(database: CheckedDatabase) -> list[Finding]:
    """Report anomalies of the ledger's last 30 days, and parked events of any age."""
    connection, billing = database.connection, database.settings.billing
    since = database.now - LEDGER_PERIOD
    anomalies = await store.read_anomalies(connection, since, billing, database.entries)
    found = await _check_parked(database)
    found += _judge_anomalies(anomalies, livemode=billing.livemode)
    found += await _check_ambiguities(database)
    found = found or [ok("billing ledger", "no anomaly in the last 30 days")]
    if drift := anomalies.get(Anomaly.DRIFT):
        found.append(problem("tenants.drift", listed=drift.names.counted).about(drift.tenants))
    return found


async def _check_parked(database: CheckedDatabase) -> list[Finding]:
    connection, entries = database.connection, database.entries
    number = await ledger.count_parked(connection)
    waited_for = await store.read_names(connection, store.WAITED_FOR, entries=entries)
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
            found.append(problem(f"billing ledger.{kind}", **facts).about(count.tenants))
    return found


async def _check_ambiguities(database: CheckedDatabase) -> list[Finding]:
    """Report events of one second in an ambiguous order; a later snapshot of the provider resolves
    them.
    """
    since = database.now - LEDGER_PERIOD
    number, resolved, tenants = await store.read_ambiguities(
        database.connection, since, database.entries
    )
    text = f"events in the last 30 days in an ambiguous order within their second: {number}"
    if not number:
        return []
    if resolved == number:
        return [ok("billing ledger", f"{text}, all resolved by the provider")]
    name = "billing ledger.ambiguous_order"
    if database.settings.provider_secret_key is None:
        name += "_without_key"
    return [problem(name, what=text, resolved=resolved, tenants=tenants).about(tenants.first)]


async def check_tenants(database: CheckedDatabase) -> list[Finding]:
    """Report tenants without billing events or customers, with unknown plans or members' roles,
    with many refused requests, and not compared with the provider.
    """
    connection, settings = database.connection, database.settings
    catalog = settings.billing.catalog
    over = [*OVER, NO_SUBSCRIPTION]
    plans = [plan.id for plan in catalog.plans]
    roles = [role.id for role in catalog.roles]
    found = await _check_stale(database)
    found += await _report(
        connection, "tenants.customers_gone", store.ALL_CUSTOMERS_GONE, over=over
    )
    found += await _report(connection, "tenants.unmapped_plan", store.UNMAPPED_PLANS, known=plans)
    found += await _report(connection, "tenants.unknown_role", store.UNKNOWN_ROLES, known=roles)
    found += await _check_rejections(database)
    if settings.provider_secret_key and settings.reconcile_hours:
        found += await _check_comparisons(database)
    return found or [ok("tenants", "each has a plan of the catalog and current billing events")]


async def _report(
    connection: Connection, name: str, statement: LiteralString, **parameters: object
) -> list[Finding]:
    """Report a problem of the tenants that a statement lists. Its texts have the parameters too."""
    names = await store.read_names(connection, statement, **parameters)
    found = problem_if(names.number, name, listed=names.counted, **parameters)
    return [each.about(names.first if statement in _LISTS_TENANTS else ()) for each in found]


async def _check_rejections(database: CheckedDatabase) -> list[Finding]:
    """Report tenants whose keys and users are mostly refused; their own pages say why. Report
    senders of ``X-Forwarded-For`` that are no trusted proxies, so that restricted keys are refused.
    """
    since = database.now - timedelta(hours=_REJECTION_HOURS)
    found = await _report(
        database.connection,
        "tenants.many_rejections",
        store.MANY_REJECTIONS,
        since=since,
        hours=_REJECTION_HOURS,
        least=_MANY_REJECTIONS,
    )
    return found + await _report(
        database.connection,
        "TRUSTED_PROXIES.untrusted_peers",
        store.UNTRUSTED_PEERS,
        since=since,
        hours=_REJECTION_HOURS,
    )


async def _check_stale(database: CheckedDatabase) -> list[Finding]:
    hours = database.settings.stale_tenant_hours
    latest = int((database.now - timedelta(hours=hours)).timestamp())
    stale = Names(*await reconcile.stale_tenants(database.connection, latest, store.MOST_LISTED))
    found = problem_if(stale.number, "tenants.stale", hours=hours, listed=stale.counted)
    return [each.about(stale.first) for each in found]


async def _check_comparisons(database: CheckedDatabase) -> list[Finding]:
    hours = COMPARISONS_MISSED * database.settings.reconcile_hours
    until = database.now - timedelta(hours=hours)
    statement = store.NOT_COMPARED
    return await _report(
        database.connection, "tenants.not_compared", statement, until=until, hours=hours
    )


async def check_refusals(database: CheckedDatabase) -> list[Finding]:
    """Report what the provider refused within the last day, with its own messages."""
    since = database.now - _REFUSAL_PERIOD
    found = await refusals.recent(database.connection, since, _MOST_REFUSALS)
    return [
        problem(
            "payment provider.refused" if each.last_tenant else "payment provider.lookup_refused",
            operation=each.operation,
            times=counted(each.number, "time"),
            first=minute(each.first_at),
            last=minute(each.last_at),
            tenant=each.last_tenant,
            code=each.code,
            said=each.message or "no message",
        ).about([each.last_tenant] if each.last_tenant else [])
        for each in found
    ]
