"""Revoking a key."""

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler

from tenantry.api.author import principal_author
from tenantry.api.guards import AnyRequest
from tenantry.dashboard.api_keys.desk import ONE, Desk, KeyId, status_of
from tenantry.dashboard.api_keys.refusals import in_words
from tenantry.dashboard.inputs import to_be_typed
from tenantry.dashboard.visitor import Sent, SignedIn, Visitor
from tenantry.domain.api_keys import ApiKey
from tenantry.domain.errors import LastOwnerError


def ending_pages(desk: Desk) -> list[HTTPRouteHandler]:
    """The routes that revoke a key."""

    def page(visitor: Visitor, key: ApiKey, status_code: int = 200, **more: object) -> Response[str]:
        shown = {"faults": {}, "typed": "", "force": False, "problem": None, **more}
        return desk.page("api_key_revoke.html", visitor, status_code, key=key, word=word_of(key), **shown)

    @get(ONE + "/revoke", guards=[desk.door.needs("api-keys:write")])
    async def show_revocation(visitor: SignedIn, key_id: KeyId) -> Response[str]:
        return page(visitor, await desk.changeable(visitor, key_id))

    @post(ONE + "/revoke", guards=[desk.door.needs("api-keys:write")])
    async def revoke_key(request: AnyRequest, visitor: SignedIn, key_id: KeyId, form: Sent) -> Response[str]:
        key = await desk.keys.get(visitor.principal, key_id)
        visitor.principal.require_holding((), key.access_level)
        typed, force = form.text("word"), form.checked("force")
        if to_be_typed(typed, "") != word_of(key):
            return page(visitor, key, 422, faults={"word": "This is not the key's name."}, typed=typed, force=force)
        author = principal_author(request, visitor.principal)
        try:
            await desk.keys.revoke(visitor.principal, author, key_id, force=force)
        except LastOwnerError as error:
            return page(visitor, key, status_of(error), typed=typed, problem=in_words(error))
        return desk.look.redirect(desk.path_of(visitor, key_id))

    return [show_revocation, revoke_key]


def word_of(key: ApiKey) -> str:
    """What has to be typed to revoke a key: its name, or its last characters where the name shows nothing."""
    return to_be_typed(key.name, key.last4)
