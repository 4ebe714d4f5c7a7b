"""``tenantry admin erase-person``: replace one person's ids and addresses everywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import click

from tenantry.accounts.erasure import ErasureReport, PersonErasure, Progress
from tenantry.cli.database import on_database
from tenantry.cli.interruption import Interruption
from tenantry.cli.operator_services import operator_services
from tenantry.db.database import Database
from tenantry.domain.erasure import Person
from tenantry.settings import Settings
from tenantry_cli.client_configuration import wait_times
from tenantry_cli.options import dry_run_option
from tenantry_cli.output import (
    NOT_FOUND,
    CommandError,
    aligned,
    counted,
    print_lines,
    progress,
    shown,
)

_STAYS = """\
What stays, and is yours to erase or to keep:
  payment provider  customers, invoices and events; the law asks to keep invoices
  logs, backups     what they recorded before, until you delete them; exported audit trails
  raw bodies        names and postal addresses in what the provider sent, until RAW_BODY_DAYS
  settings          OPERATORS, if it names the person
  keys              API keys that the person made still work"""
_STOPPED = "Interrupted. Run the same command again: it continues."


@click.command("erase-person")
@click.option("--email", metavar="EMAIL", help="The person with this address.")
@click.option("--user", metavar="USER", help="The user with this id: `sub` of their tokens.")
@dry_run_option("Only count what would change: write nothing.")
def erase_person(email: str | None, user: str | None, *, dry_run: bool) -> None:
    """Erase one person: replace their ids and addresses wherever the database has them.

    Ends their memberships, invitations and sessions, and drops mails to them. An organization that
    removed the person still rejects them. Safe while the service runs. Needs API_KEY_PEPPER, and
    the owner of the tables in DATABASE_URL. You cannot undo this.

    \b
    Exits with
      0  when the person is erased
      1  if an organization needs the person, and after Ctrl-C
      5  if the database has nothing of the person
      6  if the database is out of reach

    \b
      tenantry admin erase-person --email ada@acme.example --dry-run
      tenantry admin erase-person --user user_ada
    """
    if (email is None) == (user is None):
        raise click.UsageError("Pass either --email EMAIL or --user USER.")
    interruption = Interruption()
    settling = wait_times().settling

    async def erase(settings: Settings, database: Database) -> ErasureReport:
        services = operator_services(settings, database, peppers=settings.peppers)
        service = replace(services.erasure, settling=settling)
        with _shown_progress(interruption) as observer, interruption.handling():
            return await _erase(service, email, user, observer, dry_run=dry_run)

    report = on_database(erase, needs_pepper=True)
    if not report.is_complete:
        raise CommandError(_STOPPED)
    if not report.counts.total():
        raise CommandError("There is nothing of this person in the database.", NOT_FOUND)
    print_lines(_lines(report, dry_run=dry_run))


async def _erase(
    service: PersonErasure,
    email: str | None,
    user: str | None,
    observer: Progress,
    *,
    dry_run: bool,
) -> ErasureReport:
    unfinished = await service.unfinished()
    person = await (
        service.find_by_address(email) if email is not None else service.find_by_id(user or "")
    )
    if dry_run:
        return await service.preview(person)
    if unfinished is not None:
        report = await service.resume(unfinished, observer)
        if not report.is_complete or _is_same(unfinished.person, person):
            return report
    return await service.erase(person, observer)


def _is_same(one: Person, other: Person) -> bool:
    """Whether an interrupted erasure is of the person that is asked for now."""
    return bool(
        {*one.subjects} & {*other.subjects} or {*one.spelled_addresses} & {*other.spelled_addresses}
    )


@contextmanager
def _shown_progress(interruption: Interruption) -> Iterator[Progress]:
    with progress("erasing", 0, is_share=True) as update:

        class Shown(Progress):
            def began(self, pages: int) -> None:
                update(total=pages, completed=0)

            def advanced(self, pages: int) -> None:
                update(advance=pages)

            def is_stopped(self) -> bool:
                return interruption.is_requested()

        yield Shown()


def _lines(report: ErasureReport, *, dry_run: bool) -> Iterator[str]:
    counts = [(name, str(number)) for name, number in report.counts.items() if number]
    yield from aligned(counts)
    tenants = counted(len(report.tenants), "organization")
    if dry_run:
        yield f"{counted(report.counts.total(), 'row')} in {tenants} would change; nothing written"
        return
    yield f"{counted(report.counts.total(), 'row')} in {tenants} changed; the person is now {shown(report.id)}"
    if not report.tenants:
        yield "No organization's trail has this erasure: repeat it after you restore an older backup."
    yield from _STAYS.splitlines()
