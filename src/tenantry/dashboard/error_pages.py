"""What becomes of refusals: pages, too."""

import logging
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from litestar import MediaType, Response
from litestar.datastructures.headers import Accept
from litestar.exceptions import HTTPException, ValidationException

from tenantry.api.guards import AnyRequest
from tenantry.dashboard.forms import Form
from tenantry.dashboard.guards import (
    ORGS,
    ForeignFormError,
    NotSignedInError,
    ProofNeededError,
    RoleTooLowError,
    Visitor,
    is_navigation,
    recognized_visitor,
)
from tenantry.dashboard.labels import refusal_of
from tenantry.dashboard.renderer import Renderer
from tenantry.dashboard.sign_in import start_path
from tenantry.domain.errors import DomainError
from tenantry.server.asgi_types import HotResponse, Scope, header_of
from tenantry.server.dispatch import REQUEST_ID
from tenantry.server.problems import RETRY_AFTER, STATUSES, VARIES

_SERVER_ERROR: Final = 500
_TITLES: Final = {
    HTTPStatus.BAD_REQUEST: "This address cannot be read",
    HTTPStatus.FORBIDDEN: "You may not do this",
    HTTPStatus.NOT_FOUND: "There is nothing here",
    HTTPStatus.SERVICE_UNAVAILABLE: "Not available at the moment",
}
_CUT_OFF: Final = "A link to it may be old, or cut off."
_UNANSWERED: Final = {
    HTTPStatus.NOT_FOUND: ("There is nothing here", f"No page has this address. {_CUT_OFF}"),
    HTTPStatus.METHOD_NOT_ALLOWED: ("This cannot be done here", "This address does not answer what was asked of it."),
}
_TOO_LATE: Final = {
    False: "The answer took too long. Try again shortly.",
    True: "The answer took too long. What you sent may have been carried out: look before you send it again.",
}
_API: Final = "/api"
_LABELS: Final = {
    "name": "Name",
    "description": "Description",
    "userId": "User id",
    "role": "Role",
    "ownerEmail": "Billing address",
    "word": "Typed to confirm",
    "access": "Access",
    "scope": "Scope",
    "own": "Other scopes",
    "mode": "Mode",
    "expiry": "Expiry",
    "until": "Last day",
    "overlap": "Seconds for which the old key goes on",
    "plan": "Plan",
    "sure": "Ticked to be sure",
    "leaving": "Ticked to leave",
    "force": "Ticked to be sure",
}
"""What the fields of forms are called; others are not for people."""

logger = logging.getLogger(__name__)


