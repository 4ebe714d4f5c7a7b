"""The list of keys."""

from typing import Annotated, Final
from urllib.parse import quote

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from tenantry.domain.access import Mode
from tenantry.domain.api_keys import KeyStatus
from tenantry.http.dashboard.api_keys.desk import PATH, Desk
from tenantry.http.dashboard.visitor import SignedIn
from tenantry.http.fields import Cursor
from tenantry.store.api_keys import Filter

_ON_A_PAGE: Final = 25
_MODES: Final = (("", "Both"), ("live", "Live"), ("test", "Test"))
_STATUSES: Final = (("", "All"), ("active", "Active"), ("expired", "Expired"), ("revoked", "Revoked"))


def list_pages(desk: Desk) -> list[HTTPRouteHandler]:
    """The route of the list."""

    @get(PATH, guards=[desk.door.needs("api-keys:read")])
    async def show_keys(
        visitor: SignedIn,
        status: Annotated[str, QueryParameter(name="status", max_length=20)] = "",
        mode: Annotated[str, QueryParameter(name="mode", max_length=20)] = "",
        name: Annotated[str, QueryParameter(name="name", max_length=200)] = "",
        cursor: Cursor = None,
    ) -> Response[str]:
        wanted = Filter(
            KeyStatus(status) if status in set(KeyStatus) else None,
            Mode(mode) if mode in set(Mode) else None,
            name.strip().replace("\x00", "") or None,
        )
        asked = {field: value for field, value in msgspec.structs.asdict(wanted).items() if value}
        page, room = await desk.keys.seek_page(visitor.principal, wanted, _ON_A_PAGE, cursor)
        return desk.page(
            "api_keys.html",
            visitor,
            page=page,
            room=room,
            plan=desk.catalog.name(visitor.principal.plan),
            wanted=wanted,
            statuses=_STATUSES,
            modes=_MODES,
            query="".join(f"{field}={quote(value)}&" for field, value in asked.items()),
            filtered=bool(asked) or cursor is not None,
            is_first=cursor is None,
        )

    return [show_keys]
