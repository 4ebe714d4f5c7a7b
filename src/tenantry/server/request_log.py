"""A front whose requests are told of: a line in the log for each, a span for each, or both.

One of its own, so that a service that wants neither does nothing for them.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import Any, Final

from tenantry.common.logs import FIELDS
from tenantry.common.methods import METHODS
from tenantry.common.tracing import RequestSpan, Tracing
from tenantry.domain.access import Principal
from tenantry.server.asgi_types import (
    CALLER,
    OPERATOR,
    OUTCOME,
    TENANT,
    HotRoute,
    RawAnswer,
    RawRequest,
    Receive,
    Scope,
    Send,
    header_of,
)
from tenantry.server.dispatch import CLIENT_GONE, IS_HEAD, Front

LOGGER: Final = "tenantry.requests"
UNTOLD: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""What is asked for all the time, by machines."""
_UNKNOWN: Final = "unknown"
_LEAST_REFUSAL: Final = 400

logger = logging.getLogger(LOGGER)


class WatchedFront(Front):
    """A `Front` with a span for each request where there is ``tracing``, and a line where it ``logs``."""

    def __init__(self, *parts: Any, tracing: Tracing | None, logs: bool, **more: Any) -> None:  # noqa: ANN401
        """The other arguments are those of `Front`."""
        super().__init__(*parts, **more)
        self._tracing = tracing
        self._logs = logs

    async def answer(self, route: HotRoute, request: RawRequest) -> RawAnswer:
        """The answer of a hot route; every fault is one too."""
        with self._told(request.scope, request.request_id) as told:
            answer = await super().answer(route, request)
            told.status, told.route = answer.status, route.template
            return answer

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, request_id: bytes) -> int:
        with self._told(scope, request_id) as told:
            try:
                told.status = await super()._pass_on(scope, receive, send, request_id)
            finally:
                told.route = scope.get("path_template") or _UNKNOWN
            return told.status

    @contextmanager
    def _told(self, scope: Scope, request_id: bytes) -> Iterator["_Told"]:
        told = _Told()
        if scope["path"] in UNTOLD:
            yield told
            return
        began = perf_counter()
        with self._span(scope) as span:
            try:
                yield told
            finally:
                facts = _facts(scope, request_id, told.status)
                if span is not None:
                    span.note(told.status, told.route, {f"tenantry.{name}": fact for name, fact in facts.items()})
                if self._logs:
                    _log(scope, told, facts, perf_counter() - began, span)

    def _span(self, scope: Scope) -> Any:  # noqa: ANN401  # a context manager, with or without a span
        if self._tracing is None:
            return nullcontext()
        parent = header_of(scope, b"traceparent")
        return self._tracing.request(
            _method_of(scope), scope.get("scheme", "http"), parent.decode("latin-1") if parent else None
        )


class _Told:
    """What is known of a request at its end; a client that hung up before it was answered leaves the status."""

    status = CLIENT_GONE
    route = _UNKNOWN


def _facts(scope: Scope, request_id: bytes, status: int) -> dict[str, str]:
    """Who asked, for which tenant, and what came of it."""
    caller: Principal | None = scope.get(CALLER)
    facts = {"request_id": request_id.decode()}
    if tenant := caller.org_id if caller else scope.get(TENANT):
        facts["tenant"] = tenant
    facts["principal"] = caller.kind.value if caller else "operator" if OPERATOR in scope else "none"
    facts["outcome"] = scope.get(OUTCOME) or ("ok" if status < _LEAST_REFUSAL else "refused")
    return facts


def _method_of(scope: Scope) -> str:
    return "HEAD" if IS_HEAD in scope else str(scope["method"])


def _log(scope: Scope, told: _Told, facts: dict[str, str], seconds: float, span: RequestSpan | None) -> None:
    method = _method_of(scope) if _method_of(scope) in METHODS else "other"
    fields: dict[str, str | int | float] = {
        **facts,
        "method": method,
        "route": told.route,
        "status": told.status,
        "duration_ms": round(seconds * 1000, 2),
    }
    if span is not None:
        fields["trace_id"] = span.trace_id
    logger.info("%s %s %d", method, told.route, told.status, extra={FIELDS: fields})
