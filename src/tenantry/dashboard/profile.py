"""The pages of the signed-in user: profile, and switching organizations."""

from collections.abc import Sequence
from typing import Annotated, Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from tenantry.auth.sessions import SessionService
from tenantry.dashboard.flash_messages import Notice
from tenantry.dashboard.guards import ORG, ORGS, SessionGuard, SignedIn
from tenantry.dashboard.labels import browser_in_words, role_in_words
from tenantry.dashboard.renderer import Renderer

_ON_A_PAGE: Final = 50
_LONGEST_NAME: Final = 200
_LONGEST_ID: Final = 64


def organization_pages(sessions: SessionService, door: SessionGuard, look: Renderer) -> Sequence[HTTPRouteHandler]:
    """The route of the list."""

    @get(ORGS, guards=[door.needs()])
    async def show_organizations(
        visitor: SignedIn,
        name: Annotated[str, QueryParameter(name="name", max_length=_LONGEST_NAME)] = "",
        after: Annotated[str, QueryParameter(name="after", max_length=_LONGEST_ID)] = "",
    ) -> Response[str]:
        text, last = (typed.strip().replace("\x00", "") for typed in (name, after))
        page = await sessions.tenants_named(visitor.session, visitor.claims, text, _ON_A_PAGE, last or None)
        return look.page("organizations.html", visitor=visitor, page=page, text=text, is_first=not last)

    return [show_organizations]


SECTION: Final = "/profile"
PATH: Final = ORG + SECTION


def profile_pages(sessions: SessionService, door: SessionGuard, look: Renderer) -> Sequence[HTTPRouteHandler]:
    """The routes of the profile."""

    @get(PATH, guards=[door.needs()])
    async def show_profile(visitor: SignedIn) -> Response[str]:
        own = [(one, browser_in_words(one.agent)) for one in await sessions.of_user(visitor.session)]
        return look.page(
            "profile.html",
            visitor=visitor,
            section=SECTION,
            role=role_in_words(visitor.role, visitor.principal),
            sessions=own,
        )

    @post(PATH + "/end-others", guards=[door.needs()])
    async def end_other_sessions(visitor: SignedIn) -> Response[str]:
        await sessions.end_others(visitor.session)
        return look.tell(visitor, Notice.OTHERS_SIGNED_OUT, f"{visitor.base}{SECTION}")

    return [show_profile, end_other_sessions]
