"""The examples of docs/how-to/in-process.md and its programs in examples/, run beside the service
in two processes.
"""

import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx2
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.support.commands import SECRETS, Running, run, running
from tests.support.deployment import Deployment, add_owner, deployed
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, as_url
from tests.support.service import refusal

PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "in-process.md"
EXAMPLES: Final = Path(__file__).parents[2] / "examples"
UVICORN: Final = ("uvicorn", "--port", "{port}")
GUNICORN: Final = ("gunicorn", "--threads", "8", "--bind", "127.0.0.1:{port}")
SERVERS: Final = {
    "app:app": UVICORN,
    "api:app": UVICORN,
    "pages:app": UVICORN,
    "asgi/app:app": UVICORN,
    "fastapi/app:app": UVICORN,
    "wsgi/app:app": GUNICORN,
    "flask/app:app": GUNICORN,
    "django/app:application": GUNICORN,
}
"""Each example of the page, or below examples/, and the server that the page names for it."""
TARGETS: Final = [
    target
    if target in ("app:app", "wsgi/app:app")
    else pytest.param(target, marks=pytest.mark.thorough)
    for target in SERVERS
]
"""One of each server here."""
READY: Final = {UVICORN: "Uvicorn running", GUNICORN: "Listening at"}
CLIENTS: Final = """\
import os, threading
import app
from django.test import Client

for _ in range(3):  # each makes a handler with its own middleware
    answer = Client(headers={"Host": "localhost", "Authorization": "Bearer " + os.environ["KEY"]}).get("/projects")
    print(answer.status_code)
print([thread.name for thread in threading.enumerate()].count("tenantry"))
"""
TIMES: Final = 10
ROLE: Final = "app"


def blocks(language: str) -> list[str]:
    """The code blocks of the page in this language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )


def example(name: str) -> str:
    """The file of this name: below examples/, or a block of the page; ``pages`` is ``app`` with the
    lines for pages of other origins.
    """
    if name == "pages":
        return _block("app.py") + _block("at the end of app.py")
    file = EXAMPLES / f"{name}.py"
    return file.read_text("utf-8") if file.exists() else _block(f"{name}.py")


def _block(title: str) -> str:
    (found,) = [block for block in blocks("python") if block.startswith(f"# {title}\n")]
    return found


@pytest.fixture(scope="module")
def conninfo(postgres: PostgresServer) -> Iterator[str]:
    with postgres.database() as conninfo:
        yield conninfo


@pytest.fixture(scope="module")
async def deployment(
    conninfo: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Deployment]:
    """The service, with a tenant and its OWNER key."""
    folder, address = tmp_path_factory.mktemp("deployment"), as_url(conninfo)
    async with deployed(address, folder, credential=await add_owner(address, folder)) as deployment:
        yield deployment


@pytest.fixture(scope="module")
async def reader(deployment: Deployment) -> str:
    """A key that may only read projects."""
    async with deployment.client() as owner:
        body = {"orgId": "acme", "name": "reader", "scopes": ["projects:read"]}
        return str((await owner.post("/api/v1/api-keys", json=body)).json()["secret"])


@pytest.fixture(scope="module")
def address(conninfo: str) -> Iterator[str]:
    """The service's database, for a role that may do what the page grants and nothing else."""
    role = sql.Identifier(ROLE)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
        grants, _for_consuming = blocks("sql")
        connection.execute(grants.encode())
        yield as_url(make_conninfo(conninfo, user=ROLE))
        connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
        connection.execute(sql.SQL("DROP ROLE {}").format(role))


@asynccontextmanager
async def application(
    target: str, address: str, folder: Path
) -> AsyncIterator[tuple[str, Running]]:
    """An example under its server: its address, and the command."""
    server, port = SERVERS[target], free_port()
    values = {"DATABASE_URL": address, "API_KEY_PEPPER": SECRETS["API_KEY_PEPPER"]}
    async with running(
        *_arguments(target, folder, port), folder=folder, module=server[0], **values
    ) as command:
        await command.until(READY[server], "err")
        yield f"http://127.0.0.1:{port}", command


