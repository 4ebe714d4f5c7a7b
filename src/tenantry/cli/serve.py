"""``tenantry serve`` and ``worker``: the server processes, and the background jobs alone."""

import asyncio
import contextlib
import itertools
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from typing import Final

import click
import psycopg
import uvicorn
from uvicorn.config import STARTUP_FAILURE

from tenantry.cli.database import (
    database,
    database_errors,
    migrated,
    settings_errors,
)
from tenantry.common import clock, logs
from tenantry.common import process as this_process
from tenantry.common.http import local_origin, origin_at
from tenantry.db.foreign_tables import check_database_is_own
from tenantry.db.sessions import open_session
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.server.accept_loop import HANDSHAKE_SECONDS, AcceptLoop, reject_new_connections
from tenantry.server.asgi_types import AsgiApp
from tenantry.server.connection_balance import NOT_ACCEPTING
from tenantry.server.shutdown import REQUEST_SECONDS, GracefulServer, Siblings
from tenantry.settings import (
    Settings,
    SettingsError,
    export_environment,
    export_telemetry,
    inherited,
    load,
    read_environment,
)
from tenantry_cli.output import CommandError

_NOT_GRANTED: Final = (
    "DATABASE_URL: its role may not run the service yet. "
    "As the owner run `tenantry migrate --grant-to`."
)
_FORK: Final = multiprocessing.get_context("fork")
_ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

logger = logging.getLogger(__name__)


@click.command()
@click.option(
    "--jobs/--no-jobs",
    "jobs",
    default=None,
    help="Run the background jobs here too (default: yes).",
)
@click.option(
    "--migrate/--no-migrate",
    "migrate",
    default=True,
    help="Bring the schema up to date first.",
)
def serve(*, jobs: bool | None, migrate: bool) -> None:
    """Run the service at HOST:PORT on DATABASE_URL, in WORKERS processes.

    DATABASE_URL=embedded starts a PostgreSQL under TENANTRY_DATA_DIR, for development.

    \b
      tenantry serve --no-jobs
    """
    values = read_environment()
    if jobs is not None:
        values["RUN_JOBS"] = "true" if jobs else "false"
    settings = _load(values)
    end_on_sigterm()

    def on_ready(address: str) -> None:
        _say(
            settings,
            f"tenantry is ready at {address} ({settings.workers} process(es)); Ctrl-C stops it",
        )
        _notify_ready()

    with database(values) as conninfo:
        if migrate:
            migrated(conninfo)
        else:
            _check_schema(settings, conninfo)
        _name_disabled_webhooks(settings, conninfo)
        run_server(settings, conninfo, values, on_ready)


@click.command()
def worker() -> None:
    """Run the background jobs (mail, retention) without serving requests.

    \b
      tenantry serve --no-jobs & tenantry worker
    """
    values = read_environment()
    settings = _load(values)
    export_telemetry(values)
    end_on_sigterm()
    with database(values) as conninfo:
        migrated(conninfo)
        _name_disabled_webhooks(settings, conninfo)
        asyncio.run(_run_worker(settings, conninfo))
        _say(settings, "worker: stopped")


def _load(values: dict[str, str]) -> Settings:
    """Load the settings and configure the log. Raises `CommandError`."""
    with settings_errors("tenantry cannot start"):
        settings = load(values)
    configure_logs(settings)
    return settings


def configure_logs(settings: Settings) -> None:
    """Configure the log. Raises `CommandError` if the file for requests cannot be opened."""
    if settings.log_requests_to is not None:
        try:
            settings.log_requests_to.open("a").close()
        except OSError as error:
            message = f"LOG_REQUESTS_TO: {settings.log_requests_to} cannot be opened: {error.strerror or error}"
            raise CommandError(message) from None
    _configure_logs(settings)


def _configure_logs(settings: Settings) -> None:
    logs.configure_service(
        settings.log_format,
        settings.secrets(),
        logs_requests=settings.log_requests,
        requests_to=settings.log_requests_to,
    )


def _say(settings: Settings, line: str, level: int = logging.INFO) -> None:
    if settings.log_format == "json":
        logger.log(level, line)
    else:
        click.echo(line, err=True)


def _notify_ready() -> None:
    """Tell the service manager that the service is ready (sd_notify), if it has set
    NOTIFY_SOCKET.
    """
    path = inherited(["NOTIFY_SOCKET"]).get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, contextlib.suppress(OSError):
        manager.sendto(b"READY=1", f"\0{path[1:]}" if path[0] == "@" else path)


def _check_schema(settings: Settings, conninfo: str) -> None:
    """Warn if the schema is older than this release; a migration may follow while the service
    runs.
    """
    from tenantry.db.migrate import newest_revision  # noqa: PLC0415  # slow to import

    try:
        revision = _read_revision(conninfo)
    except psycopg.OperationalError:
        return
    newest = newest_revision()
    if (revision or "") < newest:
        found = f"The schema is at {revision}" if revision else "There is no schema yet"
        needs = f"{found}, and this release needs {newest}. Run `tenantry migrate` to make the service ready."
        _say(settings, needs, logging.WARNING)


