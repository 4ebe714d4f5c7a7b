"""Serving an ASGI application exactly as the service serves its own."""

import uvicorn

from bench.support import PEPPER
from tenantry.cli import processes
from tenantry.common import process as collector
from tenantry.server.asgi_types import AsgiApp
from tenantry.settings import load

_SETTINGS = {
    "DATABASE_URL": "embedded",
    "PROVIDER_WEBHOOK_SECRET": PEPPER,
    "API_KEY_PEPPER": PEPPER,
    "SESSION_SECRET": PEPPER,
}


def serve(app: AsgiApp, port: int) -> None:
    """Answer on a port of this machine until a signal comes, in one process."""
    config = processes.server_config(load(_SETTINGS), app)
    collector.set_for_serving()
    with processes.bind("127.0.0.1", port) as bound:
        uvicorn.Server(config).run(sockets=[bound])
