"""Bearer tokens of a real provider through the whole service; forged ones are among the integration
tests.
"""

import httpx2
import pytest

from tests.support.app import OPERATOR_TOKEN, running_app
from tests.support.issuer import AUDIENCE
from tests.support.node_provider import node_provider

PROJECTS = "/api/v1/projects"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def put_tenant(client: httpx2.AsyncClient, tenant_id: str) -> None:
    answer = await client.put(
        f"/api/v1/tenants/{tenant_id}",
        json={"name": "Acme", "ownerEmail": "owner@acme.example"},
        headers=bearer(OPERATOR_TOKEN),
    )
    assert answer.status_code == 201


@pytest.mark.parametrize("alg", ["RS256", "ES256", "EdDSA"])
async def test_token_of_a_real_provider_lists_and_makes_projects(conninfo: str, alg: str) -> None:
    async with (
        node_provider("ann") as provider,
        running_app(
            conninfo,
            OIDC_ISSUER=provider.issuer,
            OIDC_AUDIENCE=AUDIENCE,
            OIDC_CLIENT_ID="dashboard",
        ) as client,
    ):
        await put_tenant(client, "acme")
        token = await provider.token("ann", alg=alg, org_id="acme", org_role="member")
        made = await client.post(PROJECTS, json={"name": "Rocket"}, headers=bearer(token))
        listed = await client.get(PROJECTS, headers=bearer(token))
        refused = await client.get("/api/v1/api-keys", headers=bearer(token))
    assert made.status_code == 201
    assert [project["name"] for project in listed.json()["data"]] == ["Rocket"]
    assert (refused.status_code, refused.json()["code"]) == (403, "insufficient_scope")
