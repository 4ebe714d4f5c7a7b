"""``tenantry admin export-audit`` and ``tenantry admin after-restore``: what a restored database has forgotten."""

import sys
from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from tenantry.accounts.members import MemberService
from tenantry.accounts.restore import Aftermath, Lost, Outcome, export_trail
from tenantry.accounts.tenants import TenantService
from tenantry.auth.api_keys import ApiKeyService
from tenantry.cli.exit_codes import FAILED
from tenantry.cli.on_database import on_database
from tenantry.cli.text import counted, printable
from tenantry.cli.times import Moment
from tenantry.common.clock import system_clock
from tenantry.common.encoding import NOT_JSON
from tenantry.db.database import Database
from tenantry.domain.api_keys import Pepper
from tenantry.domain.audit import AuditEvent
from tenantry.settings import AdminSettings


@click.command("export-audit")
@click.option("--since", type=Moment(), help="Entries made since then, RFC 3339 (default: all).")
def export_audit(since: datetime | None) -> None:
    """Print the audit trail of all tenants, one JSON object a line.

    Kept where the database's fate does not reach, it is what `tenantry admin after-restore` needs.
    """

    async def act(_: AdminSettings, database: Database) -> None:
        encoder = msgspec.json.Encoder()
        out = sys.stdout.buffer
        async with aclosing(export_trail(database, since)) as parts:
            async for entries in parts:
                out.write(encoder.encode_lines(entries))
        out.flush()

    on_database(act)


@click.command("after-restore")
@click.option(
    "--audit", "files", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="What export-audit printed; may be given several times.",
)  # fmt: skip
@click.option("--no-audit", is_flag=True, help="There is no such file: keys revoked since the backup work again.")
@click.option("--hold-mail", is_flag=True, help="Give up the mails that are queued: most were sent after the backup.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done with the changes: write nothing.")
def after_restore(files: Sequence[Path], *, no_audit: bool, hold_mail: bool, dry_run: bool) -> None:
    """Take away again what was taken away after the backup. For a restored database, before the service starts.

    Of the changes in the exported audit trail that the database has lost, keys are revoked and changed again, members
    removed and given lower roles, tenants ended and suspended. Everybody's sessions of the dashboard are ended. May be
    repeated.

    Exits with 1 if something is left to be done by hand.
    """
    if bool(files) == no_audit:
        raise click.UsageError("Give either --audit FILE (once or more) or --no-audit.")
    trail = [entry for file in files for entry in _read(file)]

    async def act(settings: AdminSettings, database: Database) -> "_Done":
        aftermath = _aftermath(settings, database)
        lost = await aftermath.take_away_again(trail, dry_run=dry_run)
        if dry_run:
            return _Done(lost, None, None)
        return _Done(lost, await aftermath.end_sessions(), await aftermath.hold_mail() if hold_mail else None)

    done = on_database(act)
    for lost in done.lost:
        click.echo(_line(lost))
    click.echo(_summary(done, no_audit=no_audit))
    sys.exit(FAILED if any(lost.outcome is Outcome.BY_HAND for lost in done.lost) else 0)


class _Done(NamedTuple):
    lost: list[Lost]
    sessions: int | None
    mails: int | None


def _aftermath(settings: AdminSettings, database: Database) -> Aftermath:
    from tenantry.jobs.queue import JobQueue  # noqa: PLC0415  # slow to import

    keys = ApiKeyService(database, settings.billing.catalog, Pepper(b""), system_clock)
    outbox = JobQueue(settings.database_url or "", asks_provider=False)
    tenants = TenantService(database, settings.billing, outbox, system_clock, settings.issuer)
    return Aftermath(
        database,
        keys,
        MemberService(database, outbox, settings.issuer, settings.billing.catalog, system_clock),
        tenants,
        system_clock,
    )


def _read(file: Path) -> list[AuditEvent]:
    try:
        return msgspec.json.Decoder(AuditEvent).decode_lines(file.read_bytes())
    except NOT_JSON as error:
        raise click.BadParameter(f"{file} is not what export-audit prints: {error}", param_hint="--audit") from error


def _line(lost: Lost) -> str:
    entry = lost.entry
    why = f": {lost.why}" if lost.why else ""
    return printable(
        f"{entry.at:%Y-%m-%dT%H:%M:%SZ}  {entry.action}  {entry.target_id}  {entry.org_id}  {lost.outcome}{why}"
    )


def _summary(done: _Done, *, no_audit: bool) -> str:
    if no_audit:
        parts = ["Nothing is known of what was taken away after the backup: keys revoked since then work again"]
    else:
        each = (f"{sum(lost.outcome is outcome for lost in done.lost)} {outcome}" for outcome in Outcome)
        parts = [f"{counted(len(done.lost), 'change')} lost: {', '.join(each)}"]
    if done.sessions is None:
        parts.append("nothing written")
    else:
        parts.append(f"{counted(done.sessions, 'session')} ended")
    if done.mails is not None:
        parts.append(f"{counted(done.mails, 'mail')} held back")
    return "; ".join(parts)
