"""The operator's commands on billing: explain and body of the ledger; reconcile, backfill and resend."""

import logging
import re
import shlex
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple

import click
import msgspec
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from tenantry.api.webhooks import PATH as WEBHOOK_PATH
from tenantry.billing import ledger_queries
from tenantry.billing.backfill import BackfillPart, BackfillResult, MissedEvent
from tenantry.billing.ingest import FAILED as NOT_HANDLED
from tenantry.billing.ingest import WebhookService
from tenantry.billing.ledger_queries import (
    BillingEventView,
    BillingExplanation,
    BillingFields,
    SubscriptionView,
    raw_body,
)
from tenantry.billing.reconcile import EVENTS_KEPT, Comparison, Reconciler, Reconciliation, RunObserver
from tenantry.cli import output
from tenantry.cli.database import exit_code, on_database, outbox
from tenantry.cli.doctor.endpoint_checks import endpoints_at, known_types_of
from tenantry.cli.interruption import STOPPED, Interruption
from tenantry.cli.output import (
    DIFFERENCES,
    FAILED,
    NOT_FOUND,
    CommandError,
    ProgressBar,
    aligned,
    counted,
    own_command,
    print_json,
    printable,
    progress,
    shown,
)
from tenantry.cli.times import past
from tenantry.common import logs
from tenantry.common.clock import from_epoch, system_clock
from tenantry.db.database import Database
from tenantry.domain.billing.events import REQUIRED_TYPES, Fact
from tenantry.domain.errors import DomainError, ProviderNotConfiguredError
from tenantry.integrations.stripe.client import ProviderApi
from tenantry.settings import Settings

_CONNECTIONS: Final = 5
_MOST_UNPLACED: Final = 20
"""How many subscriptions of no tenant `reconcile` names."""
_EVENT_ID: Final = re.compile(r"evt_[A-Za-z0-9_]{1,250}")
_JSON_NAMES: Final = dict(zip(BillingFields.__struct_fields__, BillingFields.__struct_encode_fields__, strict=True))


def _event_id(text: str) -> str:
    if _EVENT_ID.fullmatch(text) is None:
        raise click.BadParameter(f"{text!r} is not an event's id, such as evt_1SQk7xLm3Rk2pXw7")
    return text


@click.command("explain")
@click.argument("org_id", metavar="ORG")
@click.option("--json", "as_json", is_flag=True, help="Entries and state as one JSON document.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Only the newest so many.")
def explain(org_id: str, *, as_json: bool, limit: int) -> None:
    """Show why a tenant's billing state is what it is: each event, oldest first, what it changed and why.

    \b
      tenantry tenants explain acme
    """
    explanation = on_database(
        lambda settings, database: ledger_queries.explain(database, settings.billing, org_id, limit, system_clock())
    )
    (print_json if as_json else show)(explanation)


