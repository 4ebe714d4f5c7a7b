"""``tenantry admin rebuild-tenants`` and ``replay-events``: fold ledgers again, and repair what
differs.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from datetime import datetime
from typing import Final, NoReturn

import click
import msgspec

from tenantry.billing.replay import ReplayService, ReprocessedEvent, Selection, TenantReplay
from tenantry.cli.database import on_database
from tenantry.cli.interruption import STOPPED, LongWork, named
from tenantry.cli.operator_options import tenant_id
from tenantry.common.clock import system_clock
from tenantry.db.database import Database
from tenantry.domain.billing.explanation import FieldComparison
from tenantry.settings import Settings
from tenantry_cli.options import dry_run_option, json_option, tenants_option
from tenantry_cli.output import (
    DIFFERENCES,
    CommandError,
    aligned,
    change,
    counted,
    print_json,
    print_lines,
    progress,
    say,
    shown,
)
from tenantry_cli.times import past


class ReplayReport(msgspec.Struct, rename="camel"):
    """A replay. ``seconds`` is its duration; only JSON has ``details``.

    ``read_again`` are events that were invalid or ignored and now take their place; ``unreadable``
    counts the invalid ones without a raw body. ``stopped`` is why it did not complete, and
    ``continue_with`` the command that continues.
    """

    dry_run: bool
    tenants: int = 0
    events: int = 0
    seconds: float = 0.0
    differing: int = 0
    repaired: int = 0
    read_again: list[ReprocessedEvent] = msgspec.field(default_factory=list)
    unreadable: int = 0
    stopped: str | None = None
    continue_with: str | None = None
    details: list[TenantReplay] = msgspec.field(default_factory=list)


class _Run(msgspec.Struct, frozen=True):
    """A replay as it was asked for."""

    work: LongWork
    selection: Selection
    in_full: bool = False


def _replay(run: _Run) -> None:
    """Fold the selected tenants again and print what differs, or in full every tenant with all its
    fields.
    """
    work = run.work
    report = ReplayReport(work.dry_run)
    last = run.selection.after

    async def action(settings: Settings, database: Database) -> None:
        nonlocal last
        begun = time.monotonic()
        service = ReplayService(database, settings.billing, system_clock)
        number = await service.count(run.selection)
        with work.handling():
            await _read_again(service, run, report)
            if not work.is_requested():
                last = await _fold(service, run, report, number)
        report.seconds = round(time.monotonic() - begun, 3)

    on_database(action)
    if work.is_requested():
        report.stopped = STOPPED
        report.continue_with = work.continued(*(["--after", last] if last else []))
    if work.as_json:
        print_json(report)
    else:
        click.echo(_replay_summary(report))
    _exit(report, last)


def _exit(report: ReplayReport, last: str) -> NoReturn:
    if report.unreadable:
        say(
            f"{counted(report.unreadable, 'invalid event')} cannot be read again: the raw body was removed after "
            "RAW_BODY_DAYS, or not stored (RAW_BODIES). `tenantry backfill` fetches those that the provider still "
            "lists."
        )
    if report.continue_with is not None:
        where = f"after tenant {last}" if last else "before the first tenant"
        raise CommandError(f"{STOPPED} It stopped {where}. Continue with: {report.continue_with}")
    found = report.differing or report.read_again
    sys.exit(DIFFERENCES if report.dry_run and found else 0)


async def _read_again(service: ReplayService, run: _Run, report: ReplayReport) -> None:
    async with aclosing(service.reprocess(run.selection, dry_run=run.work.dry_run)) as parts:
        async for part in parts:
            report.read_again += part.events
            report.unreadable += part.unreadable
            if part.events:
                run.work.show(map(_reread, part.events))
            if run.work.is_requested():
                return


async def _fold(service: ReplayService, run: _Run, report: ReplayReport, number: int) -> str:
    """Fold the tenants, ``number`` of them; return the id of the last one."""
    last = run.selection.after
    with progress("folding tenants", number) as update:
        async with aclosing(service.run(run.selection, dry_run=run.work.dry_run)) as chunks:
            async for chunk in chunks:
                for checked in chunk.checked:
                    _add(report, checked, run)
                update(advance=chunk.tenants)
                last = chunk.last
                if run.work.is_requested():
                    break
    return last


def _add(report: ReplayReport, checked: TenantReplay, run: _Run) -> None:
    report.tenants += 1
    report.events += checked.events
    report.differing += not checked.is_right
    report.repaired += checked.repaired
    if checked.is_right and not run.in_full:
        return
    if run.work.as_json:
        fields = checked.fields if run.in_full else checked.differences
        report.details.append(msgspec.structs.replace(checked, fields=fields))
    else:
        print_lines(_all_fields(checked) if run.in_full else _differences(checked))


def _reread(event: ReprocessedEvent) -> str:
    outcome = event.outcome or "would take its place"
    return f"{event.tenant_id or '-'}  {event.id} {event.type}, read again: {outcome}"


def _differences(checked: TenantReplay) -> Iterator[str]:
    for field in checked.differences:
        yield f"{checked.tenant_id}  {field.field}: {_change(field)}"
    if checked.parked:
        yield f"{checked.tenant_id}  {_parked(checked)}"


def _all_fields(checked: TenantReplay) -> Iterator[str]:
    yield f"{checked.tenant_id}: {counted(checked.events, 'event')} folded, {_result(checked)}"
    fields = [field for field in checked.fields if field.differs or not field.is_of_checkpoint]
    yield from map("  {}".format, aligned((field.field, _change(field)) for field in fields))
    if checked.parked:
        yield f"  {_parked(checked)}"


def _result(checked: TenantReplay) -> str:
    if checked.is_right:
        return "right as it is"
    return "repaired" if checked.repaired else "differs"


def _change(field: FieldComparison) -> str:
    if field.differs:
        return change(field.stored, field.folded)
    return shown(field.stored)


def _parked(checked: TenantReplay) -> str:
    return f"{counted(checked.parked, 'parked event')} {'took' if checked.repaired else 'could take'} their place"


def _replay_summary(report: ReplayReport) -> str:
    speed = f"{report.events / report.seconds:,.0f}" if report.seconds else "-"
    found = f"{report.differing} differing, " + (
        "nothing written" if report.dry_run else f"{report.repaired} repaired"
    )
    if report.read_again:
        found += f", {counted(len(report.read_again), 'event')} read again"
    return (
        f"{counted(report.tenants, 'tenant')}, {counted(report.events, 'event')} folded in {report.seconds:.1f} s "
        f"({speed} a second): {found}"
    )


_dry_run: Final = dry_run_option(
    "Only print what differs: write nothing, exit with 3 if anything does."
)
_after: Final = click.option(
    "--after",
    type=tenant_id,
    metavar="ORG",
    help="Only tenants whose id is greater; continues a run.",
)


@click.command("rebuild-tenants")
@click.argument("org_ids", metavar="[ORG]...", nargs=-1)
@_after
@_dry_run
@json_option("The fields and repairs as one JSON document.")
def rebuild_tenants(
    org_ids: tuple[str, ...],
    *,
    after: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Rebuild tenants' billing state from all their events, and show each field before and after.

    Without ORG the command rebuilds all tenants, and shows only what differs.

    The same as `tenantry admin replay-events`, in more detail: safe while the service runs; sends
    no mail. Exits with 0 when done, with 5 if a tenant does not exist, and with 3 if a dry run
    found differences. Ctrl-C ends it after the tenants in flight, with a summary and the command
    that continues.

    \b
      tenantry admin rebuild-tenants acme --dry-run
    """
    selection = Selection(org_ids or None, after=after or "")
    work = LongWork("admin", "rebuild-tenants", *org_ids, dry_run=dry_run, as_json=as_json)
    _replay(_Run(work, selection, in_full=bool(org_ids)))


@click.command("replay-events")
@tenants_option
@click.option(
    "--since",
    type=past,
    metavar="TIME",
    help="Only tenants with an event since then: 1h, 7d or an RFC 3339 time.",
)
@_after
@_dry_run
@json_option("The differences as one JSON document.")
def replay_events(
    tenants: tuple[str, ...],
    since: datetime | None,
    *,
    after: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Fold tenants' events again, show where the billing state differs, and repair it.

    Uses the current plan catalog: after you add a price, tenants get their correct plan. First
    reads events again that were invalid, or ignored because of PROVIDER_ACCOUNTS or
    PROVIDER_LIVEMODE; they take their place if they are now valid. Safe while the service runs;
    sends no mail. Exits with 0 when done, with 5 if a tenant does not exist, and with 3 if a dry
    run found differences. Ctrl-C ends it after the tenants in flight, with a summary and the
    command that continues.

    \b
      tenantry admin replay-events --since 7d --dry-run
    """
    options = named(tenants)
    options += ["--since", shown(since)] if since else []
    selection = Selection(tenants or None, since, after or "")
    work = LongWork("admin", "replay-events", *options, dry_run=dry_run, as_json=as_json)
    _replay(_Run(work, selection))
