"""Programs that serve a WSGI application, as users run them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import httpx2

from tests.support.commands import SECRETS, Running, running
from tests.support.ports import free_port

_WSGIREF: Final = """\
import sys
from wsgiref.simple_server import make_server

from served import app

with make_server("127.0.0.1", int(sys.argv[1]), app) as server:
    print("Serving", file=sys.stderr, flush=True)
    server.serve_forever()
"""
_WERKZEUG: Final = """\
import sys

from werkzeug.serving import run_simple

from served import app

run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=True)
"""
_READY: Final = {
    "gunicorn": "Listening at",
    "waitress": "Serving on",
    "with_werkzeug": "Running on",
    "with_wsgiref": "Serving",
}

SYNC: Final = "gunicorn --workers 2 --preload --bind 127.0.0.1:{port} served:app"
THREADS: Final = "gunicorn --workers 2 --threads 8 --bind 127.0.0.1:{port} served:app"
WAITRESS: Final = "waitress --threads 8 --listen 127.0.0.1:{port} served:app"
WERKZEUG: Final = "with_werkzeug {port}"
WSGIREF: Final = "with_wsgiref {port}"


class WsgiServer(NamedTuple):
    """A running server."""

    command: Running
    port: int

    def client(self, credential: str | None = None) -> httpx2.AsyncClient:
        """A client with this key, which makes a connection for each request, so that any process
        may get it.
        """
        headers = {} if credential is None else {"Authorization": f"Bearer {credential}"}
        return httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={**headers, "Connection": "close"},
            limits=httpx2.Limits(max_keepalive_connections=0),
            trust_env=False,
            timeout=30,
        )

    async def raw(self, request: bytes) -> bytes:
        """The answer to these bytes, until the server closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        answer = b""
        # of a server that has answered before it read everything
        with contextlib.suppress(ConnectionError):
            writer.write(request)
            async with asyncio.timeout(30):
                while chunk := await reader.read(65536):
                    answer += chunk
        writer.close()
        return answer


@asynccontextmanager
async def serving_wsgi(
    line: str, address: str, folder: Path, app: str, **values: str
) -> AsyncIterator[WsgiServer]:
    """A server of the module ``served``, whose text is ``app``, on the database at this address."""
    (folder / "served.py").write_text(app)
    (folder / "with_werkzeug.py").write_text(_WERKZEUG)
    (folder / "with_wsgiref.py").write_text(_WSGIREF)
    port = free_port()
    module, *arguments = line.format(port=port).split()
    settings = {"DATABASE_URL": address, "API_KEY_PEPPER": SECRETS["API_KEY_PEPPER"], **values}
    async with running(*arguments, folder=folder, module=module, **settings) as command:
        await command.until(_READY[module], "err")
        yield WsgiServer(command, port)
