"""The user's own pages, and the confirmation of an owner's address."""

from typing import Annotated, Final

from litestar import Response, get, post
from litestar.params import QueryParameter

from tenantry.accounts.owner_addresses import ConfirmationRequest
from tenantry.api.guards import AnyRequest, author_of
from tenantry.api.members import MembershipId
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.forms import InvalidFormError, read_form
from tenantry.dashboard.guards import OPERATOR_PAGES, ORG, DashboardUser, PageGuard
from tenantry.domain.audit import ActorKind
from tenantry.domain.errors import LastOwnerError, MemberNotActiveError
from tenantry.domain.members import MemberStatus
from tenantry.domain.owner_mails import CONFIRM_PATH

ACCOUNT: Final = "/account"
_MEMBERSHIPS: Final = ACCOUNT + "/memberships"
_MEMBERSHIP: Final = _MEMBERSHIPS + "/{membership_id:str}"
_PAGE_SIZE: Final = 50
_RESENT: Final = {
    ConfirmationRequest.QUEUED: FlashMessage.CONFIRMATION_SENT,
    ConfirmationRequest.LIMITED: FlashMessage.CONFIRMATION_LIMITED,
    ConfirmationRequest.VERIFIED: FlashMessage.ADDRESS_VERIFIED,
}


@get("/", guards=[PageGuard()])
async def show_start(ctx: Context) -> Response[str]:
    user = ctx.user
    if user.tenants:
        return ctx.redirect(f"/orgs/{_first_tenant(user)}/")
    if user.is_operator:
        return ctx.redirect(OPERATOR_PAGES)
    if user.invitations:
        return ctx.redirect(ACCOUNT)
    return ctx.render("no_organization.html")


def _first_tenant(user: DashboardUser) -> str:
    """Return the tenant that the user visited last, else the provider's, else any."""
    # the page of a suspended tenant is an error page, whose links lead back here
    active = [one.id for one in user.tenants if not one.suspended]
    tenants = active or [one.id for one in user.tenants]
    preferred = (user.session.tenant_id, user.claims.org_id)
    return next((one for one in preferred if one in tenants), tenants[0])


@get(ACCOUNT, guards=[PageGuard()])
async def show_account(ctx: Context) -> Response[str]:
    return await _account_page(ctx)


@post(ACCOUNT + "/end-other-sessions", guards=[PageGuard()])
async def end_other_sessions(ctx: Context) -> Response[str]:
    await ctx.services.sessions.end_others(ctx.user.session)
    return ctx.redirect_with(FlashMessage.OTHERS_SIGNED_OUT, ACCOUNT)


@post(_MEMBERSHIP + "/accept", guards=[PageGuard()])
async def accept_invitation(ctx: Context, membership_id: MembershipId) -> Response[str]:
    try:
        membership = await ctx.services.memberships.accept(
            ctx.user.session.user,
            ctx.author,
            membership_id,
            None,
        )
    except MemberNotActiveError as error:
        return await _account_page(ctx, error)
    return ctx.redirect_with(FlashMessage.INVITATION_ACCEPTED, f"/orgs/{membership.org_id}")


@post(_MEMBERSHIP + "/decline", guards=[PageGuard()])
async def decline_invitation(ctx: Context, membership_id: MembershipId) -> Response[str]:
    user = ctx.user
    memberships = ctx.services.memberships
    membership = await memberships.get(user.session.user, membership_id)
    if membership.status is MemberStatus.ACTIVE or user.claims.org_id == membership.org_id:
        # declining would end access that the user has
        return ctx.redirect(leave_path(membership_id))
    await memberships.end(user.session.user, ctx.author, membership_id)
    return ctx.redirect_with(FlashMessage.INVITATION_DECLINED, ACCOUNT)


@get(_MEMBERSHIP + "/leave", guards=[PageGuard()])
async def show_leave_organization(ctx: Context, membership_id: MembershipId) -> Response[str]:
    return await _leave_page(ctx, membership_id)


@post(_MEMBERSHIP + "/leave", guards=[PageGuard()])
async def leave_organization(ctx: Context, membership_id: MembershipId) -> Response[str]:
    if not ctx.form.checked("leaving"):
        unchecked = InvalidFormError({"leaving": "Check this box to leave."})
        return await _leave_page(ctx, membership_id, unchecked)
    try:
        await ctx.services.memberships.end(
            ctx.user.session.user,
            ctx.author,
            membership_id,
            leaves=True,
        )
    except LastOwnerError as error:
        return await _leave_page(ctx, membership_id, error)
    return ctx.redirect_with(FlashMessage.ORGANIZATION_LEFT, ACCOUNT)


def leave_path(membership_id: str) -> str:
    """Return the path of the page on which the user leaves the organization of this membership."""
    return f"{_MEMBERSHIPS}/{membership_id}/leave"


async def _account_page(ctx: PageContext, error: Exception | None = None) -> Response[str]:
    """Render the user's profile, invitations, organizations and sessions."""
    user = ctx.user
    sessions = ctx.services.sessions
    text = ctx.query("name")
    last = ctx.query("after")
    return ctx.render(
        "account.html",
        error,
        invitations=await ctx.services.memberships.list_page(
            user.session.user,
            MemberStatus.INVITED,
            _PAGE_SIZE,
            None,
        ),
        organizations=await sessions.search_tenants(
            user.claims,
            text,
            _PAGE_SIZE,
            last or None,
        ),
        sessions=await sessions.of_user(user.session),
        text=text,
        is_first=not last,
    )


async def _leave_page(
    ctx: PageContext, membership_id: str, error: Exception | None = None
) -> Response[str]:
    user = ctx.user.session.user
    memberships = ctx.services.memberships
    membership = await memberships.get(user, membership_id)
    may_leave = True
    try:
        await memberships.check_may_end(user, membership_id)
    except LastOwnerError:
        may_leave = False
    return ctx.render(
        "membership_leave.html",
        error,
        membership=membership,
        may_leave=may_leave,
    )


# The link in the mail needs no session, since its recipient may not be a user. Mail scanners open
# links, so opening it changes nothing.
async def _skip_form_check(_request: AnyRequest) -> None:
    """The link's token takes the place of the CSRF token."""


@get(CONFIRM_PATH, opt={"public": True})
async def show_confirmation(
    ctx: Context, token: Annotated[str, QueryParameter(name="token", max_length=100)] = ""
) -> Response[str]:
    found = await ctx.services.confirmations.look_up(token)
    if found is None:
        return ctx.render("confirm_address_invalid.html", 404)
    return ctx.render(
        "confirm_address.html",
        found=found,
        token=token,
        action=CONFIRM_PATH,
    )


@post(CONFIRM_PATH, opt={"public": True}, before_request=_skip_form_check)
async def confirm_address(ctx: Context) -> Response[str]:
    token = (await read_form(ctx.request)).text("token")
    found = await ctx.services.confirmations.confirm(
        author_of(ctx.request, ActorKind.ANYBODY), token
    )
    if found is None:
        return ctx.render("confirm_address_invalid.html", 404)
    return ctx.render("confirm_address_done.html", 200, found=found)


@post(ORG + "/settings/owner-address/send-confirmation", guards=[PageGuard("tenants:write")])
async def send_confirmation(ctx: Context) -> Response[str]:
    resent = await ctx.services.confirmations.send_again(ctx.principal, ctx.author)
    return ctx.redirect_with(_RESENT[resent], ctx.user.base)
