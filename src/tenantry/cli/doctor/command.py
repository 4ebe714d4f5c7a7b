"""``tenantry doctor``: what is wrong with the set-up, and how to mend it."""

import asyncio
import logging
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from datetime import timedelta
from pathlib import Path
from typing import Final

import click
import msgspec

from tenantry.api.webhooks import PATH as WEBHOOK_PATH
from tenantry.cli.doctor.billing import BillingTerms
from tenantry.cli.doctor.connections import check_identity, check_mail, check_provider
from tenantry.cli.doctor.database import check_database
from tenantry.cli.doctor.finding import Finding, Level, error, ok, warning
from tenantry.cli.doctor.server import judge_disk
from tenantry.cli.doctor.settings import (
    judge_address,
    judge_catalog,
    judge_secrets,
    judge_settings,
    judge_traces,
)
from tenantry.cli.environment import command_values, database, lacks_database
from tenantry.cli.exit_codes import FAILED, USAGE
from tenantry.common import logs
from tenantry.common.clock import system_clock
from tenantry.common.tracing import is_installed
from tenantry.domain.api_keys import Pepper
from tenantry.integrations.stripe.api import ProviderApi
from tenantry.jobs.tasks import PERIODIC
from tenantry.settings import AdminSettings, Settings, SettingsError, load, load_for_admin
from tenantry.variables import DATABASE_URL

_STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}
_SKIPPED: Final = warning(
    "connections", "not all checked", "Mend the settings first, then check again.", why="What else there is is hidden."
)
_ORDER: Final = (Level.ERROR, Level.WARNING, Level.OK)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON.")
def doctor(*, as_json: bool) -> None:
    """Check each setting and connection, and say how to mend what is wrong.

    Exits with 1 if something does not work, and with 2 if no database is named; warnings alone leave it at 0. Secrets
    are never shown.
    """
    # What the checks would log is in the findings.
    logs.configure("console", logging.CRITICAL)
    findings = [_redacted(finding) for finding in _check()]
    if as_json:
        click.echo(msgspec.json.encode({"status": _worst(findings), "findings": findings}).decode())
    else:
        _show(findings)
    sys.exit(_exit_code(findings))


def _exit_code(findings: Sequence[Finding]) -> int:
    if any(finding.subject == DATABASE_URL.name and finding.message.startswith("is missing") for finding in findings):
        return USAGE
    return FAILED if _worst(findings) is Level.ERROR else 0


def _check() -> list[Finding]:
    values, demo = command_values()
    whose = [ok("settings", "the demo's own fill in what is unset")] if demo else []
    try:
        settings = load(values)
    except SettingsError as faults:
        alone = [_SKIPPED] if lacks_database(faults) else _check_database_alone(values)
        return whose + judge_settings(faults.faults) + alone
    findings = [
        *whose,
        *judge_settings([]),
        *judge_address(settings.base_url, is_demo=demo),
        *judge_secrets(settings.named_secrets()),
        *judge_traces(are_wanted=settings.traces, can_be_made=is_installed()),
        *judge_catalog(settings.billing.catalog),
    ]
    with ExitStack() as stack:
        conninfo = _entered(stack, values)
        return findings + asyncio.run(_check_connections(settings, conninfo))


async def _check_connections(settings: Settings, conninfo: str | None) -> list[Finding]:
    checks = await asyncio.gather(
        _check_database(conninfo, settings, sends_mail=settings.smtp is not None),
        check_mail(settings.smtp, system_clock()),
        check_identity(settings.oidc),
        _check_provider(settings),
    )
    return [finding for findings in checks for finding in findings]


async def _check_provider(settings: Settings) -> list[Finding]:
    key, webhook_url = settings.provider_secret_key, settings.base_url + WEBHOOK_PATH
    if not key:
        return await check_provider(None, webhook_url, settings.billing.catalog)
    async with aclosing(ProviderApi(key, settings.provider_api_base)) as api:
        return await check_provider(api, webhook_url, settings.billing.catalog)


def _check_database_alone(values: dict[str, str]) -> list[Finding]:
    """What can still be checked while other settings are faulty."""
    try:
        settings = load_for_admin(values, needs_pepper=False)
    except SettingsError:
        return [_SKIPPED]
    with ExitStack() as stack:
        conninfo = _entered(stack, values)
        sends_mail = bool(values.get("SMTP_URL", "").strip())
        return [*asyncio.run(_check_database(conninfo, settings, sends_mail=sends_mail)), _SKIPPED]


async def _check_database(
    conninfo: str | None, settings: Settings | AdminSettings, *, sends_mail: bool
) -> list[Finding]:
    if conninfo is None:
        return [
            error(
                "database",
                "the embedded PostgreSQL does not start",
                "See the message above, or set DATABASE_URL.",
                why="Nothing works without it.",
            )
        ]
    peppers = [Pepper(pepper.reveal().encode()).id for pepper in settings.peppers]
    found = await check_database(
        conninfo,
        _billing_terms(settings),
        system_clock(),
        sends_mail=sends_mail,
        peppers=peppers,
        periodic=PERIODIC,
        needed=settings.connections if isinstance(settings, Settings) else None,
        clock=system_clock,
    )
    return found if settings.database_url else [*found, _check_disk(settings.data_dir)]


def _check_disk(folder: Path) -> Finding:
    """The disk of the embedded database; that of another is not ours to look at."""
    usage = shutil.disk_usage(folder)
    return judge_disk(usage.free, usage.total)


def _billing_terms(settings: Settings | AdminSettings) -> BillingTerms:
    reconcile_hours, body_days = 0, None
    if isinstance(settings, Settings):
        reconcile_hours, body_days = settings.reconcile_hours, settings.raw_body_days
    asks_provider = settings.provider_secret_key is not None
    return BillingTerms(
        policy=settings.billing,
        asks_provider=asks_provider,
        period_news=timedelta(hours=settings.period_news_hours),
        compared_every=timedelta(hours=reconcile_hours) if asks_provider and reconcile_hours else None,
        bodies_kept=timedelta(days=body_days) if body_days else None,
    )


def _entered(stack: ExitStack, values: dict[str, str]) -> str | None:
    try:
        return stack.enter_context(database(values))
    except SystemExit:  # it has said why, on stderr
        return None


def _redacted(finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, message=logs.redact(finding.message))


def _worst(findings: Sequence[Finding]) -> Level:
    return next(level for level in _ORDER if level is Level.OK or any(finding.level is level for finding in findings))


def _show(findings: Sequence[Finding]) -> None:
    # rich is slow to import, and the other commands do without it
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False, soft_wrap=True)
    width = max(len(level) for level in Level)
    for finding in findings:
        level = f"{finding.level:{width}}"
        line = Text.assemble((level, _STYLES[finding.level]), "  ", (finding.subject, "bold"), ": ", finding.message)
        console.print(line)
        if finding.why:
            console.print(Text(f"{'':{width}}  {finding.why}", style="dim"))
        if finding.remedy:
            console.print(Text(f"{'':{width}}  -> {finding.remedy}", style="dim"))
    counts = Counter(finding.level for finding in findings)
    console.print()
    console.print(", ".join(_counted(counts[level], level) for level in _ORDER if counts[level]))


def _counted(number: int, level: Level) -> str:
    return f"{number} {level}" if number == 1 or level is Level.OK else f"{number} {level}s"
