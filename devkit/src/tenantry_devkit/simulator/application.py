"""The ASGI application: the API, the pages that customers are sent to, and what people control it by."""

from email.utils import formatdate
from typing import Final
from urllib.parse import urlsplit

from tenantry_devkit.simulator.api.server import Api
from tenantry_devkit.simulator.asgi import Answer, GoneError, Receive, Request, Scope, Send, TooLargeError, read, write
from tenantry_devkit.simulator.control import Control
from tenantry_devkit.simulator.engine import Engine
from tenantry_devkit.simulator.hosted import HostedPages
from tenantry_devkit.simulator.html import Html

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_OWN_SITES: Final = ("none", "same-origin")


class Application:
    """Answers every request; deliveries that it causes are attempted once the answer is sent."""

    def __init__(self, engine: Engine) -> None:
        html = Html()
        self._engine = engine
        self._api = Api(engine)
        self._hosted = HostedPages(engine, html)
        self._control = Control(engine, html)
        self._html = html

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Other protocols than HTTP are none of its."""
        if scope["type"] != "http":
            raise RuntimeError(f"the simulator does not speak {scope['type']}")
        try:
            answer = await self._answer(await read(scope, receive))
        except TooLargeError:
            answer = Answer(413, b"The body is too large.", "text/plain")
        except GoneError:
            return
        answer.headers["Date"] = formatdate(self._engine.account.now, usegmt=True)
        await write(send, answer)
        await self._engine.catch_up()

    async def _answer(self, request: Request) -> Answer:
        if request.path.startswith("/v1/"):
            return self._api.answer(request)
        if not self._is_from_here(request):
            return self._html.message("Refused", "The request did not come from a page of this server.", 403)
        if request.path == "/simulator.css":
            return self._html.style_sheet()
        answer = self._hosted.answer(request) or await self._control.answer(request)
        return answer or self._html.message("Not found", "There is nothing here.", 404)

    def _is_from_here(self, request: Request) -> bool:
        """Whether no other web site is behind a request: neither by a form, nor by a name of its own for loopback."""
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname
        is_known = host in {*_LOOPBACK, urlsplit(self._engine.account.url).hostname}
        return is_known and (request.method == "GET" or request.headers.get("sec-fetch-site", "none") in _OWN_SITES)
