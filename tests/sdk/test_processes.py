"""The SDK in programs that fork, end, or have a proxy in their environment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.sdk.support import Served
from tests.sdk.token_endpoint import token_endpoint
from tests.support.commands import Done, run

FORKING: Final = """
import os
from tenantry_sdk import Tenantry
client = Tenantry()
mine = client.auth.whoami().id
children = []
for number in range(8):
    if (child := os.fork()) == 0:
        made = client.projects.create(name=f"Project {number}")
        os._exit(0 if made.name == f"Project {number}" else 1)
    children.append(child)
assert all(client.auth.whoami().id == mine for _ in range(20))
print([os.waitpid(child, 0)[1] for child in children])
"""
SHUTDOWN: Final = """
import atexit
from tenantry_sdk import Tenantry
client = Tenantry()
made = client.api_keys.create(org_id=client.auth.whoami().org_id, name="for a while", scopes=["projects:read"])
def end():
    client.api_keys.delete(made.id)
    print(client.api_keys.get(made.id).status)
atexit.register(end)
"""
HANGING: Final = """
from tenantry_sdk import Tenantry, errors
try:
    Tenantry(timeout=0.2).auth.whoami()
except errors.TimedOutError:
    print("timed out")
"""
LOOPS: Final = """
import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from tenantry_sdk import AsyncTenantry, RefreshToken

tokens = RefreshToken(issuer=os.environ["ISSUER"], client_id="cli", refresh_token="refresh-0")
client = AsyncTenantry(tokens=tokens)

def called(_):
    async def call():
        return [(await client.auth.whoami()).id for _ in range(3)]
    return asyncio.run(call())

with ThreadPoolExecutor(8) as threads:
    found = [*threads.map(called, range(8))]  # at the same time
found += [called(number) for number in range(3)]  # one after another
print(len(found), *sorted({each for ids in found for each in ids}))
"""
CALLING: Final = """
import os
from tenantry_sdk import Tenantry
for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
    os.environ[name] = os.environ["PROXY"]
    print(name, Tenantry().auth.whoami().access_level)
    del os.environ[name]
"""


async def run_program(source: str, folder: Path, served: Served, **values: str) -> Done:
    """What a program does that has an OWNER key of a new organization in its environment."""
    organization = await served.service.organization()
    (folder / "program.py").write_text(source)
    settings = {"TENANTRY_BASE_URL": served.url, "TENANTRY_API_KEY": str(organization.owner.credential)}
    return await run(folder=folder, module="program", **{**settings, **values})


async def test_children_of_a_process_have_connections_of_their_own(unlimited: Served, tmp_path: Path) -> None:
    done = await run_program(FORKING, tmp_path, unlimited)
    assert (done.code, done.out, done.err) == (0, f"{[0] * 8}\n", "")


async def test_program_that_ends_may_still_call(served: Served, tmp_path: Path) -> None:
    done = await run_program(SHUTDOWN, tmp_path, served)
    assert (done.code, done.out, done.err) == (0, "revoked\n", "")


@asynccontextmanager
async def silent() -> AsyncIterator[tuple[str, list[bytes]]]:
    """The address of something that takes what comes, and never answers."""
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            heard.append(piece)
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heard


async def test_program_ends_though_an_answer_never_comes(served: Served, tmp_path: Path) -> None:
    async with silent() as (url, _):
        done = await run_program(HANGING, tmp_path, served, TENANTRY_BASE_URL=url)
    assert (done.code, done.out, done.err) == (0, "timed out\n", "")


async def test_requests_to_loopback_bypass_the_proxy(served: Served, tmp_path: Path) -> None:
    async with silent() as (proxy, heard):
        done = await run_program(CALLING, tmp_path, served, PROXY=proxy)
    assert (done.code, done.out, done.err) == (0, "HTTP_PROXY OWNER\nhttp_proxy OWNER\nALL_PROXY OWNER\n", "")
    assert heard == []


async def test_asynchronous_client_works_in_every_event_loop(served: Served, tmp_path: Path) -> None:
    organization = await served.service.organization()
    credential = str(served.service.user("olivia", org=organization.id, role="owner").credential)
    async with token_endpoint(lambda: credential) as endpoint:
        done = await run_program(LOOPS, tmp_path, served, ISSUER=endpoint.url, TENANTRY_API_KEY="")
    assert (done.code, done.out, done.err) == (0, "11 olivia\n", "")
    assert len(endpoint.grants) == 1


TRIO: Final = """
import os
import trio
from tenantry_sdk import AsyncTenantry, RefreshToken, errors

tokens = RefreshToken(issuer=os.environ["ISSUER"], client_id="cli", refresh_token="refresh-0")

async def main():
    found = []
    async def call(client):
        found.append((await client.auth.whoami()).id)
    async with AsyncTenantry(tokens=tokens) as client:
        with trio.move_on_after(0):
            await client.auth.whoami()  # gone before there is a token
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(call, client)
    try:
        async with AsyncTenantry("key", base_url=os.environ["SILENT"], timeout=0.2) as client:
            await client.auth.whoami()
    except errors.TimedOutError:
        found.append("timed out")
    print(len(found), *sorted(set(found)))

trio.run(main)
"""


async def test_asynchronous_client_runs_on_trio(served: Served, tmp_path: Path) -> None:
    organization = await served.service.organization()
    credential = str(served.service.user("olivia", org=organization.id, role="owner").credential)
    async with token_endpoint(lambda: credential) as endpoint, silent() as (url, _):
        values = {"ISSUER": endpoint.url, "SILENT": url, "TENANTRY_API_KEY": ""}
        done = await run_program(TRIO, tmp_path, served, **values)
    assert (done.code, done.out, done.err) == (0, "21 olivia timed out\n", "")
    assert len(endpoint.grants) == 1
