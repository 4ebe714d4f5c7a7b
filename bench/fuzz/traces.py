"""The traceparent header."""

from collections.abc import Sequence
from functools import cache
from re import fullmatch
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from bench.fuzz.target import Target, require
from tenantry.common.tracing import Tracing

_CONTROLS: Final = bytes({*range(0x20), 0x7F} - {ord("\t")})
"""Excluded from header fields."""
_TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
_SPAN: Final = "b7ad6b7169203331"


class _Nowhere(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS


@cache
def _tracing() -> Tracing:
    return Tracing("0", exporter=_Nowhere())


def check_traceparent(data: bytes) -> None:
    """Require that a request continues the trace of a valid header, or starts a new one."""
    given = data.translate(None, _CONTROLS).decode("latin-1")
    tracing = _tracing()
    with tracing.request("GET", "https", given) as span:
        onward = tracing.traceparent()
    named, is_sampled = by_reference(given)
    if named:
        require(span.trace_id == named, "the request continues another trace", given, span.trace_id)
        require((onward is not None) is is_sampled, "the sampled flag is ignored", given, onward)
    else:
        require(
            span.trace_id not in given, "the request continues a trace of an invalid header", given
        )
        require(onward, "a new trace is not propagated", given)
    if onward is not None:
        require(
            fullmatch(rf"00-{span.trace_id}-[0-9a-f]{{16}}-0[0-9a-f]", onward),
            "the propagated header is invalid",
            onward,
        )


def by_reference(given: str) -> tuple[str, bool]:
    """Parse by W3C Trace Context; return the trace id, or none if the header is invalid, and the
    sampled flag.
    """
    version, trace, span, flags, *rest = [*given.strip(" \t").split("-"), "", "", ""]
    fields = ((version, 2), (trace, 32), (span, 16), (flags, 2))
    is_sound = all(
        len(field) == size and set(field) <= set("0123456789abcdef") for field, size in fields
    )
    is_known = version != "ff" and (version != "00" or rest == [""] * 3)
    if not (is_sound and is_known and trace.strip("0") and span.strip("0")):
        return "", False
    return trace, bool(int(flags, 16) & 1)


TARGETS: Final = (
    Target(
        name="traceparent",
        reads="traceparent, from any client; compared with another parser of W3C Trace Context",
        check=check_traceparent,
        seeds=lambda: [
            f"00-{_TRACE}-{_SPAN}-01".encode(),
            f" 00-{_TRACE}-{_SPAN}-00\t".encode(),
            f"cc-{_TRACE}-{_SPAN}-03-what-comes-later".encode(),
            f"00-{_TRACE}-{_SPAN}-01-extra".encode(),
            f"ff-{_TRACE}-{_SPAN}-01".encode(),
            f"00-{'0' * 32}-{_SPAN}-01".encode(),
            f"00-{_TRACE}-{'0' * 16}-01".encode(),
            f"00-{_TRACE.upper()}-{_SPAN}-01".encode(),
        ],
        words=(b"00-", b"ff-", b"-01", b"-", _TRACE.encode(), _SPAN.encode()),
        max_size=256,
    ),
)
