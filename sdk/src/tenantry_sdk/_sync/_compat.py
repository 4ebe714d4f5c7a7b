"""What differs between the two clients: waiting, locks, deadlines. Each has a file of this name of its own."""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tenantry_sdk._request import Response
from tenantry_sdk.errors import TimedOutError

if TYPE_CHECKING:
    import httpx2

    from tenantry_sdk._store import Token
    from tenantry_sdk._tokens import Callback


def sleep(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


def fetch(client: httpx2.Client, request: httpx2.Request, seconds: float) -> Response:
    """Send a request and read the whole answer. Raises `TimeoutError` when that takes longer than ``seconds``.

    In a thread of its own: nothing else bounds the look-up of a host's name, or an answer that comes in bit by bit.
    """
    outcome: queue.SimpleQueue[Response | BaseException] = queue.SimpleQueue()

    def send() -> None:
        try:
            answer = client.send(request, follow_redirects=False)
            outcome.put(Response(answer.status_code, {k.lower(): v for k, v in answer.headers.items()}, answer.content))
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is the caller's
            outcome.put(error)

    threading.Thread(target=contextvars.copy_context().run, args=(send,), daemon=True, name="tenantry-sdk").start()
    try:
        result = outcome.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(result, BaseException):
        raise result
    return result


def called(function: Callback) -> str | Token:
    """What a caller's function gives."""
    return function()


class Lock:
    """One at a time, within this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def held(self, seconds: float) -> Generator[None]:
        """Hold it for the block. Raises `TimedOutError` when it is not free within ``seconds``."""
        if not self._lock.acquire(timeout=max(0.0, seconds)):
            raise TimedOutError("Another call is still fetching a token.")
        try:
            yield
        finally:
            self._lock.release()
