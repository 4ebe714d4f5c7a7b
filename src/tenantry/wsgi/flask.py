"""Flask integration: views declare the scope that they need."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, ParamSpec

from flask import Flask, Response, abort, current_app, g, request

from tenantry.domain.errors import DomainError
from tenantry.in_process.access_rules import requirement_of
from tenantry.in_process.application_request import ClientAddress
from tenantry.wsgi.middleware import (
    TenantryWsgiMiddleware,
    WsgiContext,
    optional_principal_of,
    wsgi_context_in,
)
from tenantry.wsgi.tenantry import WsgiAuthenticator

P = ParamSpec("P")

_EXTENSION: Final = "tenantry"


def install(
    app: Flask, tenantry: WsgiAuthenticator, *, client_address: ClientAddress | None = None
) -> None:
    """Prepare an application for views with `requires`, and set ``flask.g.principal``: the caller,
    or None. ``client_address`` is as in `TenantryWsgiMiddleware`.
    """
    app.extensions[_EXTENSION] = tenantry
    app.wsgi_app = TenantryWsgiMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, tenantry=tenantry, on_demand=True, client_address=client_address
    )
    app.before_request(_set_principal)
    app.register_error_handler(DomainError, _refuse)


def requires(
    scope: str | None = None, *, feature: str | None = None, mode: str = "live"
) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """Return a decorator of views: the caller needs ``scope``; None accepts any credential.

    With ``feature`` the tenant needs this feature of the plan catalog, too. ``mode`` is as in
    `TenantryWsgiMiddleware`. The caller is ``flask.g.principal``. Below ``@app.get(...)``. Raises
    `ValueError` for an invalid scope, feature or mode.
    """
    needed = requirement_of(scope, mode, feature)

    def decorate(view: Callable[P, Any]) -> Callable[P, Any]:
        @wraps(view)
        def checked(*args: P.args, **kwargs: P.kwargs) -> object:
            context = _installed()
            try:
                g.principal = context.authenticate(request.environ)
                needed.check(g.principal)
            except DomainError as error:
                # no error handler of the application replaces a response that is raised
                abort(_refuse(error))
            return current_app.ensure_sync(view)(*args, **kwargs)

        return checked

    return decorate


def _installed() -> WsgiContext:
    tenantry: WsgiAuthenticator | None = current_app.extensions.get(_EXTENSION)
    context = wsgi_context_in(request.environ)
    if tenantry is None or context is None or context.tenantry is not tenantry:
        raise RuntimeError(
            "Call tenantry.wsgi.flask.install(app, tenantry) on this application first."
        )
    return context


def _set_principal() -> None:
    g.principal = optional_principal_of(request.environ)


def _refuse(error: DomainError) -> Response:
    refusal = _installed().refuse(error, request.environ)
    return Response(refusal.body, refusal.status, refusal.headers)
