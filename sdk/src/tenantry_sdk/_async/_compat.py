"""What differs between the two clients: sleeping, deadlines, background tasks. Each has its own
version.
"""

from __future__ import annotations

import importlib
import inspect
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from tenantry_sdk._response import Response, ResponseReader
from tenantry_sdk.errors import TenantryError, TokenRefreshError, TokenTimedOutError

if TYPE_CHECKING:
    import httpx2

    from tenantry_sdk._tokens import AsyncCallback

T = TypeVar("T")

Owner: TypeAlias = tuple[int, Any]
"""What connections and tasks belong to: a process and an event loop, which is a token on trio."""

_POLL: Final = 0.05


def current_owner() -> Owner:
    """Return the process and the running event loop."""
    import asyncio  # noqa: PLC0415

    try:
        return os.getpid(), asyncio.get_running_loop()
    except RuntimeError:
        return os.getpid(), _trio().current_trio_token()  # no loop of asyncio, so trio runs


def has_ended(owner: Owner) -> bool:
    """Whether it is another process, or its event loop does not run, closed or not."""
    pid, loop = owner
    if pid != os.getpid():
        return True
    if hasattr(loop, "is_running"):
        return not loop.is_running()
    try:
        loop.run_sync_soon(int, idempotent=True)
    except RuntimeError:
        return True
    return False


async def close(clients: Mapping[Owner, httpx2.AsyncClient]) -> None:
    """Close the client of this event loop, and let each other event loop that runs close its
    own.
    """
    for owner, client in clients.items():
        if owner == current_owner():
            await client.aclose()
        elif not has_ended(owner):
            loop = owner[1]
            soon = (
                loop.call_soon_threadsafe
                if hasattr(loop, "call_soon_threadsafe")
                else loop.run_sync_soon
            )
            with suppress(RuntimeError):  # it has ended just now
                soon(_start_closing, client)


def _start_closing(client: httpx2.AsyncClient) -> None:
    with suppress(RuntimeError):  # trio is ending
        SharedTask(client.aclose)


async def sleep(seconds: float) -> None:
    """Sleep."""
    import anyio  # noqa: PLC0415  # slow to import, as in the other functions

    await anyio.sleep(seconds)


async def fetch(
    client: httpx2.AsyncClient,
    request: httpx2.Request,
    seconds: float,
    idempotency_key: str | None = None,
) -> Response:
    """Send a request and read the complete response to the call with this idempotency key.

    Raises `TimeoutError` when that takes longer than ``seconds``, `UnreadableAnswerError` for a
    body that is too large.
    """
    import anyio  # noqa: PLC0415

    with anyio.fail_after(seconds):
        response = await client.send(
            request,
            auth=None,
            follow_redirects=False,
            stream=True,
        )
        try:
            reader = ResponseReader(response, idempotency_key)
            async for piece in response.aiter_bytes():
                reader.add(piece)
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()
    return reader.response()


def shielded() -> AbstractContextManager[object]:
    """Let the block end although its task is canceled."""
    import anyio  # noqa: PLC0415

    return anyio.CancelScope(shield=True)


async def in_thread(function: Callable[[], T]) -> T:
    """Return the result of a function that may block."""
    import anyio.to_thread  # noqa: PLC0415

    return await anyio.to_thread.run_sync(function)


async def called(function: AsyncCallback) -> object:
    """Call the caller's function, synchronous or not. Raises `TokenRefreshError` if it fails."""
    try:
        given = await in_thread(function)
        return await given if inspect.isawaitable(given) else given
    except TenantryError:
        raise
    except Exception as error:
        raise TokenRefreshError(f"The token function failed: {type(error).__name__}.") from error


class SharedTask(Generic[T]):
    """Shared work that continues even if every waiting caller is canceled."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        import anyio  # noqa: PLC0415

        self.begun = time.monotonic()
        self._work = work
        self._done = anyio.Event()
        self._owner = current_owner()
        self._result: T | None = None
        self._error: TenantryError | None = None
        self._task = _detached(self._run)

    @property
    def is_over(self) -> bool:
        """Whether it is done, or has ended with its event loop."""
        return self._done.is_set() or has_ended(self._owner)

    async def outcome(self, seconds: float) -> T | None:
        """Return its result or raise its error; None if another event loop ended before the task
        was done.

        Raises `TokenTimedOutError` if it takes more than ``seconds``.
        """
        import anyio  # noqa: PLC0415

        try:
            with anyio.fail_after(max(0.0, seconds)):
                if self._owner == current_owner():
                    await self._done.wait()
                while not self.is_over:  # noqa: ASYNC110  # an event wakes only its own loop
                    await anyio.sleep(_POLL)
        except TimeoutError:
            raise TokenTimedOutError("The identity provider has not answered yet.") from None
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._result is None and self._owner == current_owner():
            raise TokenRefreshError("Fetching a token was canceled.")
        return self._result

    async def _run(self) -> None:
        try:
            self._result = await self._work()
        except TenantryError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001  # passed on to the callers
            self._error = TokenRefreshError(f"Fetching a token failed: {type(error).__name__}.")
        finally:
            self._done.set()


def _detached(work: Callable[[], Awaitable[None]]) -> object:
    """Start detached work: canceling its starter does not end it."""
    import asyncio  # noqa: PLC0415

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _trio().spawn_system_task(work)
    return asyncio.ensure_future(work())


def _trio() -> Any:  # noqa: ANN401  # trio need not be installed
    return importlib.import_module("trio").lowlevel
