"""``tenantry doctor``: checks the set-up, and says how to fix what is wrong."""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from datetime import timedelta
from typing import Final

import click
import msgspec

from tenantry.api.webhooks import PATH as WEBHOOK_PATH
from tenantry.cli.database import command_values, database, lacks_database
from tenantry.cli.doctor.billing_checks import BillingTerms
from tenantry.cli.doctor.connection_checks import check_identity, check_mail, check_provider
from tenantry.cli.doctor.database_checks import check_database
from tenantry.cli.doctor.findings import Finding, Level, Problem, ok
from tenantry.cli.doctor.settings_checks import (
    judge_address,
    judge_catalog,
    judge_secrets,
    judge_settings,
    judge_traces,
)
from tenantry.cli.output import FAILED, USAGE
from tenantry.common import logs
from tenantry.common.clock import system_clock
from tenantry.common.tracing import is_installed
from tenantry.domain.api_keys import Pepper
from tenantry.integrations.stripe.api import ProviderApi
from tenantry.jobs.tasks import PERIODIC
from tenantry.settings import Settings, SettingsError, load, load_for_admin

_STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}
_SKIPPED: Final = Problem(
    "connections", "not all checked", "More problems may be hidden.", "Fix the settings first, then check again."
).found()
_NOT_STARTED: Final = Problem(
    "database",
    "the embedded PostgreSQL does not start",
    "Nothing works without it.",
    "See the message above, or set DATABASE_URL.",
    Level.ERROR,
).found()
_ORDER: Final = (Level.ERROR, Level.WARNING, Level.OK)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON.")
def doctor(*, as_json: bool) -> None:
    """Check each setting and connection, and say how to fix what is wrong.

    Exits with 1 if something does not work, and with 2 if no database is set. Warnings do not change the exit code.
    Secrets are never shown.
    """
    # The findings contain what the checks would log.
    logs.configure("console", logging.CRITICAL)
    findings = [_redacted(finding) for finding in _check()]
    if as_json:
        click.echo(msgspec.json.encode({"status": _worst(findings), "findings": findings}).decode())
    else:
        _show(findings)
    sys.exit(_exit_code(findings))


def _exit_code(findings: Sequence[Finding]) -> int:
    if any(
        finding.subject == Settings.database_url.name and finding.message.startswith("is missing")
        for finding in findings
    ):
        return USAGE
    return FAILED if _worst(findings) is Level.ERROR else 0


def _check() -> list[Finding]:
    values, demo = command_values()
    source = [ok("settings", "the demo provides what is unset")] if demo else []
    try:
        settings = load(values)
    except SettingsError as faults:
        alone = [_SKIPPED] if lacks_database(faults) else _check_database_alone(values)
        return source + judge_settings(faults.faults) + alone
    findings = [
        *source,
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
        _check_database(conninfo, settings, sends_mail=settings.smtp is not None, is_complete=True),
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
    """Check the database while other settings are faulty."""
    try:
        settings = load_for_admin(values, needs_pepper=False)
    except SettingsError:
        return [_SKIPPED]
    with ExitStack() as stack:
        conninfo = _entered(stack, values)
        sends_mail = bool(values.get("SMTP_URL", "").strip())
        return [*asyncio.run(_check_database(conninfo, settings, sends_mail=sends_mail, is_complete=False)), _SKIPPED]


async def _check_database(
    conninfo: str | None, settings: Settings, *, sends_mail: bool, is_complete: bool
) -> list[Finding]:
    if conninfo is None:
        return [_NOT_STARTED]
    peppers = [Pepper(pepper.reveal().encode()).id for pepper in settings.peppers] if is_complete else []
    return await check_database(
        conninfo,
        _billing_terms(settings, is_complete=is_complete),
        system_clock(),
        sends_mail=sends_mail,
        peppers=peppers,
        periodic=PERIODIC,
        needed=settings.connections if is_complete else None,
    )


def _billing_terms(settings: Settings, *, is_complete: bool) -> BillingTerms:
    reconcile_hours, body_days = 0, None
    if is_complete:
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
    # rich is slow to import, and the other commands do not need it
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