def _read_revision(conninfo: str) -> str | None:
    """Return the schema's revision. Raises `CommandError` for a database that the service cannot
    use.
    """
    from tenantry.db.migrate import current_revision  # noqa: PLC0415  # slow to import

    try:
        with database_errors(conninfo), open_session(conninfo) as connection:
            check_database_is_own(connection)
            return current_revision(connection)
    except psycopg.errors.InsufficientPrivilege:
        raise CommandError(_NOT_GRANTED) from None


def _name_disabled_webhooks(settings: Settings, conninfo: str) -> None:
    """Warn of each endpoint of the plan catalog that is disabled, if the database answers."""
    if not settings.billing.catalog.webhooks:
        return
    from tenantry.cli.operator_services import read_disabled  # noqa: PLC0415  # only with webhooks

    with contextlib.suppress(DatabaseUnavailableError, psycopg.Error):
        for state in asyncio.run(read_disabled(settings, conninfo)):
            line = (
                f"The webhook {state.name} is disabled: {state.disabled_reason}. {state.held:,} events are held; "
                f"`tenantry webhooks enable {state.name}` sends them."
            )
            _say(settings, line, logging.WARNING)


async def _run_worker(settings: Settings, conninfo: str) -> None:
    from tenantry.app import run_jobs  # noqa: PLC0415  # only with valid settings

    jobs = asyncio.ensure_future(run_jobs(settings, conninfo))
    stop_now = asyncio.Event()

    def stop() -> None:
        if jobs.cancelling():
            stop_now.set()
            return
        jobs.cancel()
        _say(settings, "worker: ending; jobs under way have 15 s")

    # not an exception in the signal handler, which could interrupt the event loop anywhere
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    _say(settings, "worker: started; Ctrl-C stops it")
    await asyncio.wait(
        (jobs, asyncio.ensure_future(stop_now.wait())), return_when=asyncio.FIRST_COMPLETED
    )
    if jobs.done() and not jobs.cancelled():
        jobs.result()


def end_on_sigterm() -> None:
    """Make SIGTERM end this process as an exception does, so that everything is cleaned up.

    SIGHUP, which a closed terminal sends, does the same unless it is ignored (``nohup``).
    """
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    if not this_process.is_deaf_to_hangup():
        signal.signal(signal.SIGHUP, lambda _number, _frame: signal.raise_signal(signal.SIGTERM))


def run_server(
    settings: Settings,
    conninfo: str,
    values: dict[str, str],
    on_ready: Callable[[str], None],
) -> None:
    """Serve until a signal. Calls ``on_ready`` with the address once the service is ready.

    Port 0 is any free port; the settings that depend on the port then follow it.
    """
    export_telemetry(values)
    listener = bind(settings.host, settings.port)
    port = listener.getsockname()[1]
    if settings.port != port:
        values = {**values, "PORT": str(port)}
        settings = load(values)
    address = origin_at(settings.host, port)
    health = local_origin(settings.host, port) + "/readyz"
    watch = threading.Thread(
        target=_await_ready, args=(health, lambda: on_ready(address)), daemon=True
    )
    with listener, contextlib.suppress(KeyboardInterrupt):
        if settings.workers == 1:
            watch.start()
            _import_service()
            _run_one(settings, conninfo, listener)
            return
        with tempfile.TemporaryDirectory(
            prefix="tenantry-metrics-", ignore_cleanup_errors=True
        ) as directory:
            export_environment(
                {**values, "DATABASE_URL": conninfo, "PROMETHEUS_MULTIPROC_DIR": directory}
            )
            if not Supervisor(settings, listener).run(watch.start):
                raise CommandError("A server process could not start; its log says why.")


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket. Raises `CommandError`."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        message = f"HOST/PORT: cannot listen on {host}:{port}: {error.strerror or error}. Set PORT to another one."
        raise CommandError(message) from None
    return listener


def _import_service() -> None:
    """Import the service, and prepare this process and its forks for it."""
    with this_process.without_garbage_collection():
        from tenantry.app import prepare_process  # noqa: PLC0415  # the metrics library reads the environment on import

        prepare_process()


def _run_one(
    settings: Settings,
    conninfo: str,
    listener: socket.socket,
    siblings: Siblings | None = None,
) -> None:
    from tenantry.app import build_app  # noqa: PLC0415  # the metrics library reads the environment on import

    connections = this_process.allow_connections(settings.max_connections)
    app = build_app(settings.replace(max_connections=connections), conninfo)
    this_process.set_for_serving()
    GracefulServer(server_config(settings, app), settings.drain_seconds, siblings).run(
        sockets=[listener]
    )


