"""``tenantry serve`` and ``worker``."""

import asyncio
import logging
import signal
import socket
from typing import Final

import click
import psycopg

from tenantry.cli.database import database, fail_on_settings, migrated
from tenantry.cli.output import fail
from tenantry.cli.processes import end_on_sigterm, run_server, say
from tenantry.common import logs
from tenantry.settings import Settings, SettingsError, export_telemetry, inherited, load, read_environment

_SOCKET: Final = "NOTIFY_SOCKET"


def tell_ready() -> None:
    """Say so to whoever asked for it by NOTIFY_SOCKET. Nobody may have; one that is gone does not matter."""
    path = inherited([_SOCKET]).get(_SOCKET, "")
    if not path.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
        try:
            manager.sendto(b"READY=1", f"\0{path[1:]}" if path[0] == "@" else path)
        except OSError:
            return


@click.command()
@click.option("--jobs/--no-jobs", "jobs", default=None, help="Run the background jobs here too (default: yes).")
@click.option("--migrate/--no-migrate", "migrate", default=True, help="Bring the schema up to date first.")
def serve(*, jobs: bool | None, migrate: bool) -> None:
    """Run the service at HOST:PORT on DATABASE_URL, in WORKERS processes.

    DATABASE_URL=embedded starts a PostgreSQL under TENANTRY_DATA_DIR, for development.
    """
    values = read_environment()
    if jobs is not None:
        values["RUN_JOBS"] = "true" if jobs else "false"
    try:
        settings = load(values)
    except SettingsError as error:
        fail_on_settings(error)
    logs.configure_service(settings.log_format, settings.secrets())
    end_on_sigterm()
    with database(values) as conninfo:
        if migrate:
            migrated(conninfo)
        else:
            _look_at_schema(settings, conninfo)
        run_server(settings, conninfo, values, on_ready=lambda address: _tell(settings, address))


def _tell(settings: Settings, address: str) -> None:
    say(settings, f"tenantry is ready at {address} ({settings.workers} process(es)); Ctrl-C stops it")
    tell_ready()


def _look_at_schema(settings: Settings, conninfo: str) -> None:
    """Say so where the schema is older than this release; it may become new, or reachable, while the service runs."""
    from tenantry.db.migrate import current_revision, newest_revision  # noqa: PLC0415  # slow to import

    try:
        with psycopg.connect(conninfo, connect_timeout=5) as connection:
            revision, newest = current_revision(connection), newest_revision()
    except psycopg.OperationalError:
        return
    except psycopg.errors.InsufficientPrivilege:
        fail("DATABASE_URL: its role may not run the service yet: `tenantry migrate --grant-to` lets it, as the owner.")
    if revision is None or revision < newest:
        found = "There is no schema yet" if revision is None else f"The schema is at {revision}"
        needs = f"{found}, and this release needs {newest}. It is not ready before `tenantry migrate` has run."
        say(settings, needs, logging.WARNING)


@click.command()
def worker() -> None:
    """Run the background jobs (mail, retention) without serving requests."""
    values = read_environment()
    try:
        settings = load(values)
    except SettingsError as error:
        fail_on_settings(error)
    logs.configure_service(settings.log_format, settings.secrets())
    export_telemetry(values)
    end_on_sigterm()
    with database(values) as conninfo:
        migrated(conninfo)
        asyncio.run(_run(settings, conninfo))
        say(settings, "worker: stopped")


async def _run(settings: Settings, conninfo: str) -> None:
    from tenantry.app import run_jobs  # noqa: PLC0415  # only once the settings are known to be good

    jobs = asyncio.ensure_future(run_jobs(settings, conninfo))
    at_once = asyncio.Event()

    def end() -> None:
        if jobs.cancelling():
            at_once.set()
            return
        jobs.cancel()
        say(settings, "worker: ending; jobs under way have 15 s")

    # an exception raised by a signal's handler could break off the loop anywhere, a cancelled task ends in order
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    say(settings, "worker: running the jobs; Ctrl-C stops")
    await asyncio.wait((jobs, asyncio.ensure_future(at_once.wait())), return_when=asyncio.FIRST_COMPLETED)
    if jobs.done() and not jobs.cancelled():
        jobs.result()
