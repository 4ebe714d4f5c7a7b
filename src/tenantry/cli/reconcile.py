"""``tenantry reconcile`` and ``tenantry backfill``: keep tenants equal to the payment provider's state."""

import logging
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import Any, Final

import click

from tenantry.billing.backfill import BackfillResult, MissedEvent
from tenantry.billing.ingest import FAILED as NOT_HANDLED
from tenantry.billing.ingest import WebhookService
from tenantry.billing.ledger_queries import BillingFields
from tenantry.billing.reconcile import EVENTS_KEPT, Comparison, Reconciler, Reconciliation
from tenantry.cli.database import exit_code, on_database
from tenantry.cli.output import FAILED, Value, counted, fail, parse_time, print_json, printable, progress, shown
from tenantry.common import logs
from tenantry.common.clock import from_epoch, system_clock
from tenantry.db.database import Database
from tenantry.domain.billing.state import RECORD_FIELDS
from tenantry.domain.errors import ProviderNotConfiguredError
from tenantry.integrations.stripe.api import ProviderApi
from tenantry.settings import Settings

DRIFT: Final = 3
"""The exit code of a comparison that found drift."""
_CONNECTIONS: Final = 5
_JSON_NAMES: Final = dict(zip(BillingFields.__struct_fields__, BillingFields.__struct_encode_fields__, strict=True))


@click.command("reconcile")
@click.option("--tenant", "tenants", multiple=True, metavar="ORG", help="Only this tenant; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only print what differs: write nothing.")
@click.option("--json", "as_json", is_flag=True, help="The drift and repairs as one JSON document.")
def reconcile(tenants: tuple[str, ...], *, dry_run: bool, as_json: bool) -> None:
    """Compare tenants with their subscriptions at the payment provider, and repair those that have drifted.

    Compares every tenant with a customer, or only those that you name. Shows each field that differs, ours and then the
    provider's, and fetches the events that were missed. Safe while the service runs. Needs PROVIDER_SECRET_KEY.

    \b
    Exits with
      0  without drift
      1  without drift, if a tenant could not be compared or the provider rejects every request
      3  if there was drift, repaired or not
      4  if the provider rejects the API key
      5  if a tenant that you name does not exist or has no customer; then nothing is done
      6  if the provider or the database is out of reach
    """

    async def action(settings: Settings, database: Database) -> Reconciliation:
        async with _reconciler(settings, database) as reconciler:
            only = tenants or None
            with progress("comparing tenants", await reconciler.count(only)) as advance:
                return await reconciler.run(only, dry_run=dry_run, progress=advance)

    logs.configure("console", logging.WARNING)
    found = on_database(action, pool_size=_CONNECTIONS)
    details = (*found.drifted, *found.troubled)
    if as_json:
        print_json(
            {
                "dryRun": dry_run,
                "compared": found.compared,
                "drifted": len(found.drifted),
                "repaired": _repaired(found.drifted),
                "notCompared": len(found.troubled),
                "stopped": found.stopped and found.stopped.detail,
                "details": list(map(_comparison_json, details)),
            }
        )
    else:
        for comparison in details:
            click.echo("\n".join(_lines(comparison)))
        if found.compared or found.troubled or found.stopped is None:
            click.echo(_summary(found, dry_run=dry_run))
    if found.stopped is not None:
        fail(f"Stopped after {counted(found.compared, 'tenant')}: {found.stopped.detail}", exit_code(found.stopped))
    sys.exit(DRIFT if found.drifted else FAILED if found.troubled else 0)


@click.command("backfill")
@click.option("--since", required=True, type=parse_time, metavar="TIME", help="Events created since then, RFC 3339.")
@click.option("--until", type=parse_time, metavar="TIME", help="Events created until then; continues a stopped run.")
@click.option("--dry-run", is_flag=True, help="Only print what was missed: write nothing.")
@click.option("--json", "as_json", is_flag=True, help="The missed events and their outcomes as one JSON document.")
def backfill(since: datetime, until: datetime | None, *, dry_run: bool, as_json: bool) -> None:
    """Fetch the events of the payment provider that never arrived, such as after an outage.

    Reads the provider's list of events, which covers 30 days, from the newest event back to the given time. Missed
    events are processed like all others, and shown with their outcomes. A failed payment is mailed if it is recent and
    still unpaid. Safe while the service runs. Needs PROVIDER_SECRET_KEY.

    Exits with 0 when done, with 1 if an event could not be handled or the provider rejects a request, with 4 if it
    rejects the API key, and with 6 if the provider or the database is out of reach. A stopped run keeps the events that
    it has processed, and prints the command that continues it.
    """
    now = system_clock()
    if since > now:
        raise click.BadParameter("is in the future", param_hint="--since")
    if until is not None and until < since:
        raise click.BadParameter("is before --since", param_hint="--until")
    if since < now - EVENTS_KEPT:
        click.echo(
            f"The provider lists events for {EVENTS_KEPT.days} days: what was missed before "
            f"{shown(now - EVENTS_KEPT)} cannot be fetched. `tenantry reconcile` repairs tenants without it.",
            err=True,
        )
    missed = list[MissedEvent]()

    def observe(event: MissedEvent) -> None:
        missed.append(event)
        if not as_json:
            click.echo(f"{_event_line(event)}  {shown(event.tenant_id)}  {event.outcome or 'missed'}")

    async def action(settings: Settings, database: Database) -> BackfillResult:
        async with _reconciler(settings, database) as reconciler:
            second = None if until is None else int(until.timestamp())
            return await reconciler.backfill.run(
                int(since.timestamp()), until=second, dry_run=dry_run, observer=observe
            )

    logs.configure("console", logging.WARNING)
    done = on_database(action, pool_size=_CONNECTIONS)
    reached = done.reached and {"id": done.reached.id, "created": from_epoch(done.reached.created)}
    if as_json:
        print_json(
            {
                "dryRun": dry_run,
                "since": since,
                "until": until,
                "listed": done.listed,
                "missed": done.missed,
                "outcomes": done.outcomes,
                "stopped": done.stopped and done.stopped.detail,
                "reached": reached,
                "details": list(map(_event_json, missed)),
            }
        )
    elif done.listed or done.stopped is None:
        outcomes = [f"{number:,} {outcome}" for outcome, number in sorted(done.outcomes.items())]
        then = "nothing written" if dry_run else ", ".join(outcomes) or "nothing to do"
        click.echo(f"{counted(done.listed, 'event')} listed, {done.missed:,} missed: {then}")
    if done.stopped is not None:
        where, more = _continuation(done, since, until, dry_run=dry_run)
        fail(f"Stopped {where}: {done.stopped.detail}{more}", exit_code(done.stopped))
    sys.exit(FAILED if done.outcomes.get(NOT_HANDLED) else 0)


