"""One service's ASGI application: its lifespan and its state around routes that several services
share.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from traceback import format_exc
from typing import Any, Final, cast

from tenantry.server.asgi_types import AsgiApp, Receive, Scope, Send

_STATE: Final = "tenantry.state"


def state_of(scope: Mapping[str, object]) -> Mapping[str, Any]:
    """Return the state of the service that answers the request with this scope."""
    return cast("Mapping[str, Any]", scope[_STATE])


class ServiceApp:
    """Answers requests by ``routes``, whose handlers find ``state`` by `state_of`.

    Registering all routes takes half a second, so a process does it once. ``lifespan`` runs the
    service from the ASGI server's startup to its shutdown.
    """

    def __init__(
        self,
        routes: AsgiApp,
        state: Mapping[str, object],
        lifespan: AbstractAsyncContextManager[None],
    ) -> None:
        self.routes = routes
        self._state = state
        self._lifespan = lifespan

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run(receive, send)
            return
        scope[_STATE] = self._state
        await self.routes(scope, receive, send)

    async def _run(self, receive: Receive, send: Send) -> None:
        """Follow the ASGI lifespan protocol. Raises what starting or stopping raised."""
        phase = "startup"
        await receive()
        try:
            async with self._lifespan:
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()
        except BaseException:
            await send({"type": f"lifespan.{phase}.failed", "message": format_exc()})
            raise
        await send({"type": "lifespan.shutdown.complete"})
