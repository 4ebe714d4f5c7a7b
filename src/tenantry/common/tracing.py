"""OpenTelemetry spans, by the extra ``otel``. No attribute has client input but method and route
template.
"""

import importlib.util
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from uuid import uuid4

from tenantry.common.http import METHODS

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, SpanKind
    from opentelemetry.util.types import Attributes

    Trace: TypeAlias = Span
else:
    Trace = Any

MAX_LINKS: Final = 256  # of a span: the maximum number of requests in a batch
_PACKAGES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_NAME: Final = "tenantry"
_SERVER_ERROR: Final = 500
_CLIENT_ERROR: Final = 400
_CLOSE_TIMEOUT: Final = 5.0


def is_installed() -> bool:
    try:
        return all(map(importlib.util.find_spec, _PACKAGES))
    except ModuleNotFoundError:
        return False


class Tracing:
    """Makes spans, and exports them as the standard OTEL_* variables configure. Requires
    `is_installed`.
    """

    def __init__(self, version: str, *, exporter: "SpanExporter | None" = None) -> None:
        """``exporter`` replaces OTLP over HTTP."""
        from opentelemetry import context, trace  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        self._context = context
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        own = {
            "service.name": _NAME,
            "service.version": version,
            "service.instance.id": str(uuid4()),
        }
        # the environment takes precedence
        resource = Resource.create(own).merge(OTELResourceDetector().detect())
        limits = SpanLimits(max_links=MAX_LINKS)
        self._provider = TracerProvider(
            resource=resource, span_limits=limits, shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer(_NAME, version)

    def close(self) -> None:
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT)

    def current(self) -> Trace | None:
        span = self._trace.get_current_span()
        return span if span.is_recording() else None

    def traceparent(self) -> str | None:
        """Return the current span's context for a job that continues it (W3C Trace Context)."""
        if self.current() is None:
            return None
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier.get("traceparent")

    @contextmanager
    def request(
        self,
        method: str,
        scheme: str,
        traceparent: str | None,
    ) -> Iterator["RequestSpan"]:
        """Record a request, in its sender's trace if it has one."""
        known = method if method in METHODS else "_OTHER"
        attributes = {"http.request.method": known, "url.scheme": scheme}
        with self._span(
            known, self._trace.SpanKind.SERVER, attributes, context=self._extract(traceparent)
        ) as span:
            yield RequestSpan(span, known, self._trace.StatusCode.ERROR, _SERVER_ERROR)

    @contextmanager
    def batch(self, lane: str, submitters: Sequence[Trace | None]) -> Iterator[None]:
        """Record a batch in the trace of its first submitter, with links to and from all of
        them.
        """
        spans = [span for span in submitters if span is not None]
        if not spans:
            yield
            return
        parent = self._trace.set_span_in_context(spans[0], self._context.Context())
        links = [self._trace.Link(span.get_span_context()) for span in spans]
        attributes: Attributes = {"tenantry.lane": lane, "tenantry.batch.items": len(submitters)}
        kind = self._trace.SpanKind.INTERNAL
        with self._span(
            f"batch {lane}",
            kind,
            attributes,
            context=parent,
            links=links,
        ) as span:
            for submitter in spans:
                if submitter.is_recording():
                    submitter.add_link(span.get_span_context())
            yield

    def transaction(self, database: str) -> AbstractContextManager[object]:
        if self.current() is None:
            return nullcontext()
        attributes = {
            "db.system.name": "postgresql",
            "db.namespace": database,
            "db.operation.name": "transaction",
        }
        return self._span(f"transaction {database}", self._trace.SpanKind.CLIENT, attributes)

    @contextmanager
    def call(
        self,
        peer: str,
        method: str,
        host: str,
        port: int | None,
    ) -> Iterator["RequestSpan"]:
        """Record a request to another service. It does not get the trace's id."""
        attributes: dict[str, str | int] = {
            "http.request.method": method,
            "server.address": host,
            "peer.service": peer,
        }
        if port is not None:
            attributes["server.port"] = port
        with self._span(
            f"{method} {peer}",
            self._trace.SpanKind.CLIENT,
            attributes,
        ) as span:
            yield RequestSpan(span, method, self._trace.StatusCode.ERROR, _CLIENT_ERROR)

    def mail(self, host: str, port: int) -> AbstractContextManager[object]:
        attributes: Attributes = {
            "server.address": host,
            "server.port": port,
            "network.protocol.name": "smtp",
        }
        return self._span("send mail", self._trace.SpanKind.CLIENT, attributes)

    def job(
        self,
        task: str,
        queue: str,
        traceparent: str | None,
    ) -> AbstractContextManager[object]:
        attributes = {
            "messaging.system": "procrastinate",
            "messaging.operation.type": "process",
            "messaging.destination.name": queue,
            "tenantry.task": task,
        }
        kind = self._trace.SpanKind.CONSUMER
        return self._span(
            f"process {task}",
            kind,
            attributes,
            context=self._extract(traceparent),
        )

    def _extract(self, traceparent: str | None) -> "Context":
        # Without tracestate and baggage, which would be passed on unchecked.
        carrier = {} if traceparent is None else {"traceparent": traceparent}
        return self._propagator.extract(carrier, context=self._context.Context())

    @contextmanager
    def _span(
        self,
        name: str,
        kind: "SpanKind",
        attributes: "Attributes",
        *,
        context: "Context | None" = None,
        links: "Sequence[object]" = (),
    ) -> Iterator["Span"]:
        with self._tracer.start_as_current_span(
            name,
            context=context,
            kind=kind,
            attributes=attributes,
            links=links,  # type: ignore[arg-type]
            # an exception's text may contain secrets
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(self._trace.StatusCode.ERROR)
                raise


class RequestSpan(NamedTuple):
    """The span of a request; statuses from ``first_error`` mark it as failed, with the status code
    ``error``.
    """

    span: "Span"
    method: str
    error: Any
    first_error: int

    @property
    def trace_id(self) -> str:
        return f"{self.span.get_span_context().trace_id:032x}"

    def note(
        self, status: int, route: str | None = None, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Add the response's status, the route's template, and other attributes."""
        self.span.set_attribute("http.response.status_code", status)
        if route is not None:
            self.span.update_name(f"{self.method} {route}")
            self.span.set_attribute("http.route", route)
        if attributes:
            self.span.set_attributes(dict(attributes))
        if status >= self.first_error:
            self.span.set_attribute("error.type", str(status))
            self.span.set_status(self.error)
