"""The owner's address: the page behind a confirmation link, and the button that sends the link again."""

from collections.abc import Sequence
from typing import Annotated, Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from tenantry.accounts.owner_addresses import CONFIRM_PATH, OwnerConfirmations, Resent
from tenantry.api.author import unknown_author
from tenantry.api.guards import AnyRequest
from tenantry.dashboard.forms import read_form
from tenantry.dashboard.look import Look
from tenantry.dashboard.notices import Notice
from tenantry.dashboard.visitor import ORG, Door, SignedIn

SEND_AGAIN: Final = ORG + "/settings/owner-address/send-confirmation"
_NOTICES: Final = {
    Resent.QUEUED: Notice.CONFIRMATION_SENT,
    Resent.LIMITED: Notice.CONFIRMATION_LIMITED,
    Resent.VERIFIED: Notice.ADDRESS_VERIFIED,
}


def owner_address_pages(confirmations: OwnerConfirmations, door: Door, look: Look) -> Sequence[HTTPRouteHandler]:
    """The routes of the owner's address.

    A link needs no session: its recipient may not be a user. Mail scanners open links, so that opening one changes
    nothing; the page asks for a click.
    """

    async def no_session(_request: AnyRequest) -> None:
        """The link's token is the form's proof, in place of a session's."""

    @get(CONFIRM_PATH, opt={"public": True})
    async def show_confirmation(
        token: Annotated[str, QueryParameter(name="token", max_length=100)] = "",
    ) -> Response[str]:
        found = await confirmations.look_up(token)
        if found is None:
            return look.page("confirm_address_invalid.html", status_code=404)
        return look.page("confirm_address.html", found=found, token=token, action=CONFIRM_PATH)

    @post(CONFIRM_PATH, opt={"public": True}, before_request=no_session)
    async def confirm_address(request: AnyRequest) -> Response[str]:
        token = (await read_form(request)).text("token")
        found = await confirmations.confirm(unknown_author(request), token)
        if found is None:
            return look.page("confirm_address_invalid.html", status_code=404)
        return look.page("confirm_address_done.html", status_code=200, found=found)

    @post(SEND_AGAIN, guards=[door.needs("tenants:write")])
    async def send_confirmation(visitor: SignedIn) -> Response[str]:
        resent = await confirmations.send_again(visitor.principal)
        return look.tell(visitor, _NOTICES[resent], visitor.base)

    return [show_confirmation, confirm_address, send_confirmation]
