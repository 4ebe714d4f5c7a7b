"""``tenantry serve``: the service."""

import click

from tenantry.cli.environment import database, fail_on_settings, migrated
from tenantry.cli.processes import end_on_sigterm, run_server
from tenantry.cli.service_manager import tell_ready
from tenantry.settings import SettingsError, load, read_environment


@click.command()
@click.option("--jobs/--no-jobs", "jobs", default=None, help="Run the background jobs here too (default: yes).")
@click.option("--migrate/--no-migrate", "migrate", default=True, help="Bring the schema up to date first.")
def serve(*, jobs: bool | None, migrate: bool) -> None:
    """Run the service at HOST:PORT on DATABASE_URL, in WORKERS processes.

    Without DATABASE_URL an embedded PostgreSQL under TENANTRY_DATA_DIR is used.
    """
    values = read_environment()
    if jobs is not None:
        values["RUN_JOBS"] = "true" if jobs else "false"
    try:
        settings = load(values)
    except SettingsError as error:
        fail_on_settings(error)
    end_on_sigterm()
    with database(values) as conninfo:
        if migrate:
            migrated(conninfo)
        run_server(settings, conninfo, values, on_ready=lambda address: _tell(address, settings.workers))


def _tell(address: str, workers: int) -> None:
    click.echo(f"tenantry is ready at {address} ({workers} process(es)); Ctrl-C stops it", err=True)
    tell_ready()
