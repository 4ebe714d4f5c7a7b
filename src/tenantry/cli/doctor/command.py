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

from tenantry.api.webhooks import PATH as WEBHOOK_PATH
from tenantry.cli.database import database, operator_values
from tenantry.cli.doctor.database_checks import check_database
from tenantry.cli.doctor.setup_checks import check_values, judge_settings
from tenantry.cli.doctor.share_checks import check_share
from tenantry.common import logs
from tenantry.common.clock import system_clock
from tenantry.common.redaction import redact
from tenantry.installation.endpoint_checks import check_provider
from tenantry.installation.findings import Finding, Level, ok, problem
from tenantry.installation.identity_checks import check_identity, check_mail
from tenantry.settings import Settings, SettingsError, load
from tenantry_cli.options import json_option
from tenantry_cli.output import FAILED, USAGE, CommandError, counted, print_styled

_STYLES: Final = {
    Level.ERROR: "bold red",
    Level.WARNING: "yellow",
    Level.OK: "green",
    Level.INFO: "cyan",
}
"""By level, the worst first."""
_DATABASE_URL: Final = Settings.database_url.name


@click.command()
@json_option("The findings as JSON.")
def doctor(*, as_json: bool) -> None:
    """Check each setting and connection, and say how to fix what is wrong.

    Exits with 1 if something does not work, and with 2 if no database is set. Warnings do not
    change the exit code. Secrets are never shown.

    \b
      tenantry doctor --json
    """
    logs.configure("console", logging.CRITICAL)  # the findings contain what the checks log
    findings = [_redacted(finding) for finding in _check()]
    levels = {finding.level for finding in findings}
    worst = next(level for level in _STYLES if level in levels)
    if as_json:
        click.echo(msgspec.json.encode({"status": worst, "findings": findings}).decode())
    else:
        _show(findings)
    sys.exit(_exit_code(findings))


def _exit_code(findings: Sequence[Finding]) -> int:
    if any(map(_is_missing_database, findings)):
        return USAGE
    return FAILED if any(finding.level is Level.ERROR for finding in findings) else 0


def _redacted(finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, message=redact(finding.message))


def _is_missing_database(finding: Finding) -> bool:
    return finding.subject == _DATABASE_URL and finding.message.startswith("is missing")


def _check() -> list[Finding]:
    values, demo = operator_values()
    found = [ok("settings", "those of the demo")] if demo else []
    try:
        settings = load(values)
    except SettingsError as error:
        found += judge_settings(error.faults)
        if not any(fault.startswith(_DATABASE_URL) for fault in error.faults):
            found += _check_connections(values, Settings(values), is_complete=False)
        return [*found, problem("connections.not_checked")]
    found += judge_settings([])
    found += check_values(settings)
    return found + _check_connections(values, settings, is_complete=True)


def _check_connections(
    values: dict[str, str],
    settings: Settings,
    *,
    is_complete: bool,
) -> list[Finding]:
    """Check what the settings name; without ``is_complete`` some are faulty, and the database alone
    is checked.
    """
    found = []
    with ExitStack() as stack:
        conninfo = None
        try:
            conninfo = stack.enter_context(database(values))
        except CommandError as error:  # the embedded server does not start
            error.show()
            found.append(problem("database.not_started"))
        return found + asyncio.run(_check_together(settings, conninfo, is_complete=is_complete))


async def _check_together(
    settings: Settings, conninfo: str | None, *, is_complete: bool
) -> list[Finding]:
    checks = [check_database(conninfo, settings, system_clock())] if conninfo else []
    if is_complete:
        checks += [
            check_mail(settings.smtp),
            check_identity(settings.oidc),
            check_provider(settings, WEBHOOK_PATH),
            check_share(settings),
        ]
    return [finding for findings in await asyncio.gather(*checks) for finding in findings]


def _show(findings: Sequence[Finding]) -> None:
    width = max(len(level) for level in Level)
    for finding in findings:
        level = (f"{finding.level:{width}}", _STYLES[finding.level])
        subject = (finding.subject, "bold")
        print_styled(level, "  ", subject, ": ", finding.message)
        remedy = f"-> {finding.remedy}" if finding.remedy else None
        for detail in filter(None, (finding.why, remedy)):
            print_styled((f"{'':{width}}  {detail}", "dim"))
    print_styled(f"\n{_totals(findings)}")


def _totals(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.level for finding in findings)
    present = sorted(counts, key=list(_STYLES).index)
    return ", ".join(_total(level, counts[level]) for level in present)


def _total(level: Level, number: int) -> str:
    is_uncounted = level in (Level.OK, Level.INFO)
    return f"{number} {level}" if is_uncounted else counted(number, level)
