"""Error pages."""

import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote

from litestar import MediaType, Request, Response
from litestar.datastructures.headers import Accept
from litestar.exceptions import HTTPException, NotFoundException, ValidationException
from litestar.types import Scope as RequestScope

from tenantry.api.guards import AnyRequest
from tenantry.dashboard import guards
from tenantry.dashboard.context import Renderer, page_components
from tenantry.dashboard.forms import TOKEN_FIELD
from tenantry.dashboard.key_text_fields import TEXT_FIELDS
from tenantry.dashboard.labels import denial_text, labels
from tenantry.dashboard.sign_in import sign_in_path, start_path
from tenantry.domain.errors import (
    DatabaseUnavailableError,
    DomainError,
    IdempotencyInFlightError,
    IdempotencyMismatchError,
    InvalidCursorError,
    InvalidIdempotencyKeyError,
    KeyNotActiveError,
    MemberNotActiveError,
    OrgSuspendedError,
    ProviderUnavailableError,
)
from tenantry.server.asgi_types import NO_PAGE, REQUEST_ID, HotResponse, Scope, header_of
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
    OrgSuspendedError: "Organization suspended",
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
_MOST_TYPED: Final = 10_000
"""In characters: escaped, they still fit into a page of `_MOST_PAGE_BYTES`."""
_CHECK_ADDRESS: Final = "Check the address: the link may be old or incomplete."
_UNROUTED: Final = {
    HTTPStatus.NOT_FOUND: f"No page has this address. {_CHECK_ADDRESS}",
    HTTPStatus.METHOD_NOT_ALLOWED: "This address does not accept the request. Go back and try again.",
}
_TIMEOUT: Final = "The request timed out. Try again in a moment."
_TIMEOUT_OF_FORM: Final = "The request timed out."
_UNCERTAIN: Final = (
    IdempotencyInFlightError,
    IdempotencyMismatchError,
    DatabaseUnavailableError,
    ProviderUnavailableError,
)
"""What can be raised after a form took effect, or because it did before."""

_TYPES: Final = ["application/problem+json", "application/json", "text/html"]

logger = logging.getLogger(__name__)


class _ErrorPage(NamedTuple):
    """What the page of an error says; ``back`` is the address and text of its link if that is not
    the first page, and ``typed`` has the labels and texts of what the user submitted.
    ``may_be_saved`` is for a form that may have taken effect.
    """

    status: int
    message: str
    title: str = ""
    back: tuple[str, str] | None = None
    typed: Sequence[tuple[str, str]] = ()
    may_be_saved: bool = False
    offers_support: bool = False

    def render(
        self, renderer: Renderer, scope: Mapping[str, Any], request_id: object
    ) -> Response[str]:
        status = HTTPStatus(self.status)
        return renderer.page(
            "error.html",
            self.status,
            user=guards.current_user(scope),
            title=self.title or _TITLES.get(status, status.phrase.capitalize()),
            message=self.message,
            request_id=request_id if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else None,
            back=self.back,
            typed=self.typed,
            may_be_saved=self.may_be_saved,
            offers_support=self.offers_support,
        )

    def response(self, request: AnyRequest) -> Response[str]:
        """Render the page in response to a request."""
        renderer = page_components(request).renderer
        return self.render(renderer, request.scope, request.scope.get(REQUEST_ID))


def not_signed_in(request: AnyRequest, _: guards.NotSignedInError) -> Response[str]:
    if request.method == "GET" and guards.is_navigation(request):
        return page_components(request).renderer.redirect(sign_in_path(_address(request)))
    title = "Your session has ended"
    renderer = page_components(request).renderer
    kept = _kept_form(renderer, request.scope, HTTPStatus.UNAUTHORIZED, title)
    return kept or _ErrorPage(401, "Nothing was saved. Sign in, then try again.", title).response(
        request
    )


def stale_sign_in(request: AnyRequest, error: guards.StaleSignInError) -> Response[str]:
    start = start_path(_address(request), silent=True, hint=error.subject)
    return page_components(request).renderer.redirect(start)


def csrf(request: AnyRequest, _: guards.CsrfError) -> Response[str]:
    message = "It belongs to another session or another site. Nothing was changed. Open the page again and retry."
    user = guards.current_user(request.scope)
    kept = _kept_form(
        page_components(request).renderer,
        request.scope,
        HTTPStatus.FORBIDDEN,
        "Submit this form?",
        token=user.form_token if user else "",
    )
    return kept or _ErrorPage(403, message, "This form is invalid").response(request)


