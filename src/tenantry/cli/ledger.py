"""Commands on the ledger: explain, rebuild, replay, and the raw body of an event."""

import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from datetime import datetime
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.billing import explain as billing_explain
from tenantry.billing.explain import BillingExplanation
from tenantry.billing.ledger_queries import BillingEventView, raw_body
from tenantry.billing.replay import FieldComparison, ReplayService, ReprocessedEvent, Selection, TenantReplay
from tenantry.cli.database import on_database
from tenantry.cli.output import STEPS, counted, own_command, parse_time, print_json, printable, progress, shown
from tenantry.common.clock import system_clock
from tenantry.db.database import Database
from tenantry.domain.billing.events import Outcome
from tenantry.settings import Settings

DIFFERENCES: Final = 3
"""The exit code of a dry run that found something to repair."""
_INDENT: Final = 2
_NARROWEST: Final = 20
_STYLES: Final = {
    Outcome.APPLIED: "green",
    Outcome.LATE: "yellow",
    Outcome.NO_CHANGE: "dim",
    Outcome.PARKED: "yellow",
    Outcome.IGNORED: "dim",
    Outcome.INVALID: "bold red",
}

Line = tuple[int, Text]
"""An indentation and a text."""
_BLANK: Final[Line] = (0, Text())


@click.command("explain")
@click.argument("org_id", metavar="ORG")
@click.option("--json", "as_json", is_flag=True, help="Entries and state as one JSON document.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Only the newest so many.")
def explain(org_id: str, *, as_json: bool, limit: int) -> None:
    """Show why a tenant's billing state is what it is: each event, oldest first, what it changed and why."""

    explanation = on_database(
        lambda settings, database: billing_explain.explain(database, settings.billing, org_id, limit)
    )
    (print_json if as_json else show)(explanation)


