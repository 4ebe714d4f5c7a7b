"""A real OpenID provider, the npm package oidc-provider, as a separate process on loopback."""

import asyncio
import contextlib
import json
import os
import secrets
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2

from tests.support.required import node, node_package

AUDIENCE: Final = "tenantry-api"
DASHBOARD: Final = "dashboard"
"""The client of the dashboard, whose secret is the provider's ``client_secret``."""
DASHBOARD_AUDIENCE: Final = "urn:tenantry:api"
_FOLDER: Final = Path(__file__).parent / "oidc_provider"


class NodeProvider(NamedTuple):
    """A provider that runs; its issuer is loopback http."""

    issuer: str
    client_secret: str

    async def token(self, user: str, *, alg: str = "RS256", scope: str = "", **claims: Any) -> str:
        """An access token for `AUDIENCE` with ``user`` as its subject and these claims, valid for
        an hour.

        ``alg`` is any that the service accepts. ``scope`` is joined by blanks, of projects:read,
        projects:write, tenants:read and billing:read. The claims cannot replace those of the
        provider itself.
        """
        form = {
            "grant_type": "client_credentials",
            "client_id": user,
            "client_secret": self.client_secret,
            "resource": f"urn:tenantry:{alg}",
            "scope": scope,
            "claims": json.dumps(claims),
        }
        async with httpx2.AsyncClient(trust_env=False) as client:
            response = await client.post(f"{self.issuer}/token", data=form)
        body: Mapping[str, Any] = response.json()
        if "access_token" not in body:
            raise AssertionError(f"the provider answered {response.status_code}: {body}")
        return str(body["access_token"])


@contextlib.asynccontextmanager
async def node_provider(
    *users: str, dashboard: str = "", resource: str | None = None
) -> AsyncIterator[NodeProvider]:
    """Run a provider that issues tokens to these users, and signs people in to the dashboard at
    this address. With ``resource``, clients register themselves for it.

    It is required (`tests.support.required`).
    """
    node_package(_FOLDER.name, "oidc-provider")
    client_secret = secrets.token_urlsafe(24)
    process = await asyncio.create_subprocess_exec(
        node(),
        "server.js",
        *users,
        cwd=_FOLDER,
        env={
            **os.environ,
            "CLIENT_SECRET": client_secret,
            "DASHBOARD_URL": dashboard,
            **({} if resource is None else {"PROTECTED_RESOURCE": resource}),
        },
        stdin=PIPE,
        stdout=PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ready = await process.stdout.readline()
        if not ready:
            raise AssertionError(f"the provider ended with exit code {await process.wait()}")
        yield NodeProvider(json.loads(ready)["issuer"], client_secret)
    finally:
        # The process ends with its input, so that none is left behind even where this line is never
        # reached.
        process.stdin.close()
        await process.communicate()
