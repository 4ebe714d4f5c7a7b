"""The front of the service: every request comes in here.

It gives the request its id, answers the hot routes itself, hands the rest to Litestar, and counts.
"""

import asyncio
import logging
from collections.abc import Callable, MutableMapping
from time import perf_counter
from typing import Any, Final

from prometheus_client import Counter

from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.common.methods import METHODS
from tenantry.domain.errors import DomainError
from tenantry.server.asgi_types import (
    HOT_DOOR,
    OUTCOME,
    AsgiApp,
    ClientGoneError,
    HotRoute,
    RawAnswer,
    RawHandler,
    RawRequest,
    Receive,
    Scope,
    Send,
    header_of,
    request_id_of,
)
from tenantry.server.client_timeouts import COUNTED, WATCH, Limits, Watch
from tenantry.server.metrics import Metrics
from tenantry.server.overload_detection import GATE, OverloadDetector
from tenantry.server.problems import RETRY_AFTER, UNSUPPORTED_MEDIA_TYPE, VARIES, Refusal, refuse, refuse_domain_error
from tenantry.server.rate_limits import AnonymousThrottle, headers_of, is_stranger
from tenantry.server.request_timing import Arrival
from tenantry.server.security_headers import lacking, safeguards
from tenantry.server.shutdown import ENDING, Shutdown

REQUEST_ID: Final = "tenantry.request_id"
"""Where the ASGI scope holds the request's id."""
IS_HEAD: Final = "tenantry.is_head"
"""Where the ASGI scope says that a GET is a HEAD in truth: it gets a GET's answer, and has no effect of its own."""

CLIENT_GONE: Final = 499  # for the metrics alone: nobody is there to read it
_WITH_BODIES: Final = frozenset({"POST", "PUT", "PATCH"})
_HELD: Final = frozenset({400, 404, 405, 413, 415})
"""Refusals of hot routes that say nothing about a credential."""
_CLIENT_ERRORS: Final = range(400, 500)

PageOf = Callable[[Scope, int, str], RawAnswer | None]
"""Gives the page for a request that is refused with a status; with its id."""

logger = logging.getLogger(__name__)


class HotRoutes:
    """The routes that are answered without a framework."""

    def __init__(self) -> None:
        self._exact: dict[tuple[str, str], HotRoute] = {}
        self._any_method: dict[str, HotRoute] = {}
        self._prefixes: list[tuple[str, HotRoute]] = []

    def add(self, method: str, path: str, handler: RawHandler) -> None:
        """Answer one method of one path."""
        self._exact[method, path] = HotRoute(path, handler)

    def add_any_method(self, path: str, handler: RawHandler) -> None:
        """Answer every method of one path."""
        self._any_method[path] = HotRoute(path, handler)

    def add_prefix(self, prefix: str, template: str, handler: RawHandler) -> None:
        """Answer every method of every path below a prefix; ``template`` names the route in the metrics."""
        self._prefixes.append((prefix, HotRoute(template, handler)))

    def find(self, method: str, path: str) -> HotRoute | None:
        """The route, if the path is a hot one."""
        found = self._exact.get((method, path)) or self._any_method.get(path)
        if found is None:
            for prefix, route in self._prefixes:
                if path.startswith(prefix):
                    return route
        return found


