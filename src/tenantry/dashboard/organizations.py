"""All organizations of somebody who belongs to more than the menu holds."""

from collections.abc import Sequence
from typing import Annotated, Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from tenantry.auth.sessions import SessionService
from tenantry.dashboard.look import Look
from tenantry.dashboard.visitor import ORGS, Door, SignedIn

_ON_A_PAGE: Final = 50
_LONGEST_NAME: Final = 200
_LONGEST_ID: Final = 64


def organization_pages(sessions: SessionService, door: Door, look: Look) -> Sequence[HTTPRouteHandler]:
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
