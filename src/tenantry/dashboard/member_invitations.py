"""The pages of invitations by mail: invite, show with the link, send again, withdraw."""

from contextlib import suppress
from typing import Final

from litestar import Response, get, post

from tenantry.api.invitations import InvitationId, NewInvitation
from tenantry.dashboard import forms
from tenantry.dashboard.audit_entries import names_of_subjects
from tenantry.dashboard.context import Context, PageContext, waits_for_duplicate
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.forms import InvalidFormError
from tenantry.dashboard.guards import ORG, PageGuard
from tenantry.dashboard.labels import role_help, shown_name
from tenantry.dashboard.member_lists import INVITATIONS_PATH
from tenantry.dashboard.members import assignable_role_names, role_errors
from tenantry.domain import errors
from tenantry.domain.invitations import Invitation, InvitationStatus
from tenantry.domain.members import may_manage
from tenantry.domain.roles import BuiltInRole

INVITE_PATH: Final = INVITATIONS_PATH + "/new"
_INVITATION: Final = INVITATIONS_PATH + "/{invitation_id:str}"
_KEY_ID: Final = "key_"
_NOT_AN_ADDRESS: Final = "Enter one email address, such as grace@example.com."
_MESSAGES: Final = {"email": _NOT_AN_ADDRESS, "role": "Choose one of the roles."}
_ERRORS: Final[forms.FieldErrors] = {
    errors.ValidationError: ("email", _NOT_AN_ADDRESS),
    errors.InvitationExistsError: (
        "email",
        "This address has an open invitation. Send that again, or withdraw it first.",
    ),
    errors.MemberExistsError: (
        "email",
        "The user of this address is a member already. You can change the role on the member's page.",
    ),
    errors.PlanLimitReachedError: (
        "email",
        "The plan allows no more members and invitations. Remove some, or change the plan.",
    ),
    errors.ScopeEscalationError: ("role", "Your role can't give this role."),
    errors.InvitationLimitReachedError: ("email", ""),
}
_CLOSED_OR_LIMITED: Final = (
    errors.InvitationClosedError,
    errors.InvitationLimitReachedError,
    errors.ScopeEscalationError,
)
"""What an open page of an invitation cannot know."""

_reader = PageGuard("members:read")
_writer = PageGuard("members:write")


@get(INVITE_PATH, guards=[_writer])
async def show_invite_by_mail(ctx: Context) -> Response[str]:
    return _invite_page(ctx)


@post(INVITE_PATH, guards=[_writer])
@waits_for_duplicate
async def invite_by_mail(ctx: Context) -> Response[str]:
    values = {"email": ctx.form.text("email"), "role": ctx.form.text("role")}
    further = role_errors(ctx, values["role"])
    try:
        with forms.at_fields(_ERRORS):
            valid = forms.validate(NewInvitation, values, _MESSAGES, further)
            invitation = await ctx.services.invitations.create(
                ctx.principal,
                ctx.author,
                email=valid.email,
                role=valid.role,
                claim=ctx.claim(),
            )
    except InvalidFormError as error:
        return _invite_page(ctx, error)
    return ctx.redirect_with(FlashMessage.INVITATION_SENT, _page_of(ctx, invitation.id))


@get(_INVITATION, guards=[_reader])
async def show_member_invitation(ctx: Context, invitation_id: InvitationId) -> Response[str]:
    return await _invitation_page(ctx, invitation_id)


@post(_INVITATION + "/resend", guards=[_writer])
@waits_for_duplicate
async def resend_invitation(ctx: Context, invitation_id: InvitationId) -> Response[str]:
    try:
        await ctx.services.invitations.resend(
            ctx.principal,
            ctx.author,
            invitation_id,
            ctx.claim(),
        )
    except _CLOSED_OR_LIMITED as error:
        return await _invitation_page(ctx, invitation_id, error)
    return ctx.redirect_with(FlashMessage.INVITATION_SENT, _page_of(ctx, invitation_id))


@get(_INVITATION + "/withdraw", guards=[_writer])
async def show_withdraw_invitation(ctx: Context, invitation_id: InvitationId) -> Response[str]:
    invitation = await ctx.services.invitations.get(ctx.principal, invitation_id)
    return ctx.render(
        "member_invitation_withdraw.html",
        invitation=invitation,
        may_manage=_may_manage(ctx, invitation),
    )


@post(_INVITATION + "/withdraw", guards=[_writer])
async def withdraw_invitation(ctx: Context, invitation_id: InvitationId) -> Response[str]:
    try:
        await ctx.services.invitations.withdraw(ctx.principal, ctx.author, invitation_id)
    except _CLOSED_OR_LIMITED as error:
        return await _invitation_page(ctx, invitation_id, error)
    list_path = INVITATIONS_PATH.replace(ORG, ctx.user.base)
    return ctx.redirect_with(FlashMessage.INVITATION_WITHDRAWN, list_path)


def _invite_page(ctx: PageContext, error: Exception | None = None) -> Response[str]:
    first = {"email": ctx.query("email"), "role": ctx.query("role") or BuiltInRole.MEMBER}
    return ctx.render(
        "member_invite.html",
        error,
        values=ctx.submitted.over(first),
        assignable=assignable_role_names(ctx),
        role_help=role_help(ctx.services.catalog.roles),
    )


async def _invitation_page(
    ctx: PageContext, invitation_id: str, error: errors.DomainError | None = None
) -> Response[str]:
    invitations = ctx.services.invitations
    invitation = await invitations.get(ctx.principal, invitation_id)
    is_manager = _may_manage(ctx, invitation)
    link = None
    if is_manager and invitation.status is InvitationStatus.OPEN:
        link = await invitations.link(ctx.principal, invitation_id)
    return ctx.render(
        "member_invitation.html",
        error,
        invitation=invitation,
        inviter=await _inviter(ctx, invitation),
        may_manage=is_manager,
        link=link,
    )


def _may_manage(ctx: PageContext, invitation: Invitation) -> bool:
    role = ctx.services.catalog.roles.find(invitation.role)
    return ctx.user.may("members:write") and may_manage(ctx.principal, role)


async def _inviter(ctx: PageContext, invitation: Invitation) -> str:
    """Return the name of the user or key that invited, or their id."""
    if invitation.invited_by.startswith(_KEY_ID):
        return await _name_of_key(ctx, invitation.invited_by)
    names = await names_of_subjects(ctx, [invitation.invited_by])
    return names.get(invitation.invited_by, invitation.invited_by)


async def _name_of_key(ctx: PageContext, key_id: str) -> str:
    """Return a key's name for who may see keys; its id else."""
    if not ctx.user.may("api-keys:read"):
        return key_id
    with suppress(errors.NotFoundError):
        key = await ctx.services.api_keys.get(ctx.principal, key_id)
        return shown_name(key.name, key_id)
    return key_id


def _page_of(ctx: PageContext, invitation_id: str) -> str:
    return f"{INVITATIONS_PATH.replace(ORG, ctx.user.base)}/{invitation_id}"
