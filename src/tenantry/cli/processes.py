"""Running the server processes, and ending them without a trace."""

import contextlib
import itertools
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from types import FrameType

import click
import uvicorn
from uvicorn.config import STARTUP_FAILURE

from tenantry.cli.output import fail
from tenantry.cli.supervisor import Supervisor
from tenantry.common import clock as backoff
from tenantry.common import logs
from tenantry.common import process as collector
from tenantry.common import process as open_files
from tenantry.server.accept_loop import AcceptLoop
from tenantry.server.asgi_types import AsgiApp
from tenantry.server.load_shedding import LoadSheddingProtocol
from tenantry.server.run import REQUEST_SECONDS, GracefulServer
from tenantry.settings import Settings, SettingsError, export_environment, export_telemetry, load, read_environment

logger = logging.getLogger(__name__)


def end_on_sigterm() -> None:
    """Make SIGTERM end this process the way an exception does, so that everything is cleaned up."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)


def say(settings: Settings, line: str, level: int = logging.INFO) -> None:
    """Tell people on stderr, in their own line; where the log is for machines, as one of its objects."""
    if settings.log_format == "json":
        logger.log(level, line)
    else:
        click.echo(line, err=True)


def run_server(
    settings: Settings, conninfo: str, values: dict[str, str], on_ready: Callable[[str], None] = lambda _: None
) -> None:
    """Serve until a signal ends it. ``on_ready`` is called, with the address, once the service says that it is ready.

    With port 0 it takes a free one, and all that follows from the port follows from that one. The log is set up.
    """
    export_telemetry(values)
    bound = bind(settings.host, settings.port)
    port = bound.getsockname()[1]
    if settings.port != port:
        values = {**values, "PORT": str(port)}
        settings = load(values)
    address = f"http://{settings.host}:{port}"
    threading.Thread(
        target=_await_ready,
        args=(f"http://{_reachable(settings.host)}:{port}/readyz", lambda: on_ready(address)),
        daemon=True,
    ).start()
    with bound, contextlib.suppress(KeyboardInterrupt):
        if settings.workers > 1:
            _run_several(settings, conninfo, values, bound)
        else:
            _run_one(settings, conninfo, bound)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or the end with a message."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        fail(f"HOST/PORT: cannot listen on {host}:{port}: {error.strerror or error}. Set PORT to another one.")
    bound.set_inheritable(True)
    return bound


def _run_one(settings: Settings, conninfo: str, bound: socket.socket, supervisor: int | None = None) -> None:
    from tenantry.app import build_app  # noqa: PLC0415  # the library for metrics reads the environment on import

    connections = open_files.allow_connections(settings.max_connections)
    app = build_app(settings.replace(max_connections=connections), conninfo)
    collector.set_for_serving()
    GracefulServer(server_config(settings, app), settings.drain_seconds, supervisor).run(sockets=[bound])


def _run_several(settings: Settings, conninfo: str, values: dict[str, str], bound: socket.socket) -> None:
    with _metrics_directory() as directory:
        export_environment({**values, "DATABASE_URL": conninfo, "PROMETHEUS_MULTIPROC_DIR": directory})
        if not Supervisor(_serve_as_one_of_several, bound, settings.workers, settings.drain_seconds).run():
            fail("A server process could not start; its log says why.")


def _serve_as_one_of_several(bound: socket.socket, supervisor: int) -> None:
    """One of several processes; its settings are in the environment, as the supervisor has left them."""
    end_on_sigterm()
    with bound, contextlib.suppress(KeyboardInterrupt):
        try:
            settings = load(read_environment())
        except SettingsError as error:
            click.echo(f"The settings are not what they were:\n{error}", err=True)
            sys.exit(STARTUP_FAILURE)
        logs.configure_service(settings.log_format, settings.secrets())
        _run_one(settings, settings.database_url or "", bound, supervisor)


def server_config(settings: Settings, app: AsgiApp) -> uvicorn.Config:
    """What the server is set to, for an application."""
    return uvicorn.Config(
        app,
        loop=f"{AcceptLoop.__module__}:{AcceptLoop.__qualname__}",
        http=LoadSheddingProtocol,
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


@contextlib.contextmanager
def _metrics_directory() -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="tenantry-metrics-")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _reachable(host: str) -> str:
    if host in ("", "0.0.0.0"):  # noqa: S104  # not bound here: asked through loopback
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _await_ready(url: str, on_ready: Callable[[], None]) -> None:
    parent = os.getppid()
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for attempt in itertools.count(1):
        if os.getppid() != parent:
            return
        with contextlib.suppress(urllib.error.URLError, OSError), direct.open(url, timeout=2):
            on_ready()
            return
        time.sleep(backoff.exponential(min(attempt, 20), first=0.05, factor=1.2, ceiling=1))
