"""The service beside schemathesis, which makes requests from the OpenAPI document and checks the
answers.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import httpx2

from tenantry.server.load_shedding import LoadSheddingProtocol
from tests.support.app import OPERATOR_TOKEN, make_app
from tests.support.catalogs import PLANS, catalog_file
from tests.support.issuer import AUDIENCE, CLIENT_ID, running_issuer
from tests.support.logs import watched
from tests.support.provider_api import KEY, running_provider
from tests.support.serving import served

CONFIG: Final = Path(__file__).parents[1] / "contract" / "schemathesis.toml"
AS_OPERATOR: Final = ("--include-path-regex", "^/api/v1/tenants/")
"""What the operator may ask for. These requests end tenants, so they come after all others."""


class Described(NamedTuple):
    """The service, and two of its callers' credentials."""

    base: str
    owner: str
    """A token of an OWNER of the tenant `acme`, rather than a key: some of the requests end
    keys.
    """
    operator: str

    async def conformance(self, credential: str, folder: Path, *options: str) -> tuple[int, str]:
        """Run schemathesis in a folder; return its exit code and report."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "schemathesis.cli",
            "--config-file",
            str(CONFIG),
            "--no-color",
            "run",
            f"{self.base}/api/v1/openapi.json",
            "--header",
            f"Authorization: Bearer {credential}",
            "--continue-on-failure",
            *options,
            cwd=folder,
            env={**os.environ, "NO_PROXY": "127.0.0.1", "COLUMNS": "200"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        report, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, report.decode()


@asynccontextmanager
async def described_service(conninfo: str) -> AsyncIterator[Described]:
    """The service with the tenant `acme`, which the examples of the document are about.

    At the end, no request may have met an exception that the service did not expect.
    """
    async with running_provider() as provider, running_issuer() as issuer:
        app = make_app(
            conninfo,
            TENANTRY_PLANS=catalog_file(PLANS),
            PROVIDER_SECRET_KEY=KEY,
            PROVIDER_API_BASE=provider.url,
            OIDC_ISSUER=issuer.url,
            OIDC_AUDIENCE=AUDIENCE,
            OIDC_CLIENT_ID=CLIENT_ID,
            INVITATIONS="true",
            SMTP_URL="smtp://127.0.0.1:9",
            MAIL_FROM="mail@acme.example",
        )
        with watched("") as log:
            async with served(app, LoadSheddingProtocol) as base:
                now = int(time.time())
                claims = {"org_id": "acme", "org_role": "owner", "iat": now, "exp": now + 3600}
                described = Described(base, issuer.mint(claims=claims), OPERATOR_TOKEN)
                await _make_tenant(described)
                yield described
        assert [
            line
            for line in log.lines
            if line.startswith(("ERROR", "CRITICAL")) or "Traceback" in line
        ] == []


async def _make_tenant(described: Described) -> None:
    async with httpx2.AsyncClient(
        base_url=f"{described.base}/api/v1", trust_env=False, verify=False
    ) as client:
        tenant = {"name": "Acme", "ownerEmail": "a@acme.example", "stripeCustomerId": "cus_1"}
        operator, owner = (
            {"Authorization": f"Bearer {token}"} for token in (described.operator, described.owner)
        )
        made = await client.put("/tenants/acme", json=tenant, headers=operator)
        assert made.status_code == 201, made.text
        who = (await client.get("/auth/whoami", headers=owner)).json()
        assert who["accessLevel"] == "OWNER"
