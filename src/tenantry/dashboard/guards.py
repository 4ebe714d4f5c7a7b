"""Who looks at a page: the session behind its cookie, and what its user may do in the tenant of the address."""

from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import Final, cast

import msgspec
from litestar import Request
from litestar.di import NamedDependency
from litestar.exceptions import ClientException
from litestar.handlers import BaseRouteHandler

from tenantry.api.guards import AnyRequest, Connection, Credential, RouteGuard
from tenantry.auth.authentication import Authenticator
from tenantry.auth.sessions import SessionService
from tenantry.auth.sessions_store import TenantOfUser
from tenantry.common.clock import Clock
from tenantry.dashboard.cookies import Cookies
from tenantry.dashboard.flash_messages import Notice, Notices
from tenantry.dashboard.forms import Form, comes_from_elsewhere, comes_from_here, is_ours, read_form
from tenantry.dashboard.labels import shown_name
from tenantry.domain.access import AccessLevel, Principal, Role, covers
from tenantry.domain.errors import DatabaseUnavailableError, DomainError, NotFoundError
from tenantry.domain.sessions import Session, SessionSecret
from tenantry.integrations.oidc.claims import Claims
from tenantry.server.asgi_types import CALLER
from tenantry.server.dispatch import IS_HEAD

_VISITOR: Final = "tenantry.visitor"
_RECOGNIZED: Final = "tenantry.recognized"
_FORM: Final = "tenantry.form"
BY_SCRIPT: Final = "tenantry.by_script"
"""An option of routes that nobody visits: pages of ours ask there for what is new."""
_OF_SCRIPT: Final = "x-requested-with"
ORGS: Final = "/orgs"
ORG: Final = ORGS + "/{org_id:str}"
"""Below this is everything that belongs to a tenant: two tabs can show two tenants, and a link says which it means."""


class SessionState(Enum):
    """Whether who was let in would be let in now."""

    WELCOME = auto()
    UNPROVED = auto()
    """Not before the provider has vouched for them again."""
    GONE = auto()


class NotSignedInError(Exception):
    """Nobody is signed in (any more). ``form`` is what was sent all the same, by a page of ours."""

    def __init__(self, form: Form | None = None) -> None:
        super().__init__()
        self.form = form


class ProofNeededError(Exception):
    """The provider's word on a user is too old."""

    def __init__(self, subject: str) -> None:
        super().__init__()
        self.subject = subject


class RoleTooLowError(Exception):
    """What somebody is in the tenant of the address does not cover what a page needs.

    ``owner_only`` says in words what the page is for, where it is for owners alone.
    """

    def __init__(self, visitor: "Visitor", scope: str, owner_only: str | None) -> None:
        super().__init__()
        self.visitor = visitor
        self.scope = scope
        self.owner_only = owner_only


class ForeignFormError(Exception):
    """A form that was not made for this session. ``form`` is what it holds, where a page of ours sent it."""

    def __init__(self, form: Form | None = None) -> None:
        super().__init__()
        self.form = form


class Visitor(msgspec.Struct, frozen=True):
    """Somebody who is signed in."""

    session: Session
    claims: Claims
    tenants: list[TenantOfUser]
    """Some that the user may look at, by name, the one in the address among them."""
    total: int
    """How many there are of all."""
    invitations: int
    """How many wait for the user, up to a hundred."""
    form_token: str
    tenant: TenantOfUser | None
    """The one in the address."""
    caller: Principal | None
    """What the user is there."""
    callers_role: Role | None
    """The role which that comes from; the provider's word on scopes may leave less than it grants."""
    notice: Notice | None
    """What the page is to say, this once."""

    @property
    def name(self) -> str:
        """What to call them."""
        return shown_name(self.session.name or "", self.session.subject)

    @property
    def principal(self) -> Principal:
        """What the user is in the tenant of the address."""
        if self.caller is None:
            raise NotFoundError("organization")
        return self.caller

    @property
    def base(self) -> str:
        """Where the tenant's pages are."""
        return f"/orgs/{self.principal.org_id}"

    @property
    def role(self) -> Role:
        """The user's role in the tenant of the address."""
        if self.callers_role is None:
            raise NotFoundError("organization")
        return self.callers_role

    @property
    def is_owner(self) -> bool:
        """Whether the user may do in the tenant what only owners do."""
        return self.principal.access_level is AccessLevel.OWNER

    def may(self, scope: str) -> bool:
        """Whether the user may do this in the tenant."""
        return self.caller is not None and covers(self.caller.scopes, scope)