class ErrorPages:
    """Refusals as pages."""

    def __init__(self, look: Renderer) -> None:
        self._look = look

    def not_signed_in(self, request: AnyRequest, error: NotSignedInError) -> Response[str]:
        if request.method == "GET" and is_navigation(request):
            return self._look.redirect(f"/sign-in?return_to={quote(_address(request), safe='')}")
        if error.form is not None:
            return self._send_again(request, 401, error.form)
        return self._page(request, 401, "Your session has ended", "Sign in again. What you sent was not carried out.")

    def proof_needed(self, request: AnyRequest, error: ProofNeededError) -> Response[str]:
        return self._look.redirect(start_path(_address(request), silent=True, hint=error.subject))

    def foreign_form(self, request: AnyRequest, error: ForeignFormError) -> Response[str]:
        if error.form is not None:
            return self._send_again(request, 403, error.form)
        return self._page(
            request, 403, "This form is not from here",
            "It was made for another session, or another site sent it. Nothing was changed: open the page again.",
        )  # fmt: skip

    def domain_error(self, request: AnyRequest, error: DomainError) -> Response[str]:
        status = STATUSES[type(error)]
        return self._page(request, status, _TITLES.get(status, status.phrase), error.detail)

    def http_error(self, request: AnyRequest, error: HTTPException) -> Response[str]:
        return self._page(request, error.status_code, HTTPStatus(error.status_code).phrase, error.detail)

    def unreadable_address(self, request: AnyRequest, error: ValidationException) -> Response[str]:
        """Something in the path that is nobody's id, or a query that no page of ours makes. Neither is said again."""
        faults = [fault for fault in error.extra or () if isinstance(fault, dict)]
        if any(fault.get("source") == "path" for fault in faults):
            return self._page(request, HTTPStatus.NOT_FOUND, *_UNANSWERED[HTTPStatus.NOT_FOUND])
        return self._page(request, HTTPStatus.BAD_REQUEST, _TITLES[HTTPStatus.BAD_REQUEST], _CUT_OFF)

    def role_too_low(self, request: AnyRequest, error: RoleTooLowError) -> Response[str]:
        visitor = error.visitor
        message = refusal_of(visitor.role, visitor.claims.scopes, error.scope, error.owner_only)
        return self._page(request, HTTPStatus.FORBIDDEN, _TITLES[HTTPStatus.FORBIDDEN], message)

    def page_in_front(self, scope: Scope, status: int, request_id: str) -> HotResponse | None:
        """The page for a request that no route has answered in time, or could; None as for `page_of`."""
        accept = header_of(scope, b"accept") or b""
        is_ours = status in (HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE)  # no browser meets another
        if not is_ours or not _is_of_pages(scope["path"], Accept(accept.decode("latin-1"))):
            return None
        if status == HTTPStatus.NOT_FOUND:
            title, message = _UNANSWERED[HTTPStatus.NOT_FOUND]
        else:
            title, message = _TITLES[HTTPStatus.SERVICE_UNAVAILABLE], _TOO_LATE[scope["method"] == "POST"]
        response = self._message(status, title, message, request_id)
        headers = {"Content-Type": f"{MediaType.HTML.value}; charset=utf-8", **response.headers}
        lines = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        return HotResponse(status, [*lines, VARIES], response.content.encode())

    def page_of(self, request: AnyRequest, error: HTTPException) -> Response[str] | None:
        """The page for a request that no route answers; None where it is not of a person with a browser."""
        if not is_unanswered_page(request, error):
            return None
        status = HTTPStatus(error.status_code)
        response = self._page(request, status, *_UNANSWERED[status])
        response.headers.update(error.headers or {})
        return response

    def fault(self, request: AnyRequest, error: Exception) -> Response[str]:
        logger.error("request %s failed", request.scope.get(REQUEST_ID, ""), exc_info=error)
        return self._page(request, _SERVER_ERROR, "Something went wrong", "It is our fault, and in our log.")

    def _page(self, request: AnyRequest, status: int, title: str, message: str) -> Response[str]:
        return self._message(
            status, title, message, str(request.scope.get(REQUEST_ID, "")), recognized_visitor(request)
        )

    def _message(
        self, status: int, title: str, message: str, request_id: str, visitor: Visitor | None = None
    ) -> Response[str]:
        return self._look.page(
            "message.html",
            status_code=status,
            headers={"Retry-After": RETRY_AFTER} if status == HTTPStatus.SERVICE_UNAVAILABLE else {},
            visitor=visitor,
            layout=_layout(visitor),
            section=None,
            title=title,
            message=message,
            request_id=request_id if status >= _SERVER_ERROR else "",
        )

    def _send_again(self, request: AnyRequest, status: int, form: Form) -> Response[str]:
        """What was typed, to be sent again by whoever is signed in then. It is sent by nothing but their button."""
        visitor, typed = recognized_visitor(request), form.typed()
        return self._look.page(
            "send_again.html",
            status_code=status,
            visitor=visitor,
            layout=_layout(visitor),
            section=None,
            path=request.url.path,
            typed=typed,
            shown=[(_LABELS[name], text) for name, text in typed if text and name in _LABELS],
        )


def _layout(visitor: Visitor | None) -> str:
    """The frame of a page that says no: with the menus of whoever is signed in, and the pages of a tenant in one."""
    if visitor is None:
        return "plain.html"
    return "signed_in.html" if visitor.caller is None else "tenant.html"


def is_unanswered_page(request: AnyRequest, error: Exception) -> bool:
    """Whether a person with a browser asked for what no route answers."""
    is_unanswered = isinstance(error, HTTPException) and error.status_code in _UNANSWERED
    return is_unanswered and _is_of_pages(request.scope["path"], request.accept)


def _is_of_pages(path: str, accept: Accept) -> bool:
    if _is_at(path, ORGS):
        return True
    if _is_at(path, _API):
        return False
    offered = ["application/problem+json", "application/json", "text/html"]
    return accept.best_match(offered) == "text/html"


def _is_at(path: str, place: str) -> bool:
    return path == place or path.startswith(place + "/")


def _address(request: AnyRequest) -> str:
    query = request.scope["query_string"].decode("latin-1")  # request.url fails for a malformed Host
    return request.scope["path"] + (f"?{query}" if query else "")