@asynccontextmanager
async def _reconciler(settings: Settings, database: Database) -> AsyncIterator[Reconciler]:
    """Give a reconciler. Raises `ProviderNotConfiguredError`."""
    from tenantry.jobs.queue import JobQueue  # noqa: PLC0415  # slow to import

    if settings.provider_secret_key is None:
        raise ProviderNotConfiguredError("The payment provider's API is not set up here: PROVIDER_SECRET_KEY is unset.")
    # queues jobs on the caller's connection; the service's workers run them
    outbox = JobQueue("", asks_provider=False)
    webhooks = WebhookService([database.lane()], settings.billing, outbox, system_clock)
    async with aclosing(ProviderApi(settings.provider_secret_key, settings.provider_api_base)) as provider:
        try:
            yield Reconciler(database, provider, webhooks, settings.billing, outbox, system_clock)
        finally:
            await webhooks.close()


def _continuation(done: BackfillResult, since: datetime, until: datetime | None, *, dry_run: bool) -> tuple[str, str]:
    """Return where a backfill was stopped, and the command that continues it."""
    if done.reached is None:
        return "before the first event", ""
    moment = from_epoch(done.reached.created)
    where = f"after {counted(done.listed, 'event')}, at {printable(done.reached.id)} of {shown(moment)}"
    if failed := done.outcomes.get(NOT_HANDLED, 0):
        continue_at = until
        what = f"{counted(failed, 'event')} could not be handled. Retry them and fetch the rest"
    else:
        continue_at = moment
        what = f"Events from {'the newest event' if until is None else shown(until)} back to then are done. Continue"
    options = f"--since {shown(since)}" + (f" --until {shown(continue_at)}" if continue_at else "")
    return where, f"\n{what} with: tenantry backfill {options}{' --dry-run' if dry_run else ''}"


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "tenantId": comparison.tenant_id,
        "repaired": comparison.repaired,
        "fields": [{"field": name, "ours": ours, "provider": theirs} for name, ours, theirs in _fields(comparison)],
        "missed": list(map(_event_json, comparison.missed)),
        "trouble": comparison.trouble,
    }


def _event_json(event: MissedEvent) -> dict[str, Any]:
    created = from_epoch(event.created)
    return {
        "id": event.id, "type": event.type, "created": created, "tenantId": event.tenant_id, "outcome": event.outcome,
    }  # fmt: skip


def _fields(comparison: Comparison) -> Iterator[tuple[str, Value, Value]]:
    """Yield each field that differs: its name in JSON, our value, the provider's."""
    for name in RECORD_FIELDS:
        if name in comparison.drift:
            ours, theirs = (
                from_epoch(value) if name == "current_period_end" and isinstance(value, int) else value
                for value in comparison.drift[name]
            )
            yield _JSON_NAMES[name], ours, theirs


def _lines(comparison: Comparison) -> Iterator[str]:
    if comparison.trouble:
        yield f"{comparison.tenant_id}: could not be compared: {printable(comparison.trouble)}"
        return
    yield f"{comparison.tenant_id}: {'repaired' if comparison.repaired else 'has drifted'}"
    width = max(len(_JSON_NAMES[name]) for name in comparison.drift)
    for name, ours, theirs in _fields(comparison):
        yield f"  {name:{width}}  {shown(ours)} -> {shown(theirs)}"
    for event in comparison.missed:
        yield f"  missed  {_event_line(event)}"


def _event_line(event: MissedEvent) -> str:
    return f"{shown(from_epoch(event.created))}  {printable(event.type)}  {printable(event.id)}"


def _repaired(drifted: Sequence[Comparison]) -> int:
    return sum(comparison.repaired for comparison in drifted)


def _summary(found: Reconciliation, *, dry_run: bool) -> str:
    written = "nothing written" if dry_run else f"{_repaired(found.drifted):,} repaired"
    troubled = f", {len(found.troubled):,} could not be compared" if found.troubled else ""
    return f"{counted(found.compared, 'tenant')} compared: {len(found.drifted):,} drifted, {written}{troubled}"
