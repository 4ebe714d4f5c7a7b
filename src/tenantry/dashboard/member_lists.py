"""The lists of an organization's users: members, invitations, and users by claim."""

from typing import Final

from litestar import Response, get

from tenantry.accounts.member_directory_store import UserSearch
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.guards import ORG, PageGuard
from tenantry.dashboard.pager import requested_page
from tenantry.domain.members import MemberStatus

PATH: Final = ORG + "/settings/members"
INVITATIONS_PATH: Final = PATH + "/invitations"
_CLAIMED_PATH: Final = PATH + "/identity-provider"
_CLOSED: Final = "closed"
"""The status of invitations that were accepted or withdrawn, in the address of their list."""
_PAGE_SIZE: Final = 50

_reader = PageGuard("members:read")


@get(PATH, guards=[_reader])
async def show_members(ctx: Context) -> Response[str]:
    wanted = _wanted(ctx)
    is_removed = ctx.query("status") == MemberStatus.REMOVED
    page = await ctx.services.member_directory.members(
        ctx.principal,
        wanted,
        requested_page(ctx, _PAGE_SIZE),
        removed=is_removed,
    )
    owner = await ctx.services.members.owner_of(ctx.principal, ctx.user.session.user)
    return await _list_page(
        ctx,
        "members.html",
        page=page,
        wanted=wanted,
        is_removed=is_removed,
        owner_id=owner and owner.id,
        owner_address=(await ctx.services.confirmations.of_tenant(ctx.principal)).email,
    )


@get(INVITATIONS_PATH, guards=[_reader])
async def show_invitations(ctx: Context) -> Response[str]:
    wanted = _wanted(ctx)
    is_closed = ctx.query("status") == _CLOSED
    page = await ctx.services.member_directory.invited(
        ctx.principal,
        wanted,
        requested_page(ctx, _PAGE_SIZE),
        closed=is_closed,
    )
    return await _list_page(
        ctx,
        "members_invited.html",
        page=page,
        wanted=wanted,
        is_closed=is_closed,
    )


@get(_CLAIMED_PATH, guards=[_reader])
async def show_claimed_users(ctx: Context) -> Response[str]:
    wanted = _wanted(ctx)
    page = await ctx.services.member_directory.claimed(
        ctx.principal,
        wanted,
        requested_page(ctx, _PAGE_SIZE),
    )
    return await _list_page(ctx, "members_claimed.html", page=page, wanted=wanted)


def _wanted(ctx: PageContext) -> UserSearch:
    return UserSearch(ctx.query("search"), ctx.query("role"))


async def _list_page(ctx: PageContext, template: str, **shown: object) -> Response[str]:
    return ctx.render(
        template,
        counts=await ctx.services.member_directory.counts(ctx.principal),
        viewer=ctx.user.as_member,
        by_mail=ctx.services.invitations.is_enabled,
        **shown,
    )
