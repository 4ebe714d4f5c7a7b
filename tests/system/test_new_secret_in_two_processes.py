"""The page that shows the secret of a new key, served by two processes."""

import asyncio
import re
from collections import Counter
from pathlib import Path

import httpx2

from tenantry.common.secret import Secret
from tenantry_devkit.demo.companion import Companion
from tests.support.dashboard import OLIVIA
from tests.support.dashboard_page import Page
from tests.support.deployment import add_owner, deployed
from tests.support.ports import free_port
from tests.support.sign_in import AUDIENCE, CLIENT_ID

_SECRET = re.compile(r"svc_live_[A-Za-z0-9]{49}")
_CLIENT_SECRET = "client-secret-of-the-tests-0123456789"
_NEW = "/orgs/acme/settings/api-keys/new"


async def test_concurrent_requests_to_two_processes_show_a_secret_once(
    database_url: str, people: Path, tmp_path: Path
) -> None:
    await add_owner(database_url, tmp_path)
    port = str(free_port())
    with Companion(
        people,
        users=(OLIVIA,),
        audience=AUDIENCE,
        client_id=CLIENT_ID,
        client_secret=Secret(_CLIENT_SECRET),
    ) as companion:
        settings = {
            "PORT": port,
            "BASE_URL": f"http://127.0.0.1:{port}",
            "OIDC_ISSUER": companion.issuer,
            "OIDC_AUDIENCE": AUDIENCE,
            "OIDC_CLIENT_ID": CLIENT_ID,
            "OIDC_CLIENT_SECRET": _CLIENT_SECRET,
        }
        async with (
            deployed(database_url, tmp_path, **settings) as deployment,
            deployment.client() as client,
        ):
            del client.headers["Authorization"]
            await client.get(
                f"/sign-in/start?hint={OLIVIA.sub}&return_to={_NEW}", follow_redirects=True
            )
            path = await created_by_form(client)
            pages = await asyncio.gather(*(client.get(path) for _ in range(12)))
    assert [page.status_code for page in pages] == [200] * 12
    assert Counter(len(_SECRET.findall(page.text)) for page in pages) == {1: 1, 0: 11}


async def created_by_form(client: httpx2.AsyncClient) -> str:
    """Submit the form of a new key; return where the answer redirects."""
    form = Page(await client.get(_NEW)).form()
    answer = await client.post(_NEW, data={**form.fields, "name": "CI", "scope": ["projects:read"]})
    assert answer.status_code == 303
    return str(answer.headers["location"])
