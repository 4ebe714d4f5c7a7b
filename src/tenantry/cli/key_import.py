"""``tenantry admin import-keys`` and ``imported-keys``: move the keys of another system."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import BinaryIO, Final

import click
import msgspec

from tenantry.auth.key_import import ImportStatus, KeyImportService, KeyToImport
from tenantry.cli.database import on_database, tenant_id
from tenantry.cli.exported_keys import read_exported_keys
from tenantry.cli.interruption import STOPPED, Interruption
from tenantry.cli.key_import_plan import (
    ImportBatch,
    ImportOptions,
    ImportPlan,
    PlanFaults,
    plan_import,
)
from tenantry.cli.key_sources import KeySource, stores_plaintext
from tenantry.cli.operator_services import operator_services
from tenantry.cli.options import dry_run_option, json_option, limit_option
from tenantry.cli.output import (
    FAILED,
    Column,
    CommandError,
    columns,
    counted,
    minute,
    print_json,
    print_lines,
    print_table,
    progress,
    say,
)
from tenantry.cli.tenant_support import items_of, print_each
from tenantry.db.database import Database
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.errors import NotFoundError, ValidationError
from tenantry.domain.scopes import is_scope
from tenantry.settings import Settings

_MOST_SHOWN: Final = 100
_OF_BATCH: Final = re.compile(r"keys\[([0-9]+)\]\.(.+)")
_NO_PATTERN: Final = (
    "IMPORTED_KEY_PATTERN is not set: until it is, the service rejects imported keys."
)


class ImportSummary(msgspec.Struct, rename="camel"):
    """What an import did, or with ``dry_run`` what it would do."""

    dry_run: bool
    skipped: dict[str, int]
    """The number of keys that do not work any more, by reason."""
    created: int = 0
    exists: int = 0
    digest_taken: list[str] = []
    """The places of keys whose hash another key has."""

    def add(self, batch: ImportBatch, statuses: Sequence[ImportStatus]) -> None:
        counts = Counter(statuses)
        self.created += counts[ImportStatus.CREATED]
        self.exists += counts[ImportStatus.EXISTS]
        self.digest_taken += [
            planned.place
            for planned, status in zip(batch.keys, statuses, strict=True)
            if status is ImportStatus.DIGEST_TAKEN
        ]

    def lines(self) -> list[str]:
        done = "would be imported" if self.dry_run else "imported"
        skipped = [f"{number:,} skipped ({why})" for why, number in self.skipped.items()]
        counts = [
            f"{counted(self.created, 'key')} {done}",
            f"{self.exists:,} imported before",
            f"{len(self.digest_taken):,} with the hash of another key",
        ]
        taken = [f"{place}: another key has this hash" for place in self.digest_taken]
        return [*taken[:_MOST_SHOWN], "; ".join(counts + skipped)]


@click.command("import-keys", short_help="Import API keys of another system.")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--from",
    "source",
    type=click.Choice([source.value for source in KeySource]),
    required=True,
    help="What the file is: djangorestframework-api-key, better-auth's table, Unkey, or JSON lines.",
)
@click.option(
    "--org", "org_id", type=tenant_id, metavar="ORG", help="The tenant that all keys belong to."
)
@click.option(
    "--org-field",
    metavar="NAME",
    help="The field of the file that names each key's tenant; orgId for jsonl.",
)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="RESOURCE:ACTION",
    help="A scope of all keys, instead of those in the file; repeatable.",
)
@click.option(
    "--plaintext",
    "is_plaintext",
    is_flag=True,
    help="The file has the keys themselves: hash them in this process.",
)
@dry_run_option("Only check the file, and print what would be imported: write nothing.")
@json_option()
def import_keys(
    file: BinaryIO,
    *,
    source: str,
    org_id: str | None,
    org_field: str | None,
    scopes: Sequence[str],
    is_plaintext: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import the API keys of another system by their hashes. Their holders keep them.

    FILE is JSON, JSON lines or CSV with a line of names, or - for the standard input. Nothing is
    imported if one key is faulty. You can run it again, also after Ctrl-C: a key that is there
    stays as it is. Exits with 1 if another key has the hash of one.

    \b
      tenantry admin import-keys keys.json --from better-auth --org acme --dry-run
      tenantry admin import-keys keys.jsonl --from jsonl
    """
    chosen = KeySource(source)
    if is_plaintext and not stores_plaintext(chosen):
        raise click.UsageError("djangorestframework-api-key stores no keys: leave out --plaintext.")
    for scope in scopes:
        if not is_scope(scope):
            raise click.BadParameter(f"{scope!r} is not <resource>:<action>", param_hint="--scope")
    exported = read_exported_keys(file.read())
    interruption = Interruption()

    async def run(settings: Settings, database: Database) -> ImportSummary:
        pattern = settings.imported_key_pattern
        options = ImportOptions(chosen, org_id, org_field, scopes, is_plaintext, pattern)
        plan = plan_import(exported, options)
        if pattern is None:
            say(_NO_PATTERN)
        service = operator_services(settings, database, peppers=settings.peppers).key_import
        summary = ImportSummary(dry_run, dict(plan.skipped))
        await _check(service, plan, summary)
        if not dry_run:
            summary = ImportSummary(dry_run, dict(plan.skipped))
            await _import(service, plan, summary, interruption)
        return summary

    summary = on_database(run, needs_pepper=True, unreachable=FAILED)
    if as_json:
        print_json(summary)
    else:
        print_lines(summary.lines())
    if interruption.is_requested():
        raise CommandError(f"{STOPPED} Run the same command again: what is imported stays.")
    if summary.digest_taken:
        raise CommandError("Keys with the hash of another key were not imported.", FAILED)


