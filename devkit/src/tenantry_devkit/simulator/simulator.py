"""The simulated provider as an ASGI application: the API under ``/v1``, hosted pages, control."""

import logging
from contextlib import AbstractAsyncContextManager
from email.utils import formatdate
from functools import cache, cached_property
from typing import Any, Final, cast
from urllib.parse import urlsplit

from litestar import Litestar, Response, route
from litestar.datastructures import MutableScopeHeaders
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.types import Message
from litestar.types import Scope as LitestarScope

from tenantry.server.asgi_types import MAX_BODY, AsgiApp, Receive, Scope, Send
from tenantry_devkit.serving import serving
from tenantry_devkit.simulator.account import ApiError
from tenantry_devkit.simulator.api import Api
from tenantry_devkit.simulator.engine import SimulationEngine
from tenantry_devkit.simulator.pages import ROUTES, AnyRequest, pages
from tenantry_devkit.simulator.parameters import FORM, json_response

_log = logging.getLogger(__name__)

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_OWN_SITES: Final = ("none", "same-origin")
_SIMULATOR: Final = "simulator"
_API: Final = "simulator_api"
"""Keys of a request's ASGI scope."""
_JSON_PATHS: Final = ("/v1/", "/_simulator/")


class Simulator(SimulationEngine):
    """The payment provider, with one account, in memory. For tests and development, on loopback
    only.

    It is an ASGI application (the API under ``/v1``, hosted pages, control), and its methods do the
    same without HTTP. Methods return at once; `deliver`, `advance`, and each HTTP request
    afterwards send the events to the webhook endpoints.

    Time stands still until `advance` moves it, or follows real time with ``running``. Ids, events
    and faults depend on ``seed`` and ``start`` (by default now). Returned objects do not change;
    `subscriptions`, `invoices` and so on have the current ones. Methods raise `ApiError` where the
    provider's API would reject a request.

    ``prices`` are amounts by price id, monthly, in euro cents. ``api_version`` is the shape of
    ``GET /v1/events`` and of endpoints without their own. ``wall_clock`` is for signatures, which
    receivers compare with real time. ``client`` sends the events, instead of an own client; ``url``
    is the address where it will be served.
    """

    @cached_property
    def _api(self) -> Api:
        return Api(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _application()(
            {**scope, _SIMULATOR: self, _API: self._api},
            receive,
            send,
        )
        await self.catch_up()

    def serving(self, port: int = 0) -> AbstractAsyncContextManager["Simulator"]:
        """Serve it on 127.0.0.1 within the block, at ``port`` or a free one; `url` is the
        address.
        """
        return serving(self, port)


@cache
def _application() -> AsgiApp:
    """Return the application of all simulators, since creating it is slow; the scope names the
    simulator.
    """
    application = Litestar(
        [_call_api, *ROUTES],
        after_exception=[_log_failure],
        before_request=_refuse_other_sites,
        before_send=[_set_date],
        dependencies={"engine": Provide(_simulator, sync_to_thread=False)},
        exception_handlers={ApiError: _show_error, HTTPException: _show_error},
        logging_config=None,
        openapi_config=None,
        request_max_body_size=MAX_BODY,
    )
    return cast("AsgiApp", application)


def _simulator(request: AnyRequest) -> Simulator:
    return cast("Simulator", request.scope.get(_SIMULATOR))


@route("/v1/{path:path}", http_method=["GET", "POST", "DELETE"])
async def _call_api(request: AnyRequest) -> Response[bytes]:
    api = cast("Api", request.scope.get(_API))
    return api.respond(request, await request.body())


async def _refuse_other_sites(request: AnyRequest) -> Response[str] | None:
    """Reject forms of other web sites, and host names that they resolve to loopback (DNS
    rebinding).
    """
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname
    is_known = host in {*_LOOPBACK, urlsplit(_simulator(request).url).hostname}
    is_own = request.method == "GET" or request.headers.get("sec-fetch-site", "none") in _OWN_SITES
    if (is_known and is_own) or request.url.path.startswith("/v1/"):
        return None
    return pages().message("Refused", "The request did not come from a page of this server.", 403)


def _show_error(request: AnyRequest, error: ApiError | HTTPException) -> Response[Any]:
    if isinstance(error, HTTPException):
        error = ApiError(error.status_code, error.detail)
    if request.url.path.startswith(_JSON_PATHS) and request.content_type[0] != FORM:
        return json_response({"error": error.error}, error.status)
    return pages().message(
        "This does not work",
        str(error),
        error.status,
    )


async def _log_failure(error: Exception, scope: LitestarScope) -> None:
    if not isinstance(error, ApiError | HTTPException):
        _log.error(
            "%s failed",
            scope["path"],
            exc_info=error,
        )


async def _set_date(message: Message, scope: LitestarScope) -> None:
    if message["type"] == "http.response.start":
        simulator = cast("Simulator", scope.get(_SIMULATOR))
        MutableScopeHeaders.from_message(message)["Date"] = formatdate(
            simulator.account.now, usegmt=True
        )
