"""What differs between the two clients: waiting, deadlines, work that goes on. Each has a file of this name."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from tenantry_sdk._request import Answer, Response
from tenantry_sdk.errors import TenantryError, TokenRefreshError, TokenTimedOutError

if TYPE_CHECKING:
    import httpx2

    from tenantry_sdk._tokens import Callback

T = TypeVar("T")


def sleep(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


def fetch(client: httpx2.Client, request: httpx2.Request, seconds: float) -> Response:
    """Send a request and read the whole answer.

    Runs in a thread, because nothing else bounds the lookup of a host name or an answer that arrives byte by byte.
    Raises `TimeoutError` when that takes longer than ``seconds``, `UnreadableAnswerError` for far too much.
    """
    ends = time.monotonic() + seconds

    def read() -> Response:
        response = client.send(request, auth=None, follow_redirects=False, stream=True)
        try:
            answer = Answer(response.status_code, response.headers)
            for piece in response.iter_bytes():
                answer.add(piece)
                if time.monotonic() > ends:
                    raise TimeoutError  # the caller has timed out
        finally:
            response.close()
        return answer.response()

    return Work(read, daemon=True).result(seconds)


def in_thread(function: Callable[[], T]) -> T:
    """What a function gives that may block."""
    return function()


def called(function: Callback) -> object:
    """What a caller's function gives. Raises `TokenRefreshError` where it fails."""
    try:
        return function()
    except TenantryError:
        raise
    except Exception as error:
        raise TokenRefreshError(f"The function that gives tokens failed: {type(error).__name__}.") from error


Guard = threading.Lock
"""One thread at a time."""


class Work(Generic[T]):
    """A function in a separate thread."""

    def __init__(self, function: Callable[[], T], *, daemon: bool) -> None:
        """At the end of the program, what is ``daemon`` ends with it, and the rest is waited for."""
        self._function = function
        self._done = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(self._run,), daemon=daemon, name="tenantry-sdk")
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending, and starts no thread any more
            self._run()

    @property
    def is_over(self) -> bool:
        """Whether there is an outcome."""
        return self._done.is_set()

    def result(self, seconds: float) -> T:
        """What it gives. Raises what it raised, and `TimeoutError` where it is not over within ``seconds``."""
        if not self._done.wait(max(0.0, seconds)):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        assert self._result is not None  # noqa: S101  # it is over, and without an error
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is the caller's
            self._error = error
        finally:
            self._done.set()


class Flight(Work[T]):
    """Shared work that continues even if every waiting caller times out."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.begun = time.monotonic()
        super().__init__(work, daemon=False)

    def outcome(self, seconds: float) -> T:
        """What it comes to. Raises what it raised, and `TokenTimedOutError` where it is not over within ``seconds``."""
        try:
            return self.result(seconds)
        except TimeoutError:
            raise TokenTimedOutError("A token is still being fetched.") from None
        except TenantryError:
            raise
        except Exception as error:
            raise TokenRefreshError(f"Fetching a token ended: {type(error).__name__}.") from error
