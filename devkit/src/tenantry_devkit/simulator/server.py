"""The simulated provider over HTTP."""

import asyncio
import contextlib
import hmac
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from email.utils import formatdate
from typing import Final, Protocol, TypeVar
from urllib.parse import urlsplit

import uvicorn

from tenantry_devkit.simulator.api_requests import ApiError, Call, Handler, Parameters, Route, expand
from tenantry_devkit.simulator.api_routes import BillingRoutes, CustomerRoutes, EventRoutes
from tenantry_devkit.simulator.engine import Engine
from tenantry_devkit.simulator.hosted_pages import Control, HostedPages
from tenantry_devkit.simulator.http import (
    Answer,
    GoneError,
    Html,
    Receive,
    Request,
    Scope,
    Send,
    TooLargeError,
    read,
    write,
)
from tenantry_devkit.simulator.shapes import Json, Shape, render

_FORM: Final = "application/x-www-form-urlencoded"
_SHOWN: Final = 4
_LONGEST_KEY: Final = 255


class Api:
    """Answers requests under ``/v1``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._account = engine.account
        self._routes: list[Route] = [
            *BillingRoutes(engine).routes(),
            *CustomerRoutes(engine).routes(),
            *EventRoutes(engine).routes(),
        ]
        self._kept: dict[str, tuple[object, str, Answer]] = {}

    def answer(self, request: Request) -> Answer:
        """The answer to a request; its ``Request-Id`` is what the events that it causes name."""
        request_id = self._account.ids.new("req")
        version = request.headers.get("stripe-version") or self._account.api_version
        try:
            answer = self._authorized(request, request_id, version)
        except ApiError as error:
            answer = Answer.json(error.body(), error.status)
            if error.status == 401:  # noqa: PLR2004
                answer.headers["WWW-Authenticate"] = 'Bearer realm="Stripe"'
        return replace(answer, headers={"Request-Id": request_id, "Stripe-Version": version, **answer.headers})

    def _authorized(self, request: Request, request_id: str, version: str) -> Answer:
        self._check_key(request.headers.get("authorization", ""))
        parameters = Parameters.parse(request.query, _form(request))
        key = request.headers.get("idempotency-key") if request.method == "POST" else None
        if key is None:
            return self._act(request, parameters, version, request_id, None)
        if len(key) > _LONGEST_KEY:
            raise ApiError(400, f"Idempotency keys have at most {_LONGEST_KEY} characters.", type="idempotency_error")
        fingerprint = (request.path, parameters.values)
        if key in self._kept:
            return self._again(key, fingerprint)
        answer = self._act(request, parameters, version, request_id, key)
        self._kept[key] = fingerprint, request_id, answer
        return answer

    def _check_key(self, authorization: str) -> None:
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key:
            message = "You did not provide an API key. You need to provide it in the Authorization header, as a Bearer."
            raise ApiError(401, message)
        if not hmac.compare_digest(key.encode(), self._engine.secret_key.encode()):
            masked = "*" * max(0, len(key) - _SHOWN) + key[-_SHOWN:]
            raise ApiError(401, f"Invalid API Key provided: {masked}")

    def _again(self, key: str, fingerprint: object) -> Answer:
        first, request_id, answer = self._kept[key]
        if first != fingerprint:
            message = (
                "Keys for idempotent requests can only be used with the same parameters they were first used with. "
                f"Try using a key other than '{key}' if you meant to execute a different request."
            )
            raise ApiError(400, message, type="idempotency_error")
        return replace(answer, headers={"Idempotent-Replayed": "true", "Original-Request": request_id})

    def _act(self, request: Request, parameters: Parameters, version: str, request_id: str, key: str | None) -> Answer:
        handler, ids = self._find(request)
        shape = Shape.of(version)
        with self._account.request(request_id, key):
            try:
                body = handler(Call(request.path, ids, parameters, shape))
            except ApiError as error:
                # A charge that was declined did happen: it is an answer like others, and kept with the key.
                if error.status != 402:  # noqa: PLR2004
                    raise
                return Answer.json(error.body(), error.status)
        expand(body, parameters.texts("expand"), lambda field, wanted: self._related(field, wanted, shape))
        return Answer.json(body)

    def _find(self, request: Request) -> tuple[Handler, tuple[str, ...]]:
        for route in self._routes:
            ids = route.ids(request.method, request.path)
            if ids is not None:
                return route.handler, ids
        raise ApiError(404, f"Unrecognized request URL ({request.method}: {request.path}).")

    def _related(self, field: str, wanted: str, shape: Shape) -> Json | None:
        account = self._account
        tables: dict[str, Mapping[str, object]] = {
            "customer": account.customers,
            "subscription": account.subscriptions,
            "latest_invoice": account.invoices,
            "price": account.prices,
        }
        thing = tables.get(field, {}).get(wanted)
        return None if thing is None else render(thing, shape)


def _form(request: Request) -> str:
    content_type = request.headers.get("content-type", _FORM).partition(";")[0].strip().lower()
    if request.body and content_type != _FORM:
        raise ApiError(400, f"Invalid request: the body must be {_FORM}.")
    return request.body.decode("utf-8", "replace")


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


_HOST: Final = "127.0.0.1"
_SHUTDOWN_SECONDS: Final = 2


class _Servable(Protocol):
    url: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


S = TypeVar("S", bound=_Servable)


@contextlib.asynccontextmanager
async def serving(application: S, port: int = 0) -> AsyncIterator[S]:
    """Within the block ``application`` answers on 127.0.0.1, and knows its ``url``; raises `OSError` without a port."""
    # with its protocol named, or asyncio would let small answers wait for the client's acknowledgements
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((_HOST, port))
        listening.listen()
        application.url = f"http://{_HOST}:{listening.getsockname()[1]}"
        server = _Server(server_config(application))
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            await server.listening.wait()
            yield application
        finally:
            server.should_exit = True
            await running


def server_config(application: _Servable) -> uvicorn.Config:
    """How the application is to be served, wherever that is."""
    return uvicorn.Config(
        application,
        interface="asgi3",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,  # the application says what its own clock says
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )


class _Server(uvicorn.Server):
    """Says when it listens, and leaves the process's signals to others."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
