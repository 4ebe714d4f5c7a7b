"""What an application under test gets of the plugin."""

import httpx2
import pytest

from tenantry.asgi import AsgiAuthenticator, TenantryAsgiMiddleware
from tenantry_devkit.testing import SuiteTenantry
from tests.support.app import client_of, lifespan
from tests.support.in_process import answer_caller
from tests.support.service import refusal


@pytest.mark.thorough
def test_the_service_is_where_the_environment_says(tenantry: SuiteTenantry) -> None:
    key = tenantry.tenant().key("projects:read")
    environment = key.environment
    answer = httpx2.get(
        f"{environment['TENANTRY_BASE_URL']}/api/v1/projects",
        headers={"Authorization": f"Bearer {environment['TENANTRY_API_KEY']}"},
        trust_env=False,
    )
    assert answer.status_code == 200


async def test_an_application_in_process_knows_the_same_callers(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant(plan="pro")
    key = tenant.key("projects:read")
    app = TenantryAsgiMiddleware(
        answer_caller,
        tenantry=AsgiAuthenticator.from_values(tenantry.environment),
        owns_lifespan=True,
    )
    async with lifespan(app), client_of(app) as client:
        for credential in (key.secret, tenant.token()):
            known = (
                await client.get("/", headers={"Authorization": f"Bearer {credential}"})
            ).json()
            assert (known["orgId"], known["plan"]) == (tenant.id, "pro")
        key.revoke()
        assert refusal(await client.get("/", headers=key.headers)) == (401, "api_key_revoked")


def test_a_backend_can_be_the_operator(tenantry: SuiteTenantry) -> None:
    tenant = tenantry.tenant()
    backend = tenantry.client(tenantry.environment["OPERATOR_TOKEN"])
    assert (
        backend.get(f"/api/v1/tenants/{tenant.id}/export").json()["ownerEmail"]
        == tenant.owner_email
    )


@pytest.mark.parametrize("name", ["OIDC_ISSUER", "PROVIDER_API_BASE"])
def test_companion_servers_answer(tenantry: SuiteTenantry, name: str) -> None:
    address = tenantry.environment[name]
    assert address.startswith("http://127.0.0.1:")
    assert httpx2.get(address, trust_env=False).status_code in {200, 303}
