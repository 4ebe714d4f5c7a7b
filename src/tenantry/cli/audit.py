"""``tenantry admin export-audit``: the audit trail of all organizations."""

import sys
from datetime import datetime

import click

from tenantry.cli.operator import Operator
from tenantry.cli.operator_command import OperatorCommand
from tenantry_cli.times import past


@click.command("export-audit", cls=OperatorCommand)
@click.option(
    "--since",
    type=past,
    metavar="TIME",
    help="Only entries since then: 1h, 7d or an RFC 3339 time. [all]",
)
def export_audit(operator: Operator, *, since: datetime | None) -> None:
    """Print the audit trail of all organizations, one JSON object a line.

    Store it outside the database: `tenantry admin after-restore` needs it.

    \b
      tenantry admin export-audit --since 1d >>audit.jsonl
    """
    for entries in operator.audit_trail(since):
        sys.stdout.buffer.write(entries)
    sys.stdout.buffer.flush()