def show(explanation: BillingExplanation, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = 100_000
    for line in _explanation_lines(explanation):
        console.print(line)


def _indented(text: str, style: str = "") -> Padding:
    return Padding(Text(text.rstrip(), style), (0, 0, 0, 2), expand=False)


def _explanation_lines(explanation: BillingExplanation) -> Iterator[RenderableType]:
    tenant = explanation.tenant
    yield Text.assemble((tenant.id, "bold"), "  ", printable(tenant.name))
    facts = [f"plan {shown(tenant.plan)}", f"status {shown(tenant.subscription_status)}"]
    facts += [f"began with plan {shown(explanation.base_plan)}"]
    facts += [f"customer {shown(customer)}" for customer in explanation.customers] or ["no customer"]
    facts += ["suspended"] if explanation.suspended else []
    facts += ["ended"] if explanation.ended else []
    yield Text(", ".join(facts))
    yield ""
    if explanation.earlier:
        yield Text(f"({explanation.earlier:,} earlier left out; --limit shows more)", "dim")
        yield ""
    if not explanation.entries:
        yield from _advice_without_events(explanation)
        yield ""
    for entry in explanation.entries:
        yield from _entry_lines(entry)
        yield ""
    yield from _state_lines(explanation)


def _advice_without_events(explanation: BillingExplanation) -> Iterator[RenderableType]:
    org_id = explanation.tenant.id
    yield Text("No billing events yet.", "bold")
    yield _indented("If this tenant has paid, its events were lost, or name another tenant. Look at the provider:")
    yield _indented(f"  tenantry reconcile --tenant {org_id}")
    if not explanation.customers:
        yield _indented(f"It finds a subscription whose metadata.orgId is {org_id}. Else link the customer that paid:")
        yield _indented(f"  tenantry admin link CUSTOMER --org {org_id}")


def _entry_lines(entry: BillingEventView) -> Iterator[RenderableType]:
    outcome = (entry.outcome, output.CELL_STYLES.get(entry.outcome, ""))
    yield Text.assemble((shown(entry.created), "bold"), "  ", printable(entry.type), "  ", outcome)
    yield _indented(printable(entry.reason))
    if entry.before is not None and entry.after is not None:
        for field, name in zip(entry.before.__struct_fields__, entry.before.__struct_encode_fields__, strict=True):
            before, after = getattr(entry.before, field), getattr(entry.after, field)
            if before != after:
                yield _indented(f"{name}: {shown(before)} -> {shown(after)}", "cyan")
    if entry.anomalies:
        yield _indented(f"unexpected: {', '.join(entry.anomalies)}", "yellow")
    yield _indented(f"{printable(entry.id)}, arrived {_delay(entry)}", "dim")


def _state_lines(explanation: BillingExplanation) -> Iterator[RenderableType]:
    yield Text("The state now", "bold")
    values = map(shown, msgspec.structs.astuple(explanation.state))
    for line in aligned(zip(explanation.state.__struct_encode_fields__, values, strict=True)):
        yield _indented(line)
    if explanation.subscriptions:
        yield ""
        yield Text("Subscriptions, the one that counts first", "bold")
        for subscription in explanation.subscriptions:
            yield from _subscription_lines(subscription)
    access = explanation.tenant.access
    until = f" until {shown(access.until)}" if access.until else ""
    yield ""
    yield Text.assemble(("Access", "bold"), f"  {access.state}{until}, limits of plan {shown(access.plan)}")
    yield _indented(printable(access.reason))
    yield ""
    folded = f"The fold of {_folded_events(explanation)}"
    if not explanation.differences:
        yield Text(f"{folded} gives just that.", "green")
    else:
        yield Text(f"{folded} gives something else:", "bold red")
        for field in explanation.differences:
            yield _indented(f"{field.field}: {shown(field.stored)} -> {shown(field.folded)}")
    if explanation.parked:
        yield Text(f"{counted(explanation.parked, 'parked event')} could take their place.", "bold red")
    if explanation.differences or explanation.parked:
        yield Text(f"To repair it: {own_command()} tenants rebuild {explanation.tenant.id}")


def _folded_events(explanation: BillingExplanation) -> str:
    """Count the events that decide the state, among all entries."""
    entries = explanation.earlier + len(explanation.entries)
    others = entries - explanation.events
    if not others:
        return counted(entries, "event")
    which = "other does" if others == 1 else "others do"
    return f"{explanation.events:,} of {counted(entries, 'event')} (the {which} not concern the state)"


def _subscription_lines(subscription: SubscriptionView) -> Iterator[RenderableType]:
    facts = [f"plan {shown(subscription.plan)}", f"status {shown(subscription.status)}"]
    facts += [] if subscription.seats is None else [counted(subscription.seats, "seat")]
    for name, moment in (
        ("past due since", subscription.past_due_since),
        ("ended", subscription.ended_at),
        ("ends", None if subscription.ended_at else subscription.cancel_at),
        ("period ends", subscription.current_period_end),
    ):
        facts += [f"{name} {shown(moment)}"] if moment else []
    facts += ["ends with the period"] if subscription.cancel_at_period_end and not subscription.ended_at else []
    yield _indented(f"{printable(subscription.id) or '(without id)'}  {', '.join(facts)}")
    yield Padding(Text(printable(subscription.reason), "dim"), (0, 0, 0, 4), expand=False)


def _delay(event: BillingEventView) -> str:
    """Format how long after its creation an event arrived."""
    seconds = int((event.received_at - event.created).total_seconds())
    return f"{output.largest_unit(abs(seconds))} {'later' if seconds > 0 else 'too early'}" if seconds else "at once"


@click.command("body")
@click.argument("event_id", metavar="EVENT")
def body(event_id: str) -> None:
    """Print what the provider sent for an event, byte for byte.

    Bodies are kept for RAW_BODY_DAYS. Exits with 5 if there is no such event, or if its body was removed.

    \b
      tenantry events body evt_1SQk7xLm3Rk2pXw7 >event.json
    """
    click.echo(on_database(lambda _, database: raw_body(database, event_id)), nl=False)


@click.command("resend")
@click.argument("event_ids", metavar="EVENT...", nargs=-1, required=True, type=_event_id)
@click.option("--json", "as_json", is_flag=True, help="The events and their outcomes as one JSON document.")
def resend(event_ids: tuple[str, ...], *, as_json: bool) -> None:
    """Fetch events from the payment provider by their ids, and process them as if the provider sent them again.

    For events that never arrived, failed or were invalid. An event that the ledger has changes nothing: its outcome is
    `duplicate`. A failed payment is mailed if it is recent and still unpaid. The provider keeps events for 30 days.
    Safe while the service runs. Needs PROVIDER_SECRET_KEY.

    \b
      tenantry events resend evt_1SQk7xLm3Rk2pXw7

    Exits with 0 when done, with 1 if an event could not be handled or the provider rejects a request, with 4 if it
    rejects the API key, with 5 if it has no such event, and with 6 if the provider or the database is out of reach.
    """
    events, missing = list[MissedEvent](), list[str]()

    async def action(settings: Settings, database: Database) -> None:
        async with _reconciler(settings, database) as reconciler:
            for event_id in dict.fromkeys(event_ids):
                event = await reconciler.backfill.resend(event_id)
                if event is None:
                    missing.append(event_id)
                    continue
                events.append(event)
                if not as_json:
                    click.echo(f"{_event_line(event)}  {shown(event.tenant_id)}  {event.outcome}")

    logs.configure("console", logging.WARNING)
    try:
        on_database(action, pool_size=_CONNECTIONS)
    finally:
        if as_json:
            print_json({"events": events, "missing": missing})
    if missing:
        raise CommandError(f"The payment provider has no event {', '.join(missing)}.", NOT_FOUND)
    sys.exit(FAILED if any(event.outcome == NOT_HANDLED for event in events) else 0)


@click.command("reconcile")
@click.option("--tenant", "tenants", multiple=True, metavar="ORG", help="Only this tenant; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only print what differs: write nothing.")
@click.option("--json", "as_json", is_flag=True, help="The drift and repairs as one JSON document.")
def reconcile(tenants: tuple[str, ...], *, dry_run: bool, as_json: bool) -> None:
    """Compare tenants with their subscriptions at the payment provider, and repair those that have drifted.

    Reads all subscriptions of the provider's account, so that it also finds those of which no event arrived; or
    compares only the tenants that you name. Shows each field that differs, ours and then the provider's, and each
    customer that it links. Fetches the events that were missed, and lists living subscriptions that count for no
    tenant. Safe while the service runs. Needs PROVIDER_SECRET_KEY.

    \b
    Exits with
      0  without drift
      1  without drift, if a tenant could not be compared or the provider
         rejects every request; and after Ctrl-C
      3  if there was drift, repaired or not
      4  if the provider rejects the API key
      5  if a tenant that you name does not exist; then nothing is done
      6  if the provider or the database is out of reach

    \b
      tenantry reconcile --dry-run
      tenantry reconcile --tenant acme

    Ctrl-C ends it after the tenants in flight, with a summary and the command that goes on.
    """

    interruption = Interruption()

    async def action(settings: Settings, database: Database) -> Reconciliation:
        only = tenants or None
        async with _reconciler(settings, database) as reconciler:
            number = await reconciler.count(only)
            with progress("comparing tenants", number) as bar, interruption.handling():
                observer = _observer(bar, interruption, as_json=as_json)
                return await reconciler.run(only, dry_run=dry_run, observer=observer)

    logs.configure("console", logging.WARNING)
    found = on_database(action, pool_size=_CONNECTIONS)
    why = STOPPED if found.interrupted else found.stopped and found.stopped.detail
    if as_json:
        again = _reconcile_again(tenants, dry_run=dry_run) if why else None
        print_json({"dryRun": dry_run, **_reconciliation_json(found), "stopped": why, "continueWith": again})
    else:
        for line in _reconciliation_lines(found, dry_run=dry_run):
            click.echo(line)
    if why is not None:
        again = f"\nWhat is repaired stays. Continue with: {_reconcile_again(tenants, dry_run=dry_run)}"
        message = f"Stopped after {counted(found.compared, 'tenant')}: {why}{again if found.interrupted else ''}"
        raise CommandError(message, exit_code(found.stopped) if found.stopped else FAILED)
    sys.exit(DIFFERENCES if found.drifted else FAILED if found.troubled else 0)


def _observer(bar: ProgressBar, interruption: Interruption, *, as_json: bool) -> RunObserver:
    """Return what shows a run: results as they come, unless ``as_json``, and the progress."""
    subscriptions = 0

    def show_listed(number: int) -> None:
        nonlocal subscriptions
        subscriptions += number
        bar.describe(f"comparing tenants, {counted(subscriptions, 'subscription')} read")

    def show_found(comparison: Comparison) -> None:
        if not as_json:
            # name the file: the progress bar has replaced stdout
            click.echo("\n".join(_comparison_lines(comparison)), file=sys.stdout)

    return RunObserver(bar.advance, show_listed, show_found, interruption.is_requested)


def _reconcile_again(tenants: Sequence[str], *, dry_run: bool) -> str:
    options = [word for tenant_id in tenants for word in ("--tenant", tenant_id)] + ["--dry-run"] * dry_run
    return f"{own_command()} {shlex.join(['reconcile', *options])}"


def _reconciliation_json(found: Reconciliation) -> dict[str, Any]:
    return {
        "compared": found.compared,
        "drifted": len(found.drifted),
        "repaired": _number_repaired(found),
        "notCompared": len(found.troubled),
        "notPlaced": found.unplaced_number,
        "subscriptionsNotPlaced": found.unplaced,
        "details": [_comparison_json(comparison) for comparison in (*found.drifted, *found.troubled)],
    }


def _reconciliation_lines(found: Reconciliation, *, dry_run: bool) -> Iterator[str]:
    """Say what is known only at the end: missed events, subscriptions of no tenant, and the summary."""
    for comparison in found.drifted:
        yield from _missed_lines(comparison)
    yield from _unplaced_lines(found)
    if found.compared or found.troubled or found.stopped is None:
        written = "nothing written" if dry_run else f"{_number_repaired(found):,} repaired"
        troubled = f", {len(found.troubled):,} could not be compared" if found.troubled else ""
        compared = counted(found.compared, "tenant")
        yield f"{compared} compared: {len(found.drifted):,} drifted, {written}{troubled}"


def _number_repaired(found: Reconciliation) -> int:
    return sum(comparison.repaired for comparison in found.drifted)


def _missed_lines(comparison: Comparison) -> Iterator[str]:
    if comparison.missed:
        yield f"{comparison.tenant_id}: {counted(len(comparison.missed), 'missed event')}"
    for event in comparison.missed:
        yield f"  {_event_line(event)}"


@click.command("backfill")
@click.option(
    "--since", required=True, type=past, metavar="TIME", help="Events created since then: 1h, 7d or an RFC 3339 time."
)
@click.option("--until", type=past, metavar="TIME", help="Events created until then; continues a stopped run.")
@click.option("--dry-run", is_flag=True, help="Only print what was missed: write nothing.")
@click.option("--json", "as_json", is_flag=True, help="The missed events and their outcomes as one JSON document.")
def backfill(since: datetime, until: datetime | None, *, dry_run: bool, as_json: bool) -> None:
    """Fetch the events of the payment provider that never arrived, such as after an outage.

    Reads the provider's list of events, which covers 30 days, from the newest event back to the given time: those of
    the types that your webhook endpoint sends. Missed events are processed like all others, and shown with their
    outcomes. A failed payment is mailed if it is recent and still unpaid. Safe while the service runs. Needs
    PROVIDER_SECRET_KEY.

    Exits with 0 when done, with 1 if an event could not be handled or the provider rejects a request, with 4 if it
    rejects the API key, and with 6 if the provider or the database is out of reach. A run that an error or Ctrl-C stops
    keeps the events that it has processed, and prints the command that continues it.

    \b
      tenantry backfill --since 1d
    """
    now = system_clock()
    if until is not None and until < since:
        raise click.BadParameter("is before --since", param_hint="--until")
    if since < now - EVENTS_KEPT:
        click.echo(
            f"The provider lists events for {EVENTS_KEPT.days} days: what was missed before "
            f"{shown(now - EVENTS_KEPT)} cannot be fetched. `tenantry reconcile` repairs tenants without it.",
            err=True,
        )
    missed, interruption = list[MissedEvent](), Interruption()

    async def action(settings: Settings, database: Database) -> BackfillResult:
        end, begin = int((until or now).timestamp()), int(max(since, now - EVENTS_KEPT).timestamp())
        async with _reconciler(settings, database) as reconciler:
            try:
                types = await _sent_types(reconciler.provider, settings)
            except DomainError as error:
                return BackfillResult(0, 0, {}, stopped=error)
            with progress("fetching events", max(end - begin, 1), is_share=True) as bar, interruption.handling():
                left = end

                def observe(part: BackfillPart) -> bool:
                    nonlocal left
                    bar.advance(left - part.oldest.created)
                    left = part.oldest.created
                    missed.extend(part.missed)
                    if not as_json:
                        _show_missed(part.missed)
                    return interruption.is_requested()

                return await reconciler.backfill.run(
                    int(since.timestamp()),
                    until=None if until is None else end,
                    types=types,
                    dry_run=dry_run,
                    observer=observe,
                )

    logs.configure("console", logging.WARNING)
    done = on_database(action, pool_size=_CONNECTIONS)
    reached = done.reached and {"id": done.reached.id, "created": from_epoch(done.reached.created)}
    why = STOPPED if done.interrupted else done.stopped and done.stopped.detail
    rest = _rest_of(done, since, until, dry_run=dry_run) if why else None
    if as_json:
        asked = {"dryRun": dry_run, "since": since, "until": until}
        counts = {"listed": done.listed, "missed": done.missed, "outcomes": done.outcomes}
        end = {"stopped": why, "reached": reached, "continueWith": rest and rest.command}
        print_json({**asked, **counts, **end, "details": missed})
    elif done.listed or why is None:
        outcomes = [f"{number:,} {outcome}" for outcome, number in sorted(done.outcomes.items())]
        then = "nothing written" if dry_run else ", ".join(outcomes) or "nothing to do"
        click.echo(f"{counted(done.listed, 'event')} listed, {done.missed:,} missed: {then}")
    if rest is not None:
        message = f"Stopped {rest.where}: {why}{rest.what}" + (f" with: {rest.command}" if rest.command else "")
        raise CommandError(message, exit_code(done.stopped) if done.stopped else FAILED)
    sys.exit(FAILED if done.outcomes.get(NOT_HANDLED) else 0)


async def _sent_types(provider: ProviderApi, settings: Settings) -> frozenset[str]:
    """Return the types that the provider sends to our endpoint; at least those that it must."""
    endpoints = await provider.webhook_endpoints()
    ours = endpoints_at(endpoints or (), settings.base_url + WEBHOOK_PATH)
    return REQUIRED_TYPES | known_types_of(ours)


def _show_missed(events: Iterable[MissedEvent]) -> None:
    for event in events:
        # name the file: a progress bar has replaced stdout
        click.echo(f"{_event_line(event)}  {shown(event.tenant_id)}  {event.outcome or 'missed'}", file=sys.stdout)


@asynccontextmanager
async def _reconciler(settings: Settings, database: Database) -> AsyncIterator[Reconciler]:
    """Give a reconciler. Raises `ProviderNotConfiguredError`."""
    if settings.provider_secret_key is None:
        raise ProviderNotConfiguredError("The payment provider's API is not set up here: PROVIDER_SECRET_KEY is unset.")
    queue = outbox(asks_provider=False)
    webhooks = WebhookService([database.lane()], settings.billing, queue, system_clock)
    async with aclosing(ProviderApi(settings.provider_secret_key, settings.provider_api_base)) as provider:
        try:
            yield Reconciler(database, provider, webhooks, settings.billing, queue, system_clock)
        finally:
            await webhooks.close()


class _Rest(NamedTuple):
    """What a stopped backfill has left: where it was stopped, what is done or left, and the command that continues."""

    where: str
    what: str = ""
    command: str | None = None


def _rest_of(done: BackfillResult, since: datetime, until: datetime | None, *, dry_run: bool) -> _Rest:
    if done.reached is None:
        return _Rest("before the first event")
    moment = from_epoch(done.reached.created)
    where = f"after {counted(done.listed, 'event')}, at {printable(done.reached.id)} of {shown(moment)}"
    if failed := done.outcomes.get(NOT_HANDLED, 0):
        continue_at = until
        what = f"{counted(failed, 'event')} could not be handled. Retry them and fetch the rest"
    else:
        continue_at = moment
        what = f"Events from {'the newest event' if until is None else shown(until)} back to then are done. Continue"
    options = f"--since {shown(since)}" + (f" --until {shown(continue_at)}" if continue_at else "")
    return _Rest(where, f"\n{what}", f"{own_command()} backfill {options}{' --dry-run' if dry_run else ''}")


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    fields = [{"field": name, "ours": ours, "provider": theirs} for name, ours, theirs in _fields(comparison)]
    found = {"fields": fields, "linked": comparison.linked, "missed": comparison.missed, "trouble": comparison.trouble}
    return {"tenantId": comparison.tenant_id, "repaired": comparison.repaired, **found}


def _fields(comparison: Comparison) -> list[tuple[str, output.Value, output.Value]]:
    """Return each field that differs: its name in JSON, our value, the provider's."""
    drift = comparison.drift.items()
    return [(_json_name(name), _value(name, ours), _value(name, theirs)) for name, (ours, theirs) in drift]


def _json_name(name: str) -> str:
    """Return the API's name of a field, of the tenant or of one of its subscriptions (``sub_1.plan``)."""
    subscription, dot, field = name.rpartition(".")
    return f"{subscription}{dot}{_JSON_NAMES[field]}"


def _value(name: str, fact: Fact) -> output.Value:
    is_time = name.rpartition(".")[2] == "current_period_end"
    return from_epoch(fact) if is_time and isinstance(fact, int) else fact


def _comparison_lines(comparison: Comparison) -> Iterator[str]:
    if comparison.trouble:
        yield f"{comparison.tenant_id}: could not be compared: {printable(comparison.trouble)}"
        return
    yield f"{comparison.tenant_id}: {'repaired' if comparison.repaired else 'has drifted'}"
    fields = _fields(comparison)
    for line in aligned((name, f"{shown(ours)} -> {shown(theirs)}") for name, ours, theirs in fields):
        yield f"  {line}"
    for customer in comparison.linked:
        yield f"  customer {printable(customer)} {'is linked now' if comparison.repaired else 'is not linked'}"


def _unplaced_lines(found: Reconciliation) -> Iterator[str]:
    """Name subscriptions at the provider that count for no tenant, with the command that places each."""
    for each in found.unplaced[:_MOST_UNPLACED]:
        customer = printable(each.customer_id or "(unknown)")
        yield f"not placed: subscription {printable(each.subscription_id)} of customer {customer}: {each.reason}"
        if each.org_id is None and each.customer_id is not None:
            yield f"  if it is a tenant's: tenantry admin link {customer} --org ORG"
    if (more := found.unplaced_number - _MOST_UNPLACED) > 0:
        yield f"not placed: {counted(more, 'more subscription')}; --json lists up to 1,000"


def _event_line(event: MissedEvent) -> str:
    return f"{shown(event.created)}  {printable(event.type)}  {printable(event.id)}"
