"""Authenticates the requests of applications whose threads have no event loop."""

import asyncio
import atexit
import logging
import os
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from threading import Lock, Thread
from typing import Any, Final, ParamSpec, Self, TypeVar

from tenantry.auth.admission import Admitted
from tenantry.auth.rejection_throttle import no_throttle
from tenantry.common.clock import DEFAULT_TIMEOUTS, Clock, Timeouts, system_clock
from tenantry.domain.errors import AuthUnavailableError
from tenantry.in_process.tenantry import (
    AsgiAuthenticator,
    Credentials,
    InProcessConfiguration,
    client_address,
)
from tenantry.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")

# seconds, so that the limit of the event loop, which knows the cause, comes first
_MARGIN: Final = 0.2
_NO_ANSWER: Final = "Authentication does not answer. Try again shortly."
_STOPPING: Final = "The application is stopping."

logger = logging.getLogger(__name__)


class WsgiAuthenticator(InProcessConfiguration):
    """Authenticates the requests of all threads of a process on one event loop, which runs in
    another thread.

    The loop starts with the first request of a process. A forked process starts another one, so a
    server may load the application before it forks. The loop ends with the process, by `close`, or
    with the block of ``with tenantry``.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock = system_clock,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        super().__init__(settings, clock=clock, timeouts=timeouts)
        self._credential_variables = [*map(_variable_of, self.finder.header_names)]
        self._lock = Lock()
        self._thread: _EventLoopThread | None = None
        self._of_parents: list[_EventLoopThread] = []
        reference = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _start_anew(reference()))

    def admit(self, environ: Mapping[str, Any]) -> Admitted:
        """Authenticate and count the request of a WSGI environment. Raises the service's refusals
        (`DomainError`).
        """
        return self.call(self.authenticate, self.credentials_of(environ))

    def credentials_of(self, environ: Mapping[str, Any]) -> Credentials:
        """Return the credentials of a WSGI request."""
        return Credentials(
            header_in(environ, "HTTP_AUTHORIZATION"),
            header_in(environ, "HTTP_X_ORGANIZATION_ID"),
            client_address(environ.get("REMOTE_ADDR")),
            self.finder.read_key(lambda name: header_in(environ, _variable_of(name))),
        )

    def has_credential(self, environ: Mapping[str, Any]) -> bool:
        """Whether a WSGI request has a header for a credential, be it an empty one."""
        return any(name in environ for name in self._credential_variables)

    async def authenticate(self, credentials: Credentials) -> Admitted:
        """Authenticate and count a request, on the event loop. Raises the service's refusals
        (`DomainError`).
        """
        thread = self._thread
        if thread is None:
            raise AuthUnavailableError(_STOPPING)
        return await thread.tenantry.authenticate(credentials)

    def call(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a function on the event loop. Raises `AuthUnavailableError` after the time limit of a
        request.
        """
        deadline = self._deadline()
        loop = self._running_loop(deadline)
        future = _submit(function(*args, **kwargs), loop)
        try:
            return future.result(deadline - time.monotonic())
        except (TimeoutError, CancelledError) as error:
            future.cancel()
            raise AuthUnavailableError(_NO_ANSWER) from error

    async def call_async(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do the same in a process that has an event loop, too, without blocking it."""
        deadline = self._deadline()
        thread = self._thread
        if thread is not None and thread.is_usable() and thread.loop.done():
            loop = thread.loop.result()
        else:
            loop = await asyncio.to_thread(self._running_loop, deadline)
        future = asyncio.wrap_future(_submit(function(*args, **kwargs), loop))
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await future
        except TimeoutError as error:
            raise AuthUnavailableError(_NO_ANSWER) from error

    def close(self) -> None:
        """Write pending data, and disconnect. Requests that come later start another loop."""
        with self._lock:
            thread = self._thread
            self._thread = None
        if thread is not None:
            atexit.unregister(self.close)
            thread.end(self._timeouts.request + _MARGIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forget(self) -> None:
        """Use no thread of a parent process. What belongs to it stays as it is: it shares sockets
        with the parent.
        """
        thread = self._thread
        self._thread = None
        if thread is not None:
            self._of_parents.append(thread)  # so that nothing of it is closed
        self._lock = Lock()  # another thread of the parent may have held it

    def _deadline(self) -> float:
        return time.monotonic() + self._timeouts.request + _MARGIN

    def _running_loop(self, deadline: float) -> asyncio.AbstractEventLoop:
        thread = self._thread
        if thread is None or not thread.is_usable():
            with self._lock:
                thread = self._thread
                if thread is None or not thread.is_usable():
                    atexit.register(self.close)
                    tenantry = AsgiAuthenticator(
                        self._settings, clock=self._clock, timeouts=self._timeouts
                    )
                    thread = self._thread = _EventLoopThread(tenantry)
        try:
            return thread.loop.result(deadline - time.monotonic())
        except TimeoutError as error:
            raise AuthUnavailableError(_NO_ANSWER) from error


def _submit(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> Future[T]:
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError as error:  # the loop is closed
        coroutine.close()
        raise AuthUnavailableError(_STOPPING) from error


def _start_anew(tenantry: WsgiAuthenticator | None) -> None:
    if tenantry is not None:
        tenantry.forget()


class _EventLoopThread:
    """An event loop with an open connection, in a daemon thread, which does not keep the process
    from ending.
    """

    def __init__(self, tenantry: AsgiAuthenticator) -> None:
        self.tenantry = tenantry
        self.loop: Future[asyncio.AbstractEventLoop] = Future()
        self._ended = asyncio.Event()
        self._thread = Thread(target=self._run, name="tenantry", daemon=True)
        self._thread.start()

    def is_usable(self) -> bool:
        """Whether the loop runs or is about to."""
        return self._thread.is_alive()

    def end(self, seconds: float) -> None:
        """Disconnect and end the loop, also one that is still connecting; wait at most ``seconds``
        for it.
        """
        self.loop.add_done_callback(self._set_ended)
        self._thread.join(seconds)

    def _set_ended(self, loop: Future[asyncio.AbstractEventLoop]) -> None:
        if loop.exception() is None:
            with suppress(RuntimeError):  # it is closed
                loop.result().call_soon_threadsafe(self._ended.set)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            logger.exception("authentication ended")
            if not self.loop.done():
                self.loop.set_exception(error)

    async def _serve(self) -> None:
        # The threads bound the rejections. One that waits would take the thread from accepted
        # requests.
        await self.tenantry.connect(no_throttle())
        try:
            self.loop.set_result(asyncio.get_running_loop())
            await self._ended.wait()
        finally:
            await self.tenantry.stop()


def _variable_of(header: bytes) -> str:
    """Return the name that WSGI gives a header (RFC 3875 section 4.1.18)."""
    return "HTTP_" + header.decode().upper().replace("-", "_")


def header_in(environ: Mapping[str, Any], name: str) -> bytes | None:
    """Return a header's value (``HTTP_...``). The server has joined several by commas (RFC 3875
    section 4.1.18).
    """
    value = environ.get(name)
    if value is None:
        return None
    return str(value).encode("latin-1", "replace")