def no_page(request: AnyRequest, _: guards.NoPageError) -> Response[str]:
    """Answer as the application does at an address without a route."""
    answer = cast("Callable[..., Response[str]]", request.app.exception_handlers[HTTPException])
    return answer(request, NotFoundException())


def unconfirmed_operator(request: AnyRequest, _: guards.UnconfirmedOperatorError) -> Response[str]:
    """Keep the form of an operator who must authenticate again."""
    title = "Confirm that it is you"
    message = "Nothing was changed. Sign in again, then repeat it."
    renderer = page_components(request).renderer
    kept = _kept_form(renderer, request.scope, HTTPStatus.UNAUTHORIZED, title, confirms=True)
    back = start_path(guards.CONFIRMED, again=True), "Sign in again"
    return kept or _ErrorPage(401, message, title, back).response(request)


def domain_error(request: AnyRequest, error: DomainError) -> Response[str]:
    scope = request.scope
    if isinstance(error, DatabaseUnavailableError):
        kept = _form_without_database(page_components(request).renderer, scope)
        if kept is not None:
            return kept
    status = STATUSES[type(error)]
    message = error.detail
    back = None
    if isinstance(error, InvalidCursorError):
        message = "This link to a part of a list is invalid."
        back = _first_page(scope)
    elif isinstance(error, OrgSuspendedError):  # every page of the organization answers this
        back = "/account", "Open your account"
    elif status in (
        HTTPStatus.FORBIDDEN,
        HTTPStatus.CONFLICT,
    ):  # only these leave an object to open
        back = _object_page(scope)
    title = _ERROR_TITLES.get(type(error), "")
    may_be_saved = guards.current_form(scope) is not None and isinstance(error, _UNCERTAIN)
    page = _ErrorPage(status, message, title, back, _typed(scope), may_be_saved)
    return page._replace(offers_support=isinstance(error, OrgSuspendedError)).response(request)


def http_error(request: AnyRequest, error: HTTPException) -> Response[str]:
    title = HTTPStatus(error.status_code).phrase
    return _ErrorPage(error.status_code, error.detail, title).response(request)


def invalid_address(request: AnyRequest, error: ValidationException) -> Response[str]:
    """Answer an invalid path or query, without repeating any of it."""
    if any(isinstance(one, dict) and one.get("source") == "path" for one in error.extra or ()):
        return _ErrorPage(404, _UNROUTED[HTTPStatus.NOT_FOUND]).response(request)
    return _ErrorPage(400, _CHECK_ADDRESS, back=_first_page(request.scope)).response(request)


def role_too_low(request: AnyRequest, error: guards.RoleTooLowError) -> Response[str]:
    user = error.user
    message = denial_text(user.role, user.claims.scopes, error.scope, error.owner_only)
    return _ErrorPage(403, message, typed=_typed(request.scope)).response(request)


def internal_error(request: AnyRequest, error: Exception) -> Response[str]:
    logger.error("request %s failed", request.scope.get(REQUEST_ID, ""), exc_info=error)
    message = (
        "Internal server error. Try again; if it persists, send the operator the request id below."
    )
    return _ErrorPage(500, message, "Something went wrong").response(request)


def raw_page_of(
    renderer: Renderer, scope: Scope, status: int, request_id: str
) -> HotResponse | None:
    """Return the page of a request that never reached a route; None as for `page_of`."""
    accept = header_of(scope, b"accept") or b""
    is_form = scope["method"] == "POST"
    late = _TIMEOUT_OF_FORM if is_form else _TIMEOUT
    message = {404: _UNROUTED[HTTPStatus.NOT_FOUND], 503: late}.get(status)
    # browsers meet no other status
    if message is None or not _wants_page(scope["path"], Accept(accept.decode("latin-1"))):
        return None
    is_late_form = is_form and message is late
    kept = _form_without_database(renderer, scope) if is_late_form else None
    page = _ErrorPage(status, message, may_be_saved=is_late_form)
    response = kept or page.render(renderer, scope, request_id)
    headers = {"Content-Type": f"{MediaType.HTML.value}; charset=utf-8", **response.headers}
    lines = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    return HotResponse(status, [*lines, VARIES], response.content.encode())


