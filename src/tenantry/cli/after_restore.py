"""``tenantry admin after-restore``: redo the revocations that a restored database has lost."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import BinaryIO, Final

import click
import msgspec

from tenantry.accounts.restore import LostChange, RestoreOutcome
from tenantry.cli.database import on_database
from tenantry.cli.interruption import STOPPED, Interruption
from tenantry.cli.operator_services import operator_services
from tenantry.common.encoding import NOT_JSON
from tenantry.db.database import Database
from tenantry.domain.audit import Action, AuditEvent
from tenantry.settings import Settings
from tenantry_cli.options import dry_run_option
from tenantry_cli.output import FAILED, CommandError, counted, print_lines, progress, shown

_NO_AUDIT: Final = "Revocations since the backup are not known: keys revoked since then work again"


@click.command("after-restore")
@click.option(
    "--audit",
    "files",
    multiple=True,
    type=click.File("rb"),
    metavar="FILE",
    help="The output of export-audit, or - for the standard input; repeatable.",
)
@click.option(
    "--no-audit",
    is_flag=True,
    help="Redo nothing, without such a file: keys revoked since the backup work again.",
)
@click.option(
    "--hold-mail", is_flag=True, help="Drop the queued mails: most were sent after the backup."
)
@dry_run_option("Only print the changes to redo: write nothing.")
def after_restore(
    files: Sequence[BinaryIO],
    *,
    no_audit: bool,
    hold_mail: bool,
    dry_run: bool,
) -> None:
    """Redo the revocations since the backup, in a restored database, before the service starts.

    Finds the changes in the exported audit trail that the database has lost. Revokes and changes
    keys, removes members or lowers their roles, ends grants, and ends and suspends tenants again.
    Erases people again, which needs API_KEY_PEPPER and the owner of the tables.
    Ends all dashboard sessions. Later events of the feed get versions above those of lost ones. You
    can run it again, also after Ctrl-C, which ends it after the change in flight.

    Exits with 1 if some changes need an operator.

    \b
      tenantry admin after-restore --audit audit.ndjson --dry-run
      cat audit-*.ndjson | tenantry admin after-restore --audit -
    """
    if bool(files) == no_audit:
        raise click.UsageError("Pass either --audit FILE (once or more) or --no-audit.")
    trail = _read_all(files)
    erases = any(entry.action is Action.PERSON_ERASED for entry in trail)
    outcomes = Counter[RestoreOutcome]()
    interruption = Interruption()

    async def restore(settings: Settings, database: Database) -> tuple[int | None, int | None]:
        peppers = settings.peppers if erases else ()
        service = operator_services(
            settings, database, asks_provider=False, peppers=peppers
        ).restore
        lost = await service.lost_entries(trail)
        if not dry_run:
            await service.begin_epoch()
        with progress("redoing changes", len(lost.entries)) as update, interruption.handling():
            async with aclosing(service.reapply_revocations(lost, dry_run=dry_run)) as changes:
                async for change in changes:
                    outcomes[change.outcome] += 1
                    _show_change(change)
                    update(advance=1)
                    if interruption.is_requested():
                        break
        if dry_run or interruption.is_requested():
            return None, None
        return await service.end_sessions(), await service.hold_mail() if hold_mail else None

    sessions, mails = on_database(restore, needs_pepper=erases)
    summary = _NO_AUDIT if no_audit else _lost(outcomes)
    click.echo("; ".join([summary, *_written(sessions, mails, dry_run=dry_run)]))
    if interruption.is_requested():
        raise CommandError(
            f"{STOPPED} The other changes are not redone, and no session is ended: do not start the service. "
            "Run the same command again; what is redone stays."
        )
    sys.exit(FAILED if outcomes[RestoreOutcome.MANUAL] else 0)


def _lost(outcomes: Counter[RestoreOutcome]) -> str:
    each = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in RestoreOutcome)
    return f"{counted(outcomes.total(), 'change')} lost: {each}"


def _written(sessions: int | None, mails: int | None, *, dry_run: bool) -> Iterator[str]:
    if dry_run:
        yield "nothing written"
    if sessions is not None:
        yield f"{counted(sessions, 'session')} ended"
    if mails is not None:
        yield f"{counted(mails, 'mail')} held back"


def _show_change(lost: LostChange) -> None:
    entry = lost.entry
    why = f": {lost.why}" if lost.why else ""
    line = (
        f"{shown(entry.at)}  {entry.action}  {entry.target_id}  {entry.org_id}  {lost.outcome}{why}"
    )
    print_lines([line])


def _read_all(files: Sequence[BinaryIO]) -> list[AuditEvent]:
    trail = [entry for file in files for entry in _read(file)]
    if files and not trail:
        raise click.UsageError(
            "The exported audit trail is empty. Check the files; if there is none, pass --no-audit."
        )
    return trail


def _read(file: BinaryIO) -> list[AuditEvent]:
    try:
        return msgspec.json.Decoder(AuditEvent).decode_lines(file.read())
    except NOT_JSON as error:
        raise click.BadParameter(
            f"{file.name} is not what export-audit prints: {error}", param_hint="--audit"
        ) from error
