"""Requests to WSGI applications, without a server."""

import asyncio
import io
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import unquote_to_bytes
from wsgiref.types import WSGIApplication
from wsgiref.validate import validator

import httpx2

from tests.support.app import BASE_URL

_THREADS: Final = 40
_STANDARD: Final = frozenset({"CONTENT_TYPE", "CONTENT_LENGTH"})


def wsgi_client(app: WSGIApplication, script_name: str = "") -> httpx2.AsyncClient:
    """A client that calls the application in threads, and fails if it breaks the rules of PEP
    3333.
    """
    transport = _WsgiTransport(validator(app), script_name)
    return httpx2.AsyncClient(transport=transport, base_url=BASE_URL, timeout=30)


class _WsgiTransport(httpx2.AsyncBaseTransport):
    def __init__(self, app: WSGIApplication, script_name: str) -> None:
        self._app = app
        self._script_name = script_name
        self._threads = ThreadPoolExecutor(_THREADS)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._answer, request, body
        )

    async def aclose(self) -> None:
        self._threads.shutdown(wait=False)

    def _answer(self, request: httpx2.Request, body: bytes) -> httpx2.Response:
        started: list[Any] = []

        def start_response(
            status: str, headers: list[tuple[str, str]], exc_info: Any = None
        ) -> Any:
            if exc_info:
                raise exc_info[1]
            started[:] = [status, headers]
            return _do_not_write

        chunks = self._app(
            environ_of(
                request.method,
                str(request.url.raw_path, "ascii"),
                request.headers.raw,
                body,
                script_name=self._script_name,
            ),
            start_response,
        )
        try:
            content = b"".join(chunks)
        finally:
            getattr(chunks, "close", lambda: None)()
        status, headers = started
        return httpx2.Response(int(status.split()[0]), headers=headers, content=content)


def environ_of(
    method: str,
    target: str,
    headers: Iterable[tuple[bytes, bytes]],
    body: bytes = b"",
    *,
    script_name: str = "",
) -> dict[str, Any]:
    """The environment that a server makes of a request (RFC 3875 section 4.1.18, PEP 3333)."""
    path, _, query = target.partition("?")
    fields: dict[str, str] = {}
    for name, value in headers:
        key = name.decode("latin-1").upper().replace("-", "_")
        key = key if key in _STANDARD else f"HTTP_{key}"
        fields[key] = (
            f"{fields[key]},{value.decode('latin-1')}" if key in fields else value.decode("latin-1")
        )
    return {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": script_name,
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1").removeprefix(script_name),
        "QUERY_STRING": query,
        "SERVER_NAME": "tenantry.test",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "203.0.113.9",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        **fields,
    }


def _do_not_write(_chunk: bytes) -> None:
    raise AssertionError("write() is for old applications only")
