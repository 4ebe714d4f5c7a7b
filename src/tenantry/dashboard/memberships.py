"""The visitor's own memberships: accepting and declining invitations, and leaving."""

from collections.abc import Mapping, Sequence
from typing import Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler

from tenantry.accounts.members_store import User
from tenantry.accounts.memberships import MembershipService
from tenantry.api.guards import AnyRequest, user_author
from tenantry.api.members import MembershipId
from tenantry.api.parameters import Cursor
from tenantry.dashboard.flash_messages import Notice
from tenantry.dashboard.guards import Sent, SessionGuard, SignedIn, Visitor
from tenantry.dashboard.labels import ROLES
from tenantry.dashboard.renderer import Renderer
from tenantry.domain.errors import LastOwnerError, MemberNotActiveError
from tenantry.domain.members import MemberStatus

PATH: Final = "/memberships"
_ONE: Final = PATH + "/{membership_id:str}"
_ON_A_PAGE: Final = 50


def leave_path(membership_id: str) -> str:
    """Where the visitor leaves the organization of this membership."""
    return f"{PATH}/{membership_id}/leave"


def membership_pages(memberships: MembershipService, door: SessionGuard, look: Renderer) -> Sequence[HTTPRouteHandler]:
    """The routes of the visitor's own memberships. They need no organization."""
    return [*_invitations(memberships, door, look), *_leaving(memberships, door, look)]


def _invitations(memberships: MembershipService, door: SessionGuard, look: Renderer) -> Sequence[HTTPRouteHandler]:
    async def show_list(visitor: Visitor, cursor: str | None, fault: str = "") -> Response[str]:
        page = await memberships.list_page(_user(visitor), None, _ON_A_PAGE, cursor)
        return look.page(
            "memberships.html",
            status_code=409 if fault else 200,
            visitor=visitor,
            page=page,
            invitations=[one for one in page.data if one.status is MemberStatus.INVITED],
            active=[one for one in page.data if one.status is MemberStatus.ACTIVE],
            roles=dict(ROLES),
            fault=fault,
        )

    @get(PATH, guards=[door.needs()])
    async def show_memberships(visitor: SignedIn, cursor: Cursor = None) -> Response[str]:
        return await show_list(visitor, cursor)

    @post(_ONE + "/accept", guards=[door.needs()])
    async def accept_invitation(request: AnyRequest, visitor: SignedIn, membership_id: MembershipId) -> Response[str]:
        author = user_author(request, visitor.claims)
        try:
            membership = await memberships.accept(_user(visitor), author, membership_id, None)
        except MemberNotActiveError:
            return await show_list(visitor, None, "This invitation has ended. Ask the organization for a new one.")
        return look.tell(visitor, Notice.INVITATION_ACCEPTED, f"/orgs/{membership.org_id}")

    @post(_ONE + "/decline", guards=[door.needs()])
    async def decline_invitation(request: AnyRequest, visitor: SignedIn, membership_id: MembershipId) -> Response[str]:
        membership = await memberships.get(_user(visitor), membership_id)
        is_inside = membership.status is MemberStatus.ACTIVE or visitor.claims.org_id == membership.org_id
        if is_inside:  # accepted meanwhile, or let in by a claim: leaving takes another question
            return look.redirect(leave_path(membership_id))
        await memberships.end(_user(visitor), user_author(request, visitor.claims), membership_id)
        return look.tell(visitor, Notice.INVITATION_DECLINED, PATH)

    return [show_memberships, accept_invitation, decline_invitation]


def _leaving(memberships: MembershipService, door: SessionGuard, look: Renderer) -> Sequence[HTTPRouteHandler]:
    async def show_leave(visitor: Visitor, membership_id: str, faults: Mapping[str, str]) -> Response[str]:
        return look.page(
            "membership_leave.html",
            status_code=422 if faults else 200,
            visitor=visitor,
            membership=await memberships.get(_user(visitor), membership_id),
            faults=faults,
        )

    @get(_ONE + "/leave", guards=[door.needs()])
    async def show_leaving(visitor: SignedIn, membership_id: MembershipId) -> Response[str]:
        return await show_leave(visitor, membership_id, {})

    @post(_ONE + "/leave", guards=[door.needs()])
    async def leave(request: AnyRequest, visitor: SignedIn, form: Sent, membership_id: MembershipId) -> Response[str]:
        if not form.checked("leaving"):
            return await show_leave(visitor, membership_id, {"leaving": "Tick this to leave."})
        try:
            await memberships.end(_user(visitor), user_author(request, visitor.claims), membership_id, leaves=True)
        except LastOwnerError:
            return await show_leave(visitor, membership_id, {"last": "last"})
        return look.tell(visitor, Notice.ORGANIZATION_LEFT, PATH)

    return [show_leaving, leave]


def _user(visitor: Visitor) -> User:
    return User(visitor.session.issuer, visitor.session.subject)