def _arguments(target: str, folder: Path, port: int) -> list[str]:
    """What its server is called with; the example is put into this folder."""
    name, _, variable = target.partition(":")
    file = folder / f"{Path(name).name}.py"
    file.write_text(example(name))
    return [
        *(argument.format(port=port) for argument in SERVERS[target][1:]),
        f"{file.stem}:{variable}",
    ]


@pytest.fixture(scope="module", params=TARGETS)
async def client(
    request: pytest.FixtureRequest, address: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[httpx2.AsyncClient]:
    folder = tmp_path_factory.mktemp("application")
    async with (
        application(request.param, address, folder) as (url, _),
        httpx2.AsyncClient(base_url=url, trust_env=False, timeout=30) as client,
    ):
        yield client


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def test_known_caller_is_accepted_and_others_are_rejected(
    deployment: Deployment, client: httpx2.AsyncClient
) -> None:
    answer = await client.get("/projects", headers=bearer(deployment.credential))
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    assert (shown["tenant"], shown["caller"][:4]) == ("acme", "key_")
    assert {"x-request-id", "ratelimit-policy", "ratelimit"} <= set(answer.headers)
    assert refusal(await client.get("/projects")) == (401, "missing_credential")
    assert refusal(await client.get("/projects", headers=bearer("a.b.c"))) == (
        401,
        "invalid_credential",
    )


@pytest.mark.thorough
async def test_key_revoked_through_the_service_is_refused_at_the_very_next_request(
    deployment: Deployment, client: httpx2.AsyncClient
) -> None:
    body = {"orgId": "acme", "name": "short-lived", "scopes": ["projects:read"]}
    seen: Counter[tuple[object, ...]] = Counter()
    async with deployment.client() as owner:
        for _ in range(TIMES):
            made = (await owner.post("/api/v1/api-keys", json=body)).json()
            before = await client.get("/projects", headers=bearer(made["secret"]))
            deleted = await owner.delete(f"/api/v1/api-keys/{made['id']}")
            after = await client.get("/projects", headers=bearer(made["secret"]))
            seen[before.status_code, deleted.status_code, refusal(after)] += 1
    assert seen == {(200, 204, (401, "api_key_revoked")): TIMES}


@pytest.mark.parametrize(
    "client", ["fastapi/app:app", "flask/app:app", "django/app:application"], indirect=True
)
async def test_services_of_the_examples(
    deployment: Deployment, reader: str, client: httpx2.AsyncClient
) -> None:
    assert (await client.get("/health")).json() == {"status": "ok"}
    assert (await client.get("/projects", headers=bearer(reader))).json()["plan"] == "free"
    refused = await client.post("/projects", headers=bearer(reader))
    assert refusal(refused) == (403, "insufficient_scope")
    assert refused.headers["www-authenticate"].endswith('scope="projects:write"')
    made = await client.post("/projects", headers=bearer(deployment.credential))
    assert (made.status_code, made.json()["tenant"]) == (201, "acme")


@pytest.mark.parametrize("client", ["pages:app"], indirect=True)
async def test_page_of_another_origin_may_ask_first_and_reads_its_rejection(
    client: httpx2.AsyncClient,
) -> None:
    origin = {"Origin": "https://app.example.com"}
    asks = {
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "authorization",
    }
    permitted = await client.options("/projects", headers={**origin, **asks})
    rejected = await client.get("/projects", headers=origin)
    assert (permitted.status_code, refusal(rejected)) == (200, (401, "missing_credential"))
    for answer in (permitted, rejected):
        assert answer.headers["access-control-allow-origin"] == origin["Origin"]
    assert "WWW-Authenticate" in rejected.headers["access-control-expose-headers"]


@pytest.mark.parametrize("name", ["flask/app", "django/app"])
def test_page_shows_parts_of_the_examples_as_they_are(name: str) -> None:
    parts = [
        block.partition("\n")
        for block in blocks("python")
        if block.startswith(f"# examples/{name}.py\n")
    ]
    assert parts
    assert [part for _, _, part in parts if part not in example(name)] == []


@pytest.mark.parametrize("client", ["app:app", "api:app"], indirect=True)
async def test_scopes_of_the_examples(deployment: Deployment, client: httpx2.AsyncClient) -> None:
    async with deployment.client() as owner:
        keys = {
            scopes: (
                await owner.post(
                    "/api/v1/api-keys", json={"orgId": "acme", "name": "k", "scopes": list(scopes)}
                )
            ).json()["secret"]
            for scopes in [
                ("projects:read",),
                ("projects:write",),
                ("projects:write", "maintenance:run"),
            ]
        }
    assert (await client.get("/health")).json() == {"status": "ok"}
    answers = {
        scopes: await client.post("/projects/clean-up", headers=bearer(secret))
        for scopes, secret in keys.items()
    }
    lacking = [
        answer.headers.get("www-authenticate", "").rpartition("scope=")[2]
        for answer in answers.values()
    ]
    assert lacking == ['"projects:write"', '"maintenance:run"', ""]
    assert answers["projects:write", "maintenance:run"].json() == {"done": True}


@pytest.mark.thorough
async def test_last_use_is_written_when_the_application_ends(
    deployment: Deployment, address: str, tmp_path: Path
) -> None:
    async with deployment.client() as owner:
        body = {"orgId": "acme", "name": "used", "scopes": ["projects:read"]}
        made = (await owner.post("/api/v1/api-keys", json=body)).json()
        async with application("asgi/app:app", address, tmp_path) as (url, command):
            async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
                assert (
                    await client.get("/projects", headers=bearer(made["secret"]))
                ).status_code == 200
            await command.end(signal.SIGTERM)
        assert (await owner.get(f"/api/v1/api-keys/{made['id']}")).json()["lastUsedAt"] is not None


@pytest.mark.thorough
async def test_handlers_of_a_django_process_share_one_connection(
    address: str, reader: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(example("django/app"))
    (tmp_path / "clients.py").write_text(CLIENTS)
    values = {"DATABASE_URL": address, "API_KEY_PEPPER": SECRETS["API_KEY_PEPPER"], "KEY": reader}
    done = await run(folder=tmp_path, module="clients", **values)
    assert done.out.splitlines() == ["200", "200", "200", "1"], done.err


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["asgi/app:app", "api:app"])
async def test_older_schema_stops_the_start_with_a_clear_message(
    postgres: PostgresServer, tmp_path: Path, target: str
) -> None:
    with postgres.database() as conninfo:
        async with await psycopg.AsyncConnection.connect(conninfo) as connection:
            await connection.execute("UPDATE tenantry_version SET version_num = '0000'")
        arguments = _arguments(target, tmp_path, free_port())
        values = {"DATABASE_URL": as_url(conninfo), "API_KEY_PEPPER": SECRETS["API_KEY_PEPPER"]}
        async with running(*arguments, folder=tmp_path, module="uvicorn", **values) as command:
            assert await command.wait() != 0
        assert "the database is at schema revision 0000" in command.text["err"]
        assert "run `tenantry migrate`" in command.text["err"]


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["app:app", "flask/app:app", "django/app:application"])
async def test_faulty_settings_are_all_named(tmp_path: Path, target: str) -> None:
    arguments = _arguments(target, tmp_path, free_port())
    async with running(
        *arguments, folder=tmp_path, module=SERVERS[target][0], API_KEY_PEPPER="short"
    ) as command:
        assert await command.wait() != 0
    assert "DATABASE_URL: is missing" in command.text["err"]
    assert "API_KEY_PEPPER: is shorter than 32 characters" in command.text["err"]
    assert "PROVIDER_WEBHOOK_SECRET" not in command.text["err"]
