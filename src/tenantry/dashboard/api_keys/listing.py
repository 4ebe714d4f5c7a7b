"""The list of keys."""

from typing import Annotated, Final
from urllib.parse import quote

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from tenantry.api.parameters import Cursor
from tenantry.auth.api_keys_store import Filter
from tenantry.dashboard.api_keys.desk import PATH, Desk
from tenantry.dashboard.visitor import SignedIn
from tenantry.domain.access import Mode
from tenantry.domain.api_keys import SOON, KeyState

_ON_A_PAGE: Final = 25
_MODES: Final = (("", "Both"), ("live", "Live"), ("test", "Test"))
_STATES: Final = (
    ("", "All"),
    (KeyState.ACTIVE, "Active"),
    (KeyState.EXPIRING, f"Expiring within {SOON.days} days"),
    (KeyState.REPLACED, "Replaced, still working"),
    (KeyState.EXPIRED, "Expired"),
    (KeyState.REVOKED, "Revoked"),
    (KeyState.LEAKED, "Leaked"),
)


def list_pages(desk: Desk) -> list[HTTPRouteHandler]:
    """The route of the list."""

    @get(PATH, guards=[desk.door.needs("api-keys:read")])
    async def show_keys(
        visitor: SignedIn,
        status: Annotated[str, QueryParameter(name="status", max_length=20)] = "",
        mode: Annotated[str, QueryParameter(name="mode", max_length=20)] = "",
        search: Annotated[str, QueryParameter(name="search", max_length=200)] = "",
        cursor: Cursor = None,
    ) -> Response[str]:
        wanted = Filter(
            state=KeyState(status) if status in set(KeyState) else None,
            mode=Mode(mode) if mode in set(Mode) else None,
            search=search.strip().replace("\x00", "") or None,
        )
        fields = {"status": wanted.state, "mode": wanted.mode, "search": wanted.search}
        asked = {field: value for field, value in fields.items() if value}
        page, room, replaced = await desk.keys.seek_page(visitor.principal, wanted, _ON_A_PAGE, cursor)
        return desk.page(
            "api_keys.html",
            visitor,
            page=page,
            room=room,
            replaced=replaced,
            plan=desk.catalog.name(visitor.principal.plan),
            wanted=wanted,
            states=_STATES,
            modes=_MODES,
            query="".join(f"{field}={quote(value)}&" for field, value in asked.items()),
            filtered=bool(asked) or cursor is not None,
            is_first=cursor is None,
        )

    return [show_keys]
