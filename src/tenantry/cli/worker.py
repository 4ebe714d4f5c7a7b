"""``tenantry worker``: the background jobs alone."""

import asyncio
import signal

import click

from tenantry.cli.environment import database, fail_on_settings, migrated
from tenantry.cli.processes import end_on_sigterm, say
from tenantry.common import logs
from tenantry.settings import Settings, SettingsError, export_telemetry, load, read_environment


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
