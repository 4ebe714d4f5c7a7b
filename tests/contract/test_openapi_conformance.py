"""The service does what its OpenAPI document says, as far as a thousand made-up requests can tell."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx2
import pytest

from tests.support.commands import SECRETS, run, running
from tests.support.findings import free_port
from tests.support.issuer import AUDIENCE, CLIENT_ID, running_issuer
from tests.support.postgres import PostgresServer, as_url
from tests.support.provider_api import KEY, running_provider

CONFIG: Final = Path(__file__).with_name("schemathesis.toml")
OPERATOR_TOKEN: Final = "operator-token-of-the-conformance-tests"
CATALOG: Final = '[[plans]]\nid = "free"\n[[plans]]\nid = "pro"\nstripe_price_id = "price_pro"\n'


async def conformance(document: str, credential: str, folder: Path, *options: str) -> tuple[int, str]:
    """Run schemathesis; returns its exit code and report."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "--no-color", "run", document,
        "--header", f"Authorization: Bearer {credential}", "--continue-on-failure", *options,
        cwd=folder, env={**os.environ, "NO_PROXY": "127.0.0.1", "COLUMNS": "200"},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    report, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, report.decode()


@pytest.fixture(scope="module")
async def credentials(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
                      ) -> AsyncIterator[dict[str, str]]:  # fmt: skip
    """The service with the tenant `acme`, which the document's examples are about; credentials and its address."""
    folder = tmp_path_factory.mktemp("service")
    catalog = folder / "plans.toml"
    catalog.write_text(CATALOG)
    with postgres.database() as conninfo:
        database = {"DATABASE_URL": as_url(conninfo)}
        async with running_provider() as provider, running_issuer() as issuer:
            tenant = ("admin", "create-tenant", "--id", "acme", "--name", "Acme", "--owner-email", "a@acme.example")
            assert (await run(*tenant, "--customer", "cus_1", folder=folder, **database)).code == 0
            now, port = int(time.time()), str(free_port())
            values = {
                **SECRETS,
                **database,
                "PORT": port,
                "RUN_JOBS": "false",
                "TENANTRY_PLANS": str(catalog),
                "PROVIDER_SECRET_KEY": KEY,
                "PROVIDER_API_BASE": provider.url,
                "OPERATOR_TOKEN": OPERATOR_TOKEN,
                "OIDC_ISSUER": issuer.url,
                "OIDC_AUDIENCE": AUDIENCE,
                "OIDC_CLIENT_ID": CLIENT_ID,
            }
            async with running("serve", folder=folder, **values) as service:
                await service.until("tenantry is ready", "err")
                claims = {"org_id": "acme", "org_role": "owner", "iat": now, "exp": now + 3600}
                yield {
                    "base": f"http://127.0.0.1:{port}",
                    "owner": issuer.mint(claims=claims),
                    "operator": OPERATOR_TOKEN,
                }
                assert "Traceback" not in service.text["err"]


@pytest.mark.parametrize(
    ("caller", "options"),
    # An OWNER's token rather than a key: some of the requests end keys. The operator comes last: it ends tenants.
    [("owner", ()), ("operator", ("--include-path-regex", "^/api/v1/tenants/"))],
)
async def test_service_conforms_to_its_description(
    credentials: dict[str, str], tmp_path: Path, caller: str, options: tuple[str, ...]
) -> None:
    document, credential = f"{credentials['base']}/api/v1/openapi.json", credentials[caller]
    if caller == "owner":
        async with httpx2.AsyncClient(trust_env=False) as client:
            headers = {"Authorization": f"Bearer {credential}"}
            who = (await client.get(f"{credentials['base']}/api/v1/auth/whoami", headers=headers)).json()
        assert who["accessLevel"] == "OWNER"
    code, report = await conformance(document, credential, tmp_path, *options)
    assert code == 0, report
    assert "No issues found" in report
