"""``tenantry reconcile`` and ``tenantry backfill``: keeping tenants at the payment provider's truth."""

import logging
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import Final, NoReturn

import click
import msgspec

from tenantry.billing.backfill import BackfillResult, MissedEvent
from tenantry.billing.ingest import FAILED as NOT_HANDLED
from tenantry.billing.ingest import WebhookService
from tenantry.billing.ledger_queries import BillingFields
from tenantry.billing.reconcile import EVENTS_KEPT, Comparison, Reconciler, Reconciliation
from tenantry.cli.database import exit_code, on_database
from tenantry.cli.output import FAILED, Value, counted, fail, parse_time, printable, progress, shown
from tenantry.common import logs
from tenantry.common.clock import from_epoch, system_clock
from tenantry.db.database import Database
from tenantry.domain.billing.events import Fact
from tenantry.domain.billing.state import RECORD_FIELDS
from tenantry.domain.errors import DomainError, ProviderNotConfiguredError
from tenantry.integrations.stripe.api import ProviderApi
from tenantry.settings import Settings

DRIFT: Final = 3
"""The exit code of a comparison that found drift."""

_CONNECTIONS: Final = 5
_SHOWN_AS: Final = dict(zip(BillingFields.__struct_fields__, BillingFields.__struct_encode_fields__, strict=True))
_PERIOD_END: Final = "current_period_end"


class _Field(msgspec.Struct, frozen=True, rename="camel"):
    field: str
    ours: Value
    provider: Value


