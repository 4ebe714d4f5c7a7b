"""An OpenTelemetry collector: takes traces over HTTP, as protobuf, and keeps them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.support.ports import free_port

_PATIENCE: Final = 60.0
_KINDS: Final = ("", "internal", "server", "client", "producer", "consumer")
_ANSWER: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"
)


class Received(NamedTuple):
    """A span as it came in; ids are hexadecimal, ``links`` are ids of spans, ``process`` is which
    one sent it.
    """

    trace: str
    id: str
    parent: str
    name: str
    kind: str
    attributes: Mapping[str, Any]
    links: Sequence[str]
    failed: bool
    process: str
    service: str


class Collector:
    """What has come in."""

    def __init__(self, port: int) -> None:
        self.endpoint: Final = f"http://127.0.0.1:{port}"
        self.spans: list[Received] = []
        self.raw = b""
        self.heads: list[bytes] = []
        self._changed = asyncio.Condition()

    def settings(self, **more: str) -> dict[str, str]:
        """What makes a process send its spans here, soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            **more,
        }

    def named(self, name: str) -> list[Received]:
        """The spans of this name."""
        return [span for span in self.spans if span.name == name]

    def children(self, parent: Received) -> list[Received]:
        """The spans right below one."""
        return [span for span in self.spans if span.parent == parent.id]

    async def until(self, condition: Callable[["Collector"], object]) -> None:
        """Return as soon as ``condition`` holds."""
        try:
            async with asyncio.timeout(_PATIENCE), self._changed:
                await self._changed.wait_for(lambda: bool(condition(self)))
        except TimeoutError:
            raise AssertionError(
                f"there came only {sorted({span.name for span in self.spans})}"
            ) from None

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            fields = dict(
                line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
            )
            body = await reader.readexactly(int(fields[b"content-length"]))
            assert head.startswith(b"POST /v1/traces "), head
            assert fields[b"content-type"] == b"application/x-protobuf"
            self.heads.append(head)
            self.raw += body
            self.spans += _spans(body)
            writer.write(_ANSWER)
            await writer.drain()
            async with self._changed:
                self._changed.notify_all()
        writer.close()


def _spans(body: bytes) -> list[Received]:
    found = []
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        about = {pair.key: _plain(pair.value) for pair in resource.resource.attributes}
        for scope in resource.scope_spans:
            found += [
                Received(
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    name=span.name,
                    kind=_KINDS[span.kind],
                    attributes={pair.key: _plain(pair.value) for pair in span.attributes},
                    links=[link.span_id.hex() for link in span.links],
                    failed=span.status.code == 2,
                    process=str(about["service.instance.id"]),
                    service=str(about["service.name"]),
                )
                for span in scope.spans
            ]
    return found


def _plain(value: AnyValue) -> Any:
    return getattr(value, str(value.WhichOneof("value")))


@asynccontextmanager
async def running_collector() -> AsyncIterator[Collector]:
    """A collector on a separate port."""
    port = free_port()
    collector = Collector(port)
    async with await asyncio.start_server(collector.take, "127.0.0.1", port):
        yield collector
