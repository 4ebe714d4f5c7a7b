"""What ``events replay`` and ``tenants rebuild`` share: one run over tenants, and what is said of it."""

import sys
import time
from contextlib import aclosing
from typing import Final

import click
import msgspec

from tenantry.billing.replay import Checked, Field, ReadAgain, ReplayService, Reread, Selection
from tenantry.cli.on_database import on_database
from tenantry.cli.progress import progress
from tenantry.cli.text import counted, printable, shown
from tenantry.common.clock import system_clock
from tenantry.db.database import Database
from tenantry.settings import AdminSettings

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
    read_again: list[ReadAgain] = msgspec.field(default_factory=list)
    unreadable: int = 0
    details: list[Checked] = msgspec.field(default_factory=list)


def run(selection: Selection, *, dry_run: bool, as_json: bool, in_full: bool) -> None:
    """Fold the selected tenants again and print what differs, or ``in_full`` every tenant with all its fields."""

    def tell(report: Report, checked: Checked) -> None:
        detail = checked if in_full else msgspec.structs.replace(checked, fields=checked.differences)
        if as_json:
            report.details.append(detail)
        else:
            # named, so that the bar, which stands in for stdout meanwhile, goes out of the way
            click.echo(_in_full(detail) if in_full else _in_short(detail), file=sys.stdout)

    async def act(settings: AdminSettings, database: Database) -> Report:
        service = ReplayService(database, settings.billing, system_clock)
        report, begun = Report(dry_run), time.monotonic()
        number = await service.count(selection)
        async with aclosing(service.read_again(selection, dry_run=dry_run)) as parts:
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


def _add(report: Report, checked: Checked) -> None:
    report.tenants += 1
    report.events += checked.events
    report.differing += not checked.is_right
    report.repaired += checked.repaired


def _reread(event: ReadAgain) -> str:
    done = event.outcome or "would take its place"
    return f"{printable(event.tenant_id or '-')}  {printable(event.id)} {printable(event.type)}, read again: {done}"


def _add_read_again(report: Report, part: Reread, *, as_json: bool) -> None:
    report.read_again += part.events
    report.unreadable += part.unreadable
    if not as_json:
        for event in part.events:
            click.echo(_reread(event))


def _in_short(checked: Checked) -> str:
    lines = [f"{checked.tenant_id}  {field.field}: {_change(field)}" for field in checked.fields]
    if checked.parked:
        lines.append(f"{checked.tenant_id}  {_parked(checked)}")
    return "\n".join(lines)


def _in_full(checked: Checked) -> str:
    what = "right as it is" if checked.is_right else "repaired" if checked.repaired else "differs"
    lines = [f"{checked.tenant_id}: {counted(checked.events, 'event')} folded, {what}"]
    lines += [
        f"  {field.field:{_width(checked)}}  {_change(field)}" for field in checked.fields if _is_of_interest(field)
    ]
    if checked.parked:
        lines.append(f"  {_parked(checked)}")
    return "\n".join(lines)


def _is_of_interest(field: Field) -> bool:
    return field.differs or not field.is_of_checkpoint


def _width(checked: Checked) -> int:
    return max(len(field.field) for field in checked.fields if _is_of_interest(field))


def _change(field: Field) -> str:
    return f"{shown(field.stored)} -> {shown(field.folded)}" if field.differs else shown(field.stored)


def _parked(checked: Checked) -> str:
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
