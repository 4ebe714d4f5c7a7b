"""``tenantry serve`` in two processes on one database."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import httpx2

from tests.support.command_runner import invoke_async
from tests.support.commands import SECRETS, Running, running
from tests.support.ports import free_port
from tests.support.service import refusal

WORKERS: Final = 2
CREATE_ACME: Final = (
    "admin",
    "create-tenant",
    "--id",
    "acme",
    "--name",
    "Acme",
    "--owner-email",
    "owner@acme.example",
)
"""The command that creates the tenant of `add_owner`."""


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


async def revoke_keys(
    deployment: Deployment,
    application: Callable[[str], httpx2.AsyncClient],
    path: str,
    times: int,
) -> Counter[tuple[int, int, tuple[int, str]]]:
    """Create, use and revoke keys one by one; count what the application answers before, the
    service to the revocation, and the application at the very next request.
    """
    body = {"orgId": "acme", "name": "short-lived", "scopes": ["projects:read"]}
    seen: Counter[tuple[int, int, tuple[int, str]]] = Counter()
    async with deployment.client() as owner:
        for _ in range(times):
            made = (await owner.post("/api/v1/api-keys", json=body)).json()
            async with application(made["secret"]) as client:
                before = await client.get(path)
                deleted = await owner.delete(f"/api/v1/api-keys/{made['id']}")
                after = await client.get(path)
            seen[before.status_code, deleted.status_code, refusal(after)] += 1
    return seen


async def add_owner(address: str, folder: Path) -> str:
    """The secret of an OWNER key of the new tenant ``acme`` in the database at this address."""
    key = ("admin", "create-key", "--org", "acme", "--name", "owner", "--owner")
    [_, made] = [
        await invoke_async(*command, folder=folder, DATABASE_URL=address, **SECRETS)
        for command in (CREATE_ACME, key)
    ]
    assert (made.code, made.err) == (0, "")
    return made.out.strip()
