"""Error pages."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from litestar import MediaType, Response
from litestar.datastructures.headers import Accept
from litestar.exceptions import HTTPException, ValidationException

from tenantry.api.guards import AnyRequest
from tenantry.dashboard import guards
from tenantry.dashboard.context import Renderer
from tenantry.dashboard.forms import Form
from tenantry.dashboard.labels import denial_text, labels
from tenantry.dashboard.sign_in import sign_in_path, start_path
from tenantry.domain.errors import (
    DomainError,
    IdempotencyInFlightError,
    InvalidCursorError,
    InvalidIdempotencyKeyError,
    KeyNotActiveError,
    MemberNotActiveError,
)
from tenantry.server.asgi_types import REQUEST_ID, HotResponse, Scope, header_of
from tenantry.server.problems import STATUSES, VARIES

_TITLES: Final = {
    HTTPStatus.BAD_REQUEST: "Invalid address",
    HTTPStatus.FORBIDDEN: "Permission denied",
    HTTPStatus.NOT_FOUND: "Page not found",
    HTTPStatus.CONFLICT: "Nothing was changed",
    HTTPStatus.SERVICE_UNAVAILABLE: "Temporarily unavailable",
}
_ERROR_TITLES: Final = {
    KeyNotActiveError: "This key can't be changed",
    MemberNotActiveError: "This membership has ended",
    IdempotencyInFlightError: "This form is still being processed",
    InvalidIdempotencyKeyError: "This form is incomplete",
}
_OBJECTS: Final = {
    "key_id": ("/settings/api-keys/", "Open the key"),
    "project_id": ("/projects/", "Open the project"),
    "member_id": ("/settings/members/", "Open the member"),
}
"""The pages of objects, by the parameter of the path that names one, and the text of the link."""
# with its headers, a response without a credential stays below 64 KiB
_MOST_PAGE_BYTES: Final = 60 * 1024
_CHECK_ADDRESS: Final = "Check the address: the link may be old or incomplete."
_UNROUTED: Final = {
    HTTPStatus.NOT_FOUND: f"No page has this address. {_CHECK_ADDRESS}",
    HTTPStatus.METHOD_NOT_ALLOWED: "This address does not accept the request. Go back and try again.",
}
_TIMEOUT: Final = "The request timed out. Try again in a moment."
_TIMEOUT_OF_FORM: Final = (
    "The request timed out. It may have succeeded: check before you submit the form again."
)

_TYPES: Final = ["application/problem+json", "application/json", "text/html"]

logger = logging.getLogger(__name__)


class ErrorPages:
    """Renders errors as pages."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def not_signed_in(self, request: AnyRequest, error: guards.NotSignedInError) -> Response[str]:
        if request.method == "GET" and guards.is_navigation(request):
            return self._renderer.redirect(sign_in_path(_address(request)))
        message = "Nothing was saved. Sign in, then try again."
        return self._unsent_form(request, error, 401, message, "Your session has ended")

    def stale_sign_in(self, request: AnyRequest, error: guards.StaleSignInError) -> Response[str]:
        return self._renderer.redirect(
            start_path(_address(request), silent=True, hint=error.subject)
        )

    def csrf(self, request: AnyRequest, error: guards.CsrfError) -> Response[str]:
        message = "It belongs to another session or another site. Nothing was changed. Open the page again and retry."
        return self._unsent_form(request, error, 403, message, "This form is invalid")

    def domain_error(self, request: AnyRequest, error: DomainError) -> Response[str]:
        scope = request.scope
        status = STATUSES[type(error)]
        if isinstance(error, InvalidCursorError):
            return self._page(
                scope,
                status,
                "This link to a part of a list is invalid.",
                back=_first_page(scope),
            )
        # only errors of these statuses leave an object to open
        leaves_object = status in (HTTPStatus.FORBIDDEN, HTTPStatus.CONFLICT)
        return self._page(
            scope,
            status,
            error.detail,
            _ERROR_TITLES.get(type(error), ""),
            back=_object_page(scope) if leaves_object else None,
        )

    def http_error(self, request: AnyRequest, error: HTTPException) -> Response[str]:
        return self._page(
            request.scope,
            error.status_code,
            error.detail,
            HTTPStatus(error.status_code).phrase,
        )

    def invalid_address(self, request: AnyRequest, error: ValidationException) -> Response[str]:
        """Answer an invalid path or query, without repeating any of it."""
        if any(isinstance(one, dict) and one.get("source") == "path" for one in error.extra or ()):
            return self._page(request.scope, 404, _UNROUTED[HTTPStatus.NOT_FOUND])
        return self._page(
            request.scope,
            400,
            _CHECK_ADDRESS,
            back=_first_page(request.scope),
        )

    def role_too_low(self, request: AnyRequest, error: guards.RoleTooLowError) -> Response[str]:
        message = denial_text(
            error.user.role,
            error.user.claims.scopes,
            error.scope,
            error.owner_only,
        )
        return self._page(request.scope, 403, message)

    def internal_error(self, request: AnyRequest, error: Exception) -> Response[str]:
        logger.error("request %s failed", request.scope.get(REQUEST_ID, ""), exc_info=error)
        message = "Internal server error. Try again; if it persists, send the operator the request id below."
        return self._page(
            request.scope,
            500,
            message,
            "Something went wrong",
        )

    def raw_page_of(self, scope: Scope, status: int, request_id: str) -> HotResponse | None:
        """Return the page of a request that never reached a route; None as for `page_of`."""
        accept = header_of(scope, b"accept") or b""
        late = _TIMEOUT_OF_FORM if scope["method"] == "POST" else _TIMEOUT
        message = {404: _UNROUTED[HTTPStatus.NOT_FOUND], 503: late}.get(status)
        # browsers meet no other status
        if message is None or not _wants_page(scope["path"], Accept(accept.decode("latin-1"))):
            return None
        response = self._page(scope, status, message, request_id=request_id)
        headers = {"Content-Type": f"{MediaType.HTML.value}; charset=utf-8", **response.headers}
        lines = [
            (name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()
        ]
        return HotResponse(status, [*lines, VARIES], response.content.encode())

    def page_of(self, request: AnyRequest, error: HTTPException) -> Response[str] | None:
        """Return the page of a request that no route answers; None for programs."""
        if not is_unrouted_page(request, error):
            return None
        response = self._page(
            request.scope, error.status_code, _UNROUTED[HTTPStatus(error.status_code)]
        )
        response.headers.update(error.headers or {})
        return response

    def _page(
        self,
        scope: Mapping[str, Any],
        status: int,
        message: str,
        title: str = "",
        request_id: object = None,
        back: tuple[str, str] | None = None,
    ) -> Response[str]:
        """Render an error page; ``back`` is the address and text of its link if that is not the
        first page.
        """
        request_id = request_id or scope.get(REQUEST_ID)
        return self._renderer.page(
            "error.html",
            status,
            user=guards.current_user(scope),
            title=title or _TITLES.get(HTTPStatus(status), HTTPStatus(status).phrase.capitalize()),
            message=message,
            request_id=request_id if status >= HTTPStatus.INTERNAL_SERVER_ERROR else None,
            back=back,
        )

    def _unsent_form(
        self,
        request: AnyRequest,
        error: guards.UnsentFormError,
        status: int,
        message: str,
        title: str,
    ) -> Response[str]:
        """Render the error page of a form that was not processed, or the page that keeps it."""
        page = self._resubmission(request, status, error.form) if error.form else None
        return page or self._page(request.scope, status, message, title)

    def _resubmission(self, request: AnyRequest, status: int, form: Form) -> Response[str] | None:
        """Return a page that keeps the form's content, for the user to sign in and submit again by
        its button.

        Return None if the page would be larger than `_MOST_PAGE_BYTES`.
        """
        known = labels().form_fields
        entries = form.entries()
        page = self._renderer.page(
            "resubmit.html",
            status,
            user=guards.current_user(request.scope),
            path=request.url.path,
            entries=entries,
            shown=[(known[name], text) for name, text in entries if text and name in known],
        )
        return page if len(page.content.encode()) <= _MOST_PAGE_BYTES else None


def is_unrouted_page(request: AnyRequest, error: Exception) -> bool:
    """Whether a browser asked for an address or method that no route answers."""
    is_unrouted = isinstance(error, HTTPException) and error.status_code in _UNROUTED
    return is_unrouted and _wants_page(request.scope["path"], request.accept)


def _wants_page(path: str, accept: Accept) -> bool:
    top = path.partition("/")[2].partition("/")[0]
    if top in ("orgs", "api"):
        return top == "orgs"
    return accept.best_match(_TYPES) == "text/html"


def _first_page(scope: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return a link to the same page without its query, for signed-in users of an organization."""
    user = guards.current_user(scope)
    is_list = user is not None and user.caller is not None and not scope["path"].endswith("/stream")
    return (scope["path"], "Show the first page") if is_list else None


def _object_page(scope: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return a link to the page of the object that a form or page below it is about."""
    user = guards.current_user(scope)
    if user is None or user.caller is None:
        return None
    for name, (folder, text) in _OBJECTS.items():
        address = f"{user.base}{folder}{scope['path_params'].get(name, '')}"
        if name in scope["path_params"] and address != scope["path"]:
            return address, text
    return None


def _address(request: AnyRequest) -> str:
    # request.url fails for a malformed Host
    query = request.scope["query_string"].decode("latin-1")
    return request.scope["path"] + (f"?{query}" if query else "")
