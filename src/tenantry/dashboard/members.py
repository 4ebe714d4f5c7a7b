"""The pages of members, and the transfer of ownership."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from litestar import Response, get, post

from tenantry.accounts.member_directory_store import UserSearch
from tenantry.api.members import MemberChange, MemberId, NewMember, OwnerTransfer
from tenantry.dashboard import forms
from tenantry.dashboard.account import leave_path
from tenantry.dashboard.context import Context, PageContext, waits_for_duplicate
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.forms import InvalidFormError
from tenantry.dashboard.guards import ORG, PageGuard
from tenantry.dashboard.labels import role_help, role_names
from tenantry.dashboard.member_lists import PATH
from tenantry.db.numbered_pages import PageRequest
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
from tenantry.domain.tenants import Tenant

_MEMBER: Final = PATH + "/{member_id:str}"
_EMAIL_AS_ID: Final = (
    "This is an email address. Enter the user id, which users find on their profile, or on the page after their first "
    "sign-in."
)
_NO_CHOICE: Final = "Choose the new owner among the members."
_MOST_OFFERED: Final = 50
_NOT_A_MEMBER: Final = "This user is not an active member. Invite them first."
_SEVERAL_MEMBERS: Final = (
    "Members of several directories have this user id. An owner of the organization must choose."
)
_WHICH_DIRECTORY: Final = (
    "Users of several directories can be members, and the organization has not seen this user id. Invite the user by "
    "mail, or ask an owner or admin of the organization to invite them."
)
_MESSAGES: Final = {
    "userId": "Use 1 to 255 visible ASCII characters, without blanks.",
    "role": "Choose one of the roles.",
    "ownerEmail": "Enter one email address, such as billing@example.com.",
}
_ERRORS: Final[forms.FieldErrors] = {
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
    errors.ScopeEscalationError: ("role", ""),
}


class MemberPerson(NamedTuple):
    """Who a member is. ``profile`` is None if the tenant knows nothing but the user id."""

    profile: UserProfile | None
    is_self: bool
    is_tenant_owner: bool

    @property
    def name(self) -> str:
        """The name or address; empty if neither is known."""
        return self.profile.label if self.profile else ""


_reader = PageGuard("members:read")
_writer = PageGuard("members:write")


@get(_MEMBER, guards=[_reader])
async def show_member(ctx: Context, member_id: MemberId) -> Response[str]:
    return await _member_page(ctx, member_id)


@get(PATH + "/new", guards=[_writer])
async def show_invite_member(ctx: Context) -> Response[str]:
    return _invite_page(ctx)


@post(PATH + "/new", guards=[_writer])
@waits_for_duplicate
async def invite_member(ctx: Context) -> Response[str]:
    values = {"userId": ctx.form.text("userId"), "role": ctx.form.text("role")}
    further = _invitation_errors(ctx, values)
    try:
        with forms.at_fields(_ERRORS):
            valid = forms.validate(NewMember, values, _MESSAGES, further)
            user = await _known_user(ctx, valid.user_id)
            member = await ctx.services.members.add(
                ctx.principal,
                ctx.author,
                user_id=valid.user_id,
                role=valid.role,
                claim=ctx.claim(),
                issuer=user.issuer,
            )
    except InvalidFormError as error:
        return _invite_page(ctx, error)
    is_invited = member.status is MemberStatus.INVITED
    message = FlashMessage.MEMBER_INVITED if is_invited else FlashMessage.MEMBER_ADDED
    return ctx.redirect_with(message, f"{ctx.user.base}/settings/members/{member.id}")


@post(_MEMBER + "/role", guards=[_writer])
async def change_role(ctx: Context, member_id: MemberId) -> Response[str]:
    role = ctx.form.text("role")
    members = ctx.services.members
    member = await members.get(ctx.principal, member_id)
    further = role_errors(ctx, role)
    if await _is_own(ctx, member):
        before = ctx.services.catalog.roles.find(member.role)
        further |= _sure_errors(ctx, before, role)
    try:
        with forms.at_fields(_ERRORS):
            valid = forms.validate(MemberChange, {"role": role}, _MESSAGES, further)
            await members.change_role(ctx.principal, ctx.author, member_id, valid.role)
    except InvalidFormError as error:
        return await _member_page(ctx, member_id, error)
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
    if member.status is MemberStatus.ACTIVE and ctx.form.text("status") == MemberStatus.INVITED:
        # the form asked to withdraw an invitation, not to remove a member
        accepted = InvalidFormError({"status": "The user has accepted the invitation."})
        return await _member_page(ctx, member_id, accepted, "member_remove.html")
    try:
        with forms.at_fields(_ERRORS):
            await members.remove(ctx.principal, ctx.author, member_id)
    except InvalidFormError as error:
        return await _member_page(ctx, member_id, error, "member_remove.html")
    is_invited = member.status is MemberStatus.INVITED
    message = FlashMessage.INVITATION_WITHDRAWN if is_invited else FlashMessage.MEMBER_REMOVED
    return ctx.redirect_with(message, f"{ctx.user.base}/settings/members")


def _invite_page(ctx: PageContext, error: Exception | None = None) -> Response[str]:
    values = ctx.submitted.over({"userId": ctx.query("userId"), "role": BuiltInRole.MEMBER})
    return ctx.render(
        "member_new.html",
        error,
        values=values,
        role_help=role_help(ctx.services.catalog.roles),
        by_mail=ctx.services.invitations.is_enabled,
        is_self=_is_invited_self(ctx, values["userId"]),
        assignable=assignable_role_names(ctx),
    )


async def _member_page(
    ctx: PageContext,
    member_id: str,
    error: Exception | None = None,
    template: str = "member.html",
) -> Response[str]:
    principal = ctx.principal
    member = await ctx.services.members.get(principal, member_id)
    people = await _people(ctx, [member])
    return ctx.render(
        template,
        error,
        member=member,
        person=people[member_id],
        assignable=assignable_role_names(ctx),
        may_manage=ctx.user.may("members:write")
        and may_manage(principal, ctx.services.catalog.roles.find(member.role)),
    )


async def _people(ctx: PageContext, found: Sequence[Member]) -> dict[str, MemberPerson]:
    """Return who these members are, by the member's id. A user of another directory may have the
    same user id.
    """
    services = ctx.services
    users = await services.members.users_of(ctx.principal, found)
    profiles = await services.profiles.of_users(ctx.principal.org_id, list(users.values()))
    owner = await services.members.owner_of(ctx.principal, ctx.user.session.user)
    return {
        member_id: MemberPerson(
            profiles.get(user),
            user == ctx.user.as_member,
            owner is not None and owner.id == member_id,
        )
        for member_id, user in users.items()
    }


async def _is_own(ctx: PageContext, member: Member) -> bool:
    users = await ctx.services.members.users_of(ctx.principal, [member])
    return users[member.id] == ctx.user.as_member


def _is_invited_self(ctx: PageContext, user_id: str) -> bool:
    """Whether users invite themselves: an invitation is for a user of the same issuer."""
    user = ctx.user.as_member
    return user is not None and user_id == user.subject


async def _known_user(ctx: PageContext, user_id: str) -> User:
    """Return the user to invite. Raises `InvalidFormError` if the directory is not known."""
    users = await ctx.services.members.known_users(ctx.principal, [user_id])
    if user_id not in users:
        raise InvalidFormError({"userId": _WHICH_DIRECTORY})
    return users[user_id]


def _invitation_errors(ctx: PageContext, values: Mapping[str, str]) -> dict[str, str]:
    found = (
        {} if ctx.services.members.accepts_user_id(values["userId"]) else {"userId": _EMAIL_AS_ID}
    )
    found |= role_errors(ctx, values["role"])
    if _is_invited_self(ctx, values["userId"]):
        found |= _sure_errors(ctx, ctx.user.role, values["role"])
    return found


def role_errors(ctx: PageContext, role: str) -> dict[str, str]:
    """Return the error of a role that does not exist."""
    return {} if role in ctx.services.catalog.roles else {"role": _MESSAGES["role"]}


def _sure_errors(ctx: PageContext, before: Role, after: str) -> dict[str, str]:
    """Return the error of users who would lower their own role without having checked the box."""
    roles = ctx.services.catalog.roles
    if ctx.form.checked("sure") or after not in roles or roles.find(after).includes(before):
        return {}
    return {"sure": "This is your own role. Check this box to lower it: you can't raise it again."}


def assignable_role_names(ctx: PageContext) -> list[tuple[str, str]]:
    """Return the id and name of each role that the user may give."""
    roles = ctx.services.catalog.roles
    assignable = {role.id for role in assignable_roles(ctx.principal, roles)}
    return [(role_id, name) for role_id, name in role_names(roles).items() if role_id in assignable]


_owner = PageGuard("tenants:write", owner_only="transfer the organization")


@get(ORG + "/settings/transfer", guards=[_owner])
async def show_transfer(ctx: Context) -> Response[str]:
    return await _transfer_page(ctx)


@post(ORG + "/settings/transfer", guards=[_owner])
@waits_for_duplicate
async def transfer(ctx: Context) -> Response[str]:
    tenant = await ctx.tenant()
    user_id = ctx.form.text("userId")
    successors = await ctx.services.members.active_users(ctx.principal, user_id)
    values = await _submitted_transfer(ctx, user_id, successors)
    further = _successor_errors(ctx, user_id, successors)
    further |= forms.confirmation_errors(ctx.form, "name", tenant)
    try:
        valid = forms.validate(OwnerTransfer, {**values, "reason": None}, _MESSAGES, further)
        await ctx.services.tenants.transfer(
            ctx.principal,
            ctx.author,
            tenant.id,
            user_id=valid.user_id,
            owner_email=valid.owner_email,
            claim=ctx.claim(),
            address=ctx.address,
            issuer=successors[0].issuer,
        )
    except InvalidFormError as error:
        return await _transfer_page(ctx, error)
    except errors.ValidationError:  # the member was removed meanwhile
        return await _transfer_page(ctx, InvalidFormError({"userId": _NOT_A_MEMBER}))
    return ctx.redirect_with(FlashMessage.TRANSFERRED, f"{ctx.user.base}/settings/members")


async def _submitted_transfer(
    ctx: PageContext, user_id: str, successors: Sequence[User]
) -> dict[str, str]:
    """Return the chosen member, and the typed address or else the member's verified one."""
    address = ctx.form.text("ownerEmail")
    if not address and len(successors) == 1:
        [successor] = successors
        known = await ctx.services.profiles.of_users(ctx.principal.org_id, [successor])
        address = (known[successor].email or "") if successor in known else ""
    return {"userId": user_id, "ownerEmail": address}


