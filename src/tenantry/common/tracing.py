"""Spans, in the terms of OpenTelemetry.

Its packages come with the extra ``otel``, and are imported where a `Tracing` is made and nowhere else. No attribute
made here holds what somebody has sent: no path, query, header or body; of a request it is the route's template and the
method.
"""

import importlib.util
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeAlias
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
"""What a request is part of, as `Tracing.current` gives it."""

MOST_LINKS: Final = 256
"""Of a span: as many requests share a batch at most."""
_PACKAGES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_NAME: Final = "tenantry"
_UNNAMED: Final = "unknown_service"
_SERVER_FAULT: Final = 500
_LONGEST_CLOSE: Final = 5.0


def is_installed() -> bool:
    """Whether the packages are there."""
    try:
        return all(map(importlib.util.find_spec, _PACKAGES))
    except ModuleNotFoundError:
        return False


class Tracing:
    """Makes spans, and sends them where the standard OTEL_* variables say. Only where `is_installed`."""

    def __init__(self, version: str, *, exporter: "SpanExporter | None" = None) -> None:
        """``exporter`` takes the place of the one that speaks OTLP over HTTP."""
        from opentelemetry import context, trace  # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        self._context, self._trace = context, trace
        self._propagator = TraceContextTextMapPropagator()
        told = Resource.create()  # what the variables say goes before what we say
        resource = Resource({"service.version": version, "service.instance.id": str(uuid4())}).merge(told)
        if str(told.attributes.get("service.name", "")).startswith(_UNNAMED):
            resource = resource.merge(Resource({"service.name": _NAME}))
        self._provider = TracerProvider(
            resource=resource, span_limits=SpanLimits(max_links=MOST_LINKS), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer(_NAME, version)

    def close(self) -> None:
        """Send what has not been sent, within 5 s: nobody waits longer for a collector that is away."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_LONGEST_CLOSE)

    def current(self) -> Trace | None:
        """The span that is under way, if it is to be sent."""
        span = self._trace.get_current_span()
        return span if span.is_recording() else None

    def traceparent(self) -> str | None:
        """What carries the span under way to whoever goes on with it later (W3C Trace Context)."""
        if self.current() is None:
            return None
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier.get("traceparent")

    @contextmanager
    def request(self, method: str, scheme: str, traceparent: str | None) -> Iterator["RequestSpan"]:
        """A request that came in, maybe as part of a trace of its sender's."""
        known = method if method in METHODS else "_OTHER"
        attributes = {"http.request.method": known, "url.scheme": scheme}
        with self._span(known, self._trace.SpanKind.SERVER, attributes, context=self._coming_from(traceparent)) as span:
            yield RequestSpan(span, known, self._trace.StatusCode.ERROR)

    @contextmanager
    def batch(self, lane: str, submitters: Sequence[Trace | None]) -> Iterator[None]:
        """What serves many requests: a part of the first one's trace, and linked to and from all of them."""
        spans = [span for span in submitters if span is not None]
        if not spans:  # whatever trace the task began in is not that of those whom it serves now
            token = self._context.attach(self._context.Context())
            try:
                yield
            finally:
                self._context.detach(token)
            return
        parent = self._trace.set_span_in_context(spans[0], self._context.Context())
        links = [self._trace.Link(span.get_span_context()) for span in spans]
        attributes: Attributes = {"tenantry.lane": lane, "tenantry.batch.items": len(submitters)}
        with self._span(
            f"batch {lane}", self._trace.SpanKind.INTERNAL, attributes, context=parent, links=links
        ) as span:
            for submitter in spans:
                if submitter.is_recording():
                    submitter.add_link(span.get_span_context())
            yield

    def transaction(self, database: str) -> AbstractContextManager[object]:
        """A transaction, as part of whatever is under way; of nothing it is no part."""
        if self.current() is None:
            return nullcontext()
        attributes = {
            "db.system.name": "postgresql", "db.namespace": database, "db.operation.name": "transaction"
        }  # fmt: skip
        return self._span(f"transaction {database}", self._trace.SpanKind.CLIENT, attributes)

    @contextmanager
    def call(self, peer: str, method: str, host: str, port: int | None) -> Iterator["RequestSpan"]:
        """A request to somebody else; the trace is not told to them."""
        attributes: dict[str, str | int] = {
            "http.request.method": method, "server.address": host, "peer.service": peer
        }  # fmt: skip
        if port is not None:
            attributes["server.port"] = port
        with self._span(f"{method} {peer}", self._trace.SpanKind.CLIENT, attributes) as span:
            yield RequestSpan(span, method, self._trace.StatusCode.ERROR, least_fault=400)

    def mail(self, host: str, port: int) -> AbstractContextManager[object]:
        """Handing a mail to a mail server."""
        attributes: Attributes = {"server.address": host, "server.port": port, "network.protocol.name": "smtp"}
        return self._span("send mail", self._trace.SpanKind.CLIENT, attributes)

    def job(self, task: str, queue: str, traceparent: str | None) -> AbstractContextManager[object]:
        """A job, as part of the trace in which it was deferred."""
        attributes = {
            "messaging.system": "procrastinate", "messaging.operation.type": "process",
            "messaging.destination.name": queue, "tenantry.task": task,
        }  # fmt: skip
        return self._span(
            f"process {task}", self._trace.SpanKind.CONSUMER, attributes, context=self._coming_from(traceparent)
        )

    def _coming_from(self, traceparent: str | None) -> "Context":
        # Nothing of what is vendors' own is taken over (tracestate, baggage): it would be sent on as it came.
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
            name, context=context, kind=kind, attributes=attributes, links=links,  # type: ignore[arg-type]
            record_exception=False, set_status_on_exception=False,  # an error's text may hold what nobody may see
        ) as span:  # fmt: skip
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(self._trace.StatusCode.ERROR)
                raise


class RequestSpan:
    """The span of a request, which learns at its end what became of it."""

    def __init__(self, span: "Span", method: str, error: object, *, least_fault: int = _SERVER_FAULT) -> None:
        self._span = span
        self._method = method
        self._error = error
        self._least_fault = least_fault

    @property
    def trace_id(self) -> str:
        """The trace's id, as hexadecimal digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def note(self, status: int, route: str | None = None, more: Mapping[str, str] | None = None) -> None:
        """The answer's status, the route's template, and more attributes."""
        self._span.set_attribute("http.response.status_code", status)
        if route is not None:
            self._span.update_name(f"{self._method} {route}")
            self._span.set_attribute("http.route", route)
        if more:
            self._span.set_attributes(dict(more))
        if status >= self._least_fault:
            self._span.set_attribute("error.type", str(status))
            self._span.set_status(self._error)  # type: ignore[arg-type]
