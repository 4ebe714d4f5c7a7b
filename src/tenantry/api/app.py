"""The Litestar application: its dependencies, how it decodes JSON bodies, and its error answers."""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, cast

import msgspec
from litestar import Litestar, Request, Response, Router
from litestar.di import Provide
from litestar.exceptions import (
    HTTPException,
    NotFoundException,
    SerializationException,
    ValidationException,
)
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import ExceptionHandlersMap, Scope

from tenantry import __version__
from tenantry.api import guards
from tenantry.api.guards import AnyRequest, Connection
from tenantry.api.parameters import in_words
from tenantry.api.services import current_services
from tenantry.common.encoding import NOT_JSON, camel_case
from tenantry.domain.errors import ValidationError
from tenantry.server.asgi_types import MAX_BODY, NO_PAGE, REQUEST_ID
from tenantry.server.problems import (
    VARIES,
    Refusal,
    fault_of,
    refuse,
    refuse_error,
)
from tenantry.server.repeated_items import MAX_MEMBERS, check_members

API_TITLE: Final = "tenantry"
_JSON_TYPE: Final = re.compile(r"application/(json|.*\+json)")
_PageOf = Callable[[AnyRequest, HTTPException], Response[str] | None]
_BeforeRefusal = Callable[[Exception, Scope], Awaitable[None]]
_HTTP_ERRORS: Final = {
    404: ("not_found", "There is nothing at this address."),
    405: ("method_not_allowed", "This address does not answer this method."),
    413: ("payload_too_large", f"The body is larger than {MAX_BODY} bytes."),
    415: ("unsupported_media_type", "The body must be JSON: Content-Type: application/json."),
}
"""Code and detail of Litestar's errors by status."""


class JsonRequest(Request[Any, Any, Any]):
    """A request whose body is decoded into its handler's type.

    Litestar would convert it as leniently as a query string: the text ``"5"`` to a number, a number
    to a time.
    """

    async def json(self) -> Any:  # noqa: ANN401  # the handler's type
        """Decode the body. Raises what the exception handlers answer with 400, 415 and 422."""
        content_type = self.headers.get("content-type", "application/json").lower()
        if not _JSON_TYPE.fullmatch(content_type.partition(";")[0].strip()):
            raise HTTPException(status_code=415)
        field = self.route_handler.parsed_data_field
        body = await self.body()
        check_members(body, self.route_handler.opt.get(guards.MOST_MEMBERS, MAX_MEMBERS))
        try:
            return _decoder(field.annotation if field else Any).decode(body)
        except msgspec.ValidationError as error:
            location, message = fault_of(error)
            raise ValidationError((location, in_words(message))) from error
        except NOT_JSON as error:
            raise SerializationException("The body is not JSON.") from error


@lru_cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401  # any type that msgspec supports
    return msgspec.json.Decoder(kind)


class _App(Litestar):
    """Litestar without its plugins for Pydantic and attrs, which no handler uses: where Pydantic is
    installed, its import alone takes 0.1 s of a start.
    """

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        # Litestar has no argument for this. Under another name it has no effect but that time.
        return [*plugins, MsgspecDIPlugin()]


def build_api(
    routes: Sequence[HTTPRouteHandler | Router],
    *,
    page_of: _PageOf = lambda _request, _error: None,
    before_refusal: Sequence[_BeforeRefusal] = (),
) -> Litestar:
    """The Litestar application with these routes. What its handlers use is the ``state`` of a
    `ServiceApp`.

    ``page_of`` returns the page for a request without a route, or None for a problem document.
    Litestar's error handlers are synchronous, so ``before_refusal`` runs before them.
    """
    return _App(
        route_handlers=list(routes),
        dependencies={
            "services": Provide(current_services, sync_to_thread=False),
            "principal": Provide(guards.current_principal, sync_to_thread=False),
            "claims": Provide(guards.current_claims, sync_to_thread=False),
            "token_claims": Provide(guards.current_token_claims),
            "address": Provide(guards.current_address),
            "author": Provide(guards.current_author, sync_to_thread=False),
            "claim": Provide(guards.current_claim),
        },
        exception_handlers=_exception_handlers(page_of),
        after_exception=list(before_refusal),
        before_request=_answer_options,
        request_class=JsonRequest,
        request_max_body_size=MAX_BODY,
        logging_config=None,
        openapi_config=OpenAPIConfig(
            title=API_TITLE,
            version=__version__,
            render_plugins=[JsonRenderPlugin()],
            openapi_router=Router(
                "/-",
                route_handlers=[],
                guards=[_nothing_here],
                include_in_schema=False,
            ),
            use_handler_docstrings=True,
        ),
    )