class _Missed(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    type: str
    created: datetime | None
    tenant_id: str | None
    outcome: str | None


class _Tenant(msgspec.Struct, frozen=True, rename="camel"):
    tenant_id: str
    repaired: bool
    fields: list[_Field]
    missed: list[_Missed]
    trouble: str | None


class _Reconciled(msgspec.Struct, frozen=True, rename="camel"):
    """The document of a comparison; ``details`` are the tenants that had drifted or could not be compared."""

    dry_run: bool
    compared: int
    drifted: int
    repaired: int
    not_compared: int
    stopped: str | None
    details: list[_Tenant]


class _Reached(msgspec.Struct, frozen=True):
    id: str
    created: datetime | None


class _Backfilled(msgspec.Struct, frozen=True, rename="camel"):
    """The document of a backfill; ``details`` are the missed events, newest first.

    ``reached`` is the oldest event that is done: ``--until`` its time goes on where a run was stopped.
    """

    dry_run: bool
    since: datetime
    until: datetime | None
    listed: int
    missed: int
    outcomes: dict[str, int]
    stopped: str | None
    reached: _Reached | None
    details: list[_Missed]


@click.command("reconcile")
@click.option("--tenant", "tenants", multiple=True, metavar="ORG", help="Only this tenant; may be given several times.")
@click.option("--dry-run", is_flag=True, help="Only say what differs: write nothing.")
@click.option("--json", "as_json", is_flag=True, help="What was found and done as one JSON document.")
def reconcile(tenants: tuple[str, ...], *, dry_run: bool, as_json: bool) -> None:
    """Compare tenants with their subscriptions at the payment provider, and repair those that have drifted.

    Every tenant with a customer is asked for, unless some are named. Shows each field that differs, ours and then the
    provider's, and the events that never came in, which are fetched. Safe while the service runs. Needs
    PROVIDER_SECRET_KEY.

    Exits with 0 if nothing had drifted, and with 3 if something had, repaired or not; without drift with 1 if a tenant
    could not be compared, or the provider refuses every request; with 5 if a tenant that is named does not exist or
    has no customer (then nothing is done); with 4 if the provider refuses the key, and with 6 if the provider or the
    database is out of reach, whatever was found until then.
    """

    async def act(settings: Settings, database: Database) -> Reconciliation:
        async with _reconciler(settings, database) as reconciler:
            only = tenants or None
            with progress("comparing tenants", await reconciler.count(only)) as advance:
                return await reconciler.run(only, dry_run=dry_run, progress=advance)

    logs.configure("console", logging.WARNING)
    found = on_database(act, pool_size=_CONNECTIONS)
    if as_json:
        _print_json(_document(found, dry_run=dry_run))
    else:
        for comparison in (*found.drifted, *found.troubled):
            click.echo("\n".join(_lines(comparison)))
        if found.compared or found.troubled or found.stopped is None:
            click.echo(_summary(found, dry_run=dry_run))
    if found.stopped is not None:
        _fail_on(found.stopped, f"after {counted(found.compared, 'tenant')}")
    sys.exit(DRIFT if found.drifted else FAILED if found.troubled else 0)


@click.command("backfill")
@click.option("--since", required=True, type=parse_time, help="Events created since then, RFC 3339.")
@click.option("--until", type=parse_time, help="Events created up to then, RFC 3339: goes on where a run was stopped.")
@click.option("--dry-run", is_flag=True, help="Only say what was missed: write nothing.")
@click.option("--json", "as_json", is_flag=True, help="What was missed and done as one JSON document.")
def backfill(since: datetime, until: datetime | None, *, dry_run: bool, as_json: bool) -> None:
    """Take in the events of the payment provider that never came in, such as after an outage.

    The provider's list of events, which goes back 30 days, is read from its newest event to the given time. What the
    ledger lacks takes the path of all events, and is shown with what became of it. A failed payment is mailed if it
    is young, has not been paid since, and the tenant is past due. Safe while the service runs. Needs
    PROVIDER_SECRET_KEY.

    Exits with 0 when done, with 1 if an event could not be handled or the provider refuses a request, with 4 if it
    refuses the key, and with 6 if the provider or the database is out of reach. A run that was stopped names the last
    event that is done, and the command that goes on from there; what was taken in until then stays.
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
    missed = list[_Missed]()

    def tell(event: MissedEvent) -> None:
        if as_json:
            missed.append(_missed(event))
        else:
            click.echo(f"{_event_line(event)}  {shown(event.tenant_id)}  {event.outcome or 'missed'}")

    async def act(settings: Settings, database: Database) -> BackfillResult:
        async with _reconciler(settings, database) as reconciler:
            second = None if until is None else int(until.timestamp())
            return await reconciler.backfill.run(int(since.timestamp()), until=second, dry_run=dry_run, observer=tell)

    logs.configure("console", logging.WARNING)
    done = on_database(act, pool_size=_CONNECTIONS)
    if as_json:
        _print_json(
            _Backfilled(
                dry_run, since, until, done.listed, done.missed, done.outcomes, _words(done.stopped),
                _Reached(done.reached.id, from_epoch(done.reached.created)) if done.reached else None, missed,
            )
        )  # fmt: skip
    elif done.listed or done.stopped is None:
        click.echo(_backfill_summary(done, dry_run=dry_run))
    if done.stopped is not None:
        _fail_on(done.stopped, *_where(done, since, until, dry_run=dry_run))
    sys.exit(FAILED if done.outcomes.get(NOT_HANDLED) else 0)


@asynccontextmanager
async def _reconciler(settings: Settings, database: Database) -> AsyncIterator[Reconciler]:
    """What asks the provider. Raises `ProviderNotConfiguredError`."""
    from tenantry.jobs.queue import JobQueue  # noqa: PLC0415  # slow to import

    if settings.provider_secret_key is None:
        raise ProviderNotConfiguredError("The payment provider's API is not set up here: PROVIDER_SECRET_KEY is unset.")
    # deferring takes the caller's connection; the jobs are for the service's workers
    outbox = JobQueue("", asks_provider=False)
    webhooks = WebhookService([database.lane()], settings.billing, outbox, system_clock)
    async with aclosing(ProviderApi(settings.provider_secret_key, settings.provider_api_base)) as provider:
        try:
            yield Reconciler(database, provider, webhooks, settings.billing, outbox, system_clock)
        finally:
            await webhooks.close()


def _where(done: BackfillResult, since: datetime, until: datetime | None, *, dry_run: bool) -> tuple[str, str]:
    """Where a backfill was stopped, and how to go on."""
    if done.reached is None:
        return "before the first event", ""
    moment = from_epoch(done.reached.created)
    where = f"after {counted(done.listed, 'event')}, at {printable(done.reached.id)} of {shown(moment)}"
    if failed := done.outcomes.get(NOT_HANDLED, 0):
        goes_on = until
        what = f"{counted(failed, 'event')} could not be handled. Try them again, with what is left"
    else:
        goes_on = moment
        what = f"Events from {'the newest event' if until is None else shown(until)} back to then are done. Continue"
    options = (
        f"--since {shown(since)}{f' --until {shown(goes_on)}' if goes_on else ''}{' --dry-run' if dry_run else ''}"
    )
    return where, f"{what} with: tenantry backfill {options}"


def _fail_on(stopped: DomainError, where: str, more: str = "") -> NoReturn:
    fail(f"Stopped {where}: {stopped.detail}" + (f"\n{more}" if more else ""), exit_code(stopped))


def _words(stopped: DomainError | None) -> str | None:
    return stopped.detail if stopped else None


def _print_json(document: msgspec.Struct) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def _document(found: Reconciliation, *, dry_run: bool) -> _Reconciled:
    return _Reconciled(
        dry_run,
        found.compared,
        len(found.drifted),
        _repaired(found.drifted),
        len(found.troubled),
        _words(found.stopped),
        [
            _Tenant(
                comparison.tenant_id,
                comparison.repaired,
                list(_fields(comparison)),
                [_missed(event) for event in comparison.missed],
                comparison.trouble,
            )
            for comparison in (*found.drifted, *found.troubled)
        ],
    )


def _fields(comparison: Comparison) -> Iterator[_Field]:
    for name in RECORD_FIELDS:
        if name in comparison.drift:
            ours, theirs = comparison.drift[name]
            yield _Field(_SHOWN_AS[name], _value(name, ours), _value(name, theirs))


def _value(name: str, fact: Fact) -> Value:
    return from_epoch(fact) if name == _PERIOD_END and isinstance(fact, int) else fact


def _missed(event: MissedEvent) -> _Missed:
    return _Missed(event.id, event.type, from_epoch(event.created), event.tenant_id, event.outcome)


def _lines(comparison: Comparison) -> Iterator[str]:
    if comparison.trouble:
        yield f"{comparison.tenant_id}: could not be compared: {printable(comparison.trouble)}"
        return
    yield f"{comparison.tenant_id}: {'repaired' if comparison.repaired else 'has drifted'}"
    width = max(len(_SHOWN_AS[name]) for name in comparison.drift)
    for field in _fields(comparison):
        yield f"  {field.field:{width}}  {shown(field.ours)} -> {shown(field.provider)}"
    for event in comparison.missed:
        yield f"  missed  {_event_line(event)}"


def _event_line(event: MissedEvent) -> str:
    return f"{shown(from_epoch(event.created))}  {printable(event.type)}  {printable(event.id)}"


def _repaired(drifted: Sequence[Comparison]) -> int:
    return sum(comparison.repaired for comparison in drifted)


def _summary(found: Reconciliation, *, dry_run: bool) -> str:
    parts = [
        f"{len(found.drifted):,} drifted",
        "nothing written" if dry_run else f"{_repaired(found.drifted):,} repaired",
    ]
    if found.troubled:
        parts.append(f"{len(found.troubled):,} could not be compared")
    return f"{counted(found.compared, 'tenant')} compared: {', '.join(parts)}"


def _backfill_summary(done: BackfillResult, *, dry_run: bool) -> str:
    outcomes = [f"{number:,} {outcome}" for outcome, number in sorted(done.outcomes.items())]
    then = "nothing written" if dry_run else ", ".join(outcomes) or "nothing to do"
    return f"{counted(done.listed, 'event')} listed, {done.missed:,} missed: {then}"