def show(explanation: BillingExplanation, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    for indent, text in _lines(explanation):
        room = max(console.width - indent, _NARROWEST)
        for part in text.wrap(console, room) if console.is_terminal else [text]:
            part.rstrip()
            console.print(Text(" " * indent) + part, soft_wrap=True)


def _lines(explanation: BillingExplanation) -> Iterator[Line]:
    tenant = explanation.tenant
    yield 0, Text.assemble((tenant.id, "bold"), "  ", printable(tenant.name))
    facts = [f"plan {shown(tenant.plan)}", f"status {shown(tenant.subscription_status)}"]
    facts += [f"began with plan {shown(explanation.base_plan)}"]
    facts += [f"customer {shown(customer)}" for customer in explanation.customers] or ["no customer"]
    facts += ["suspended"] if explanation.suspended else []
    facts += ["ended"] if explanation.ended else []
    yield 0, Text(", ".join(facts))
    yield _BLANK
    if explanation.earlier:
        yield 0, Text(f"({explanation.earlier:,} earlier left out; --limit shows more)", "dim")
        yield _BLANK
    for entry in explanation.entries:
        yield from _entry(entry)
        yield _BLANK
    yield from _state(explanation)


def _entry(entry: BillingEventView) -> Iterator[Line]:
    heading = (shown(entry.created), "bold"), "  ", printable(entry.type), "  ", (entry.outcome, _STYLES[entry.outcome])
    yield 0, Text.assemble(*heading)
    yield _INDENT, Text(printable(entry.reason))
    if entry.before is not None and entry.after is not None:
        for field, name in zip(entry.before.__struct_fields__, entry.before.__struct_encode_fields__, strict=True):
            before, after = getattr(entry.before, field), getattr(entry.after, field)
            if before != after:
                yield _INDENT, Text(f"{name}: {shown(before)} -> {shown(after)}", "cyan")
    if entry.anomalies:
        yield _INDENT, Text(f"unexpected: {', '.join(entry.anomalies)}", "yellow")
    yield _INDENT, Text(f"{printable(entry.id)}, arrived {_delay(entry.created, entry.received_at)}", "dim")


def _state(explanation: BillingExplanation) -> Iterator[Line]:
    yield 0, Text("The state now", "bold")
    names = explanation.state.__struct_encode_fields__
    width = max(map(len, names))
    for name, value in zip(names, msgspec.structs.astuple(explanation.state), strict=True):
        yield _INDENT, Text(f"{name:{width}}  {shown(value)}")
    folded = f"The fold of {counted(explanation.events, 'event')}"
    if not explanation.differences:
        yield 0, Text(f"{folded} gives just that.", "green")
    else:
        yield 0, Text(f"{folded} gives something else:", "bold red")
        for field in explanation.differences:
            yield _INDENT, Text(f"{field.field}: {shown(field.stored)} -> {shown(field.folded)}")
    if explanation.parked:
        yield 0, Text(f"{counted(explanation.parked, 'parked event')} could take their place.", "bold red")
    if explanation.differences or explanation.parked:
        yield 0, Text(f"To repair it: {own_command()} tenants rebuild {explanation.tenant.id}")


def _delay(created: datetime, received: datetime) -> str:
    """Format how long after its creation an event arrived, in the two largest units."""
    seconds = int((received - created).total_seconds())
    if seconds == 0:
        return "at once"
    parts, rest = [], abs(seconds)
    for size, unit in STEPS:
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return f"{' '.join(parts[:2])} {'later' if seconds > 0 else 'too early'}"


class ReplayReport(msgspec.Struct, rename="camel"):
    """A replay. ``seconds`` is its duration; only JSON has ``details``.

    ``read_again`` are events that were invalid or ignored and now take their place; ``unreadable`` counts the invalid
    ones without a raw body.
    """

    dry_run: bool
    tenants: int = 0
    events: int = 0
    seconds: float = 0.0
    differing: int = 0
    repaired: int = 0
    read_again: list[ReprocessedEvent] = msgspec.field(default_factory=list)
    unreadable: int = 0
    details: list[TenantReplay] = msgspec.field(default_factory=list)


def _replay(selection: Selection, *, dry_run: bool, as_json: bool, in_full: bool) -> None:
    """Fold the selected tenants again and print what differs, or ``in_full`` every tenant with all its fields."""
    report = ReplayReport(dry_run)

    async def action(settings: Settings, database: Database) -> None:
        begun = time.monotonic()
        service = ReplayService(database, settings.billing, system_clock)
        number = await service.count(selection)
        async with aclosing(service.reprocess(selection, dry_run=dry_run)) as parts:
            async for part in parts:
                report.read_again += part.events
                report.unreadable += part.unreadable
                if not as_json and part.events:
                    click.echo("\n".join(map(_reread, part.events)))
        with progress("folding tenants", number) as advance:
            async with aclosing(service.run(selection, dry_run=dry_run)) as chunks:
                async for chunk in chunks:
                    for checked in chunk.checked:
                        _add(report, checked, as_json=as_json, in_full=in_full)
                    advance(chunk.tenants)
        report.seconds = round(time.monotonic() - begun, 3)

    on_database(action)
    if as_json:
        print_json(report)
    else:
        click.echo(_summary(report))
    if report.unreadable:
        click.echo(
            f"{counted(report.unreadable, 'invalid event')} cannot be read again: the raw body was removed after "
            "RAW_BODY_DAYS. `tenantry backfill` fetches those that the provider still lists.",
            err=True,
        )
    sys.exit(DIFFERENCES if dry_run and (report.differing or report.read_again) else 0)


def _add(report: ReplayReport, checked: TenantReplay, *, as_json: bool, in_full: bool) -> None:
    report.tenants += 1
    report.events += checked.events
    report.differing += not checked.is_right
    report.repaired += checked.repaired
    if checked.is_right and not in_full:
        return
    if as_json:
        detail = checked if in_full else msgspec.structs.replace(checked, fields=checked.differences)
        report.details.append(detail)
    else:
        # name the file: the progress bar has replaced stdout
        click.echo("\n".join(_all_fields(checked) if in_full else _differences(checked)), file=sys.stdout)


def _reread(event: ReprocessedEvent) -> str:
    outcome = event.outcome or "would take its place"
    return f"{printable(event.tenant_id or '-')}  {printable(event.id)} {printable(event.type)}, read again: {outcome}"


def _differences(checked: TenantReplay) -> Iterator[str]:
    for field in checked.differences:
        yield f"{checked.tenant_id}  {field.field}: {_change(field)}"
    if checked.parked:
        yield f"{checked.tenant_id}  {_parked(checked)}"


def _all_fields(checked: TenantReplay) -> Iterator[str]:
    result = "right as it is" if checked.is_right else "repaired" if checked.repaired else "differs"
    yield f"{checked.tenant_id}: {counted(checked.events, 'event')} folded, {result}"
    fields = [field for field in checked.fields if field.differs or not field.is_of_checkpoint]
    width = max(len(field.field) for field in fields)
    for field in fields:
        yield f"  {field.field:{width}}  {_change(field)}"
    if checked.parked:
        yield f"  {_parked(checked)}"


def _change(field: FieldComparison) -> str:
    return f"{shown(field.stored)} -> {shown(field.folded)}" if field.differs else shown(field.stored)


def _parked(checked: TenantReplay) -> str:
    return f"{counted(checked.parked, 'parked event')} {'took' if checked.repaired else 'could take'} their place"


def _summary(report: ReplayReport) -> str:
    speed = f"{report.events / report.seconds:,.0f}" if report.seconds else "-"
    found = f"{report.differing} differing, " + ("nothing written" if report.dry_run else f"{report.repaired} repaired")
    if report.read_again:
        found += f", {counted(len(report.read_again), 'event')} read again"
    return (
        f"{counted(report.tenants, 'tenant')}, {counted(report.events, 'event')} folded in {report.seconds:.1f} s "
        f"({speed} a second): {found}"
    )


@click.command("rebuild")
@click.argument("org_ids", metavar="[ORG]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only print what differs: write nothing, exit with 3 if anything does.")
@click.option("--json", "as_json", is_flag=True, help="The fields and repairs as one JSON document.")
def rebuild(org_ids: tuple[str, ...], *, dry_run: bool, as_json: bool) -> None:
    """Rebuild tenants' billing state from all their events, and show each field before and after.

    Without ORG the command rebuilds all tenants, and shows only what differs.

    The same as `tenantry events replay`, in more detail: safe while the service runs; sends no mail. Exits with 0 when
    done, with 5 if a tenant does not exist, and with 3 if a dry run found differences.
    """
    _replay(Selection(org_ids or None), dry_run=dry_run, as_json=as_json, in_full=bool(org_ids))


@click.command("replay")
@click.option("--tenant", "tenants", multiple=True, metavar="ORG", help="Only this tenant; repeatable.")
@click.option("--since", type=parse_time, metavar="TIME", help="Only tenants with an event since then, RFC 3339.")
@click.option("--dry-run", is_flag=True, help="Only print what differs: write nothing, exit with 3 if anything does.")
@click.option("--json", "as_json", is_flag=True, help="The differences as one JSON document.")
def replay(tenants: tuple[str, ...], since: datetime | None, *, dry_run: bool, as_json: bool) -> None:
    """Fold tenants' events again, show where the billing state differs, and repair it.

    Uses the current plan catalog: after you add a price, tenants get their correct plan. First reads events again that
    were invalid, or ignored because of PROVIDER_ACCOUNTS or PROVIDER_LIVEMODE; they take their place if they are now
    valid. Safe while the service runs; sends no mail. Exits with 0 when done, with 5 if a tenant does not exist, and
    with 3 if a dry run found differences.
    """
    _replay(Selection(tenants or None, since), dry_run=dry_run, as_json=as_json, in_full=False)


@click.command("body")
@click.argument("event_id", metavar="EVENT")
def body(event_id: str) -> None:
    """Print what the provider sent for an event, byte for byte.

    Bodies are kept for RAW_BODY_DAYS. Exits with 5 if there is no such event, or if its body was removed.
    """
    click.echo(on_database(lambda _, database: raw_body(database, event_id)), nl=False)