class SessionGuard:
    """Lets people in who are signed in, and makes the guards of pages."""

    def __init__(
        self,
        sessions: SessionService,
        authenticator: Authenticator,
        cookies: Cookies,
        secret: SessionSecret,
        clock: Clock,
        is_provider_away: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_provider_away`` says whether the identity provider cannot be asked at the moment."""
        self._is_provider_away = is_provider_away
        self._sessions = sessions
        self._authenticator = authenticator
        self._cookies = cookies
        self._notices = Notices(secret)
        self._secret = secret
        self._clock = clock

    def needs(
        self, scope: str | None = None, *, allow_stale_login: bool = False, owner_only: str | None = None
    ) -> RouteGuard:
        """Somebody who is signed in, and whose role in the tenant of the address covers ``scope``.

        With ``owner_only``, the words for what only owners may do, such as "replay the ledger", an owner alone.
        With ``allow_stale_login`` also somebody whom the provider has not vouched for lately.
        """

        async def guard(connection: Connection, _handler: BaseRouteHandler) -> None:
            try:
                visitor = await self._visitor(connection, allow_stale_login=allow_stale_login)
            except NotSignedInError as error:
                raise NotSignedInError(await _form_from_here(connection)) from error
            _extras(connection)[CALLER] = visitor.caller
            if scope is not None and not (visitor.may(scope) and (owner_only is None or visitor.is_owner)):
                raise RoleTooLowError(visitor, scope, owner_only)
            _extras(connection)[_VISITOR] = visitor

        return RouteGuard(guard, Credential.SESSION, scope)

    async def recognize(self, connection: Connection) -> None:
        """Find out who sent a request that no guard has seen, for the page that refuses it."""
        with suppress(NotSignedInError, ProofNeededError, DomainError):
            await self._visitor(connection)

    async def standing(self, connection: Connection, scope: str) -> SessionState:
        """Whether who was let in would be let in now, for an answer that goes on. Raises `DatabaseUnavailableError`."""
        try:
            visitor = await self._visitor(connection, allow_stale_login=True)
            visitor.principal.require(scope)
        except DatabaseUnavailableError:
            raise
        except (NotSignedInError, DomainError):
            return SessionState.GONE
        return SessionState.WELCOME if self._is_proved(visitor.session) else SessionState.UNPROVED

    def _is_proved(self, session: Session) -> bool:
        """Whether the provider's word on the user is good enough for looking at pages."""
        now = self._clock()
        return not session.is_unproved(now) or (self._is_provider_away() and session.may_go_on_without(now))

    def _check_proof(self, session: Session, connection: Connection) -> None:
        """Raise unless the provider's word on the user is good enough for this request."""
        if self._is_proved(session):
            return
        if _is_visit_of_a_page(connection):
            raise ProofNeededError(session.subject)
        if _extras(connection)["method"] == "GET" or not session.may_send_forms(self._clock()):
            raise NotSignedInError

    def _notice(self, connection: Connection, session: Session) -> Notice | None:
        proved = self._cookies.notice(connection)
        if proved is None or is_head(connection) or not _is_visit_of_a_page(connection):
            return None
        return self._notices.read(session, connection.scope["path"], proved)

    async def _visitor(self, connection: Connection, *, allow_stale_login: bool = False) -> Visitor:
        org_id: str | None = connection.path_params.get("org_id")
        token = self._cookies.session(connection)
        visit = await self._sessions.visit(token, org_id, is_use=_is_use(connection)) if token else None
        if visit is None:
            raise NotSignedInError
        if not allow_stale_login:
            self._check_proof(visit.session, connection)
        visitor = Visitor(
            session=visit.session,
            claims=visit.claims,
            tenants=visit.tenants,
            total=visit.total,
            invitations=visit.invitations,
            form_token=self._secret.form_token(visit.session.digest),
            tenant=next((one for one in visit.tenants if one.id == org_id), None),
            caller=None,
            callers_role=None,
            notice=self._notice(connection, visit.session),
        )
        _extras(connection)[_RECOGNIZED] = visitor
        if org_id is not None:
            if visitor.tenant is None:
                raise NotFoundError("organization")
            caller, role = await self._authenticator.as_user(visitor.claims, visitor.tenant.id)
            visitor = _extras(connection)[_RECOGNIZED] = msgspec.structs.replace(
                visitor, caller=caller, callers_role=role
            )
        return visitor


async def check_form(request: AnyRequest) -> None:
    """Read the form of a request that changes something, and make sure that it is one of ours, made for its sender.

    Raises `ForeignFormError`.
    """
    if request.method != "POST":
        return
    visitor = _extras(request).get(_VISITOR)
    form = await read_form(request)
    if not isinstance(visitor, Visitor) or comes_from_elsewhere(request) or not is_ours(form, visitor.form_token):
        raise ForeignFormError(form if comes_from_here(request) else None)
    _extras(request)[_FORM] = form


async def _form_from_here(connection: Connection) -> Form | None:
    """What a page of ours sent. What another site made up is nothing to offer anybody for sending."""
    if not isinstance(connection, Request) or connection.method != "POST" or not comes_from_here(connection):
        return None
    with suppress(ClientException):
        return await read_form(connection)
    return None


def current_visitor(request: AnyRequest) -> Visitor:
    """Whom the guard let in."""
    visitor = _extras(request).get(_VISITOR)
    if not isinstance(visitor, Visitor):
        raise NotSignedInError
    return visitor


def recognized_visitor(request: AnyRequest) -> Visitor | None:
    """Who is signed in, whether or not they were let in; for pages that say no."""
    visitor = _extras(request).get(_RECOGNIZED)
    return visitor if isinstance(visitor, Visitor) else None


def current_form(request: AnyRequest) -> Form:
    """The form that was checked."""
    form = _extras(request).get(_FORM)
    if not isinstance(form, Form):
        raise ForeignFormError
    return form


SignedIn = NamedDependency[Visitor]
"""The type of a handler's argument ``visitor``."""
Sent = NamedDependency[Form]
"""The type of a handler's argument ``form``."""


def _is_visit_of_a_page(connection: Connection) -> bool:
    """Whether a person goes to a page, rather than sending a form, or a script of ours asking for something."""
    return _extras(connection)["method"] == "GET" and is_navigation(connection)


def is_navigation(connection: Connection) -> bool:
    """Whether what is asked for is to be shown as a page of its own.

    Browsers say so (Fetch Metadata). For those that do not our script does.
    """
    handler = _extras(connection).get("route_handler")  # which is not there where no route answers
    if isinstance(handler, BaseRouteHandler) and handler.opt.get(BY_SCRIPT):
        return False
    mode = connection.headers.get("sec-fetch-mode")
    return mode == "navigate" if mode is not None else _OF_SCRIPT not in connection.headers


def _is_use(connection: Connection) -> bool:
    """Whether a person did something, rather than a page of ours asking for what is new."""
    if is_head(connection):
        return False
    return _extras(connection)["method"] != "GET" or is_navigation(connection)


def is_head(connection: Connection) -> bool:
    """Whether only the head of an answer is asked for: by no person, and to no effect."""
    return IS_HEAD in _extras(connection)


def _extras(connection: Connection) -> dict[str, object]:
    return cast("dict[str, object]", connection.scope)
