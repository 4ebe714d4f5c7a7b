"""Routes of health checks and metrics, for orchestrators and monitoring."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, get
from litestar.openapi import ResponseSpec
from prometheus_client import Metric

from tenantry.common.encoding import doc
from tenantry.server.compression import PublicBody
from tenantry.server.metrics import Metrics, render_known
from tenantry.server.service_app import state_of
from tenantry.server.shutdown import Shutdown
from tenantry.server.waiting_paths import MAY_WAIT

Check = Callable[[], Awaitable[str | None]]  # returns the problem, or None

ReadDatabaseMetrics = Callable[[], Awaitable[Sequence[Metric] | None]]
"""Returns the metrics kept in the database: none if it answers with an error, None if it is
unreachable.
"""

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class SharedMetrics:
    """Renders the metrics for all who wait, at most once in ``interval`` seconds.

    A reader gets metrics of after its request, and waits for them: a client that repeats its
    requests slows itself down. A thread renders, which takes tens of milliseconds.
    """

    def __init__(
        self, metrics: Metrics, read_database: ReadDatabaseMetrics, interval: float
    ) -> None:
        self._metrics = metrics
        self._read_database = read_database
        self._interval = interval
        self._rendering = asyncio.Lock()
        self._begun = -math.inf
        self._body = PublicBody(b"", b"")

    async def read(self) -> PublicBody:
        """Return the metrics, waiting for the next rendering."""
        clock = asyncio.get_running_loop().time
        came = clock()
        async with self._rendering:
            if self._begun < came:
                await asyncio.sleep(self._begun + self._interval - clock())
                begun = clock()
                known = await self._read_database()
                self._body = await asyncio.to_thread(self._render, known)
                self._begun = begun
        return self._body

    def _render(self, known: Sequence[Metric] | None) -> PublicBody:
        return PublicBody.for_once(self._metrics.render() + render_known(known))


class Health(msgspec.Struct, frozen=True, rename="camel"):
    """``ok``, ``not ready`` with the reasons in `waitingFor`, or ``draining`` during a shutdown."""

    status: Annotated[str, doc("`ok` or `not ready`.", "ok")]
    waiting_for: Annotated[list[str], doc("What is not ready yet.", [])] = []


class HealthState(msgspec.Struct, frozen=True):
    """What health checks and metrics of one service read: ``health`` in the application's state."""

    checks: Sequence[Check]
    metrics: SharedMetrics
    shutdown: Shutdown


def _health_of(request: Request[Any, Any, Any]) -> HealthState:
    health: HealthState = state_of(request.scope)["health"]
    return health


@get("/healthz", summary="Liveness", opt={"public": True})
async def healthz() -> Health:
    """Report whether the process is alive. It checks nothing else."""
    return Health("ok")


@get(
    "/readyz",
    summary="Readiness",
    opt={"public": True},
    responses={503: ResponseSpec(Health, description="Not ready: `waitingFor` has the reasons.")},
)
async def readyz(request: Request[Any, Any, Any]) -> Response[Health]:
    """Report whether the service can answer requests:

    the database is available with a current schema, and the identity provider's keys were
    requested.
    """
    service = _health_of(request)
    is_draining = service.shutdown.is_draining
    problems = (
        [] if is_draining else [problem for check in service.checks if (problem := await check())]
    )
    if not is_draining and not problems:
        return Response(Health("ok"))
    health = Health("draining" if is_draining else "not ready", problems)
    return Response(health, status_code=503, headers={"Retry-After": "1"})


@get(
    "/metrics",
    include_in_schema=False,
    media_type="text/plain",
    opt={"public": True, **MAY_WAIT},  # for the next rendering
)
async def show_metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    body = await _health_of(request).metrics.read()
    return body.response(request, {"content-type": _METRICS_TYPE})


HEALTH_ROUTES: Final = (healthz, readyz, show_metrics)
