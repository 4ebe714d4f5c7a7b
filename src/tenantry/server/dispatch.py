"""The dispatcher: every request enters here, and goes to a hot route or to Litestar."""

import asyncio
import logging
import math
from collections.abc import Callable, MutableMapping
from functools import cache
from time import perf_counter
from typing import Any, Final

from tenantry.auth.rejection_throttle import anonymous_throttle
from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.common.http import METHODS
from tenantry.domain.errors import (
    CompressedBodyError,
    DatabaseUnavailableError,
    HeadTooLargeError,
)
from tenantry.domain.rejections import KnownSender, RefusedRequest, sender_of
from tenantry.domain.usage import ACCEPTED, RequestOutcome, UsageSubject, outcome_of
from tenantry.server.asgi_types import (
    CALLER,
    CLAIMS,
    HOT_DISPATCHER,
    IS_HEAD,
    NEEDED,
    OPERATOR,
    OUTCOME,
    RATE_LIMITS,
    REJECTED_SENDER,
    REQUEST_ID,
    USAGE_SUBJECT,
    AsgiApp,
    ClientGoneError,
    DirectHandler,
    DirectRequest,
    Header,
    HotHandler,
    HotRequest,
    HotResponse,
    HotRoute,
    Receive,
    Scope,
    Send,
    header_of,
    is_compressed,
    request_id_of,
    send_response,
)
from tenantry.server.caching import CallerVary
from tenantry.server.client_limits import (
    CONNECTION_MONITOR,
    LIMIT_NAMES,
    ClientLimits,
    ConnectionMonitor,
)
from tenantry.server.cors import CORS_POLICY, CorsPolicy, is_api
from tenantry.server.load_shedding import OVERLOAD_DETECTOR, OverloadDetector
from tenantry.server.metrics import Metrics
from tenantry.server.problems import (
    CREDENTIAL,
    VARIES,
    Refusal,
    internal_error,
    refuse,
    refuse_domain_error,
    refuse_error,
)
from tenantry.server.protected_resource import ProtectedResource
from tenantry.server.rate_limit_headers import rate_headers
from tenantry.server.repeated_items import check_items, check_query, has_too_many_segments
from tenantry.server.security_headers import missing_headers, security_headers
from tenantry.server.shutdown import SHUTDOWN, Shutdown

_AUTHENTICATED: Final = (CALLER, CLAIMS, OPERATOR)
CLIENT_GONE: Final = 499  # in the metrics only
_NO_CONTENT: Final = 204
_WITH_BODIES: Final = frozenset({"POST", "PUT", "PATCH"})
# statuses of hot routes that do not concern the credential
_THROTTLED: Final = frozenset({400, 404, 405, 413, 415})
_CLIENT_ERRORS: Final = range(400, 500)

ErrorPage = Callable[[Scope, int, str], HotResponse | None]
"""Returns the HTML page for a request rejected with this status and request id, if it gets one."""
CountUsage = Callable[[UsageSubject, RequestOutcome], None]
"""Counts a request of a tenant's key or user."""
RecordRejection = Callable[[KnownSender, RefusedRequest], None]
"""Records that a request of a known credential was refused."""

logger = logging.getLogger(__name__)


class HotRoutes:
    """The routes that bypass the framework."""

    def __init__(self) -> None:
        self._exact: dict[tuple[str | None, str], HotRoute] = {}
        self._prefixes: list[tuple[str, HotRoute]] = []

    def add(
        self,
        method: str | None,
        path: str,
        handler: HotHandler,
        direct: DirectHandler | None = None,
    ) -> None:
        """Add a method of a path; None is every method."""
        self._exact[method, path] = HotRoute(path, handler, direct)

    def add_prefix(
        self,
        prefix: str,
        template: str,
        handler: HotHandler,
        direct: DirectHandler | None = None,
    ) -> None:
        """Add every method of every path below a prefix; ``template`` names the route in the
        metrics.
        """
        self._prefixes.append((prefix, HotRoute(template, handler, direct)))

    def find(self, method: str, path: str) -> HotRoute | None:
        found = self._exact.get((method, path)) or self._exact.get((None, path))
        if found is None:
            for prefix, route in self._prefixes:
                if path.startswith(prefix):
                    return route
        return found


