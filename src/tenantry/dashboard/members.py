"""The pages of members, and the transfer of ownership."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from litestar import Response, get, post

from tenantry.accounts.caller_address import CallerAddress
from tenantry.accounts.members_store import MemberFilter
from tenantry.api.members import MemberChange, MemberId, NewMember, OwnerTransfer
from tenantry.api.parameters import MOST_ON_A_PAGE
from tenantry.dashboard import forms
from tenantry.dashboard.account import leave_path
from tenantry.dashboard.context import Context, PageContext, waits_for_duplicate
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.forms import InvalidFormError
from tenantry.dashboard.guards import ORG, needs
from tenantry.dashboard.labels import role_help, role_names
from tenantry.dashboard.member_lists import PATH
from tenantry.domain import errors
from tenantry.domain.members import (
    Member,
    MemberStatus,
    User,
    UserProfile,
    assignable_roles,
    may_manage,
)
from tenantry.domain.roles import BuiltInRole, Role

_MEMBER: Final = PATH + "/{member_id:str}"
_EMAIL_AS_ID: Final = (
    "This is an email address. Enter the user id, which users find on their profile, or on the page after their first "
    "sign-in."
)
_NOT_A_MEMBER: Final = "This user is not an active member. Invite them first."
_MESSAGES: Final = {
    "userId": "Use 1 to 255 visible ASCII characters, without blanks.",
    "role": "Choose one of the roles.",
    "ownerEmail": "Enter one email address, such as billing@example.com.",
}
_ERRORS: Final[Mapping[type[errors.DomainError], tuple[str, str]]] = {
    errors.MemberExistsError: (
        "userId",
        "This user is already a member or invited. Change their role instead.",
    ),
    errors.PlanLimitReachedError: (
        "userId",
        "The plan allows no more members and invitations. Remove some, or change the plan.",
    ),
    errors.ValidationError: ("userId", _EMAIL_AS_ID),
    errors.LastOwnerError: (
        "role",
        "The organization would lose its owner. Transfer ownership, or make another member an owner first.",
    ),
    errors.MemberNotActiveError: (
        "role",
        "This membership has ended. Invite the user again first.",
    ),
}
"""The form's field that shows an error, and its text."""
_REJECTIONS: Final[tuple[type[Exception], ...]] = (
    InvalidFormError,
    errors.ScopeEscalationError,
    *_ERRORS,
)


class MemberPerson(NamedTuple):
    """Who a member is. ``profile`` is None for a user who has not used the tenant yet."""

    profile: UserProfile | None
    is_self: bool
    is_tenant_owner: bool

    @property
    def name(self) -> str:
        """The name or address; empty if neither is known."""
        return self.profile.label if self.profile else ""


_reader = needs("members:read")
_writer = needs("members:write")


@get(_MEMBER, guards=[_reader])
async def show_member(ctx: Context, member_id: MemberId) -> Response[str]:
    return await _member_page(ctx, member_id)


@get(PATH + "/new", guards=[_writer])
async def show_invite_member(ctx: Context) -> Response[str]:
    return _invite_page(ctx, {"userId": ctx.query("userId"), "role": BuiltInRole.MEMBER})


@post(PATH + "/new", guards=[_writer])
@waits_for_duplicate
async def invite_member(ctx: Context) -> Response[str]:
    values = {"userId": ctx.form.text("userId"), "role": ctx.form.text("role")}
    sure = ctx.form.checked("sure")
    further = _invitation_errors(ctx, values, sure=sure)
    try:
        valid = forms.validate(NewMember, values, _MESSAGES, further)
        member = await ctx.services.members.add(
            ctx.principal,
            ctx.author,
            user_id=valid.user_id,
            role=valid.role,
            claim=await ctx.claim(),
        )
    except _REJECTIONS as error:
        return _invite_page(ctx, values, error, sure=sure)
    is_invited = member.status is MemberStatus.INVITED
    message = FlashMessage.MEMBER_INVITED if is_invited else FlashMessage.MEMBER_ADDED
    return ctx.redirect_with(message, f"{ctx.user.base}/settings/members/{member.id}")


@post(_MEMBER + "/role", guards=[_writer])
async def change_role(ctx: Context, member_id: MemberId) -> Response[str]:
    role = ctx.form.text("role")
    sure = ctx.form.checked("sure")
    members = ctx.services.members
    try:
        member = await members.get(ctx.principal, member_id)
        further = role_errors(ctx, role)
        if await _is_own(ctx, member):
            before = ctx.services.catalog.roles.find(member.role)
            further |= _sure_errors(ctx, before, role, sure=sure)
        wanted = forms.validate(
            MemberChange,
            {"role": role},
            _MESSAGES,
            further,
        ).role
        await members.change_role(
            ctx.principal,
            ctx.author,
            member_id,
            wanted,
        )
    except _REJECTIONS as error:
        return await _member_page(
            ctx,
            member_id,
            error,
            role=role,
            sure=sure,
        )
    return ctx.redirect_with(
        FlashMessage.MEMBER_CHANGED, f"{ctx.user.base}/settings/members/{member_id}"
    )


