"""``tenantry doctor``: checks the set-up, and says how to fix what is wrong."""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

import click
import msgspec

from tenantry.cli.database import database, operator_values
from tenantry.cli.doctor import Finding, Level, ok, problem
from tenantry.cli.doctor.database_checks import check_database
from tenantry.cli.doctor.setup_checks import (
    check_identity,
    check_mail,
    check_provider,
    check_values,
    judge_settings,
)
from tenantry.cli.output import FAILED, USAGE, CommandError, counted
from tenantry.common import logs
from tenantry.common.clock import system_clock
from tenantry.settings import Settings, SettingsError, load

_STYLES: Final = {
    Level.ERROR: "bold red",
    Level.WARNING: "yellow",
    Level.OK: "green",
    Level.INFO: "cyan",
}
"""By level, the worst first."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON.")
def doctor(*, as_json: bool) -> None:
    """Check each setting and connection, and say how to fix what is wrong.

    Exits with 1 if something does not work, and with 2 if no database is set. Warnings do not
    change the exit code. Secrets are never shown.

    \b
      tenantry doctor --json
    """
    logs.configure("console", logging.CRITICAL)  # the findings contain what the checks log
    findings = [
        msgspec.structs.replace(finding, message=logs.redact(finding.message))
        for finding in _check()
    ]
    worst = next(level for level in _STYLES if any(finding.level is level for finding in findings))
    if as_json:
        click.echo(msgspec.json.encode({"status": worst, "findings": findings}).decode())
    else:
        _show(findings)
    name = Settings.database_url.name
    if any(
        finding.subject == name and finding.message.startswith("is missing") for finding in findings
    ):
        sys.exit(USAGE)
    sys.exit(FAILED if worst is Level.ERROR else 0)


def _check() -> list[Finding]:
    values, demo = operator_values()
    found = [ok("settings", "those of the demo")] if demo else []
    try:
        settings, faults = load(values), list[str]()
    except SettingsError as error:
        settings, faults = Settings(values), error.faults
        if any(fault.startswith(Settings.database_url.name) for fault in faults):
            return [*found, *judge_settings(faults), problem("connections.not_checked")]
    found += judge_settings(faults)
    found += [] if faults else check_values(settings)
    with ExitStack() as stack:
        conninfo = None
        try:
            conninfo = stack.enter_context(database(values))
        except CommandError as error:  # the embedded server does not start
            error.show()
        found += [] if conninfo else [problem("database.not_started")]
        found += asyncio.run(_check_connections(settings, conninfo, is_complete=not faults))
    return found


async def _check_connections(
    settings: Settings, conninfo: str | None, *, is_complete: bool
) -> list[Finding]:
    """Check what the settings name; without ``is_complete`` some are faulty, and the database alone
    is checked.
    """
    now = system_clock()
    checks = [check_database(conninfo, settings, now)] if conninfo else []
    if is_complete:
        checks += [
            check_mail(settings.smtp, now),
            check_identity(settings.oidc),
            check_provider(settings),
        ]
    findings = [finding for findings in await asyncio.gather(*checks) for finding in findings]
    return findings if is_complete else [*findings, problem("connections.not_checked")]


def _show(findings: Sequence[Finding]) -> None:
    from rich.console import Console  # noqa: PLC0415  # slow to import
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False, soft_wrap=True)
    width = max(len(level) for level in Level)
    for finding in findings:
        level = f"{finding.level:{width}}"
        line = Text.assemble(
            (level, _STYLES[finding.level]), "  ", (finding.subject, "bold"), ": ", finding.message
        )
        console.print(line)
        for detail in filter(None, (finding.why, finding.remedy and f"-> {finding.remedy}")):
            console.print(Text(f"{'':{width}}  {detail}", style="dim"))
    counts = Counter(finding.level for finding in findings)
    console.print()
    present = [level for level in _STYLES if counts[level]]
    uncounted = (Level.OK, Level.INFO)
    totals = [
        f"{counts[one]} {one}" if one in uncounted else counted(counts[one], one) for one in present
    ]
    console.print(", ".join(totals))
