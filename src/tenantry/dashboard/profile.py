"""Who the visitor is, where they belong, and where they are signed in."""

from collections.abc import Sequence
from typing import Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler

from tenantry.auth.sessions import SessionService
from tenantry.dashboard.agents import browser_in_words
from tenantry.dashboard.look import Look
from tenantry.dashboard.notices import Notice
from tenantry.dashboard.visitor import ORG, Door, SignedIn
from tenantry.dashboard.words import role_in_words

SECTION: Final = "/profile"
PATH: Final = ORG + SECTION


def profile_pages(sessions: SessionService, door: Door, look: Look) -> Sequence[HTTPRouteHandler]:
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
