"""What differs between the two clients: sleeping, deadlines, background tasks. Each has its own
version.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from tenantry_sdk._response import Response, ResponseReader
from tenantry_sdk.errors import TenantryError, TokenRefreshError, TokenTimedOutError

if TYPE_CHECKING:
    import httpx2

    from tenantry_sdk._tokens import Callback

T = TypeVar("T")


Owner: TypeAlias = int
"""What connections belong to: a process."""


def current_owner() -> Owner:
    """Return the process."""
    return os.getpid()


def has_ended(owner: Owner) -> bool:
    """Whether it is another process."""
    return owner != os.getpid()


def close(clients: Mapping[Owner, httpx2.Client]) -> None:
    """Close the client of this process."""
    if (client := clients.get(current_owner())) is not None:
        client.close()


def sleep(seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds)


def fetch(
    client: httpx2.Client,
    request: httpx2.Request,
    seconds: float,
    idempotency_key: str | None = None,
) -> Response:
    """Send a request and read the complete response to the call with this idempotency key.

    Runs in a thread, because nothing else bounds the lookup of a host name or an answer that
    arrives byte by byte. Raises `TimeoutError` when that takes longer than ``seconds``,
    `UnreadableAnswerError` for a body that is too large.
    """
    ends = time.monotonic() + seconds

    def read() -> Response:
        response = client.send(
            request,
            auth=None,
            follow_redirects=False,
            stream=True,
        )
        try:
            reader = ResponseReader(response, idempotency_key)
            for piece in response.iter_bytes():
                reader.add(piece)
                if time.monotonic() > ends:
                    raise TimeoutError  # the caller has timed out
        finally:
            response.close()
        return reader.response()

    return Work(read, daemon=True).result(seconds)


def shielded() -> AbstractContextManager[object]:
    """Change nothing: nothing cancels a thread."""
    return nullcontext()


def in_thread(function: Callable[[], T]) -> T:
    """Return the result of a function that may block."""
    return function()


def called(function: Callback) -> object:
    """Call the caller's function. Raises `TokenRefreshError` if it fails."""
    try:
        return function()
    except TenantryError:
        raise
    except Exception as error:
        raise TokenRefreshError(f"The token function failed: {type(error).__name__}.") from error


class Work(Generic[T]):
    """A function in a separate thread."""

    def __init__(self, function: Callable[[], T], *, daemon: bool) -> None:
        """The program waits at its end for a task that is not a ``daemon``."""
        self._function = function
        self._done = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run, args=(self._run,), daemon=daemon, name="tenantry-sdk"
        )
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down and starts no threads
            self._run()

    @property
    def is_over(self) -> bool:
        """Whether it is done."""
        return self._done.is_set()

    def result(self, seconds: float) -> T:
        """Return its result or raise its error. Raises `TimeoutError` if it takes more than
        ``seconds``.
        """
        if not self._done.wait(max(0.0, seconds)):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        assert self._result is not None  # noqa: S101  # it is done, without an error
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001  # passed on to the caller
            self._error = error
        finally:
            self._done.set()


class SharedTask(Work[T]):
    """Shared work that continues even if every waiting caller times out."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.begun = time.monotonic()
        super().__init__(work, daemon=False)

    def outcome(self, seconds: float) -> T:
        """Return its result or raise its error. Raises `TokenTimedOutError` if it takes more than
        ``seconds``.
        """
        try:
            return self.result(seconds)
        except TimeoutError:
            raise TokenTimedOutError("The identity provider has not answered yet.") from None
        except TenantryError:
            raise
        except Exception as error:
            raise TokenRefreshError(f"Fetching a token failed: {type(error).__name__}.") from error
