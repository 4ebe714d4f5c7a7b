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

import msgspec

from tenantry.auth.admission import Admitted
from tenantry.auth.authentication import Rejected
from tenantry.auth.credentials import Sender
from tenantry.auth.rejection_throttle import no_throttle
from tenantry.common.clock import DEFAULT_TIMEOUTS, Clock, Timeouts, system_clock
from tenantry.domain.entitlements import Consumed
from tenantry.domain.errors import AuthUnavailableError
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.rejections import KnownSender, RefusedRequest
from tenantry.in_process.application_request import ClientAddress, wsgi_request
from tenantry.in_process.principals import Use, UsedKey, WsgiPrincipal
from tenantry.in_process.tenantry import (
    AsgiAuthenticator,
    InProcessConnection,
)
from tenantry.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")

# seconds, so that the limit of the event loop, which knows the cause, comes first
_MARGIN: Final = 0.2
_NO_ANSWER: Final = "Authentication does not answer. Try again shortly."
_STOPPING: Final = "The application is stopping."

logger = logging.getLogger(__name__)


class WsgiAuthenticator(InProcessConnection):
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
        self._lock = Lock()
        self._thread: _EventLoopThread | None = None
        self._of_parents: list[_EventLoopThread] = []
        reference = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _start_anew(reference()))

    def admit(
        self, environ: Mapping[str, Any], *, client_address: ClientAddress | None = None
    ) -> Admitted:
        """Authenticate and count the request of a WSGI environment; ``client_address`` is as for
        the middleware. Raises the service's refusals (`DomainError`).
        """
        return self.call(self.authenticate, self.sender_of(wsgi_request(environ), client_address))

    async def check(self, sender: Sender) -> Admitted | Rejected:
        """Do so on the event loop."""
        return await self._connection().check(sender)

    def record_rejection(self, sender: KnownSender, request: RefusedRequest) -> None:
        thread = self._thread
        if thread is not None:
            thread.tenantry.record_rejection(sender, request)

    def caller_of(self, principal: RequestPrincipal) -> WsgiPrincipal:
        return WsgiPrincipal(
            *msgspec.structs.astuple(principal), consumer=self.consume, returner=self.give_back
        )

    def consume(self, principal: RequestPrincipal, use: Use) -> Consumed:
        """Count a use, as `WsgiPrincipal.consume`."""
        return self.call(self._consume, principal, use)

    async def _consume(self, principal: RequestPrincipal, use: Use) -> Consumed:
        return await self._connection().consume(principal, use)

    def give_back(self, principal: RequestPrincipal, used: UsedKey) -> Consumed:
        """Give a use back, as `WsgiPrincipal.give_back`."""
        return self.call(self._give_back, principal, used)

    async def _give_back(self, principal: RequestPrincipal, used: UsedKey) -> Consumed:
        return await self._connection().give_back(principal, used)

    def _connection(self) -> AsgiAuthenticator:
        """Return what the event loop uses."""
        thread = self._thread
        if thread is None:
            raise AuthUnavailableError(_STOPPING)
        return thread.tenantry

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