async def _answer_options(request: AnyRequest) -> Response[None] | None:
    """Answer OPTIONS with every method of the path; Litestar names only those of its first
    handler.
    """
    if request.method != "OPTIONS":
        return None
    template = request.scope["path_template"]
    methods = next(route.methods for route in request.app.routes if route.path_format == template)
    return Response(None, status_code=204, headers={"Allow": _allowed(methods)})


def _allowed(methods: Iterable[str]) -> str:
    """The methods of an address. The dispatcher answers HEAD wherever there is GET."""
    named = set(methods)
    return ", ".join(sorted(named | {"HEAD"} if "GET" in named else named))


def _nothing_here(_connection: Connection, _handler: BaseRouteHandler) -> None:
    """Hide Litestar's own OpenAPI route, which cannot be disabled; tenantry serves the document
    elsewhere.
    """
    raise NotFoundException


def _exception_handlers(page_of: _PageOf) -> ExceptionHandlersMap:
    def on_http_error(request: AnyRequest, error: HTTPException) -> Response[bytes] | Response[str]:
        if error.status_code not in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            return _on_http_error(request, error)
        if NO_PAGE in request.scope:
            error = NotFoundException()
        response = page_of(request, error) or _on_http_error(request, error)
        if error.headers and "allow" in error.headers:
            response.set_header("allow", _allowed(error.headers["allow"].split(", ")))
        name, value = VARIES
        response.set_header(name.decode(), value.decode())
        return response

    return {
        ValidationException: _on_validation_error,
        HTTPException: on_http_error,
        Exception: _on_error,
    }


def _request_id(request: AnyRequest) -> str:
    return str(request.scope.get(REQUEST_ID, ""))


def _response(request: AnyRequest, refusal: Refusal) -> Response[bytes]:
    refusal.note_in(cast("dict[str, object]", request.scope))
    headers = {name.decode(): value.decode("latin-1") for name, value in refusal.headers}
    return Response(refusal.body, status_code=refusal.status, headers=headers)


def _on_error(request: AnyRequest, error: Exception) -> Response[bytes]:
    return _response(request, refuse_error(error, _request_id(request)))


def _on_validation_error(request: AnyRequest, error: ValidationException) -> Response[bytes]:
    """Answer 422 for an invalid parameter or a missing body, with the location and the reason."""
    faults = [
        ("body", "is missing")
        if fault.get("key") == "data"
        else (camel_case(str(fault.get("key"))), in_words(str(fault.get("message"))))
        for fault in error.extra or ()
        if isinstance(fault, dict)
    ]
    return _on_error(request, ValidationError(*faults))


def _on_http_error(request: AnyRequest, error: HTTPException) -> Response[bytes]:
    if any(isinstance(one, SerializationException) for one in (error, error.__cause__)):
        code, detail = "invalid_json", "The body is not JSON."
    elif error.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _on_error(request, error)
    else:
        code, detail = _HTTP_ERRORS.get(error.status_code, ("invalid_request", error.detail))
    given = error.headers or {}
    headers = [(name.lower().encode(), value.encode()) for name, value in given.items()]
    return _response(request, refuse(code, detail, _request_id(request), headers=headers))
