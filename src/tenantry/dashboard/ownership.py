"""The pages of the owner: confirming the address, and transferring ownership."""

from collections.abc import Sequence
from typing import Annotated, Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from tenantry.accounts.members import MemberService
from tenantry.accounts.members_store import Filter
from tenantry.accounts.owner_addresses import OwnerConfirmations, Resent
from tenantry.accounts.tenants import TenantService
from tenantry.api.guards import AnyRequest, principal_author, unknown_author
from tenantry.api.members import OwnerTransfer
from tenantry.api.parameters import MOST_ON_A_PAGE
from tenantry.auth.sessions import SessionService
from tenantry.dashboard.flash_messages import Notice
from tenantry.dashboard.forms import (
    FaultyFormError,
    checked,
    faults_of_typed,
    form_claim,
    once_token,
    read_form,
    retry_while_in_flight,
    to_be_typed,
)
from tenantry.dashboard.guards import ORG, Sent, SessionGuard, SignedIn, Visitor
from tenantry.dashboard.members import EMAIL_WORDS, SECTION, USER_ID_WORDS
from tenantry.dashboard.renderer import Renderer
from tenantry.domain.errors import ValidationError
from tenantry.domain.members import MemberStatus
from tenantry.domain.owner_mails import CONFIRM_PATH, same_address

SEND_AGAIN: Final = ORG + "/settings/owner-address/send-confirmation"
_NOTICES: Final = {
    Resent.QUEUED: Notice.CONFIRMATION_SENT,
    Resent.LIMITED: Notice.CONFIRMATION_LIMITED,
    Resent.VERIFIED: Notice.ADDRESS_VERIFIED,
}


def owner_address_pages(
    confirmations: OwnerConfirmations, door: SessionGuard, look: Renderer
) -> Sequence[HTTPRouteHandler]:
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


PATH: Final = ORG + "/settings/transfer"
_WORDS: Final = {"userId": USER_ID_WORDS, "ownerEmail": "One e-mail address, such as billing@example.com."}


def transfer_pages(
    members: MemberService, tenants: TenantService, sessions: SessionService, door: SessionGuard, look: Renderer
) -> Sequence[HTTPRouteHandler]:
    """The routes of handing an organization over."""

    async def show(visitor: Visitor, typed: dict[str, str], name: str, faults: dict[str, str]) -> Response[str]:
        tenant = await tenants.get(visitor.principal, visitor.principal.org_id)
        active = Filter(status=MemberStatus.ACTIVE)
        page = await members.list_page(visitor.principal, active, MOST_ON_A_PAGE, None)
        known = [member.user_id for member in page.data if member.user_id != tenant.owner_id]
        names = await sessions.names_of(visitor.session, tenant.id, [*known, tenant.owner_id])
        return look.page(
            "transfer.html",
            status_code=422 if faults else 200,
            visitor=visitor,
            section=SECTION,
            tenant=tenant,
            known=known,
            names=names,
            typed=typed,
            name=name,
            faults=faults,
            expected=to_be_typed(tenant.name, tenant.id),
            once=once_token(),
        )

    of_owners = door.needs("tenants:write", owner_only="hand over the organization")

    @get(PATH, guards=[of_owners])
    async def show_transfer(visitor: SignedIn) -> Response[str]:
        return await show(visitor, dict.fromkeys(_WORDS, ""), "", {})

    @post(PATH, guards=[of_owners])
    async def transfer(request: AnyRequest, visitor: SignedIn, form: Sent) -> Response[str]:
        typed = {name: form.text(name) for name in _WORDS}
        name = form.text("name")
        tenant = await tenants.get(visitor.principal, visitor.principal.org_id)
        try:
            further = faults_of_typed(name, "name", to_be_typed(tenant.name, tenant.id))
            wanted = checked(OwnerTransfer, typed, _WORDS, further)
            claim = await form_claim(request, visitor.principal, form)
            author = principal_author(request, visitor.principal)
            await retry_while_in_flight(
                lambda: members.transfer(
                    visitor.principal,
                    author,
                    tenant.id,
                    user_id=wanted.user_id,
                    owner_email=wanted.owner_email,
                    email_verified=same_address(visitor.claims.email or "", wanted.owner_email),
                    claim=claim,
                )
            )
        except FaultyFormError as error:
            return await show(visitor, typed, name, error.faults)
        except ValidationError:
            is_id = members.takes_user_id(typed["userId"])
            faults = {"userId": "This user is not an active member. Invite them first." if is_id else EMAIL_WORDS}
            return await show(visitor, typed, name, faults)
        return look.tell(visitor, Notice.TRANSFERRED, f"{visitor.base}{SECTION}")

    return [show_transfer, transfer]
