"""Putting a new key in the place of one."""

from datetime import timedelta
from typing import Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler

from tenantry.api.author import principal_author
from tenantry.api.guards import AnyRequest
from tenantry.dashboard.api_keys.desk import ONE, Desk, KeyId, status_of
from tenantry.dashboard.api_keys.refusals import in_words
from tenantry.dashboard.api_keys.secret import Replaced, secret_page
from tenantry.dashboard.inputs import form_claim, once_token, patiently
from tenantry.dashboard.visitor import Sent, SignedIn, Visitor
from tenantry.domain.api_keys import ApiKey
from tenantry.domain.errors import KeyLimitReachedError, KeyNotActiveError

OVERLAPS: Final = (
    ("0", "Not at all: it ends at once"),
    ("3600", "For 1 hour"),
    ("86400", "For 24 hours"),
    ("604800", "For 7 days"),
)
_LENGTHS: Final = {seconds: timedelta(seconds=int(seconds)) for seconds, _ in OVERLAPS}


def rotating_pages(desk: Desk) -> list[HTTPRouteHandler]:
    """The routes that rotate a key."""

    def page(visitor: Visitor, key: ApiKey, status_code: int = 200, **more: object) -> Response[str]:
        shown = {"fault": None, "problem": None, **more}
        return desk.page(
            "api_key_rotate.html", visitor, status_code, key=key, overlaps=OVERLAPS, once=once_token(), **shown
        )

    @get(ONE + "/rotate", guards=[desk.door.needs("api-keys:write")])
    async def show_rotation(visitor: SignedIn, key_id: KeyId) -> Response[str]:
        key = await desk.changeable(visitor, key_id)
        if key.superseded_by is not None:
            raise KeyNotActiveError("The key was rotated before.")
        return page(visitor, key)

    @post(ONE + "/rotate", guards=[desk.door.needs("api-keys:write")])
    async def rotate_key(request: AnyRequest, visitor: SignedIn, key_id: KeyId, form: Sent) -> Response[str]:
        claim = await form_claim(request, visitor.principal, form)
        overlap = _LENGTHS.get(form.text("overlap"))
        if overlap is None:
            key = await desk.changeable(visitor, key_id)
            return page(visitor, key, 422, fault="Choose how long the old key goes on.")
        author = principal_author(request, visitor.principal)
        old = await desk.keys.get(visitor.principal, key_id)
        try:
            made = await patiently(
                lambda: desk.keys.rotate(visitor.principal, author, key_id, overlap=overlap, claim=claim)
            )
        except KeyLimitReachedError as error:
            return page(visitor, old, status_of(error), problem=in_words(error))
        # nothing is asked of the database any more: if it failed now, the secret would be lost
        ends = made.record.created_at + overlap if overlap else None
        if ends is not None and old.expires_at is not None:
            ends = min(ends, old.expires_at)
        return secret_page(desk, visitor, made, Replaced(key_id, ends))

    return [show_rotation, rotate_key]
