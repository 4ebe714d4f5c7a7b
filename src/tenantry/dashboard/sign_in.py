"""Signing in and out."""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import quote, urlsplit

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from tenantry.api.guards import AnyRequest
from tenantry.auth.sessions import SessionService
from tenantry.dashboard.cookies import Cookies, Pending
from tenantry.dashboard.guards import NotSignedInError, SessionGuard, is_head, recognized_visitor
from tenantry.dashboard.renderer import Renderer
from tenantry.domain.errors import AuthUnavailableError
from tenantry.integrations.oidc.jwks import FetchError
from tenantry.integrations.oidc.sign_in import (
    InteractionRequiredError,
    SignedInUser,
    SignIn,
    SignInFailedError,
    TooManySignInsError,
)
from tenantry.server.dispatch import REQUEST_ID
from tenantry.server.problems import RETRY_AFTER

SIGN_IN: Final = "/sign-in"
START: Final = "/sign-in/start"
CALLBACK: Final = "/sign-in/callback"
SIGN_OUT: Final = "/sign-out"
SIGNED_OUT: Final = "/signed-out"
_LONGEST_PATH: Final = 1000  # a cookie holds it, of 4096 bytes at most

logger = logging.getLogger(__name__)

ReturnTo = Annotated[str, QueryParameter(name="return_to")]


class SignInPages:
    """The pages of signing in; without ``sign_in``, one that says how to set it up.

    ``people`` are those whom the demo lets in with one click: a hint to its identity provider, and a name.
    """

    def __init__(
        self,
        sign_in: SignIn | None,
        sessions: SessionService,
        cookies: Cookies,
        look: Renderer,
        *,
        base_url: str,
        people: Sequence[tuple[str, str]],
    ) -> None:
        self._sign_in = sign_in
        self._sessions = sessions
        self._cookies = cookies
        self._look = look
        self._base_url = base_url
        self._people = people

    def routes(self, door: SessionGuard) -> list[HTTPRouteHandler]:
        """The routes."""
        return [*self._in(door), *self._out(door)]

    def _in(self, door: SessionGuard) -> list[HTTPRouteHandler]:
        async def answer_head(request: AnyRequest) -> Response[str] | None:
            """Neither begin a sign-in nor end one for who asks for the head of an answer alone."""
            return self._look.redirect(SIGN_IN) if is_head(request) else None

        @get(SIGN_IN, opt={"public": True})
        async def show_sign_in(request: AnyRequest, return_to: ReturnTo = "/") -> Response[str]:
            if await self._is_signed_in(request):
                return self._look.redirect(safe_path(return_to))
            if self._sign_in is None:
                return self._look.page("not_set_up.html", status_code=404, callback=self._base_url + CALLBACK)
            return self._page(return_to)

        @get(START, opt={"public": True}, before_request=answer_head)
        async def start_sign_in(
            request: AnyRequest,
            return_to: ReturnTo = "/",
            silent: Annotated[str, QueryParameter(name="silent", max_length=1)] = "",
            hint: Annotated[str | None, QueryParameter(name="hint", max_length=255)] = None,
            here: Annotated[str, QueryParameter(name="here", max_length=1)] = "",
        ) -> Response[str]:
            if self._sign_in is None:
                return self._look.redirect(SIGN_IN)
            if request.headers.get("host", "") != urlsplit(self._base_url).netloc and not here:
                # the provider leads back to the one address that it knows, where cookies of another are not sent
                return self._look.redirect(f"{self._base_url}{START}?{request.url.query}&here=1")
            return await self._start(self._sign_in, request, return_to, hint, silent=bool(silent))

        @get(CALLBACK, opt={"public": True}, before_request=answer_head)
        async def finish_sign_in(request: AnyRequest) -> Response[str]:
            answer = {name: request.query_params.getall(name)[-1] for name in request.query_params}
            state = answer.get("state", "")
            pending = self._cookies.sign_in(request, state)
            if self._sign_in is None or pending is None:
                response = self._page("/", "This sign-in took too long, or was begun in another browser.", 400)
                return await self._unless_signed_in(door, request, "/", response)
            return await self._finish_unless_busy(door, self._sign_in, request, pending, answer)

        return [show_sign_in, start_sign_in, finish_sign_in]

    def _out(self, door: SessionGuard) -> list[HTTPRouteHandler]:
        def already_out(_request: AnyRequest, _error: NotSignedInError) -> Response[str]:
            # no cookie is taken away: another site can send this too, and then the browser keeps the cookie back
            return self._look.redirect(SIGNED_OUT)

        @post(SIGN_OUT, guards=[door.needs(allow_stale_login=True)], exception_handlers={NotSignedInError: already_out})
        async def sign_out(request: AnyRequest) -> Response[str]:
            token = self._cookies.session(request)
            if token is not None:
                await self._sessions.end(token)
            response = self._look.redirect(SIGNED_OUT)
            response.set_cookie(self._cookies.without_session())
            return response

        @get(SIGNED_OUT, opt={"public": True})
        async def show_signed_out(request: AnyRequest) -> Response[str]:
            if await self._is_signed_in(request):
                return self._look.redirect("/")
            back = self._base_url + SIGNED_OUT
            at_provider = self._sign_in.end_session_url(back) if self._sign_in else None
            return self._look.page("signed_out.html", at_provider=at_provider)

        return [sign_out, show_signed_out]

    async def _start(
        self, sign_in: SignIn, request: AnyRequest, return_to: str, hint: str | None, *, silent: bool
    ) -> Response[str]:
        try:
            url, begun = await sign_in.begin(silent=silent, login_hint=hint)
        except AuthUnavailableError as error:
            return self._page(return_to, error.detail, 503)
        response = self._look.redirect(url)
        for cookie in (*self._cookies.making_room(request), self._cookies.with_sign_in(begun, safe_path(return_to))):
            response.set_cookie(cookie)
        return response

    async def _finish_unless_busy(
        self, door: SessionGuard, sign_in: SignIn, request: AnyRequest, pending: Pending, answer: Mapping[str, str]
    ) -> Response[str]:
        try:
            with sign_in.redemption():
                response = await self._finish(door, sign_in, request, pending, answer)
        except TooManySignInsError as error:  # nothing is used yet: the same address works later
            _log_failure(request, error)
            return self._page(pending.return_to, str(error), HTTPStatus.SERVICE_UNAVAILABLE)
        response.set_cookie(self._cookies.without_sign_in(pending.begun.state))
        return response

    async def _finish(
        self, door: SessionGuard, sign_in: SignIn, request: AnyRequest, pending: Pending, answer: Mapping[str, str]
    ) -> Response[str]:
        try:
            await self._use(pending)
            person = await sign_in.finish(pending.begun, answer)
        except (AuthUnavailableError, SignInFailedError) as error:
            if pending.begun.silent and isinstance(error, InteractionRequiredError):
                return self._look.redirect(start_path(pending.return_to))
            _log_failure(request, error)
            status_code = 503 if isinstance(error, AuthUnavailableError) else 400
            response = self._page(pending.return_to, str(error), status_code)
            return await self._unless_signed_in(door, request, pending.return_to, response)
        before = self._cookies.session(request)
        if pending.begun.silent:
            return await self._renew(pending, person, before)
        opened = await self._sessions.begin(
            person.claims,
            person.name,
            address=request.client.host if request.client else None,
            agent=request.headers.get("user-agent"),
            before=before,
        )
        response = self._look.redirect(pending.return_to)
        response.set_cookie(self._cookies.with_session(opened.token))
        return response

    async def _use(self, pending: Pending) -> None:
        if not await self._sessions.use_state(pending.begun.state):
            raise SignInFailedError("This sign-in has been used before.")

    async def _renew(self, pending: Pending, person: SignedInUser, token: str | None) -> Response[str]:
        """Go on with a session that the provider has vouched for again; nobody is signed in by that."""
        if token is not None and await self._sessions.renew(token, person.claims, person.name):
            return self._look.redirect(pending.return_to)
        if token is not None and await self._sessions.visit(token, None, is_use=False):
            return self._look.redirect(start_path(pending.return_to))  # somebody else is signed in there now
        return self._look.redirect(sign_in_path(pending.return_to))

    async def _unless_signed_in(
        self, door: SessionGuard, request: AnyRequest, return_to: str, response: Response[str]
    ) -> Response[str]:
        """The answer to a failed sign-in, or the way on for who is in: browsers load an answer of the provider twice.

        A session without the provider's word does not count, for that leads back to the provider.
        """
        await door.recognize(request)
        return response if recognized_visitor(request) is None else self._look.redirect(return_to)

    async def _is_signed_in(self, request: AnyRequest) -> bool:
        token = self._cookies.session(request)
        return token is not None and await self._sessions.visit(token, None, is_use=False) is not None

    def _page(self, return_to: str, problem: str | None = None, status_code: int = 200) -> Response[str]:
        return self._look.page(
            "sign_in.html",
            status_code=status_code,
            headers={"Retry-After": RETRY_AFTER} if status_code == HTTPStatus.SERVICE_UNAVAILABLE else {},
            start=start_path(return_to),
            people=self._people,
            problem=problem,
        )


