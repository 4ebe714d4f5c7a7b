"""A service in any language that asks tenantry about its callers, and what holds for these."""

import asyncio
import os
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx2

from tests.sdk.sdk_support import Served
from tests.support.commands import Running
from tests.support.service import Organization

_ATTEMPTS: Final = 8
"""Connections to a service that starts: the last one after 32 s."""


@asynccontextmanager
async def protected_service(
    command: Sequence[str], folder: Path, port: int, base_url: str, **values: str
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a service that this command runs on this port, and that asks tenantry at
    ``base_url``; ``values`` are further variables.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "TENANTRY_BASE_URL": base_url, **values},
        stdout=PIPE,
        stderr=PIPE,
    )
    running = Running(process)
    transport = httpx2.AsyncHTTPTransport(retries=_ATTEMPTS)
    address = f"http://127.0.0.1:{port}"
    try:
        async with httpx2.AsyncClient(transport=transport, base_url=address, timeout=60) as client:
            yield client
    finally:
        running.kill()
        await running.wait()


async def check_rejections(client: httpx2.AsyncClient, served: Served, acme: Organization) -> None:
    """Check that ``/reports`` accepts only callers with ``reports:read``, and rejects others as
    tenantry does.
    """

    async def ask(credential: str | None) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {credential}"} if credential else {}
        return await client.get("/reports", headers=headers)

    reader = await served.service.key(acme.owner, acme.id, "reports:read")
    other = await served.service.key(acme.owner, acme.id, "projects:read")
    accepted = await ask(reader.caller.credential)
    assert (accepted.status_code, accepted.json()["tenant"]) == (200, acme.id)

    missing = await ask(None)
    assert (missing.status_code, missing.json()["code"]) == (401, "missing_credential")
    assert missing.headers["www-authenticate"] == 'Bearer realm="api"'
    assert missing.headers["content-type"].startswith("application/problem+json")

    forbidden = await ask(other.caller.credential)
    assert (forbidden.status_code, forbidden.json()["code"]) == (403, "insufficient_scope")
    assert 'scope="reports:read"' in forbidden.headers["www-authenticate"]

    both = [("Authorization", f"Bearer {key.caller.credential}") for key in (reader, other)]
    doubled = await client.get("/reports", headers=both)
    assert (doubled.status_code, doubled.json()["code"]) == (401, "invalid_credential")

    await acme.owner.delete(reader.path)
    revoked = await ask(reader.caller.credential)
    assert (revoked.status_code, revoked.json()["code"]) == (401, "api_key_revoked")


async def check_outage(client: httpx2.AsyncClient) -> None:
    """Check that a service to which tenantry does not answer rejects its callers."""
    answer = await client.get("/reports", headers={"Authorization": "Bearer svc_live_x"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
