"""A key's own page."""

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from tenantry.dashboard.api_keys.desk import ONE, Desk, KeyId
from tenantry.dashboard.api_keys.ending import word_of
from tenantry.dashboard.api_keys.rotating import OVERLAPS
from tenantry.dashboard.inputs import once_token
from tenantry.dashboard.visitor import SignedIn


def key_pages(desk: Desk) -> list[HTTPRouteHandler]:
    """The route of a key."""

    @get(ONE, guards=[desk.door.needs("api-keys:read")])
    async def show_key(visitor: SignedIn, key_id: KeyId) -> Response[str]:
        key = await desk.keys.get(visitor.principal, key_id)
        old = await desk.keys.get(visitor.principal, key.rotated_from) if key.rotated_from else None
        return desk.page(
            "api_key.html", visitor, key=key, old=old, word=word_of(key), overlaps=OVERLAPS, once=once_token()
        )

    return [show_key]