def _successor_errors(ctx: PageContext, user_id: str, successors: Sequence[User]) -> dict[str, str]:
    """Return the error of a user id that is not that of one active member."""
    if not user_id:
        return {"userId": _NO_CHOICE}
    if not ctx.services.members.accepts_user_id(user_id):
        return {"userId": _EMAIL_AS_ID}
    if not successors:
        return {"userId": _NOT_A_MEMBER}
    return {} if len(successors) == 1 else {"userId": _SEVERAL_MEMBERS}


async def _owner_user(ctx: PageContext, tenant: Tenant) -> User | None:
    """Return the tenant's owner; None if the directory of an owner by claim is not known."""
    members = ctx.services.members
    owner = await members.owner_of(ctx.principal, ctx.user.session.user)
    if owner is None:
        return (await members.known_users(ctx.principal, [tenant.owner_id])).get(tenant.owner_id)
    return (await members.users_of(ctx.principal, [owner]))[owner.id]


async def _transfer_page(ctx: PageContext, error: Exception | None = None) -> Response[str]:
    services = ctx.services
    principal = ctx.principal
    tenant = await ctx.tenant()
    search = ctx.query("search")
    page = await services.member_directory.members(
        principal, UserSearch(search), PageRequest(_MOST_OFFERED)
    )
    owner = await _owner_user(ctx, tenant)
    names = await services.profiles.names_of(tenant.id, [owner] if owner else [])
    return ctx.render(
        "transfer.html",
        error,
        tenant=tenant,
        owner_name=names.get(owner, tenant.owner_id) if owner else tenant.owner_id,
        is_own=owner is not None and owner == ctx.user.as_member,
        candidates=[
            member
            for member in page.data
            if principal.issuer in (None, member.user.issuer)
            and member.user.subject != tenant.owner_id
        ],
        search=search,
        has_more=page.older is not None,
        values=ctx.submitted.over({"userId": "", "ownerEmail": ""}),
    )
