"""The page that the link of an invitation opens.

Opening it changes nothing: mail scanners open links, and run scripts.
"""

from enum import StrEnum
from typing import Annotated, Final

from litestar import Response, get, post
from litestar.params import QueryParameter

from tenantry.accounts.caller_address import CallerAddress
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.guards import DashboardUser, PageGuard, current_user
from tenantry.dashboard.sign_in import sign_in_path, start_path
from tenantry.domain import errors
from tenantry.domain.invitation_links import INVITATION_PATH, LONGEST_PROOF, LONGEST_TOKEN
from tenantry.domain.invitations import (
    InvitationStatus,
    ShownInvitation,
    check_recipient,
    invited_address,
)

_ACCEPT: Final = INVITATION_PATH + "/accept"
_CONFIRMATION: Final = INVITATION_PATH + "/confirmation"

Token = Annotated[str, QueryParameter(name="token", max_length=LONGEST_TOKEN)]
Proof = Annotated[str, QueryParameter(name="proof", max_length=LONGEST_PROOF)]


class NextStep(StrEnum):
    """What the bearer of a link can do next."""

    ASK_AGAIN = "ask again"
    """The invitation was accepted or withdrawn, or has expired."""
    SIGN_IN = "sign in"
    OPEN = "open"
    """The user belongs to the organization."""
    OPEN_AND_CLOSE = "open and close"
    """The user is a member already; the invitation is still open."""
    ACCEPT = "accept"
    CHANGE_USER = "change user"
    """The user's verified address is another one, and the link has no proof."""
    CONFIRM = "confirm"
    """The identity provider has verified no address of the user."""


@get(INVITATION_PATH, opt={"public": True})
async def show_invitation(ctx: Context, token: Token = "", proof: Proof = "") -> Response[str]:
    await ctx.sessions.recognize(ctx.request)
    return await _page(ctx, token, proof)


@post(_ACCEPT, guards=[PageGuard()])
async def accept_invitation_by_mail(ctx: Context) -> Response[str]:
    token, proof = ctx.form.text("token"), ctx.form.text("proof")
    user = ctx.user
    try:
        membership = await ctx.services.invitations.accept(
            user.session.user,
            ctx.author,
            token,
            CallerAddress(user.claims),
            proof=proof,
        )
    except errors.DatabaseUnavailableError:
        raise
    except errors.MemberExistsError:
        return await _to_organization(ctx, token)
    except errors.DomainError as error:
        return await _page(ctx, token, proof, error)
    return ctx.redirect_with(FlashMessage.INVITATION_ACCEPTED, f"/orgs/{membership.org_id}")


@post(_CONFIRMATION, guards=[PageGuard()])
async def request_invitation_confirmation(ctx: Context) -> Response[str]:
    token = ctx.form.text("token")
    try:
        await ctx.services.invitations.request_confirmation(
            ctx.user.session.user, token, CallerAddress(ctx.user.claims)
        )
    except errors.DatabaseUnavailableError:
        raise
    except errors.DomainError as error:
        return await _page(ctx, token, "", error)
    return await _page(ctx, token, "", is_sent=True)


async def _to_organization(ctx: PageContext, token: str) -> Response[str]:
    """Redirect a member to the organization of a link."""
    invitation = await ctx.services.invitations.look_up(token)
    return ctx.redirect("/" if invitation is None else f"/orgs/{invitation.org_id}")


async def _page(
    ctx: PageContext,
    token: str,
    proof: str,
    error: errors.DomainError | None = None,
    *,
    is_sent: bool = False,
) -> Response[str]:
    invitation = await ctx.services.invitations.look_up(token)
    if invitation is None:
        return ctx.render("invitation_invalid.html", 404)
    user = current_user(ctx.request.scope)
    address = f"{INVITATION_PATH}?token={token}" + (f"&proof={proof}" if proof else "")
    return ctx.render(
        "invitation.html",
        error,
        invitation=invitation,
        role=ctx.services.catalog.roles.find(invitation.role).name,
        has_proof=ctx.services.invitations.is_mailed(invitation, proof),
        step=_next_step(ctx, invitation, user, proof),
        steps=NextStep,
        token=token,
        proof=proof,
        is_sent=is_sent,
        sign_in=sign_in_path(address) if ctx.services.people else start_path(address),
        accept=_ACCEPT,
        confirmation=_CONFIRMATION,
    )


def _next_step(
    ctx: PageContext, invitation: ShownInvitation, user: DashboardUser | None, proof: str
) -> NextStep:
    belongs = user is not None and invitation.org_id in {tenant.id for tenant in user.tenants}
    if invitation.status is not InvitationStatus.OPEN:
        return NextStep.OPEN if belongs else NextStep.ASK_AGAIN
    if user is None:
        return NextStep.SIGN_IN
    step = _step_of_user(ctx, invitation, user, proof)
    if not belongs:
        return step
    # accepting would limit the access that a claim gives to the role of the invitation
    is_member = step is NextStep.ACCEPT and user.claims.org_id != invitation.org_id
    return NextStep.OPEN_AND_CLOSE if is_member else NextStep.OPEN


def _step_of_user(
    ctx: PageContext, invitation: ShownInvitation, user: DashboardUser, proof: str
) -> NextStep:
    """Return what a user may do with an open invitation who is no member."""
    has_proof = ctx.services.invitations.is_mailed(invitation, proof)
    try:
        check_recipient(invited_address(invitation.email), user.claims.email, has_proof=has_proof)
    except errors.EmailNotVerifiedError:
        return NextStep.CONFIRM
    except errors.EmailMismatchError:
        return NextStep.CHANGE_USER
    return NextStep.ACCEPT
