"""``tenantry doctor``: checks the set-up, and says how to fix what is wrong."""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, contextmanager
from datetime import timedelta
from typing import Final

import click
import msgspec

from tenantry.api.webhooks import PATH as WEBHOOK_PATH
from tenantry.cli.database import command_values, database, lacks_database
from tenantry.cli.doctor import Finding, Level, Subject
from tenantry.cli.doctor.billing_checks import BillingTerms, check_provider
from tenantry.cli.doctor.database_checks import check_database
from tenantry.cli.doctor.setup_checks import (
    check_identity,
    check_mail,
    judge_address,
    judge_catalog,
    judge_secrets,
    judge_settings,
    judge_traces,
)
from tenantry.cli.output import FAILED, USAGE, counted
from tenantry.common import logs
from tenantry.common.clock import system_clock
from tenantry.common.tracing import is_installed
from tenantry.domain.api_keys import Pepper
from tenantry.integrations.stripe.api import ProviderApi
from tenantry.jobs.tasks import PERIODIC
from tenantry.settings import Settings, SettingsError, load, load_for_admin

_STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}
_SKIPPED: Final = Subject("connections").warning(
    "not all checked", "More problems may be hidden.", "Fix the settings first, then check again."
)
_NOT_STARTED: Final = Subject("database").error(
    "the embedded PostgreSQL does not start", "Nothing works without it.", "See the message above, or set DATABASE_URL."
)
_ORDER: Final = (Level.ERROR, Level.WARNING, Level.OK)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON.")
def doctor(*, as_json: bool) -> None:
    """Check each setting and connection, and say how to fix what is wrong.

    Exits with 1 if something does not work, and with 2 if no database is set. Warnings do not change the exit code.
    Secrets are never shown.
    """
    logs.configure("console", logging.CRITICAL)  # the findings contain what the checks log
    findings = [msgspec.structs.replace(finding, message=logs.redact(finding.message)) for finding in _check()]
    if as_json:
        click.echo(msgspec.json.encode({"status": _worst(findings), "findings": findings}).decode())
    else:
        _show(findings)
    name = Settings.database_url.name
    if any(finding.subject == name and finding.message.startswith("is missing") for finding in findings):
        sys.exit(USAGE)
    sys.exit(FAILED if _worst(findings) is Level.ERROR else 0)


def _check() -> list[Finding]:
    values, demo = command_values()
    found = [Subject("settings").ok("the demo provides what is unset")] if demo else []
    try:
        settings = load(values)
    except SettingsError as error:
        found += judge_settings(error.faults)
        if lacks_database(error):
            return [*found, _SKIPPED.found()]
        return [*found, *_check_database_alone(values), _SKIPPED.found()]
    found += [
        *judge_settings([]),
        *judge_address(settings.base_url, is_demo=demo),
        *judge_secrets(settings.named_secrets()),
        *judge_traces(are_wanted=settings.traces, can_be_made=is_installed()),
        *judge_catalog(settings.billing.catalog),
    ]
    with _database(values) as conninfo:
        return found + asyncio.run(_check_connections(settings, conninfo))


async def _check_connections(settings: Settings, conninfo: str | None) -> list[Finding]:
    async with AsyncExitStack() as stack:
        api = None
        if key := settings.provider_secret_key:
            api = await stack.enter_async_context(aclosing(ProviderApi(key, settings.provider_api_base)))
        checks = await asyncio.gather(
            _check_database(conninfo, settings, sends_mail=settings.smtp is not None, is_complete=True),
            check_mail(settings.smtp, system_clock()),
            check_identity(settings.oidc),
            check_provider(api, settings.base_url + WEBHOOK_PATH, settings.billing.catalog),
        )
    return [finding for findings in checks for finding in findings]


def _check_database_alone(values: dict[str, str]) -> list[Finding]:
    """Check the database while other settings are faulty."""
    try:
        settings = load_for_admin(values, needs_pepper=False)
    except SettingsError:
        return []
    sends_mail = bool(values.get("SMTP_URL", "").strip())
    with _database(values) as conninfo:
        return asyncio.run(_check_database(conninfo, settings, sends_mail=sends_mail, is_complete=False))


async def _check_database(
    conninfo: str | None, settings: Settings, *, sends_mail: bool, is_complete: bool
) -> list[Finding]:
    """Check the database; without ``is_complete`` some settings are faulty and so not read."""
    if conninfo is None:
        return [_NOT_STARTED.found()]
    asks_provider = settings.provider_secret_key is not None
    is_compared = is_complete and asks_provider and settings.reconcile_hours
    terms = BillingTerms(
        policy=settings.billing,
        asks_provider=asks_provider,
        period_news=timedelta(hours=settings.period_news_hours),
        compared_every=timedelta(hours=settings.reconcile_hours) if is_compared else None,
        bodies_kept=timedelta(days=settings.raw_body_days) if is_complete and settings.raw_body_days else None,
    )
    return await check_database(
        conninfo,
        terms,
        system_clock(),
        sends_mail=sends_mail,
        peppers=[Pepper(pepper.reveal().encode()).id for pepper in settings.peppers] if is_complete else [],
        periodic=PERIODIC,
        needed=settings.connections if is_complete else None,
    )


@contextmanager
def _database(values: dict[str, str]) -> Iterator[str | None]:
    """Give the connection string; None if the embedded server does not start, which prints the reason."""
    with ExitStack() as stack:
        try:
            conninfo = stack.enter_context(database(values))
        except SystemExit:
            conninfo = None
        yield conninfo


def _worst(findings: Sequence[Finding]) -> Level:
    return next(level for level in _ORDER if level is Level.OK or any(finding.level is level for finding in findings))


def _show(findings: Sequence[Finding]) -> None:
    from rich.console import Console  # noqa: PLC0415  # slow to import
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
    each = [counted(counts[level], level) for level in _ORDER[:2] if counts[level]]
    each += [f"{counts[Level.OK]} ok"] if counts[Level.OK] else []
    console.print(", ".join(each))
