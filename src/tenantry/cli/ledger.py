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
from tenantry.billing.ledger_queries import BillingEventView, BillingFields, raw_body
from tenantry.billing.replay import (
    FieldComparison,
    ReplayService,
    ReprocessedChunk,
    ReprocessedEvent,
    Selection,
    TenantReplay,
)
from tenantry.cli.database import on_database
from tenantry.cli.output import counted, own_command, parse_time, printable, progress, shown
from tenantry.common.clock import system_clock
from tenantry.db.database import Database
from tenantry.domain.billing.events import Outcome
from tenantry.settings import Settings

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
_UNITS: Final = (("d", 24 * 3600), ("h", 3600), ("min", 60), ("s", 1))
Line = tuple[int, Text]
_BLANK: Final[Line] = (0, Text())


def show(explanation: BillingExplanation, console: Console | None = None) -> None:
    """Print a tenant's history."""
    console = console or Console(highlight=False)
    for indent, text in _lines(explanation):
        room = max(console.width - indent, _NARROWEST)
        for part in text.wrap(console, room) if console.is_terminal else [text]:
            part.rstrip()
            console.print(Text(" " * indent) + part, soft_wrap=True)


def _lines(explanation: BillingExplanation) -> Iterator[Line]:
    yield from _header(explanation)
    yield _BLANK
    if explanation.earlier:
        yield 0, Text(f"({explanation.earlier:,} earlier left out; --limit shows more)", "dim")
        yield _BLANK
    for entry in explanation.entries:
        yield from _entry(entry)
        yield _BLANK
    yield from _ending(explanation)


def _header(explanation: BillingExplanation) -> Iterator[Line]:
    tenant = explanation.tenant
    yield 0, Text.assemble((tenant.id, "bold"), "  ", printable(tenant.name))
    facts = [f"plan {shown(tenant.plan)}", f"status {shown(tenant.subscription_status)}"]
    facts += [f"began with plan {shown(explanation.base_plan)}"]
    facts += [f"customer {shown(customer)}" for customer in explanation.customers] or ["no customer"]
    facts += ["suspended"] if explanation.suspended else []
    facts += ["ended"] if explanation.ended else []
    yield 0, Text(", ".join(facts))


def _entry(entry: BillingEventView) -> Iterator[Line]:
    yield (
        0,
        Text.assemble(
            (shown(entry.created), "bold"), "  ", printable(entry.type), "  ", (entry.outcome, _STYLES[entry.outcome])
        ),
    )
    yield _INDENT, Text(printable(entry.reason))
    for name, before, after in _changes(entry.before, entry.after):
        yield _INDENT, Text(f"{name}: {before} -> {after}", "cyan")
    if entry.anomalies:
        yield _INDENT, Text(f"unexpected: {', '.join(entry.anomalies)}", "yellow")
    yield _INDENT, Text(f"{printable(entry.id)}, arrived {_delay(entry.created, entry.received_at)}", "dim")


def _changes(before: BillingFields | None, after: BillingFields | None) -> Iterator[tuple[str, str, str]]:
    if before is None or after is None:
        return
    for name, shown_as in zip(before.__struct_fields__, before.__struct_encode_fields__, strict=True):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield shown_as, shown(old), shown(new)


def _ending(explanation: BillingExplanation) -> Iterator[Line]:
    yield 0, Text("The state now", "bold")
    fields = dict(
        zip(explanation.state.__struct_encode_fields__, msgspec.structs.astuple(explanation.state), strict=True)
    )
    width = max(map(len, fields))
    for name, value in fields.items():
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
        yield 0, Text(f"To set it right: {own_command()} tenants rebuild {explanation.tenant.id}")


def _delay(created: datetime, received: datetime) -> str:
    """How long after it happened an event arrived, in its two biggest units."""
    seconds = int((received - created).total_seconds())
    if seconds == 0:
        return "at once"
    parts, rest = [], abs(seconds)
    for unit, size in _UNITS:
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return f"{' '.join(parts[:2])} {'later' if seconds > 0 else 'too early'}"