def _log_failure(request: AnyRequest, error: Exception) -> None:
    """Say why a sign-in failed, with what lies behind it: only our own words are known to hold no secret."""
    cause = error.__cause__
    behind = f" It {cause}." if isinstance(cause, FetchError) else f" {type(cause).__name__}." if cause else ""
    logger.warning("request %s: a sign-in failed. %s%s", request.scope.get(REQUEST_ID, ""), error, behind)


def sign_in_path(return_to: str) -> str:
    """The page that offers to sign in, and leads back to a page of ours."""
    return f"{SIGN_IN}?return_to={quote(safe_path(return_to), safe='')}"


def start_path(return_to: str, *, silent: bool = False, hint: str | None = None) -> str:
    """Where a sign-in begins that leads back to a page of ours."""
    more = ("&silent=1" if silent else "") + (f"&hint={quote(hint, safe='')}" if hint else "")
    return f"{START}?return_to={quote(safe_path(return_to), safe='')}{more}"


def safe_path(path: str) -> str:
    """The path, if it leads to a page of ours and to no other site; else the start."""
    plain = path.isascii() and path.isprintable() and len(path) <= _LONGEST_PATH and "\\" not in path
    if not plain or not path.startswith("/") or path.startswith("//"):
        return "/"
    parts = urlsplit(path)
    if parts.scheme or parts.netloc or parts.path.startswith(("/sign-", "/signed-")):
        return "/"
    return path
