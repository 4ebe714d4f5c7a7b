"""The request log: a dispatcher that logs a line, records a span, or both, for each request."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any, Final

from tenantry.common.http import METHODS
from tenantry.common.logs import FIELDS, REQUESTS
from tenantry.common.tracing import RequestSpan, Tracing
from tenantry.domain.permissions import RequestPrincipal
from tenantry.server import asgi_types
from tenantry.server.asgi_types import (
    DirectRequest,
    HotRequest,
    HotResponse,
    HotRoute,
    Receive,
    Scope,
    Send,
)
from tenantry.server.dispatch import CLIENT_GONE, Dispatcher

UNLOGGED_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_UNKNOWN: Final = "unknown"
_FIRST_ERROR_STATUS: Final = 400

logger = logging.getLogger(REQUESTS)


class LoggingDispatcher(Dispatcher):
    """A `Dispatcher` that records a span for each request if there is ``tracing``, and a line if it
    ``logs``.
    """

    def __init__(self, *args: Any, tracing: Tracing | None, logs: bool, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **options)
        self._tracing = tracing
        self._logs = logs

    async def answer(self, route: HotRoute, request: HotRequest) -> HotResponse:
        with self._recorded(request.scope, request.request_id) as record:
            response = await super().answer(route, request)
            record.status = response.status
            record.route = route.template
            return response

    def begin(self, route: HotRoute, request: DirectRequest) -> bool:
        """Leave every request to `answer`: a span belongs to a task."""
        del route, request
        return False

    async def _pass_on(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        request_id: bytes,
    ) -> int:
        with self._recorded(scope, request_id) as record:
            try:
                record.status = await super()._pass_on(scope, receive, send, request_id)
            finally:
                record.route = scope.get("path_template") or _UNKNOWN
            return record.status

    @contextmanager
    def _recorded(self, scope: Scope, request_id: bytes) -> Iterator["_RequestRecord"]:
        record = _RequestRecord()
        if scope["path"] in UNLOGGED_PATHS:
            yield record
            return
        started = perf_counter()
        method = "HEAD" if asgi_types.IS_HEAD in scope else str(scope["method"])
        with self._span(scope, method) as span:
            try:
                yield record
            finally:
                fields = _fields(scope, request_id, record.status)
                if span is not None:
                    attributes = {f"tenantry.{name}": value for name, value in fields.items()}
                    span.note(record.status, record.route, attributes)
                    fields["trace_id"] = span.trace_id
                if self._logs:
                    _log(method, record, perf_counter() - started, fields)

    def _span(self, scope: Scope, method: str) -> AbstractContextManager[RequestSpan | None]:
        if self._tracing is None:
            return nullcontext()
        parent = asgi_types.header_of(scope, b"traceparent")
        return self._tracing.request(
            method, scope.get("scheme", "http"), parent.decode("latin-1") if parent else None
        )


class _RequestRecord:
    """The result of a request. If the client disconnects, the status stays."""

    status = CLIENT_GONE
    route = _UNKNOWN


def _log(method: str, record: _RequestRecord, seconds: float, fields: dict[str, str]) -> None:
    method = method if method in METHODS else "other"
    result = {"method": method, "route": record.route, "status": record.status}
    logger.info(
        "%s %s %d",
        *result.values(),
        extra={FIELDS: {**fields, **result, "duration_ms": round(seconds * 1000, 2)}},
    )


def _fields(scope: Scope, request_id: bytes, status: int) -> dict[str, str]:
    caller: RequestPrincipal | None = scope.get(asgi_types.CALLER)
    fields = {"request_id": request_id.decode()}
    if tenant := caller.org_id if caller else scope.get(asgi_types.TENANT):
        fields["tenant"] = tenant
    others = "operator" if asgi_types.OPERATOR in scope else "none"
    fields["principal"] = caller.kind.value if caller else others
    if event := scope.get(asgi_types.EVENT):
        fields["event"], fields["event_type"] = event
    fields["outcome"] = scope.get(asgi_types.OUTCOME) or (
        "ok" if status < _FIRST_ERROR_STATUS else "refused"
    )
    return fields
