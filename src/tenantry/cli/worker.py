"""``tenantry worker``: the background jobs alone."""

import asyncio

import click

from tenantry.cli.environment import database, fail_on_settings, migrated
from tenantry.cli.processes import end_on_sigterm
from tenantry.kit import logs
from tenantry.settings import SettingsError, load, read_environment


@click.command()
def worker() -> None:
    """Run the background jobs (mail, retention) without serving requests."""
    values = read_environment()
    try:
        settings = load(values)
    except SettingsError as error:
        fail_on_settings(error)
    logs.configure_service(settings.log_format, settings.secrets())
    end_on_sigterm()
    from tenantry.main import run_jobs  # noqa: PLC0415  # only once the settings are known to be good

    with database(values) as conninfo:
        migrated(conninfo)
        click.echo("worker: running the jobs; Ctrl-C stops", err=True)
        try:
            asyncio.run(run_jobs(settings, conninfo))
        except KeyboardInterrupt:
            click.echo("worker: stopped", err=True)
