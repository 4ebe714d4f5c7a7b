"""A WSGI application behind `TenantryWsgiMiddleware`, served by the usual servers beside the
service in two processes.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import httpx2
import psutil
import pytest

from tests.support.catalogs import catalog_file
from tests.support.commands import SECRETS, run, still_running
from tests.support.database_link import database_link
from tests.support.deployment import Deployment, add_owner, deployed, revoke_keys
from tests.support.postgres import PostgresServer, as_url
from tests.support.service import refusal
from tests.support.wsgi_servers import (
    SYNC,
    THREADS,
    WAITRESS,
    WERKZEUG,
    WSGIREF,
    WsgiServer,
    serving_wsgi,
)

WORKERS: Final = 2
"""How many processes `SYNC` starts."""
SERVERS: Final = (SYNC, THREADS, WAITRESS, WERKZEUG, WSGIREF)
NAMES: Final = ("gunicorn", "gunicorn with threads", "waitress", "werkzeug", "wsgiref")
UNLIMITED: Final = '[[plans]]\nid = "free"\n'
TIMES: Final = 5
MANY: Final = 32
MIB: Final = 1_048_576

APP: Final = """\
import json, os
from tenantry.wsgi import WsgiAuthenticator, TenantryWsgiMiddleware, principal_of

def application(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/broken":
        raise LookupError("a bug of the application")
    start_response("200 OK", [("Content-Type", "application/json")])
    if path == "/stream":
        return iter([b"a" * 70_000, b"b" * 70_000])
    size = len(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
    names = sorted(name for name in environ if name.startswith("HTTP_X_"))
    shown = {"caller": principal_of(environ).id, "pid": os.getpid(), "size": size, "headers": names}
    return [json.dumps(shown).encode()]

app = TenantryWsgiMiddleware(application, tenantry=(tenantry := WsgiAuthenticator.from_environment()))
"""
# Uses the connection in the process that forks the others, which servers do not.
EARLY: Final = f"""\
{APP}
def ask():
    import io, sys
    environ = {{"REQUEST_METHOD": "GET", "PATH_INFO": "/", "HTTP_AUTHORIZATION": "Bearer " + os.environ["KEY"]}}
    [body] = app({{**environ, "wsgi.input": io.BytesIO()}}, lambda status, *_: print(status, file=sys.stderr))
    return json.loads(body)["caller"]

ask()
"""
FORK: Final = """\
import os, sys, warnings
import served

# Python 3.12 and newer warn of any fork with threads, which is what servers do
warnings.simplefilter("ignore", DeprecationWarning)
for _ in range(2):
    child = os.fork()
    if not child:
        print("child", served.ask(), flush=True)
        sys.exit(0)
    os.waitpid(child, 0)
    print("parent", served.ask(), flush=True)
"""


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
    credential = await add_owner(address, folder)
    async with deployed(
        address, folder, credential=credential, TENANTRY_PLANS=catalog_file(UNLIMITED)
    ) as deployment:
        yield deployment


@pytest.fixture(scope="module", params=SERVERS, ids=NAMES)
async def server(
    request: pytest.FixtureRequest,
    conninfo: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[WsgiServer]:
    folder = tmp_path_factory.mktemp("served")
    async with serving_wsgi(
        request.param, as_url(conninfo), folder, APP, TENANTRY_PLANS=catalog_file(UNLIMITED)
    ) as server:
        yield server


async def test_key_revoked_through_the_service_is_refused_at_the_very_next_request(
    deployment: Deployment, server: WsgiServer
) -> None:
    seen = await revoke_keys(deployment, server.client, "/", TIMES)
    assert seen == {(200, 204, (401, "api_key_revoked")): TIMES}


async def test_many_requests_at_once_are_all_answered(
    deployment: Deployment, server: WsgiServer
) -> None:
    async with server.client(deployment.credential) as client:
        answers = await asyncio.gather(*(client.get("/") for _ in range(MANY)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.headers["x-request-id"] for answer in answers}) == MANY


async def test_hostile_requests_are_rejected_and_do_no_harm(
    deployment: Deployment, server: WsgiServer
) -> None:
    good = f"Authorization: Bearer {deployment.credential}\r\n".encode()
    requests = {
        "no credential": b"",
        "the same credential twice": good + good,
        "another credential after a good one": good + b"Authorization: Bearer x\r\n",
        "a good credential after an empty header": b"Authorization:\r\n" + good,
        "not ASCII": b"Authorization: Bearer svc_live_\xc3\xa4\r\n",
        "bytes that are no UTF-8": b"Authorization: Bearer \xe4.\xf6.\xfc\r\n",
        "NUL": good.replace(b"\r\n", b"\0\r\n"),
        "9 kB": b"Authorization: Bearer " + b"a" * 9000 + b"\r\n",
        "200 kB": b"Authorization: Bearer " + b"a" * 200_000 + b"\r\n",
        "the name of a tenant": b"X-Tenant-Id: acme\r\nX_Principal_Id: root\r\ntenantry.principal: root\r\n",
    }
    for name, headers in requests.items():
        answer = await server.raw(
            b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers + b"\r\n"
        )
        status = int(answer.split(b" ")[1]) if answer else 400
        assert 400 <= status < 500, (name, answer)
    async with server.client(deployment.credential) as client:
        sent = {"X-Tenant-Id": "other", "X-Plan": "business", "X-Mine": "1"}
        assert (await client.get("/", headers=sent)).json()["headers"] == ["HTTP_X_MINE"]


async def test_methods_and_bodies(deployment: Deployment, server: WsgiServer) -> None:
    async with server.client() as anonymous, server.client(deployment.credential) as client:
        for method in ("HEAD", "OPTIONS", "POST", "PROPFIND"):
            answer = await anonymous.request(method, "/")
            assert answer.status_code == 401, method
            assert answer.headers["www-authenticate"] == 'Bearer realm="api"', method
        assert (await client.head("/stream")).status_code == 200
        assert (await client.post("/", content=bytes(MIB))).json()["size"] == MIB
        assert (await client.get("/stream")).text == "a" * 70_000 + "b" * 70_000
    head = await server.raw(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert head.partition(b"\r\n\r\n")[2] == b""


async def test_exceptions_of_the_application_reach_the_server(
    deployment: Deployment, server: WsgiServer
) -> None:
    async with server.client(deployment.credential) as client:
        assert (await client.get("/broken")).status_code == 500
        await server.command.until("LookupError: a bug of the application", "err")
        assert (await client.get("/")).status_code == 200


@pytest.mark.parametrize("line", [SYNC, THREADS, WAITRESS], ids=NAMES[:3])
async def test_last_use_is_written_when_the_server_ends(
    deployment: Deployment, conninfo: str, tmp_path: Path, line: str
) -> None:
    async with (
        deployment.client() as owner,
        serving_wsgi(line, as_url(conninfo), tmp_path, APP) as server,
    ):
        body = {"orgId": "acme", "name": "used", "scopes": ["projects:read"]}
        made = (await owner.post("/api/v1/api-keys", json=body)).json()
        async with server.client(made["secret"]) as client:
            assert (await client.get("/")).status_code == 200
        family = server.command.family()
        how = signal.SIGINT if line == WAITRESS else signal.SIGTERM
        await server.command.end(how)
        assert await still_running(family) == []
        assert (await owner.get(f"/api/v1/api-keys/{made['id']}")).json()["lastUsedAt"] is not None


@pytest.mark.parametrize("line", [THREADS, WAITRESS], ids=NAMES[1:3])
async def test_lost_database_is_503_until_it_returns_and_does_not_hold_up_the_end(
    deployment: Deployment, conninfo: str, tmp_path: Path, line: str
) -> None:
    async with (
        database_link(conninfo) as link,
        serving_wsgi(line, as_url(link.conninfo), tmp_path, APP) as server,
    ):
        async with server.client(deployment.credential) as client:
            assert (await client.get("/")).status_code == 200
            await link.cut()
            answers = await asyncio.gather(*(client.get("/") for _ in range(4)))
            assert {refusal(answer) for answer in answers} == {(503, "auth_unavailable")}
            await link.restore()
            assert (await client.get("/")).status_code == 200
        link.block()
        family = server.command.family()
        await server.command.end(signal.SIGINT if line == WAITRESS else signal.SIGTERM)
        assert await still_running(family) == []


async def test_workers_do_not_use_what_the_process_that_forked_them_has_opened(
    deployment: Deployment, conninfo: str, tmp_path: Path
) -> None:
    values = {"KEY": deployment.credential, "TENANTRY_PLANS": catalog_file(UNLIMITED)}
    async with (
        serving_wsgi(SYNC, as_url(conninfo), tmp_path, EARLY, **values) as server,
        server.client(deployment.credential) as client,
    ):
        assert "200 OK" in server.command.text["err"]
        seen: set[int] = set()
        while len(seen) < WORKERS:  # the kernel decides which worker takes a connection
            answers = await asyncio.gather(*(client.get("/") for _ in range(MANY)))
            assert {answer.status_code for answer in answers} == {200}
            seen |= {answer.json()["pid"] for answer in answers}
        [*_, killed] = (worker.pid for worker in psutil.Process(server.command.pid).children())
        os.kill(killed, signal.SIGKILL)
        answers = [await client.get("/") for _ in range(TIMES)]
        assert {answer.status_code for answer in answers} == {200}
        assert killed not in {answer.json()["pid"] for answer in answers}


async def test_parent_and_child_both_authenticate_after_a_fork(
    deployment: Deployment, conninfo: str, tmp_path: Path
) -> None:
    (tmp_path / "served.py").write_text(EARLY)
    (tmp_path / "forking.py").write_text(FORK)
    values = {
        "KEY": deployment.credential,
        "DATABASE_URL": as_url(conninfo),
        "TENANTRY_PLANS": catalog_file(UNLIMITED),
    }
    done = await run(
        folder=tmp_path, module="forking", API_KEY_PEPPER=SECRETS["API_KEY_PEPPER"], **values
    )
    assert done.code == 0, done.err
    assert [line.split()[0] for line in done.out.splitlines()] == ["child", "parent"] * 2
    assert len({line.split()[1] for line in done.out.splitlines()}) == 1
    assert done.err.split("\n") == ["200 OK"] * 5 + [""]


@pytest.mark.parametrize(
    ("bound", "forwarded", "status"),
    [
        ("127.0.0.1:{port}", "192.0.2.7", 200),
        ("127.0.0.1:{port}", "203.0.113.9", 403),
        ("127.0.0.1:{port}", "192.0.2.7, 203.0.113.9", 403),
        ("127.0.0.1:{port}", "unknown", 403),
        ("127.0.0.1:{port}", None, 403),
        ("unix:{socket}", "192.0.2.7", 403),
        ("unix:{socket}", None, 403),
    ],
)
async def test_key_with_allowed_addresses_behind_gunicorn(
    deployment: Deployment,
    conninfo: str,
    tmp_path: Path,
    bound: str,
    forwarded: str | None,
    status: int,
) -> None:
    body = {"orgId": "acme", "name": "k", "scopes": ["a:b"], "allowedAddresses": ["192.0.2.0/24"]}
    async with deployment.client() as owner:
        secret = (await owner.post("/api/v1/api-keys", json=body)).json()["secret"]
    path = tmp_path / "s"
    line = f"gunicorn --workers 1 --bind {bound.replace('{socket}', str(path))} served:app"
    headers = {"Authorization": f"Bearer {secret}"}
    headers |= {"X-Forwarded-For": forwarded} if forwarded else {}
    values = {"TENANTRY_PLANS": catalog_file(UNLIMITED), "TRUSTED_PROXIES": "127.0.0.1"}
    async with serving_wsgi(line, as_url(conninfo), tmp_path, APP, **values) as server:
        transport = httpx2.AsyncHTTPTransport(uds=str(path) if "unix" in bound else None)
        address = f"http://127.0.0.1:{server.port}"
        async with httpx2.AsyncClient(transport=transport, base_url=address) as client:
            answer = await client.get("/", headers=headers)
    assert answer.status_code == status
