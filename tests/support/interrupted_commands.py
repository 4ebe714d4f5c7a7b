"""Long work of the operator that tests interrupt: replay, backfill, reconcile, after-restore."""

import shlex
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import psycopg

from tests.support import events
from tests.support.billing import Provider
from tests.support.commands import Running
from tests.support.postgres import as_url
from tests.support.provider_api import KEY, ProviderServer, running_provider
from tests.support.service import running_service

ASKED: Final = "Stopping after the batch in flight. Press Ctrl-C again to stop at once.\n"
BACKFILL: Final = ("backfill", "--since", "2026-01-01T00:00:00Z")


class Operator(NamedTuple):
    """Who runs commands on a database with 250 tenants, beside a provider that lists 250 missed
    events of the first.
    """

    folder: Path
    provider: Provider
    server: ProviderServer
    settings: Mapping[str, str]

    @property
    def conninfo(self) -> str:
        return self.provider.service.conninfo


@asynccontextmanager
async def running_operator(conninfo: str, folder: Path) -> AsyncIterator[Operator]:
    """An operator, on an empty database."""
    async with running_service(conninfo) as service, running_provider() as server:
        provider = Provider(service)
        subscriber = await provider.subscriber()
        with psycopg.connect(conninfo) as connection:
            connection.execute(
                "INSERT INTO tenants (id, name, owner_id, owner_email, created_at, updated_at) "
                "SELECT 'a' || number, 'A', 'usr', 'o@x.example', now(), now() FROM generate_series(100, 348) AS number"
            )
        server.events = [
            events.updated(**subscriber.names, event_id=f"evt_{age:03}", created=events.NOW - age)
            for age in range(250)
        ]
        settings = {
            "DATABASE_URL": as_url(conninfo),
            "PROVIDER_API_BASE": server.url,
            "PROVIDER_SECRET_KEY": KEY,
        }
        yield Operator(folder, provider, server, settings)


def last_command(error: str) -> list[str]:
    """The arguments of the command that goes on."""
    return shlex.split(error.rstrip("\n").rpartition(" -m tenantry ")[2])


async def hold_the_third_page(server: ProviderServer) -> None:
    """Return once the provider was asked for the third page, which it does not give: two batches
    were not ingested.
    """
    await server.until_requested(3)
    server.open.clear()
    await server.until_requested(4)


async def interrupt(command: Running) -> None:
    """Press Ctrl-C, and wait until the command has noticed."""
    command.signal(signal.SIGINT)
    await command.until(ASKED, "err")
