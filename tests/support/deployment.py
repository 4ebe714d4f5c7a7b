"""``tenantry serve`` in two processes on one database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import httpx2

from tests.support.command_runner import invoke_async
from tests.support.commands import SECRETS, Running, running
from tests.support.findings import free_port

WORKERS: Final = 2


class Deployment(NamedTuple):
    """The running command, where it answers, and the credential that its callers have."""

    command: Running
    base_url: str
    credential: str

    def client(self, credential: str | None = None) -> httpx2.AsyncClient:
        """A client that makes a connection for each request, so that any process may get it."""
        return httpx2.AsyncClient(
            base_url=self.base_url,
            headers={
                "Authorization": f"Bearer {credential or self.credential}",
                "Connection": "close",
            },
            limits=httpx2.Limits(max_keepalive_connections=0),
            trust_env=False,
            timeout=30,
        )


@asynccontextmanager
async def deployed(
    address: str, folder: Path, *, credential: str = "", **values: str
) -> AsyncIterator[Deployment]:
    """The service on the database at this address; ``values`` are settings."""
    port = values.get("PORT") or str(free_port())
    fixed = {
        **SECRETS,
        "DATABASE_URL": address,
        "PORT": port,
        "WORKERS": str(WORKERS),
        "RUN_JOBS": "false",
    }
    fixed["DRAIN_SECONDS"] = "0"
    async with running("serve", folder=folder, **{**fixed, **values}) as command:
        await command.until("tenantry is ready", "err")
        yield Deployment(command, f"http://127.0.0.1:{port}", credential)


async def add_owner(address: str, folder: Path) -> str:
    """The secret of an OWNER key of the new tenant ``acme`` in the database at this address."""
    tenant = (
        "admin",
        "create-tenant",
        "--id",
        "acme",
        "--name",
        "Acme",
        "--owner-email",
        "owner@acme.example",
    )
    key = ("admin", "create-key", "--org", "acme", "--name", "owner", "--owner")
    [_, made] = [
        await invoke_async(*command, folder=folder, DATABASE_URL=address, **SECRETS)
        for command in (tenant, key)
    ]
    assert (made.code, made.err) == (0, "")
    return made.out.strip()