class Front:
    """The ASGI application, and the `HotDoor` for a server's protocol that knows of it.

    What is put around it sees no request of the hot routes then: they come in by that door.

    ``app`` has ``deadline`` seconds to begin its answer, not counting waits for the client, except on the paths
    ``no_deadline``. ``paced`` says how many requests wait because they are made to. ``limits`` are for the clients of
    the server's protocol. ``ending`` says how far the end of the process is. ``page_of`` gives
    the page for a request that does not get as far as ``app``, or no answer of it; None where it is to be a problem
    document. ``secure`` says that clients come by https.

    A HEAD is answered as a GET would be, without the body (RFC 9110 section 9.3.2).
    """

    def __init__(
        self,
        hot: HotRoutes,
        app: AsgiApp,
        metrics: Metrics,
        *,
        paced: Callable[[], int] = lambda: 0,
        no_deadline: Callable[[str], bool] = lambda _: False,
        limits: Limits | None = None,
        ending: Shutdown | None = None,
        page_of: PageOf = lambda _scope, _status, _request_id: None,
        secure: bool = False,
        deadline: float = DEFAULT_TIMEOUTS.request,
    ) -> None:
        self._safeguards = safeguards(secure=secure)
        self._hot = hot
        self.find = hot.find
        self._app = app
        self._metrics = metrics
        self._unhurried = no_deadline
        self._page_of = page_of
        self._deadline = deadline
        self._strangers = AnonymousThrottle()
        self._waiting = 0
        for limit in COUNTED:
            metrics.cut_short.labels(limit)  # 0, not nothing, until there is one
        self.state: Final = {
            GATE: OverloadDetector(metrics, lambda: self._waiting + self._strangers.waiting + paced()),
            WATCH: Watch(limits, lambda limit: metrics.cut_short.labels(limit).inc()),
            HOT_DOOR: self,
            ENDING: ending or Shutdown(),
        }
        """What the server's protocol finds in the state of the lifespan."""
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._timers: dict[str, Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or run the lifespan."""
        if scope["type"] != "http":
            scope.setdefault("state", {}).update(self.state)
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        route = self.find(method, path)
        if method == "HEAD":
            send = _without_body(send)
            route = route or self.find("GET", path)
        if route is not None:
            answer = await self.answer(route, RawRequest(scope, receive))
            if answer.status != CLIENT_GONE:
                await _send(send, answer)
            return
        started = perf_counter()
        request_id = request_id_of(header_of(scope, b"x-request-id"))
        if method == "HEAD":
            scope = {**scope, "method": "GET", IS_HEAD: True}  # the server goes by its own
        scope[REQUEST_ID] = request_id.decode()
        status = await self._pass_on(scope, receive, send, request_id)
        self._count(scope.get("path_template") or "unknown", method, status, perf_counter() - started)

    async def answer(self, route: HotRoute, request: RawRequest) -> RawAnswer:
        """The answer of a hot route; every fault is one too."""
        started = perf_counter()
        try:
            if request.scope["method"] in _WITH_BODIES and is_compressed(request.header(b"content-encoding")):
                answer = _noted(compressed(request.request_id.decode()), request.scope)
            else:
                answer = await route.handler(request)
        except DomainError as error:
            request.scope[OUTCOME] = error.code
            answer = _answer_of(refuse_domain_error(error, request.request_id.decode()))
        except ClientGoneError:
            answer = RawAnswer(CLIENT_GONE, [])
        except Exception:
            request_id = request.request_id.decode()
            logger.exception("request %s failed", request_id)
            answer = _noted(internal_error(request_id), request.scope)
        if answer.status in _HELD and is_stranger(request.scope):
            await self._strangers.hold()
        self._complete(answer, request.scope, request.request_id)
        self._count(route.template, request.scope["method"], answer.status, perf_counter() - started)
        return answer

    def count_gone(self, route: HotRoute, request: RawRequest) -> None:
        """Count a client that hung up before its request was whole."""
        self._counter(route.template, request.scope["method"], CLIENT_GONE).inc()

    def fault(self, request: RawRequest) -> RawAnswer:
        """The answer where there is none that could be sent."""
        refusal = internal_error(request.request_id.decode())
        return self._complete(_answer_of(refusal), request.scope, request.request_id)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, request_id: bytes) -> int:
        """Let Litestar answer, but no later than the deadline: past it the client is told to come again."""
        status = 0
        overdue = False

        async def send_with_id(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if overdue:
                return
            if message["type"] == "http.response.start":
                status = message["status"]  # the application has answered in time, however long that is held
                if status in _CLIENT_ERRORS and is_stranger(scope):
                    await self._strangers.hold()
                own = message.get("headers", ())
                message["headers"] = [
                    *own, *headers_of(scope), *lacking(own, self._safeguards), (b"x-request-id", request_id)
                ]  # fmt: skip
            await send(message)

        if refusal := _refusal_at_sight(scope, request_id.decode()):
            return await self._refuse(refusal, scope, send, request_id)
        arrival = Arrival(receive)
        work = asyncio.ensure_future(self._app(scope, arrival, send_with_id))
        no_deadline = self._unhurried(scope["path"])
        self._waiting += no_deadline
        try:
            await self._wait_for(work, None if no_deadline else arrival)
        except asyncio.CancelledError:
            work.cancel()
            raise
        finally:
            self._waiting -= no_deadline
        if work.done():
            if work.cancelled():
                return CLIENT_GONE
            work.result()
            return status
        if status == 0:
            overdue = True
            work.cancel()
            work.add_done_callback(_forget)
            return await self._refuse(too_late(request_id.decode()), scope, send, request_id)
        await work
        return status

    async def _wait_for(self, work: "asyncio.Future[None]", arrival: Arrival | None) -> None:
        """Wait until it is done, or has had the time for it without that of the client's ``arrival``."""
        loop = asyncio.get_running_loop()
        until, waited = loop.time() + self._deadline, 0.0
        while True:
            left = None if arrival is None else max(0.0, until + waited - loop.time())
            done, _ = await asyncio.wait({work}, timeout=left)
            if done or arrival is None or arrival.waited() <= waited:
                return
            waited = arrival.waited()

    async def _refuse(self, refusal: Refusal, scope: Scope, send: Send, request_id: bytes) -> int:
        scope[OUTCOME] = refusal.code
        if refusal.status in _CLIENT_ERRORS:
            await self._strangers.hold()
        answer = self._page_of(scope, refusal.status, request_id.decode()) or _answer_of(refusal)
        await _send(send, self._complete(answer, scope, request_id))
        return answer.status

    def _complete(self, answer: RawAnswer, scope: Scope, request_id: bytes) -> RawAnswer:
        """Add the headers that every answer has."""
        headers = answer.headers
        headers += lacking(headers, self._safeguards)
        headers.append((b"content-length", b"%d" % len(answer.body)))
        headers += headers_of(scope)
        headers.append((b"x-request-id", request_id))
        return answer

    def _count(self, route: str, method: str, status: int, seconds: float) -> None:
        self._counter(route, method, status).inc()
        timer = self._timers.get(route)
        if timer is None:
            timer = self._timers[route] = self._metrics.seconds.labels(route)
        timer.observe(seconds)

    def _counter(self, route: str, method: str, status: int) -> Counter:
        key = route, method if method in METHODS else "other", status
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = self._metrics.requests.labels(key[0], key[1], str(status))
        return counter


def internal_error(request_id: str) -> Refusal:
    """The answer to a fault of ours; what happened is in the log, under the request's id."""
    return refuse(500, "internal_error", "Something went wrong on our side.", request_id)


def nothing_here(request_id: str) -> Refusal:
    """The answer where an address cannot be that of anything."""
    return refuse(404, "not_found", "There is nothing at this address.", request_id, headers=[VARIES])


def _refusal_at_sight(scope: Scope, request_id: str) -> Refusal | None:
    if "\x00" in scope["path"]:
        return nothing_here(request_id)
    if scope["method"] in _WITH_BODIES and is_compressed(header_of(scope, b"content-encoding")):
        return compressed(request_id)
    return None


def is_compressed(encoding: bytes | None) -> bool:
    """Whether a body is sent in another form than its own."""
    return encoding is not None and encoding.strip().lower() not in (b"", b"identity")


def compressed(request_id: str) -> Refusal:
    """The answer to a body that would have to be unpacked first: a small one may be of any size then."""
    return refuse(
        415, UNSUPPORTED_MEDIA_TYPE, "Bodies are taken uncompressed: without Content-Encoding.", request_id,
        headers=[(b"accept-encoding", b"identity")],
    )  # fmt: skip


def too_late(request_id: str) -> Refusal:
    """The answer when the database has not answered in time."""
    return refuse(
        503, "database_unavailable", "The database does not answer. Try again shortly.", request_id,
        headers=[(b"retry-after", RETRY_AFTER.encode())],
    )  # fmt: skip


def _forget(work: "asyncio.Future[None]") -> None:
    if not work.cancelled() and (error := work.exception()):
        logger.info("a request that was past its deadline ended with %s", type(error).__name__)


def _noted(refusal: Refusal, scope: Scope) -> RawAnswer:
    scope[OUTCOME] = refusal.code
    return _answer_of(refusal)


def _answer_of(refusal: Refusal) -> RawAnswer:
    return RawAnswer(refusal.status, refusal.headers, refusal.body)


def _without_body(send: Send) -> Send:
    """Send the head of an answer alone, however much of a body follows."""
    has_ended = False

    async def send_head(message: MutableMapping[str, Any]) -> None:
        nonlocal has_ended
        if message["type"] != "http.response.body":
            await send(message)
        elif not has_ended:
            has_ended = True
            await send({"type": "http.response.body"})

    return send_head


async def _send(send: Send, answer: RawAnswer) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})
