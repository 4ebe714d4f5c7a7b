"""The list of keys."""

from typing import Annotated, Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from tenantry.domain.api_keys import KeyStatus
from tenantry.http.dashboard.api_keys.desk import PATH, Desk
from tenantry.http.dashboard.visitor import SignedIn
from tenantry.http.fields import Cursor

_ON_A_PAGE: Final = 25
_STATUSES: Final = (("", "All"), ("active", "Active"), ("expired", "Expired"), ("revoked", "Revoked"))


def list_pages(desk: Desk) -> list[HTTPRouteHandler]:
    """The route of the list."""

    @get(PATH, guards=[desk.door.needs("api-keys:read")])
    async def show_keys(
        visitor: SignedIn,
        status: Annotated[str, QueryParameter(name="status", max_length=20)] = "",
        cursor: Cursor = None,
    ) -> Response[str]:
        wanted = KeyStatus(status) if status in set(KeyStatus) else None
        page = await desk.keys.seek_page(visitor.principal, status=wanted, limit=_ON_A_PAGE, cursor=cursor)
        return desk.page(
            "api_keys.html",
            visitor,
            page=page,
            status=wanted or "",
            statuses=_STATUSES,
            filtered=wanted is not None or cursor is not None,
            is_first=cursor is None,
        )

    return [show_keys]
