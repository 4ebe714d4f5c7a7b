"""Is it alive, is it ready, what has it counted."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec

from tenantry.common.openapi import doc
from tenantry.jobs.database_metrics import Known
from tenantry.server.metrics import Metrics, render_known
from tenantry.server.shutdown import Shutdown

Check = Callable[[], Awaitable[str | None]]
"""Returns what is wrong, or None."""

Gauges = Callable[[], Awaitable[Sequence[Known] | None]]
"""Returns what the database knows: nothing while it answers with an error, None while it is out of reach."""

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Health(msgspec.Struct, frozen=True, rename="camel"):
    """``ok``; ``not ready``, and what is waited for; or ``draining``: the process is about to end."""

    status: Annotated[str, doc("`ok` or `not ready`.", "ok")]
    waiting_for: Annotated[list[str], doc("What is not ready yet.", [])] = []


def health_routes(
    checks: Sequence[Check], metrics: Metrics, gauges: Gauges, ending: Shutdown
) -> Sequence[HTTPRouteHandler]:
    """The routes for orchestrators and monitoring."""

    @get("/healthz", summary="Liveness", opt={"public": True})
    async def healthz() -> Health:
        """Report whether the process is alive. It checks nothing else."""
        return Health("ok")

    @get(
        "/readyz",
        summary="Readiness",
        opt={"public": True},
        responses={503: ResponseSpec(Health, description="Not ready: `waitingFor` names what is missing.")},
    )
    async def readyz() -> Response[Health]:
        """Report whether the service can answer requests:

        the database is available with a current schema, and the identity provider's keys were requested.
        """
        if ending.is_draining:  # whatever else is wrong: it goes away
            return Response(Health("draining"), status_code=503, headers={"Retry-After": "1"})
        faults = [fault for check in checks if (fault := await check())]
        if faults:
            return Response(Health("not ready", faults), status_code=503, headers={"Retry-After": "1"})
        return Response(Health("ok"))

    @get("/metrics", include_in_schema=False, media_type="text/plain", opt={"public": True})
    async def show_metrics() -> Response[bytes]:
        known = render_known(await gauges())
        body = metrics.render() + known
        return Response(body, headers={"content-type": METRICS_TYPE})

    return [healthz, readyz, show_metrics]