def _serve_supervised(listener: socket.socket, siblings: Siblings) -> None:
    """Run one of several processes, with the settings that the supervisor has put into the
    environment.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_on_sigterm()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    with listener, contextlib.suppress(KeyboardInterrupt):
        try:
            settings = load(read_environment())
        except SettingsError as error:
            click.echo(f"The settings have changed:\n{error}", err=True)
            sys.exit(STARTUP_FAILURE)
        _configure_logs(settings)
        _run_one(
            settings,
            settings.database_url or "",
            listener,
            siblings,
        )


def server_config(settings: Settings, app: AsgiApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop=f"{AcceptLoop.__module__}:{AcceptLoop.__qualname__}",
        # by name: the metrics library reads the environment on import
        http="tenantry.server.load_shedding:LoadSheddingProtocol",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_graceful_shutdown=REQUEST_SECONDS,
        backlog=4096,
    )


def _await_ready(url: str, on_ready: Callable[[], None]) -> None:
    parent = os.getppid()
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for attempt in itertools.count(1):
        if os.getppid() != parent:
            return
        with contextlib.suppress(urllib.error.URLError, OSError), direct.open(url, timeout=2):
            on_ready()
            return
        time.sleep(
            clock.exponential(
                min(attempt, 20),
                first=0.05,
                factor=1.2,
                ceiling=1,
            )
        )


class Supervisor:
    """Runs WORKERS server processes on one socket until SIGTERM or SIGINT, which it passes on.

    The processes are its forks, so that the service is imported once, which takes longer than all
    else of a start. Restarts a process that ends unexpectedly, unless it could not start. Processes
    accept connections for DRAIN_SECONDS after SIGTERM; then the supervisor, which knows that all of
    them end, makes the kernel refuse new ones. A second signal kills the remaining processes.
    """

    def __init__(self, settings: Settings, bound: socket.socket) -> None:
        self._settings = settings
        self._bound = bound
        self._processes: dict[int, ForkProcess] = {}
        self._connections = _FORK.RawArray("i", [NOT_ACCEPTING] * settings.workers)
        self._is_ending = False
        self._is_signaled = False
        self._refuses_at: float | None = None
        self._all_started = True

    def run(self, on_started: Callable[[], None]) -> bool:
        """Run until all processes have ended; return false if one could not start.

        Calls ``on_started`` after the first forks; it may start a thread, which no fork should
        meet.
        """
        _import_service()
        this_process.set_for_serving()  # what is frozen here, no fork collects: its pages stay shared
        received, waker = socket.socketpair()
        waker.setblocking(False)  # noqa: FBT003  # the standard library's own
        with received, waker:
            # Python writes the number of each signal with a handler
            signal.set_wakeup_fd(waker.fileno())
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, lambda *_: None)
            for number in range(self._settings.workers):
                self._start(number)
            on_started()
            while self._processes:
                self._wait(received)
                if self._seconds_left() == 0:
                    self._refuse()
                self._replace_ended()
            signal.set_wakeup_fd(-1)
        return self._all_started

    def _wait(self, received: socket.socket) -> None:
        """Wait until a process ends, a signal comes, or new connections are to be refused."""
        sentinels = [process.sentinel for process in self._processes.values()]
        if received in wait([*sentinels, received], self._seconds_left()):
            for number in received.recv(64):
                if number != signal.SIGHUP:  # SIGTERM follows
                    self._handle(number)

    def _start(self, number: int) -> None:
        siblings = Siblings(os.getpid(), self._connections, number)
        process = _FORK.Process(target=_serve_supervised, args=(self._bound, siblings))
        # The process unblocks them when it has its own handlers: until then it has ours.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        self._processes[number] = process

    def _handle(self, number: int) -> None:
        if self._is_signaled:
            for process in self._processes.values():
                process.kill()
        elif self._is_ending:  # because a process could not start
            logger.info("received a signal to end; is ending already")
        else:
            self._end(number)
        self._is_signaled = True

    def _end(self, number: int) -> None:
        self._is_ending = True
        seconds = (
            self._settings.drain_seconds - HANDSHAKE_SECONDS if number == signal.SIGTERM else 0
        )
        self._refuses_at = time.monotonic() + max(0, seconds)
        if seconds <= 0:
            self._refuse()
        for process in self._processes.values():
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)

    def _seconds_left(self) -> float | None:
        """Return the seconds until the kernel must refuse new connections; None if it need not or
        already does.
        """
        if self._refuses_at is None:
            return None
        return max(0, self._refuses_at - time.monotonic())

    def _refuse(self) -> None:
        self._refuses_at = None
        reject_new_connections(self._bound)
        self._bound.close()

    def _replace_ended(self) -> None:
        """Join ended processes, and replace them unless all end. One that could not start ends
        all.
        """
        for number, process in list(self._processes.items()):
            if process.is_alive():
                continue
            process.join()
            del self._processes[number]
            self._connections[number] = NOT_ACCEPTING
            if self._is_ending:
                continue
            if process.exitcode == STARTUP_FAILURE:
                logger.error("server process %s could not start; the others end", process.pid)
                self._all_started = False
                self._end(signal.SIGTERM)
            else:
                logger.error(
                    "server process %s ended with %s; starting another",
                    process.pid,
                    process.exitcode,
                )
                self._start(number)
