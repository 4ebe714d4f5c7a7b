"""Answer callers that `auth.verify` rejects, in FastAPI, Starlette, Flask and Django.

The answer has the service's status (401, 403, 429, 431 or 503), its problem document, and its
headers ``WWW-Authenticate`` and ``Retry-After``. Other errors stay errors of your application, also
those of calls with its own credential. Each framework is imported when its function is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from tenantry_sdk.errors import APIError

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest, HttpResponse
    from flask import Response as FlaskResponse
    from starlette.requests import Request
    from starlette.responses import Response as StarletteResponse


async def starlette_handler(_request: Request, error: Exception) -> StarletteResponse:
    """Answer a rejected caller in FastAPI or Starlette.

    ``app.add_exception_handler(errors.APIError, frameworks.starlette_handler)``.
    """
    from starlette.responses import Response  # noqa: PLC0415

    if not _rejects_caller(error):
        raise error
    return Response(error.content, error.status_code, error.headers_to_pass_on)


def flask_handler(error: Exception) -> FlaskResponse:
    """Answer a rejected caller in Flask.

    ``app.register_error_handler(errors.APIError, frameworks.flask_handler)``.
    """
    from flask import Response  # noqa: PLC0415

    if not _rejects_caller(error):
        raise error
    return Response(error.content, error.status_code, error.headers_to_pass_on)


class DjangoMiddleware:
    """Answer callers that a Django view rejects.

    ``MIDDLEWARE = [..., "tenantry_sdk.frameworks.DjangoMiddleware"]``.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        from asgiref.sync import iscoroutinefunction, markcoroutinefunction  # noqa: PLC0415

        self._get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:  # noqa: ANN401  # a response, or its coroutine
        return self._get_response(request)

    def process_exception(self, _request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Return the answer, or None for another error."""
        from django.http import HttpResponse  # noqa: PLC0415

        if not _rejects_caller(error):
            return None
        return HttpResponse(
            error.content, status=error.status_code, headers=error.headers_to_pass_on
        )


def _rejects_caller(error: Exception) -> TypeGuard[APIError]:
    return isinstance(error, APIError) and error.is_for_caller
