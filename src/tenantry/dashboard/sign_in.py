"""Signing in at the identity provider, and signing out."""

import logging
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Final
from urllib.parse import quote, urlsplit

from litestar import Response, get, post
from litestar.params import QueryParameter

from tenantry.api.guards import AnyRequest
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.cookies import SignInCookie
from tenantry.dashboard.guards import NotSignedInError, PageGuard, current_user, is_head
from tenantry.domain.errors import AuthUnavailableError
from tenantry.domain.operators import SIGNED_IN_WITHIN
from tenantry.integrations.http_client import FetchError
from tenantry.integrations.oidc import sign_in as oidc
from tenantry.integrations.oidc.sign_in import SignedInUser, SignIn
from tenantry.server.asgi_types import REQUEST_ID

SIGN_IN: Final = "/sign-in"
START: Final = "/sign-in/start"
CALLBACK: Final = "/sign-in/callback"
SIGN_OUT: Final = "/sign-out"
SIGNED_OUT: Final = "/signed-out"
SIGN_IN_LIFETIME: Final = timedelta(minutes=10)
"""How long a user may take at the identity provider."""
_MAX_AGE: Final = int(SIGNED_IN_WITHIN.total_seconds())
_SAFE_PATH: Final = re.compile(r"/(?!/|sign-|signed-)[ -\[\]-~]{0,999}")
"""A path in printable ASCII without a backslash, which browsers take for a slash. A cookie of at
most 4096 bytes holds it.
"""

logger = logging.getLogger(__name__)

ReturnTo = Annotated[str, QueryParameter(name="return_to")]


async def _ignore_head(request: AnyRequest) -> Response[str] | None:
    """Neither begin nor finish a sign-in for a HEAD request."""
    return PageContext(request).redirect(SIGN_IN) if is_head(request) else None


@get(SIGN_IN, opt={"public": True})
async def show_sign_in(ctx: Context, return_to: ReturnTo = "/") -> Response[str]:
    if await _has_session(ctx):
        return ctx.redirect(safe_path(return_to))
    if ctx.services.sign_in is None:
        return ctx.render("sign_in_setup.html", 404, callback=ctx.services.base_url + CALLBACK)
    return _sign_in_page(ctx, return_to)


@get(START, opt={"public": True}, before_request=_ignore_head)
async def start_sign_in(
    ctx: Context,
    return_to: ReturnTo = "/",
    silent: Annotated[str, QueryParameter(name="silent", max_length=1)] = "",
    hint: Annotated[str | None, QueryParameter(name="hint", max_length=255)] = None,
    here: Annotated[str, QueryParameter(name="here", max_length=1)] = "",
    again: Annotated[str, QueryParameter(name="again", max_length=1)] = "",
) -> Response[str]:
    request = ctx.request
    sign_in = ctx.services.sign_in
    base_url = ctx.services.base_url
    if sign_in is None:
        return ctx.redirect(SIGN_IN)
    if request.headers.get("host", "") != urlsplit(base_url).netloc and not here:
        # the provider redirects to BASE_URL only, and browsers do not send it the cookies of
        # another host
        return ctx.redirect(f"{base_url}{START}?{request.url.query}&here=1")
    try:
        url, begun = await sign_in.begin(
            silent=bool(silent), login_hint=hint, max_age=_MAX_AGE if again else None
        )
    except AuthUnavailableError as error:
        return _sign_in_page(ctx, return_to, error)
    response = ctx.redirect(url)
    for cookie in ctx.cookies.without_old_sign_ins(request):
        response.set_cookie(cookie)
    response.set_cookie(ctx.cookies.with_sign_in(begun, safe_path(return_to), SIGN_IN_LIFETIME))
    return response


@get(CALLBACK, opt={"public": True}, before_request=_ignore_head)
async def finish_sign_in(ctx: Context) -> Response[str]:
    request = ctx.request
    answer = {
        name: request.query_params[name]
        for name in oidc.RESPONSE_PARAMETERS
        if name in request.query_params
    }
    pending = ctx.cookies.sign_in(request, answer.get("state", ""))
    sign_in = ctx.services.sign_in
    if sign_in is None or pending is None:
        error = oidc.SignInFailedError(
            "This sign-in has expired or was started in another browser. Sign in again."
        )
        return await _page_unless_signed_in(ctx, "/", error)
    try:
        async with sign_in.redemption():
            response = await _redeem(ctx, sign_in, pending, answer)
    except oidc.TooManySignInsError as busy:  # nothing is used yet: the same address works later
        _log_failure(request, busy)
        return _sign_in_page(ctx, pending.return_to, busy)
    response.set_cookie(ctx.cookies.without_sign_in(pending.begun.state))
    return response