async def _check(service: KeyImportService, plan: ImportPlan, summary: ImportSummary) -> None:
    """Check all batches before one is imported, and add what an import would do. Raises
    `CommandError`.
    """
    faults = PlanFaults()
    for batch in plan.batches:
        try:
            statuses = await service.preview(batch.org_id, batch.algorithm, _keys(batch))
        except NotFoundError:
            faults.add(batch.keys[0].place, [("orgId", f"there is no tenant {batch.org_id}")])
        except ValidationError as error:
            for location, message in error.faults:
                _add_fault(faults, batch, location, message)
        else:
            summary.add(batch, statuses)
    faults.check()


def _add_fault(faults: PlanFaults, batch: ImportBatch, location: str, message: str) -> None:
    found = _OF_BATCH.fullmatch(location)
    if found is None:
        faults.add(batch.keys[0].place, [(location, message)])
    else:
        faults.add(batch.keys[int(found[1])].place, [(found[2], message)])


async def _import(
    service: KeyImportService,
    plan: ImportPlan,
    summary: ImportSummary,
    interruption: Interruption,
) -> None:
    total = sum(len(batch.keys) for batch in plan.batches)
    with progress("importing keys", total) as update, interruption.handling():
        for batch in plan.batches:
            if interruption.is_requested():
                return
            results = await service.import_keys(
                BY_OPERATOR, batch.org_id, batch.algorithm, _keys(batch)
            )
            summary.add(batch, [result.status for result in results])
            update(advance=len(results))


@click.command("imported-keys", short_help="Show which imported API keys were used.")
@click.option(
    "--org", "org_id", type=tenant_id, metavar="ORG", help="List the keys of this tenant."
)
@click.option("--unused", is_flag=True, help="Only active keys that were not used yet.")
@limit_option
@json_option("Print one line of JSON each.")
def imported_keys(org_id: str | None, *, unused: bool, limit: int | None, as_json: bool) -> None:
    """Show how many imported API keys of each tenant were used, and how many not yet; with --org
    each key of the tenant.

    Once a key was used, it no longer needs the system that made it.

    \b
      tenantry admin imported-keys
      tenantry admin imported-keys --org acme --unused
    """
    if org_id is None:
        if unused or limit:
            raise click.UsageError("--unused and --limit need --org.")
        _print_counts(as_json=as_json)
    else:
        _print_keys(org_id, unused=unused, limit=limit, as_json=as_json)


def _print_keys(org_id: str, *, unused: bool, limit: int | None, as_json: bool) -> None:
    async def read(settings: Settings, database: Database) -> None:
        service = operator_services(settings, database).operator_keys
        keys = items_of(partial(service.list_imported, org_id, unused=unused), limit)
        await print_each(keys, _KEY_COLUMNS, "No imported key matches.", as_json=as_json)

    on_database(read)


def _print_counts(*, as_json: bool) -> None:
    tenants = on_database(
        lambda settings, database: operator_services(
            settings, database
        ).operator_keys.count_imported()
    )
    if as_json:
        for tenant in tenants:
            click.echo(msgspec.json.encode(tenant))
    elif not print_table(tenants, _COUNT_COLUMNS):
        say("No key was imported.")


def _keys(batch: ImportBatch) -> list[KeyToImport]:
    return [planned.key for planned in batch.keys]


_COUNT_COLUMNS: Final = columns("used", "unused", "ended", tenant="org_id")
_KEY_COLUMNS: Final = (
    *columns("id", "external_id", "name", "status", loose="name"),
    Column("USED", lambda key: minute(key.last_used_at) if key.last_used_at else "not yet"),
)
COMMANDS: Final = (import_keys, imported_keys)
