"""The SDK in programs that fork, end, or have a proxy in their environment."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tenantry_sdk import AsyncTenantry
from tests.sdk.sdk_support import Served
from tests.sdk.token_endpoint import CLIENT_SECRET, token_endpoint
from tests.support.commands import Done, run, running

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
WRONG_VARIABLES: Final = """
from tenantry_sdk import Tenantry, errors
try:
    Tenantry()
except errors.ConfigurationError as error:
    print(error)
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
ENDED: Final = """
import asyncio
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
import trio
from tenantry_sdk import AsyncTenantry, ClientCredentials, FileStore

logging.getLogger("asyncio").disabled = True  # "Task was destroyed but it is pending!"
locked, waiting, loop = threading.Event(), threading.Event(), asyncio.new_event_loop()

class Store(FileStore):
    def load(self):
        locked.set()
        return super().load()

tokens = ClientCredentials(
    issuer=os.environ["ISSUER"], client_id="cli", client_secret=os.environ["SECRET"], store=Store("token")
)
client = AsyncTenantry(tokens=tokens, timeout=20)

async def begin():
    call = asyncio.ensure_future(client.auth.whoami())
    await asyncio.to_thread(waiting.wait)

async def begin_on_trio():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.auth.whoami)
        await trio.to_thread.run_sync(waiting.wait)
        nursery.cancel_scope.cancel()

async def end_the_other_loop():
    waiting.set()

async def call():
    who, _ = await asyncio.gather(client.auth.whoami(), end_the_other_loop())  # begins when the first one waits
    return who.id

def begin_and_end():
    if os.environ["ENDING"] == "canceled":
        return asyncio.run(begin())
    if os.environ["ENDING"] == "trio":
        return trio.run(begin_on_trio)
    loop.run_until_complete(begin())
    if os.environ["ENDING"] == "closed":
        loop.close()

with ThreadPoolExecutor(2) as threads:
    first = threads.submit(begin_and_end)
    locked.wait()
    second = threads.submit(asyncio.run, call())
    first.result()
    print("ended", flush=True)
    print(second.result(), flush=True)
os._exit(0)  # without the warnings about the loop that was not closed
"""
STOPPED: Final = """
import asyncio
import gc
import warnings
import psutil
from tenantry_sdk import AsyncTenantry

warnings.simplefilter("ignore", ResourceWarning)
client = AsyncTenantry()
loops = [asyncio.new_event_loop() for _ in range(5)]
for loop in loops:
    loop.run_until_complete(client.auth.whoami())
gc.collect()
print(sum(bool(each.raddr) and each.type.name == "SOCK_STREAM" for each in psutil.Process().net_connections("inet")))
"""
RECEIVED: Final = """
import asyncio
import logging
import os
from tenantry_sdk import AsyncTenantry, FileStore, RefreshToken

class Ending(logging.Handler):
    def emit(self, record):
        for task in asyncio.all_tasks():
            task.cancel()  # as at the end of a loop

url, store = os.environ["ISSUER"], FileStore("token")
tokens = RefreshToken(issuer=url, token_url=f"{url}/token", client_id="cli", refresh_token="refresh-0", store=store)
logging.getLogger("tenantry.sdk").setLevel(logging.INFO)
logging.getLogger("tenantry.sdk").addHandler(Ending())  # logged as soon as there is a response
try:
    asyncio.run(AsyncTenantry(tokens=tokens).auth.whoami())
except asyncio.CancelledError:
    print(store.load().refresh_token.reveal())
"""
CERTIFICATES: Final = """
import asyncio
import ssl
import threading
from tenantry_sdk import AsyncTenantry, errors

loaded = []

class Watched(ssl.SSLContext):
    def load_verify_locations(self, *arguments, **options):
        loaded.append(threading.current_thread() is threading.main_thread())
        super().load_verify_locations(*arguments, **options)

ssl.SSLContext = Watched

async def main():
    async with AsyncTenantry() as plain:
        await plain.auth.whoami()
    print(loaded)
    clients = [AsyncTenantry("key", base_url="https://127.0.0.1:9", retries=0) for _ in range(3)]
    for client in clients:
        try:
            await client.auth.whoami()
        except errors.ConnectionFailedError:
            pass
        await client.aclose()
    print(loaded)

asyncio.run(main())
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
    settings = {
        "TENANTRY_BASE_URL": served.url,
        "TENANTRY_API_KEY": str(organization.owner.credential),
    }
    return await run(folder=folder, module="program", **{**settings, **values})


async def test_children_of_a_process_have_connections_of_their_own(
    unlimited: Served, tmp_path: Path
) -> None:
    done = await run_program(FORKING, tmp_path, unlimited)
    assert (done.code, done.out, done.err) == (0, f"{[0] * 8}\n", "")


@pytest.mark.thorough
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


async def test_invalid_variable_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WRONG_VARIABLES)
    address = await run(folder=tmp_path, module="program", TENANTRY_BASE_URL="ftp://x")
    key = await run(folder=tmp_path, module="program", TENANTRY_API_KEY="a b")
    assert address.out == "TENANTRY_BASE_URL: not an http or https address.\n"
    assert key.out == "TENANTRY_API_KEY: the API key has invalid characters.\n"


async def test_requests_to_loopback_bypass_the_proxy(served: Served, tmp_path: Path) -> None:
    async with silent() as (proxy, heard):
        done = await run_program(CALLING, tmp_path, served, PROXY=proxy)
    assert (done.code, done.out, done.err) == (
        0,
        "HTTP_PROXY OWNER\nhttp_proxy OWNER\nALL_PROXY OWNER\n",
        "",
    )
    assert heard == []


@pytest.mark.thorough
async def test_asynchronous_client_works_in_every_event_loop(
    served: Served, tmp_path: Path
) -> None:
    organization = await served.service.organization()
    credential = str(served.service.user("olivia", org=organization.id, role="owner").credential)
    async with token_endpoint(lambda: credential) as endpoint:
        done = await run_program(LOOPS, tmp_path, served, ISSUER=endpoint.url, TENANTRY_API_KEY="")
    assert (done.code, done.out, done.err) == (0, "11 olivia\n", "")
    assert len(endpoint.grants) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("ending", ["canceled", "closed", "stopped", "trio"])
async def test_renewal_that_ends_with_its_event_loop_is_begun_again(
    served: Served, tmp_path: Path, ending: str
) -> None:
    organization = await served.service.organization()
    credential = str(served.service.user("olivia", org=organization.id, role="owner").credential)
    (tmp_path / "program.py").write_text(ENDED)
    async with token_endpoint(lambda: credential) as endpoint:
        endpoint.open.clear()
        values = {
            "TENANTRY_BASE_URL": served.url,
            "ISSUER": endpoint.url,
            "SECRET": CLIENT_SECRET,
            "ENDING": ending,
        }
        async with running(folder=tmp_path, module="program", **values) as program:
            await program.until("ended\n", "out")
            endpoint.open.set()
            assert await program.wait() == 0, program.text
    assert program.text == {"out": "ended\nolivia\n", "err": ""}


async def test_token_received_while_the_event_loop_ends_is_stored(
    served: Served, tmp_path: Path
) -> None:
    async with token_endpoint(lambda: "token") as endpoint:
        done = await run_program(
            RECEIVED, tmp_path, served, ISSUER=endpoint.url, TENANTRY_API_KEY=""
        )
    assert (done.code, done.out, done.err) == (0, "refresh-1\n", "")


class Connections:
    """Counts connections, and answers each request with an empty object."""

    def __init__(self) -> None:
        self.started = 0
        self._ended = asyncio.Semaphore(0)

    async def until_ended(self) -> None:
        """Wait until the clients have closed all connections."""
        async with asyncio.timeout(20):
            for _ in range(self.started):
                await self._ended.acquire()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.started += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
                )
        except asyncio.IncompleteReadError:
            writer.close()
            self._ended.release()


@contextmanager
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def test_each_event_loop_keeps_its_connections_until_the_client_is_closed() -> None:
    connections = Connections()
    async with await asyncio.start_server(connections, "127.0.0.1", 0) as server:
        client = AsyncTenantry(
            "key", base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        )
        with other_loop() as other:
            for _ in range(3):
                await client.request("GET", "/")
                await asyncio.wrap_future(
                    asyncio.run_coroutine_threadsafe(client.request("GET", "/"), other)
                )
            assert connections.started == 2
            await client.aclose()
            await connections.until_ended()


async def test_connections_of_loops_that_no_longer_run_are_closed(
    served: Served, tmp_path: Path
) -> None:
    done = await run_program(STOPPED, tmp_path, served)
    assert (done.code, done.out, done.err) == (0, "1\n", "")


async def test_certificates_are_loaded_once_for_https_and_in_no_event_loop(
    served: Served, tmp_path: Path
) -> None:
    done = await run_program(CERTIFICATES, tmp_path, served)
    assert (done.code, done.out, done.err) == (0, "[]\n[False]\n", "")


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


@pytest.mark.thorough
async def test_asynchronous_client_runs_on_trio(served: Served, tmp_path: Path) -> None:
    organization = await served.service.organization()
    credential = str(served.service.user("olivia", org=organization.id, role="owner").credential)
    async with token_endpoint(lambda: credential) as endpoint, silent() as (url, _):
        values = {"ISSUER": endpoint.url, "SILENT": url, "TENANTRY_API_KEY": ""}
        done = await run_program(TRIO, tmp_path, served, **values)
    assert (done.code, done.out, done.err) == (0, "21 olivia timed out\n", "")
    assert len(endpoint.grants) == 1