async def _redeem(
    ctx: PageContext, sign_in: SignIn, pending: SignInCookie, answer: Mapping[str, str]
) -> Response[str]:
    """Exchange the provider's authorization code, and begin or renew the session."""
    request = ctx.request
    sessions = ctx.services.sessions
    try:
        await _use_state(ctx, pending)
        person = await sign_in.finish(pending.begun, answer)
    except (AuthUnavailableError, oidc.SignInFailedError) as error:
        if pending.begun.silent and isinstance(error, oidc.InteractionRequiredError):
            return ctx.redirect(start_path(pending.return_to))
        _log_failure(request, error)
        return await _page_unless_signed_in(ctx, pending.return_to, error)
    before = ctx.cookies.session(request)
    if pending.begun.silent:
        return await _renew(ctx, pending, person, before)
    address = request.client.host if request.client else None
    agent = request.headers.get("user-agent")
    session = await sessions.begin(
        person.claims,
        person.name,
        address=address,
        agent=agent,
        before=before,
        authenticated_at=person.authenticated_at,
    )
    response = ctx.redirect(pending.return_to)
    response.set_cookie(ctx.cookies.with_session(session))
    return response


async def _use_state(ctx: PageContext, pending: SignInCookie) -> None:
    if not await ctx.services.sessions.use_state(pending.begun.state):
        raise oidc.SignInFailedError("This sign-in was used before. Sign in again.")


async def _renew(
    ctx: PageContext, pending: SignInCookie, person: SignedInUser, token: str | None
) -> Response[str]:
    """Continue the session if the provider confirmed its user. This never begins a session."""
    renew = ctx.services.sessions.renew
    if token is not None and await renew(token, person.claims, person.name):
        return ctx.redirect(pending.return_to)
    if await _has_session(ctx):
        # another user is signed in at the provider now
        return ctx.redirect(start_path(pending.return_to))
    return ctx.redirect(sign_in_path(safe_path(pending.return_to)))


def _already_signed_out(request: AnyRequest, _error: NotSignedInError) -> Response[str]:
    # The answer deletes no cookie: another site can send this request too, and then browsers hold
    # the cookie back.
    return PageContext(request).redirect(SIGNED_OUT)


@post(
    SIGN_OUT,
    guards=[PageGuard(allow_stale_login=True)],
    exception_handlers={NotSignedInError: _already_signed_out},
)
async def sign_out(ctx: Context) -> Response[str]:
    token = ctx.cookies.session(ctx.request)
    if token is not None:
        await ctx.services.sessions.end(token)
    response = ctx.redirect(SIGNED_OUT)
    response.set_cookie(ctx.cookies.without_session())
    return response


@get(SIGNED_OUT, opt={"public": True})
async def show_signed_out(ctx: Context) -> Response[str]:
    if await _has_session(ctx):
        return ctx.redirect("/")
    sign_in = ctx.services.sign_in
    provider_sign_out = (
        sign_in.end_session_url(ctx.services.base_url + SIGNED_OUT) if sign_in else None
    )
    return ctx.render("signed_out.html", provider_sign_out=provider_sign_out)


async def _page_unless_signed_in(
    ctx: PageContext, return_to: str, error: Exception
) -> Response[str]:
    """Return the page of a failed sign-in, or redirect a signed-in user: browsers load a callback
    twice.

    A session that the provider must confirm again does not count, since its pages redirect to the
    provider.
    """
    await ctx.sessions.recognize(ctx.request)
    if current_user(ctx.request.scope) is not None:
        return ctx.redirect(return_to)
    return _sign_in_page(ctx, return_to, error)


async def _has_session(ctx: PageContext) -> bool:
    token = ctx.cookies.session(ctx.request)
    return (
        token is not None
        and await ctx.services.sessions.look_up(token, None, is_use=False) is not None
    )


def _sign_in_page(
    ctx: PageContext, return_to: str, error: Exception | None = None
) -> Response[str]:
    return ctx.render(
        "sign_in.html",
        _status_of(error),
        start=start_path(return_to),
        people=ctx.services.people,
        problem=str(error or ""),
    )


def _status_of(error: Exception | None) -> int:
    if error is None:
        return 200
    return 400 if isinstance(error, oidc.SignInFailedError) else 503


def _log_failure(request: AnyRequest, error: Exception) -> None:
    """Log why a sign-in failed. Of other libraries' errors only the type: their text may hold a
    secret.
    """
    cause = error.__cause__
    behind = ""
    if isinstance(cause, FetchError):
        behind = f" It {cause}."
    elif cause:
        behind = f" {type(cause).__name__}."
    logger.warning(
        "request %s: a sign-in failed. %s%s",
        request.scope.get(REQUEST_ID, ""),
        error,
        behind,
    )


def sign_in_path(return_to: str) -> str:
    """Return the path of the page that offers to sign in and then leads to ``return_to``."""
    return f"{SIGN_IN}?return_to={quote(return_to, safe='')}"


def start_path(
    return_to: str, *, silent: bool = False, again: bool = False, hint: str | None = None
) -> str:
    """Return the path that begins a sign-in and then leads to ``return_to``.

    With ``again``, users authenticate who have not done so for an hour.
    """
    more = ("&silent=1" if silent else "") + ("&again=1" if again else "")
    more += f"&hint={quote(hint, safe='')}" if hint else ""
    return f"{START}?return_to={quote(safe_path(return_to), safe='')}{more}"


def safe_path(path: str) -> str:
    """Return the path if it leads to a page of the dashboard and to no other site, else the start
    page.
    """
    return path if _SAFE_PATH.fullmatch(path) else "/"