class _TimedReceive:
    """An ASGI ``receive`` with a deadline in ``seconds``, which waits for the client postpone.

    It cancels the application if the client disconnects before its request is complete.
    """

    def __init__(self, receive: Receive, seconds: float) -> None:
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._is_complete = False
        self._deadline = self._loop.time() + seconds
        self._waits_since: float | None = None

    async def __call__(self) -> MutableMapping[str, Any]:
        if self._is_complete:
            return await self._receive()
        self._waits_since = self._loop.time()
        try:
            message = await self._receive()
        finally:
            self._deadline += self._loop.time() - self._waits_since
            self._waits_since = None
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        self._is_complete = not message.get("more_body", False)
        return message

    async def wait_for(self, work: "asyncio.Future[None]") -> None:
        """Wait until the application is done or its deadline has passed."""
        while (left := self._seconds_left()) > 0 and not work.done():
            await asyncio.wait([work], timeout=left if left < math.inf else None)

    def _seconds_left(self) -> float:
        return self._deadline - (
            self._loop.time() if self._waits_since is None else self._waits_since
        )


class Dispatcher:
    """The ASGI application, and the `HotDispatcher` that `HttpProtocol` calls directly.

    ``app`` must begin its response within ``deadline`` seconds, without waits for the client,
    except on the paths ``no_deadline``. ``throttled`` returns how many requests wait in a throttle.
    ``error_page`` makes the pages of requests that ``app`` does not answer. ``secure`` says that
    clients use https. ``cors`` permits pages of other origins to call the API. ``api_key_header``
    names the header for API keys, and ``resource`` is what 401s tell OAuth clients. ``usage``
    counts the requests of known credentials, and ``rejected`` records those that are refused.

    A HEAD request gets the response to GET without its body (RFC 9110 section 9.3.2).
    """

    def __init__(
        self,
        hot: HotRoutes,
        app: AsgiApp,
        metrics: Metrics,
        *,
        throttled: Callable[[], int] = lambda: 0,
        no_deadline: Callable[[str], bool] = lambda _: False,
        limits: ClientLimits | None = None,
        shutdown: Shutdown | None = None,
        error_page: ErrorPage = lambda _scope, _status, _request_id: None,
        secure: bool = False,
        cors: CorsPolicy | None = None,
        api_key_header: str | None = None,
        resource: ProtectedResource | None = None,
        deadline: float = DEFAULT_TIMEOUTS.request,
        usage: CountUsage = lambda _subject, _outcome: None,
        rejected: RecordRejection = lambda _sender, _request: None,
    ) -> None:
        self._security_headers = security_headers(secure=secure)
        self._cors = cors
        self._resource = resource
        self._vary = CallerVary(api_key_header)
        self._operators_vary = CallerVary(api_key_header, by_operator=True)
        self._hot = hot
        self.find = hot.find
        self._app = app
        self._metrics = metrics
        self._counter_of = cache(metrics.requests.labels)  # `labels` itself is slow
        self._timer_of = cache(metrics.seconds.labels)
        self._no_deadline = no_deadline
        self._count_usage = usage
        self._rejected = rejected
        self._error_page = error_page
        self._deadline = deadline
        self._throttle = anonymous_throttle()
        self._without_deadline = 0
        for limit in LIMIT_NAMES:
            metrics.closed_by_limit.labels(limit)  # so that it is reported as 0
        self.state: Final = {
            OVERLOAD_DETECTOR: OverloadDetector(
                metrics, lambda: self._without_deadline + self._throttle.waiting + throttled()
            ),
            CONNECTION_MONITOR: ConnectionMonitor(
                limits, lambda limit: metrics.closed_by_limit.labels(limit).inc()
            ),
            HOT_DISPATCHER: self,
            SHUTDOWN: shutdown or Shutdown(),
            CORS_POLICY: cors,
        }
        """What `HttpProtocol` finds in the lifespan state."""

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        if scope["type"] != "http":
            scope.setdefault("state", {}).update(self.state)
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        route = self._route_of(scope)
        if method == "HEAD":
            send = _without_body(send)
        if route is not None:
            response = await self.answer(route, HotRequest(scope, receive))
            if response.status != CLIENT_GONE:
                await send_response(send, response)
            return
        started = perf_counter()
        request_id = request_id_of(header_of(scope, b"x-request-id"))
        if method == "HEAD":
            scope = {**scope, "method": "GET", IS_HEAD: True}  # the server keeps its own scope
        scope[REQUEST_ID] = request_id.decode()
        status = await self._pass_on(scope, receive, send, request_id)
        self._count(
            scope,
            scope.get("path_template") or "unknown",
            method,
            status,
            perf_counter() - started,
        )

    def _route_of(self, scope: Scope) -> HotRoute | None:
        """Return the hot route of a request. A CORS preflight, which needs no credential, goes to
        no other route than its own.
        """
        method = scope["method"]
        path = scope["path"]
        if method == "OPTIONS" and self._cors is not None and self._cors.answers_preflight(scope):
            return self._cors.preflight_route
        return self.find(method, path) or (self.find("GET", path) if method == "HEAD" else None)

    async def answer(self, route: HotRoute, request: HotRequest) -> HotResponse:
        if request.started is None:
            request.started = perf_counter()
        try:
            response = await route.handler(request)
        except Exception as error:  # noqa: BLE001  # it is logged
            response = _response_to(error, request)
        _note_refusal(response, request)
        if response.status in _THROTTLED and _is_anonymous(request.scope):
            await self._throttle.wait()
        return self._finished(route, request, response, request.started)

    def begin(self, route: HotRoute, request: DirectRequest) -> bool:
        if route.direct is None:
            return False
        request.started = perf_counter()
        try:
            return route.direct.begin(request)
        except Exception:  # noqa: BLE001  # the handler meets the same error, and reports it
            return False

    def finish(self, route: HotRoute, request: HotRequest) -> HotResponse | None:
        if route.direct is None or request.started is None:
            return None
        try:
            response = route.direct.finish(request)
        except Exception as error:  # noqa: BLE001  # it is logged
            response = _response_to(error, request)
        if response is None:
            return None
        _note_refusal(response, request)
        return self._finished(route, request, response, request.started)

    def _finished(
        self, route: HotRoute, request: HotRequest, response: HotResponse, started: float
    ) -> HotResponse:
        """Complete and count a response."""
        scope = request.scope
        self._complete(response, scope, request.request_id)
        self._count(
            scope,
            route.template,
            scope["method"],
            response.status,
            perf_counter() - started,
        )
        return response

    def count_disconnect(self, route: HotRoute, request: HotRequest) -> None:
        self._counter_of(route.template, request.scope["method"], CLIENT_GONE).inc()

    def internal_error(self, request: HotRequest) -> HotResponse:
        return self._complete(
            internal_error(request.request_id.decode()), request.scope, request.request_id
        )

    async def _pass_on(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        request_id: bytes,
    ) -> int:
        """Let Litestar answer within the deadline, else respond with 503; return the status."""
        status = 0
        timed_out = False

        async def send_completed(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if timed_out:
                return
            if message["type"] == "http.response.start":
                # set first: the application has met its deadline, however long it waits
                status = message["status"]
                if status in _CLIENT_ERRORS and _is_anonymous(scope):
                    await self._throttle.wait()
                message["headers"] = [*message.get("headers", ())]
                self._add_headers(message["headers"], status, scope, request_id)
            await send(message)

        if refusal := _early_refusal(scope, request_id.decode()):
            return await self._refuse(refusal, scope, send, request_id)
        no_deadline = self._no_deadline(scope["path"])
        timed_receive = _TimedReceive(receive, math.inf if no_deadline else self._deadline)
        work = asyncio.ensure_future(self._app(scope, timed_receive, send_completed))
        self._without_deadline += no_deadline
        try:
            await timed_receive.wait_for(work)
        except asyncio.CancelledError:
            work.cancel()
            raise
        finally:
            self._without_deadline -= no_deadline
        if work.done():
            if work.cancelled():
                return CLIENT_GONE
            work.result()
            return status
        if status == 0:
            timed_out = True
            work.cancel()
            work.add_done_callback(_log_late_error)
            error = DatabaseUnavailableError("The database does not answer. Try again shortly.")
            return await self._refuse(
                refuse_domain_error(error, request_id.decode()), scope, send, request_id
            )
        await work
        return status

    async def _refuse(
        self,
        refusal: Refusal,
        scope: Scope,
        send: Send,
        request_id: bytes,
    ) -> int:
        refusal.note_in(scope)
        if refusal.status in _CLIENT_ERRORS:
            await self._throttle.wait()
        response = self._error_page(scope, refusal.status, request_id.decode()) or refusal
        await send_response(send, self._complete(response, scope, request_id))
        return response.status

    def _complete(
        self,
        response: HotResponse,
        scope: Scope,
        request_id: bytes,
    ) -> HotResponse:
        if response.status != _NO_CONTENT:  # which has no length (RFC 9110 section 8.6)
            response.headers.append((b"content-length", b"%d" % len(response.body)))
        self._add_headers(response.headers, response.status, scope, request_id)
        return response

    def _add_headers(
        self,
        headers: list[Header],
        status: int,
        scope: Scope,
        request_id: bytes,
    ) -> None:
        """Add what every response has."""
        headers += missing_headers(headers, self._security_headers)
        headers += rate_headers(scope.get(RATE_LIMITS, ()))
        if self._cors is not None:
            headers += self._cors.headers_of(scope)
        if self._resource is not None:
            self._resource.add_to(status, headers)
        if is_api(scope["path"]):
            vary = self._operators_vary if OPERATOR in scope else self._vary
            vary.add_to(headers)
        headers.append((b"x-request-id", request_id))

    def _count(
        self,
        scope: Scope,
        route: str,
        method: str,
        status: int,
        seconds: float,
    ) -> None:
        self._counter_of(route, method if method in METHODS else "other", status).inc()
        self._timer_of(route).observe(seconds)
        subject = scope.get(USAGE_SUBJECT)
        if subject is None:
            return
        code = scope.get(OUTCOME)
        outcome = ACCEPTED if code is None else outcome_of(code)
        if outcome is not None:
            self._count_usage(subject, outcome)
        if code is not None:
            self._rejected(_known_sender(scope), _refused_request(scope, route, status, code))


def _response_to(error: Exception, request: HotRequest) -> HotResponse:
    """Return the response to a request of a hot route that failed."""
    if isinstance(error, ClientGoneError):
        return HotResponse(CLIENT_GONE, [])
    return refuse_error(error, request.request_id.decode())


def _note_refusal(response: HotResponse, request: HotRequest) -> None:
    if isinstance(response, Refusal):
        response.note_in(request.scope)
        request.scope[REQUEST_ID] = request.request_id.decode()


def _known_sender(scope: Scope) -> KnownSender:
    """Return the sender of a request that counts in somebody's usage."""
    return scope.get(REJECTED_SENDER) or sender_of(scope[CALLER])


def _refused_request(scope: Scope, route: str, status: int, code: str) -> RefusedRequest:
    client = scope.get("client")
    return RefusedRequest(
        status=status,
        code=code,
        needed=scope.get(NEEDED),
        route=route,
        request_id=scope[REQUEST_ID],
        address=client[0] if client else None,
    )


def _is_anonymous(scope: Scope) -> bool:
    """Whether a request had no credential, neither a valid nor a rejected one."""
    return not any(key in scope for key in _AUTHENTICATED) and scope.get(OUTCOME) not in CREDENTIAL


def _early_refusal(scope: Scope, request_id: str) -> Refusal | None:
    """Return the refusal of a request that the application must not see.

    The headers come first: the page of another refusal depends on them.
    """
    try:
        check_items(scope["headers"])
        check_query(scope["query_string"])
    except HeadTooLargeError as error:
        return refuse_domain_error(error, request_id)
    path = scope["path"]
    if "\x00" in path or has_too_many_segments(path, scope.get("raw_path")):
        return refuse(
            "not_found", "There is nothing at this address.", request_id, headers=[VARIES]
        )
    if scope["method"] in _WITH_BODIES and is_compressed(header_of(scope, b"content-encoding")):
        return refuse_domain_error(CompressedBodyError(), request_id)
    return None


def _log_late_error(work: "asyncio.Future[None]") -> None:
    if not work.cancelled() and (error := work.exception()):
        logger.info("a request failed after its deadline with %s", type(error).__name__)


def _without_body(send: Send) -> Send:
    has_ended = False

    async def send_head(message: MutableMapping[str, Any]) -> None:
        nonlocal has_ended
        if message["type"] != "http.response.body":
            await send(message)
        elif not has_ended:
            has_ended = True
            await send({"type": "http.response.body"})

    return send_head
