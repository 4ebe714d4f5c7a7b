"""``tenantry admin import-keys`` and ``imported-keys``: move the keys of another system."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import BinaryIO, Final

import click
import msgspec

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
from tenantry.cli.operator import Operator, OperatorError
from tenantry.cli.operator_command import OperatorCommand
from tenantry.cli.operator_options import check_scopes, json_lines_option, tenant_id
from tenantry.domain.key_import import ImportStatus
from tenantry_cli.options import dry_run_option, json_option, limit_option
from tenantry_cli.output import (
    FAILED,
    NOT_FOUND,
    Column,
    CommandError,
    columns,
    counted,
    minute,
    print_json,
    print_lines,
    print_list,
    progress,
    say,
)

_MOST_SHOWN: Final = 100
_OF_BATCH: Final = re.compile(r"keys\[([0-9]+)\]\.(.+)")
_NO_PATTERN: Final = (
    "IMPORTED_KEY_PATTERN is not set: until it is, the service rejects imported keys."
)
_UNKNOWN_PATTERN: Final = (
    "IMPORTED_KEY_PATTERN is not set here, so each key was hashed as a whole. Set it as for the service "
    "if the other system hashes a part of its keys."
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


@click.command("import-keys", cls=OperatorCommand)
@click.argument("file", type=click.File("rb"))
@click.option(
    "--from",
    "source",
    type=click.Choice([source.value for source in KeySource]),
    required=True,
    help="What the file is: djangorestframework-api-key, better-auth's table, Unkey, or JSON lines.",
)
@click.option(
    "--org",
    "org_id",
    type=tenant_id,
    metavar="ORG",
    help="The organization that all keys belong to.",
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
    operator: Operator,
    *,
    file: BinaryIO,
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
    check_scopes(scopes)
    exported = read_exported_keys(file.read())
    pattern = operator.imported_key_pattern
    options = ImportOptions(chosen, org_id, org_field, scopes, is_plaintext, pattern)
    plan = plan_import(exported, options)
    if pattern is None:
        _say_no_pattern(operator, is_plaintext=is_plaintext)
    summary = ImportSummary(dry_run, dict(plan.skipped))
    _check(operator, plan, summary)
    interruption = Interruption()
    if not dry_run:
        summary = ImportSummary(dry_run, dict(plan.skipped))
        _import(operator, plan, summary, interruption)
    if as_json:
        print_json(summary)
    else:
        print_lines(summary.lines())
    if interruption.is_requested():
        raise CommandError(f"{STOPPED} Run the same command again: what is imported stays.")
    if summary.digest_taken:
        raise CommandError("Keys with the hash of another key were not imported.", FAILED)


def _say_no_pattern(operator: Operator, *, is_plaintext: bool) -> None:
    """Say what a missing pattern means for an import, where that is known."""
    if not operator.is_remote:
        say(_NO_PATTERN)
    elif is_plaintext:
        say(_UNKNOWN_PATTERN)


def _check(operator: Operator, plan: ImportPlan, summary: ImportSummary) -> None:
    """Check all batches before one is imported, and add what an import would do. Raises
    `CommandError`.
    """
    faults = PlanFaults()
    for batch in plan.batches:
        try:
            statuses = _send(operator, batch, dry_run=True)
        except OperatorError as error:
            if error.exit_code == NOT_FOUND:
                missing = ("orgId", f"there is no tenant {batch.org_id}")
                faults.add(batch.keys[0].place, [missing])
            elif not error.faults:
                raise
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


def _import(
    operator: Operator,
    plan: ImportPlan,
    summary: ImportSummary,
    interruption: Interruption,
) -> None:
    total = sum(len(batch.keys) for batch in plan.batches)
    with progress("importing keys", total) as update, interruption.deferring():
        for batch in plan.batches:
            if interruption.is_requested():
                return
            summary.add(batch, _send(operator, batch, dry_run=False))
            update(advance=len(batch.keys))


def _send(operator: Operator, batch: ImportBatch, *, dry_run: bool) -> list[ImportStatus]:
    keys = [planned.key for planned in batch.keys]
    return operator.import_keys(batch.org_id, batch.algorithm, keys, dry_run=dry_run)


@click.command("imported-keys", cls=OperatorCommand)
@click.option(
    "--org", "org_id", type=tenant_id, metavar="ORG", help="List the keys of this organization."
)
@click.option("--unused", is_flag=True, help="Only active keys that were not used yet.")
@limit_option
@json_lines_option
def imported_keys(
    operator: Operator, *, org_id: str | None, unused: bool, limit: int | None, as_json: bool
) -> None:
    """Show how many imported API keys of each organization were used, and how many not yet; with
    --org each key of the organization.

    Once a key was used, it no longer needs the system that made it.

    \b
      tenantry admin imported-keys
      tenantry admin imported-keys --org acme --unused
    """
    if org_id is not None:
        keys = operator.list_imported_keys(org_id, limit, unused=unused)
        print_list(keys, _KEY_COLUMNS, "No imported key matches.", as_json=as_json)
        return
    if unused or limit:
        raise click.UsageError("--unused and --limit need --org.")
    counts = operator.count_imported_keys()
    print_list(counts, _COUNT_COLUMNS, "No key was imported.", as_json=as_json)


_COUNT_COLUMNS: Final = columns("used", "unused", "ended", tenant="org_id")
_KEY_COLUMNS: Final = (
    *columns("id", "external_id", "name", "status", loose="name"),
    Column("USED", "last_used_at", partial(minute, missing="not yet")),
)
