"""The simulated provider over HTTP."""

from email.utils import formatdate
from typing import Final
from urllib.parse import urlsplit

from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry_devkit.simulator.api import Api
from tenantry_devkit.simulator.engine import SimulationEngine
from tenantry_devkit.simulator.pages import Control, HostedPages, SimulatorPages
from tenantry_devkit.simulator.requests import (
    BodyTooLargeError,
    ClientDisconnectedError,
    HttpRequest,
    HttpResponse,
    read_request,
    send_response,
)

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_OWN_SITES: Final = ("none", "same-origin")


class Application:
    """Answers every request, and then attempts the deliveries that it causes."""

    def __init__(self, engine: SimulationEngine) -> None:
        self._engine = engine
        self._pages = SimulatorPages()
        self._api = Api(engine)
        self._hosted = HostedPages(engine, self._pages)
        self._control = Control(engine, self._pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the simulator does not support {scope['type']}")
        try:
            response = await self._respond(await read_request(scope, receive))
        except BodyTooLargeError:
            response = HttpResponse(413, b"The body is too large.", "text/plain")
        except ClientDisconnectedError:
            return
        response.headers["Date"] = formatdate(self._engine.account.now, usegmt=True)
        await send_response(send, response)
        await self._engine.catch_up()

    async def _respond(self, request: HttpRequest) -> HttpResponse:
        if request.path.startswith("/v1/"):
            return self._api.respond(request)
        if not self._is_same_site(request):
            return self._pages.message("Refused", "The request did not come from a page of this server.", 403)
        if request.path == "/simulator.css":
            return self._pages.style_sheet()
        response = self._hosted.respond(request) or await self._control.respond(request)
        return response or self._pages.message("Not found", "There is nothing here.", 404)

    def _is_same_site(self, request: HttpRequest) -> bool:
        """Reject forms of other web sites, and host names that they resolve to loopback (DNS rebinding)."""
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname
        is_known = host in {*_LOOPBACK, urlsplit(self._engine.url).hostname}
        return is_known and (request.method == "GET" or request.headers.get("sec-fetch-site", "none") in _OWN_SITES)
