"""Bearer tokens through the whole service; `tests/system` has those of a real provider."""

import time
from pathlib import Path

import pytest

from tests.support.app import running_app
from tests.support.deployment import add_owner, deployed
from tests.support.issuer import AUDIENCE, NOW, running_issuer

PROJECTS = "/api/v1/projects"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_provider_that_is_unreachable_at_the_start_is_an_outage(conninfo: str) -> None:
    async with running_issuer() as issuer:
        await issuer.stop()
        identity = {
            "OIDC_ISSUER": issuer.url,
            "OIDC_AUDIENCE": AUDIENCE,
            "OIDC_CLIENT_ID": "dashboard",
        }
        async with running_app(conninfo, clock=lambda: NOW, **identity) as client:
            ready = await client.get("/readyz")
            answer = await client.get(
                PROJECTS, headers=bearer(issuer.mint(claims={"org_id": "acme"}))
            )
    assert ready.status_code == 200
    assert (answer.status_code, answer.json()["code"]) == (503, "auth_unavailable")
    assert answer.headers["retry-after"] == "1"


@pytest.mark.thorough
async def test_server_accepts_tokens_of_16_kib_and_says_why_it_refuses_longer_ones(
    database_url: str, tmp_path: Path
) -> None:
    owner = await add_owner(database_url, tmp_path)
    now = int(time.time())
    async with (
        running_issuer() as issuer,
        deployed(
            database_url,
            tmp_path,
            credential=owner,
            OIDC_ISSUER=issuer.url,
            OIDC_AUDIENCE=f"another,{AUDIENCE}",
        ) as deployment,
    ):

        def token(padding: int) -> str:
            return issuer.mint(
                claims={"iat": now, "exp": now + 60, "org_id": "acme", "groups": "x" * padding}
            )

        longest = token((16_384 - len(token(0))) * 3 // 4)
        async with deployment.client(longest) as client:
            for path in (PROJECTS, "/api/v1/auth/whoami", "/api/v1/auth/verify/projects:read"):
                assert (await client.get(path)).status_code == 200
        async with deployment.client(token(13_000)) as client:
            refused = await client.get(PROJECTS)
        await deployment.command.until("bearer token refused: reason=size", "err")
    assert 16_380 < len(longest) <= 16_384
    assert (refused.status_code, refused.json()["detail"]) == (
        401,
        "The credential is too long: at most 16,384 bytes.",
    )