DIFFERENCES: Final = 3
"""The exit code of a dry run that found something to repair."""
_UNREADABLE: Final = (
    "{} cannot be read again: the raw body was removed after RAW_BODY_DAYS. `tenantry backfill` fetches those that the "
    "provider still lists."
)


class Report(msgspec.Struct, rename="camel"):
    """A whole run. ``seconds`` is how long it took; ``details`` are filled for JSON alone.

    ``read_again`` are events that were invalid or left out and take their place; ``unreadable`` is how many invalid
    ones have no raw body any more.
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


def run(selection: Selection, *, dry_run: bool, as_json: bool, in_full: bool) -> None:
    """Fold the selected tenants again and print what differs, or ``in_full`` every tenant with all its fields."""

    def tell(report: Report, checked: TenantReplay) -> None:
        detail = checked if in_full else msgspec.structs.replace(checked, fields=checked.differences)
        if as_json:
            report.details.append(detail)
        else:
            # named, so that the bar, which stands in for stdout meanwhile, goes out of the way
            click.echo(_in_full(detail) if in_full else _in_short(detail), file=sys.stdout)

    async def act(settings: Settings, database: Database) -> Report:
        service = ReplayService(database, settings.billing, system_clock)
        report, begun = Report(dry_run), time.monotonic()
        number = await service.count(selection)
        async with aclosing(service.reprocess(selection, dry_run=dry_run)) as parts:
            async for part in parts:
                _add_read_again(report, part, as_json=as_json)
        with progress("folding tenants", number) as advance:
            async with aclosing(service.run(selection, dry_run=dry_run)) as chunks:
                async for chunk in chunks:
                    for checked in chunk.checked:
                        _add(report, checked)
                        if in_full or not checked.is_right:
                            tell(report, checked)
                    advance(chunk.tenants)
        report.seconds = round(time.monotonic() - begun, 3)
        return report

    report = on_database(act)
    click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() if as_json else _summary(report))
    if report.unreadable:
        click.echo(_UNREADABLE.format(counted(report.unreadable, "invalid event")), err=True)
    sys.exit(DIFFERENCES if dry_run and (report.differing or report.read_again) else 0)


def _add(report: Report, checked: TenantReplay) -> None:
    report.tenants += 1
    report.events += checked.events
    report.differing += not checked.is_right
    report.repaired += checked.repaired


def _reread(event: ReprocessedEvent) -> str:
    done = event.outcome or "would take its place"
    return f"{printable(event.tenant_id or '-')}  {printable(event.id)} {printable(event.type)}, read again: {done}"


def _add_read_again(report: Report, part: ReprocessedChunk, *, as_json: bool) -> None:
    report.read_again += part.events
    report.unreadable += part.unreadable
    if not as_json:
        for event in part.events:
            click.echo(_reread(event))


def _in_short(checked: TenantReplay) -> str:
    lines = [f"{checked.tenant_id}  {field.field}: {_change(field)}" for field in checked.fields]
    if checked.parked:
        lines.append(f"{checked.tenant_id}  {_parked(checked)}")
    return "\n".join(lines)


def _in_full(checked: TenantReplay) -> str:
    what = "right as it is" if checked.is_right else "repaired" if checked.repaired else "differs"
    lines = [f"{checked.tenant_id}: {counted(checked.events, 'event')} folded, {what}"]
    lines += [
        f"  {field.field:{_width(checked)}}  {_change(field)}" for field in checked.fields if _is_of_interest(field)
    ]
    if checked.parked:
        lines.append(f"  {_parked(checked)}")
    return "\n".join(lines)


def _is_of_interest(field: FieldComparison) -> bool:
    return field.differs or not field.is_of_checkpoint


def _width(checked: TenantReplay) -> int:
    return max(len(field.field) for field in checked.fields if _is_of_interest(field))


def _change(field: FieldComparison) -> str:
    return f"{shown(field.stored)} -> {shown(field.folded)}" if field.differs else shown(field.stored)


def _parked(checked: TenantReplay) -> str:
    done = "took" if checked.repaired else "could take"
    return f"{counted(checked.parked, 'parked event')} {done} their place"


def _summary(report: Report) -> str:
    speed = f"{report.events / report.seconds:,.0f}" if report.seconds else "-"
    found = f"{report.differing} differing, " + ("nothing written" if report.dry_run else f"{report.repaired} repaired")
    if report.read_again:
        found += f", {counted(len(report.read_again), 'event')} read again"
    return (
        f"{counted(report.tenants, 'tenant')}, {counted(report.events, 'event')} folded in {report.seconds:.1f} s "
        f"({speed} a second): {found}"
    )


MOST_ENTRIES: Final = 100


@click.command("explain")
@click.argument("org_id", metavar="ORG")
@click.option("--json", "as_json", is_flag=True, help="Entries and state as one JSON document.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=MOST_ENTRIES, show_default=True, help="Only the newest so many."
)
def explain(org_id: str, *, as_json: bool, limit: int) -> None:
    """Show why a tenant's billing state is what it is: each event, oldest first, what it changed and why."""

    async def act(settings: Settings, database: Database) -> BillingExplanation:
        return await billing_explain.explain(database, settings.billing, org_id, limit)

    explanation = on_database(act)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(explanation), indent=2).decode())
    else:
        show(explanation)