@get(_MEMBER + "/remove", guards=[_writer])
async def show_remove_member(ctx: Context, member_id: MemberId) -> Response[str]:
    member = await ctx.services.members.get(ctx.principal, member_id)
    if await _is_own(ctx, member):
        return ctx.redirect(leave_path(member_id))
    return await _member_page(ctx, member_id, template="member_remove.html")


@post(_MEMBER + "/remove", guards=[_writer])
async def remove_member(ctx: Context, member_id: MemberId) -> Response[str]:
    members = ctx.services.members
    member = await members.get(ctx.principal, member_id)
    if await _is_own(ctx, member):
        return ctx.redirect(leave_path(member_id))
    try:
        if member.status is MemberStatus.ACTIVE and ctx.form.text("status") == MemberStatus.INVITED:
            # the form asked to withdraw an invitation, not to remove a member
            raise InvalidFormError({"status": "The user has accepted the invitation."})
        await members.remove(ctx.principal, ctx.author, member_id)
    except _REJECTIONS as error:
        return await _member_page(
            ctx,
            member_id,
            error,
            "member_remove.html",
        )
    is_invited = member.status is MemberStatus.INVITED
    message = FlashMessage.INVITATION_WITHDRAWN if is_invited else FlashMessage.MEMBER_REMOVED
    return ctx.redirect_with(message, f"{ctx.user.base}/settings/members")


def _invite_page(
    ctx: PageContext,
    values: Mapping[str, str],
    error: Exception | None = None,
    *,
    sure: bool = False,
) -> Response[str]:
    return ctx.render(
        "member_new.html",
        values=values,
        errors=_errors_of(error),
        role_help=role_help(ctx.services.catalog.roles),
        by_mail=ctx.services.invitations.is_enabled,
        is_self=_is_invited_self(ctx, values["userId"]),
        is_sure=sure,
        assignable=assignable_role_names(ctx),
    )


async def _member_page(
    ctx: PageContext,
    member_id: str,
    error: Exception | None = None,
    template: str = "member.html",
    *,
    role: str = "",
    sure: bool = False,
) -> Response[str]:
    principal = ctx.principal
    member = await ctx.services.members.get(principal, member_id)
    people = await _people(ctx, [member])
    return ctx.render(
        template,
        member=member,
        person=people[member_id],
        errors=_errors_of(error),
        role=role or member.role,
        is_sure=sure,
        assignable=assignable_role_names(ctx),
        may_manage=ctx.user.may("members:write")
        and may_manage(principal, ctx.services.catalog.roles.find(member.role)),
    )


def _errors_of(error: Exception | None) -> dict[str, str]:
    if isinstance(error, errors.ScopeEscalationError):
        return {"role": error.detail}
    if isinstance(error, errors.DomainError):
        return dict([_ERRORS[type(error)]])
    return forms.field_errors(error)


async def _people(ctx: PageContext, found: Sequence[Member]) -> dict[str, MemberPerson]:
    """Return who these members are, by the member's id. A user of another directory may have the
    same user id.
    """
    services = ctx.services
    viewer = ctx.user.session.user
    users = await services.members.users_of(ctx.principal, found)
    profiles = await services.profiles.of_users(ctx.principal.org_id, list(users.values()))
    owner = await services.members.owner_of(ctx.principal, viewer)
    return {
        member_id: MemberPerson(
            profiles.get(user), user == viewer, owner is not None and owner.id == member_id
        )
        for member_id, user in users.items()
    }


async def _is_own(ctx: PageContext, member: Member) -> bool:
    users = await ctx.services.members.users_of(ctx.principal, [member])
    return users[member.id] == ctx.user.session.user


def _is_invited_self(ctx: PageContext, user_id: str) -> bool:
    """Whether users invite themselves: an invitation is for a user of the same issuer."""
    return user_id == ctx.user.session.subject


def _invitation_errors(
    ctx: PageContext, values: Mapping[str, str], *, sure: bool
) -> dict[str, str]:
    found = (
        {} if ctx.services.members.accepts_user_id(values["userId"]) else {"userId": _EMAIL_AS_ID}
    )
    found |= role_errors(ctx, values["role"])
    if _is_invited_self(ctx, values["userId"]):
        found |= _sure_errors(ctx, ctx.user.role, values["role"], sure=sure)
    return found


