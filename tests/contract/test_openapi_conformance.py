"""The service does what its OpenAPI document says, as far as thousands of made-up requests can tell."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import httpx2

from tests.support.commands import SECRETS, run, running
from tests.support.findings import free_port
from tests.support.provider_api import KEY, running_provider

CONFIG: Final = Path(__file__).with_name("schemathesis.toml")
WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
CATALOG: Final = '[[plans]]\nid = "free"\n[[plans]]\nid = "pro"\nstripe_price_id = "price_pro"\n'


async def conformance(document: str, key: str, folder: Path, *options: str) -> tuple[int, str]:
    """Run schemathesis; returns its exit code and report."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "--no-color", "run", document,
        "--header", f"Authorization: Bearer {key}", "--continue-on-failure", *options,
        cwd=folder, env={**os.environ, "NO_PROXY": "127.0.0.1", "COLUMNS": "200"},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    report, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, report.decode()


async def test_service_conforms_to_its_description(tmp_path: Path, database_url: str) -> None:
    catalog = tmp_path / "plans.toml"
    catalog.write_text(CATALOG)
    # The document's examples are about the tenant `acme`.
    tenant = ("admin", "create-tenant", "--id", "acme", "--name", "Acme", "--owner-email", "owner@acme.example")
    customer = ("--customer", "cus_1")
    assert (await run(*tenant, *customer, folder=tmp_path, DATABASE_URL=database_url)).code == 0
    owner = ("admin", "create-key", "--org", "acme", "--name", "owner", "--owner")
    key = (await run(*owner, folder=tmp_path, DATABASE_URL=database_url, **SECRETS)).out.strip()
    port = str(free_port())
    async with running_provider() as provider:
        values = {
            **SECRETS,
            "DATABASE_URL": database_url,
            "PORT": port,
            "RUN_JOBS": "false",
            "TENANTRY_PLANS": str(catalog),
            "PROVIDER_SECRET_KEY": KEY,
            "PROVIDER_API_BASE": provider.url,
            "OPERATOR_TOKEN": "operator-token-of-the-conformance-tests",
        }
        async with running("serve", folder=tmp_path, **values) as service:
            await service.until("tenantry is ready", "err")
            base = f"http://127.0.0.1:{port}"
            options = ("--exclude-path", WEBHOOK)
            code, report = await conformance(f"{base}/api/v1/openapi.json", key, tmp_path, *options)
            assert code == 0, report
            async with httpx2.AsyncClient(trust_env=False) as client:
                alive = await client.get(f"{base}/api/v1/auth/whoami", headers={"Authorization": f"Bearer {key}"})
            assert alive.status_code == 200  # else the rest would have been refused without being tried
            assert "Traceback" not in service.text["err"]