def page_of(request: AnyRequest, error: HTTPException) -> Response[str] | None:
    """Return the page of a request that no route answers; None for programs."""
    if not _is_unrouted_page(request, error):
        return None
    message = _UNROUTED[HTTPStatus(error.status_code)]
    response = _ErrorPage(error.status_code, message).response(request)
    response.headers.update(error.headers or {})
    return response


async def before_page_of(error: Exception, scope: RequestScope) -> None:
    """Look up the user for `page_of`, which cannot await. Who is no operator must not learn from a
    wrong method that an address has a page.
    """
    request: AnyRequest = Request(scope)
    is_of_operator = _is_unrouted(error) and guards.is_operator_page(request)
    if is_of_operator or _is_unrouted_page(request, error):
        await page_components(request).sessions.recognize(request)
    if is_of_operator and not guards.is_acting_operator(request):
        scope[NO_PAGE] = True  # type: ignore[typeddict-unknown-key]


def _form_without_database(renderer: Renderer, scope: Mapping[str, Any]) -> Response[str] | None:
    """Return the page that keeps a form while the database is away, until it is back; None as for
    `_kept_form`.

    The page submits the form by itself, unless it was being processed and could have an effect
    twice.
    """
    was_begun = guards.current_form(scope) is not None
    typed = guards.typed_form(scope)
    has_claim = typed is not None and bool(typed.text("once"))
    return _kept_form(
        renderer,
        scope,
        HTTPStatus.SERVICE_UNAVAILABLE,
        "Not confirmed yet" if was_begun else "Not saved yet",
        was_begun=was_begun,
        is_retried=has_claim or not was_begun,
    )


def _kept_form(
    renderer: Renderer,
    scope: Mapping[str, Any],
    status: HTTPStatus,
    title: str,
    *,
    token: str = "",
    was_begun: bool = False,
    confirms: bool = False,
    is_retried: bool = False,
) -> Response[str] | None:
    """Return a page that keeps the form's content, for the user to submit it again by its button.

    Without another ``token``, the form keeps its own: only the session that sent it can submit it
    again. Any other session is asked first. ``was_begun`` says that the form may have taken effect,
    and ``is_retried`` that the page submits it by itself when the database is back.

    Return None without a form of the dashboard, or if the page would be larger than
    `_MOST_PAGE_BYTES`.
    """
    form = guards.typed_form(scope)
    if form is None:
        return None
    page = renderer.page(
        "resubmit.html",
        status,
        user=guards.current_user(scope),
        title=title,
        is_away=status == HTTPStatus.SERVICE_UNAVAILABLE,
        was_begun=was_begun,
        confirm_path=start_path(guards.CONFIRMED, again=True) if confirms else None,
        is_retried=is_retried,
        confirmed_path=guards.CONFIRMED,
        token=token or form.text(TOKEN_FIELD),
        path=quote(scope["path"]),
        entries=form.entries(),
        shown=_typed(scope),
    )
    return page if len(page.content.encode()) <= _MOST_PAGE_BYTES else None


def _typed(scope: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the labels and texts of what the user submitted; nothing for a form of another
    site, or for more text than any form takes.
    """
    form = guards.typed_form(scope)
    known = {**labels().form_fields, **{field.name: field.label for field in TEXT_FIELDS}}
    entries = form.entries() if form else []
    typed = [(known[name], text) for name, text in entries if text and name in known]
    return typed if sum(len(text) for _, text in typed) <= _MOST_TYPED else []


def _is_unrouted_page(request: AnyRequest, error: Exception) -> bool:
    """Whether a browser asked for an address or method that no route answers."""
    return _is_unrouted(error) and _wants_page(request.scope["path"], request.accept)


def _is_unrouted(error: Exception) -> bool:
    return isinstance(error, HTTPException) and error.status_code in _UNROUTED


def _wants_page(path: str, accept: Accept) -> bool:
    top = path.partition("/")[2].partition("/")[0]
    if top in ("orgs", "api"):
        return top != "api"
    return accept.best_match(_TYPES) == "text/html"


def _first_page(scope: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return a link to the same page without its query, for signed-in users of an organization and
    for operators.
    """
    user = guards.current_user(scope)
    has_lists = user is not None and (user.caller is not None or user.acts_as_operator)
    is_list = has_lists and not scope["path"].endswith("/stream")
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