@click.command("rebuild")
@click.argument("org_ids", metavar="[ORG]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only say what differs: write nothing, exit with 3 if anything does.")
@click.option("--json", "as_json", is_flag=True, help="What was found and done as one JSON document.")
def rebuild(org_ids: tuple[str, ...], *, dry_run: bool, as_json: bool) -> None:
    """Make tenants' billing state anew from all their events, and show each field before and after.

    Without a name all tenants are rebuilt, and only what differs is shown.

    The same as `tenantry events replay`, in more detail: safe while the service runs, and no mail is sent. Exits with
    0 when done, with 5 if a tenant does not exist, and with 3 if a dry run found differences.
    """
    run(Selection(org_ids or None), dry_run=dry_run, as_json=as_json, in_full=bool(org_ids))


@click.command("replay")
@click.option("--tenant", "tenants", multiple=True, metavar="ORG", help="Only this tenant; may be given several times.")
@click.option("--since", type=parse_time, help="Only tenants with an event received since then, RFC 3339.")
@click.option("--dry-run", is_flag=True, help="Only say what differs: write nothing, exit with 3 if anything does.")
@click.option("--json", "as_json", is_flag=True, help="The differences as one JSON document.")
def replay(tenants: tuple[str, ...], since: datetime | None, *, dry_run: bool, as_json: bool) -> None:
    """Fold tenants' events again, show where a tenant is not what they lead to, and set it right.

    The present plan catalog counts: after a price was added to it, tenants come to their right plan. Events that were
    invalid, or left out by PROVIDER_ACCOUNTS or PROVIDER_LIVEMODE, are read again first, and take their place if they
    are valid now. Safe while the service runs; sends no mail. Exits with 0 when done, with 5 if a tenant does not
    exist, and with 3 if a dry run found differences.
    """
    run(Selection(tenants or None, since), dry_run=dry_run, as_json=as_json, in_full=False)


@click.command("body")
@click.argument("event_id", metavar="EVENT")
def body(event_id: str) -> None:
    """Print what the provider sent for an event, byte for byte.

    Bodies are kept for RAW_BODY_DAYS. Exits with 5 where there is no such event, or no body of it any more.
    """
    click.echo(on_database(lambda _, database: raw_body(database, event_id)), nl=False)
