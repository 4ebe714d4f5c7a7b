"""Bearer tokens through the whole service; `tests/system` has those of a real provider."""

from tests.support.app import running_app
from tests.support.issuer import AUDIENCE, NOW, running_issuer

PROJECTS = "/api/v1/projects"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_provider_that_is_unreachable_at_the_start_is_an_outage(conninfo: str) -> None:
    async with running_issuer() as issuer:
        await issuer.stop()
        identity = {"OIDC_ISSUER": issuer.url, "OIDC_AUDIENCE": AUDIENCE, "OIDC_CLIENT_ID": "dashboard"}
        async with running_app(conninfo, clock=lambda: NOW, **identity) as client:
            ready = await client.get("/readyz")
            answer = await client.get(PROJECTS, headers=bearer(issuer.mint(claims={"org_id": "acme"})))
    assert ready.status_code == 200
    assert (answer.status_code, answer.json()["code"]) == (503, "auth_unavailable")
    assert answer.headers["retry-after"] == "1"