def role_errors(ctx: PageContext, role: str) -> dict[str, str]:
    """Return the error of a role that does not exist."""
    return {} if role in ctx.services.catalog.roles else {"role": _MESSAGES["role"]}


def _sure_errors(ctx: PageContext, before: Role, after: str, *, sure: bool) -> dict[str, str]:
    """Return the error of users who would lower their own role without having checked the box."""
    roles = ctx.services.catalog.roles
    if sure or after not in roles or roles.find(after).includes(before):
        return {}
    return {"sure": "This is your own role. Check this box to lower it: you can't raise it again."}


def assignable_role_names(ctx: PageContext) -> list[tuple[str, str]]:
    """Return the id and name of each role that the user may give."""
    roles = ctx.services.catalog.roles
    assignable = {role.id for role in assignable_roles(ctx.principal, roles)}
    return [(role_id, name) for role_id, name in role_names(roles).items() if role_id in assignable]


_owner = needs("tenants:write", owner_only="transfer the organization")


@get(ORG + "/settings/transfer", guards=[_owner])
async def show_transfer(ctx: Context) -> Response[str]:
    return await _transfer_page(ctx, {"userId": "", "ownerEmail": ""})


@post(ORG + "/settings/transfer", guards=[_owner])
@waits_for_duplicate
async def transfer(ctx: Context) -> Response[str]:
    values = {name: ctx.form.text(name) for name in ("userId", "ownerEmail")}
    typed = ctx.form.text("name")
    tenants = ctx.services.tenants
    tenant = await tenants.get(ctx.principal, ctx.principal.org_id)
    expected = forms.confirmation_text(tenant.name, tenant.id)
    further = await _successor_errors(ctx, values["userId"])
    further |= forms.confirmation_errors(typed, "name", expected)
    try:
        valid = forms.validate(
            OwnerTransfer,
            values,
            _MESSAGES,
            further,
        )
        await tenants.transfer(
            ctx.principal,
            ctx.author,
            tenant.id,
            user_id=valid.user_id,
            owner_email=valid.owner_email,
            claim=await ctx.claim(),
            address=CallerAddress(ctx.user.claims),
        )
    except InvalidFormError as error:
        return await _transfer_page(ctx, values, typed, error)
    except errors.ValidationError:  # the member was removed meanwhile
        removed = InvalidFormError({"userId": _NOT_A_MEMBER})
        return await _transfer_page(ctx, values, typed, removed)
    return ctx.redirect_with(FlashMessage.TRANSFERRED, f"{ctx.user.base}/settings/members")


async def _successor_errors(ctx: PageContext, user_id: str) -> dict[str, str]:
    """Return the error of a user id that is not that of an active member of the same issuer."""
    members = ctx.services.members
    if not members.accepts_user_id(user_id):
        return {"userId": _EMAIL_AS_ID}
    wanted = MemberFilter(user_id=user_id, status=MemberStatus.ACTIVE)
    page = await members.list_page(
        ctx.principal,
        wanted,
        MOST_ON_A_PAGE,
        None,
    )
    users = await members.users_of(ctx.principal, page.data)
    is_member = any(user.issuer == ctx.user.session.issuer for user in users.values())
    return {} if is_member else {"userId": _NOT_A_MEMBER}


async def _transfer_page(
    ctx: PageContext, values: dict[str, str], typed: str = "", error: Exception | None = None
) -> Response[str]:
    services = ctx.services
    principal = ctx.principal
    tenant = await services.tenants.get(principal, principal.org_id)
    page = await services.members.list_page(
        principal,
        MemberFilter(status=MemberStatus.ACTIVE),
        MOST_ON_A_PAGE,
        None,
    )
    viewer = ctx.user.session.user
    owner = await services.members.owner_of(principal, viewer)
    users = await services.members.users_of(principal, [*page.data, *([owner] if owner else [])])
    owner_user = users[owner.id] if owner else User(viewer.issuer, tenant.owner_id)
    known = [
        user
        for user in users.values()
        if user.issuer == viewer.issuer and user.subject != tenant.owner_id
    ]
    names = await services.profiles.names_of(tenant.id, [*known, owner_user])
    return ctx.render(
        "transfer.html",
        error,
        tenant=tenant,
        owner_name=names.get(owner_user, tenant.owner_id),
        is_own=owner_user == viewer,
        known=[(user.subject, names.get(user, user.subject)) for user in known],
        values=values,
        typed=typed,
        expected=forms.confirmation_text(tenant.name, tenant.id),
    )
