"""Settings, Members."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from tenantry.accounts.members import MemberService
from tenantry.accounts.members_store import Filter
from tenantry.accounts.tenants import TenantService
from tenantry.api.guards import AnyRequest, principal_author
from tenantry.api.members import MemberChange, MemberId, NewMember
from tenantry.api.parameters import LONGEST_USER_ID, Cursor
from tenantry.auth.sessions import SessionService
from tenantry.dashboard.flash_messages import Notice
from tenantry.dashboard.forms import FaultyFormError, checked, form_claim, once_token, retry_while_in_flight
from tenantry.dashboard.guards import ORG, Sent, SessionGuard, SignedIn, Visitor
from tenantry.dashboard.labels import ROLES
from tenantry.dashboard.memberships import leave_path
from tenantry.dashboard.renderer import Renderer
from tenantry.domain.access import Principal, Role, lower_role
from tenantry.domain.errors import (
    DomainError,
    LastOwnerError,
    MemberExistsError,
    MemberNotActiveError,
    PlanLimitReachedError,
    ScopeEscalationError,
    ValidationError,
)
from tenantry.domain.members import Member, MemberStatus, check_may_give, check_may_manage

SECTION: Final = "/settings/members"
PATH: Final = ORG + SECTION
_ONE: Final = PATH + "/{member_id:str}"
_ON_A_PAGE: Final = 50
USER_ID_WORDS: Final = "1 to 255 visible ASCII characters, without blanks."
EMAIL_WORDS: Final = (
    "This is an e-mail address. Ask the user for their user id. They find it on their profile here, or on the page "
    "after their first sign-in."
)
_WORDS: Final = {"userId": USER_ID_WORDS, "role": "Choose one of the roles."}
_REFUSALS: Final[Mapping[type[DomainError], tuple[str, str]]] = {
    MemberExistsError: ("userId", "This user is a member or invited already. Change the role in the list of members."),
    ValidationError: ("userId", EMAIL_WORDS),
    ScopeEscalationError: ("role", "Only an owner makes, changes and removes owners."),
    MemberNotActiveError: ("role", "This membership has ended meanwhile. Invite the user again first."),
}
Text = Annotated[str, QueryParameter(max_length=LONGEST_USER_ID)]


def member_pages(
    members: MemberService, tenants: TenantService, sessions: SessionService, door: SessionGuard, look: Renderer
) -> Sequence[HTTPRouteHandler]:
    """The routes of members."""
    pages = _MemberPages(members, tenants, sessions, look)
    parts = (_reading, _adding, _changing, _taking_back, _removing)
    return [route for part in parts for route in part(pages, door)]


class _MemberPages:
    """What the pages of members have in common."""

    def __init__(
        self, members: MemberService, tenants: TenantService, sessions: SessionService, look: Renderer
    ) -> None:
        self.members = members
        self.tenants = tenants
        self.sessions = sessions
        self.look = look

    async def show_list(
        self, visitor: Visitor, role: str, status: str, user_id: str, cursor: str | None
    ) -> Response[str]:
        wanted = Filter(
            user_id.strip().replace("\x00", "") or None,
            Role(role) if role in set(Role) else None,
            MemberStatus(status) if status in set(MemberStatus) else None,
            current=status not in set(MemberStatus),
        )
        page = await self.members.seek_page(visitor.principal, wanted, _ON_A_PAGE, cursor)
        names = await self.sessions.names_of(visitor.session, visitor.principal.org_id, [m.user_id for m in page.data])
        tenant = await self.tenants.get(visitor.principal, visitor.principal.org_id)
        return self.look.page(
            "members.html",
            visitor=visitor,
            section=SECTION,
            page=page,
            names=names,
            wanted=wanted,
            is_first=cursor is None,
            owner_id=tenant.owner_id,
            roles=ROLES,
            filtered=bool(wanted.user_id or wanted.role or wanted.status or cursor),
            may_transfer=may_transfer(visitor),
        )

    def show_new(
        self, visitor: Visitor, typed: Mapping[str, str], faults: Mapping[str, str], *, is_self: bool, is_sure: bool
    ) -> Response[str]:
        return self.look.page(
            "member_new.html",
            status_code=422 if faults else 200,
            visitor=visitor,
            section=SECTION,
            typed=typed,
            faults=faults,
            is_self=is_self,
            is_sure=is_sure,
            roles=_roles_to_give(visitor.principal),
            once=once_token(),
        )

    async def show_one(
        self, visitor: Visitor, member_id: str, faults: Mapping[str, str], *, role: str = "", is_sure: bool = False
    ) -> Response[str]:
        return await self._show(visitor, "member.html", member_id, faults, role=role, is_sure=is_sure)

    async def show_removal(self, visitor: Visitor, member_id: str, faults: Mapping[str, str]) -> Response[str]:
        return await self._show(visitor, "member_remove.html", member_id, faults)

    async def _show(
        self,
        visitor: Visitor,
        template: str,
        member_id: str,
        faults: Mapping[str, str],
        *,
        role: str = "",
        is_sure: bool = False,
    ) -> Response[str]:
        member = await self.members.get(visitor.principal, member_id)
        tenant = await self.tenants.get(visitor.principal, visitor.principal.org_id)
        names = await self.sessions.names_of(visitor.session, member.org_id, [member.user_id])
        return self.look.page(
            template,
            status_code=422 if faults else 200,
            visitor=visitor,
            section=SECTION,
            member=member,
            name=names.get(member.user_id),
            faults=faults,
            role=role or member.role,
            is_sure=is_sure,
            role_words=dict(ROLES),
            roles=_roles_to_give(visitor.principal),
            is_self=_is_self(visitor, member.user_id),
            is_tenants_owner=member.user_id == tenant.owner_id,
            may_manage=visitor.may("members:write") and _may_manage(visitor.principal, member),
            may_transfer=may_transfer(visitor),
            once=once_token(),
        )


def _reading(pages: _MemberPages, door: SessionGuard) -> list[HTTPRouteHandler]:
    @get(PATH, guards=[door.needs("members:read")])
    async def show_members(
        visitor: SignedIn,
        role: Text = "",
        status: Text = "",
        user_id: Annotated[str, QueryParameter(name="userId", max_length=LONGEST_USER_ID)] = "",
        cursor: Cursor = None,
    ) -> Response[str]:
        return await pages.show_list(visitor, role, status, user_id, cursor)

    @get(_ONE, guards=[door.needs("members:read")])
    async def show_member(visitor: SignedIn, member_id: MemberId) -> Response[str]:
        return await pages.show_one(visitor, member_id, {})

    return [show_members, show_member]


def _adding(pages: _MemberPages, door: SessionGuard) -> list[HTTPRouteHandler]:
    @get(PATH + "/new", guards=[door.needs("members:write")])
    async def show_new_member(visitor: SignedIn) -> Response[str]:
        return pages.show_new(visitor, {"userId": "", "role": Role.MEMBER}, {}, is_self=False, is_sure=False)

    @post(PATH + "/new", guards=[door.needs("members:write")])
    async def add_member(request: AnyRequest, visitor: SignedIn, form: Sent) -> Response[str]:
        typed = {"userId": form.text("userId"), "role": form.text("role")}
        is_self, is_sure = _is_self(visitor, typed["userId"]), form.checked("sure")
        try:
            wanted = checked(NewMember, typed, _WORDS)
            if is_self:
                _check_is_sure(visitor.role, wanted.role, sure=is_sure)
            claim = await form_claim(request, visitor.principal, form)
            author = principal_author(request, visitor.principal)
            made = await retry_while_in_flight(
                lambda: pages.members.add(
                    visitor.principal, author, user_id=wanted.user_id, role=wanted.role, claim=claim
                )
            )
        except FaultyFormError as error:
            return pages.show_new(visitor, typed, error.faults, is_self=is_self, is_sure=is_sure)
        except LastOwnerError:
            faults = {"role": "This user is the organization's owner, and is added as that or not at all."}
            return pages.show_new(visitor, typed, faults, is_self=is_self, is_sure=is_sure)
        except (MemberExistsError, PlanLimitReachedError, ScopeEscalationError, ValidationError) as error:
            return pages.show_new(visitor, typed, _fault(error), is_self=is_self, is_sure=is_sure)
        return pages.look.tell(visitor, _notice_of_new(made.status), f"{visitor.base}{SECTION}/{made.id}")

    return [show_new_member, add_member]


def _changing(pages: _MemberPages, door: SessionGuard) -> list[HTTPRouteHandler]:
    @post(_ONE + "/role", guards=[door.needs("members:write")])
    async def change_role(request: AnyRequest, visitor: SignedIn, form: Sent, member_id: MemberId) -> Response[str]:
        typed, is_sure = form.text("role"), form.checked("sure")
        try:
            wanted = checked(MemberChange, {"role": typed}, _WORDS).role
            member = await pages.members.get(visitor.principal, member_id)
            if _is_self(visitor, member.user_id):
                _check_is_sure(member.role, wanted, sure=is_sure)
            author = principal_author(request, visitor.principal)
            await pages.members.change_role(visitor.principal, author, member_id, wanted)
        except FaultyFormError as error:
            return await pages.show_one(visitor, member_id, error.faults, role=typed)
        except LastOwnerError:
            faults = {"role": await _why_last(pages, visitor, member_id)}
            return await pages.show_one(visitor, member_id, faults, role=typed, is_sure=is_sure)
        except (MemberNotActiveError, ScopeEscalationError) as error:
            return await pages.show_one(visitor, member_id, _fault(error), role=typed)
        return pages.look.tell(visitor, Notice.MEMBER_CHANGED, f"{visitor.base}{SECTION}/{member_id}")

    return [change_role]


def _taking_back(pages: _MemberPages, door: SessionGuard) -> list[HTTPRouteHandler]:
    @post(_ONE + "/take-back", guards=[door.needs("members:write")])
    async def take_back(request: AnyRequest, visitor: SignedIn, form: Sent, member_id: MemberId) -> Response[str]:
        typed = form.text("role")
        try:
            wanted = checked(MemberChange, {"role": typed}, _WORDS).role
            member = await pages.members.get(visitor.principal, member_id)
            claim = await form_claim(request, visitor.principal, form)
            author = principal_author(request, visitor.principal)
            made = await retry_while_in_flight(
                lambda: pages.members.add(visitor.principal, author, user_id=member.user_id, role=wanted, claim=claim)
            )
        except FaultyFormError as error:
            return await pages.show_one(visitor, member_id, error.faults, role=typed)
        except LastOwnerError:
            faults = {"role": "This user is the organization's owner, and is invited as that or not at all."}
            return await pages.show_one(visitor, member_id, faults, role=typed)
        except (PlanLimitReachedError, ScopeEscalationError, ValidationError) as error:
            faults = {"role": _fault(error).popitem()[1]}
            return await pages.show_one(visitor, member_id, faults, role=typed)
        except MemberExistsError:  # somebody else was quicker: what was wanted is so
            made = await pages.members.get(visitor.principal, member_id)
        return pages.look.tell(visitor, _notice_of_new(made.status), f"{visitor.base}{SECTION}/{member_id}")

    return [take_back]


def _removing(pages: _MemberPages, door: SessionGuard) -> list[HTTPRouteHandler]:
    @get(_ONE + "/remove", guards=[door.needs("members:write")])
    async def show_remove_member(visitor: SignedIn, member_id: MemberId) -> Response[str]:
        member = await pages.members.get(visitor.principal, member_id)
        if _is_self(visitor, member.user_id):
            return pages.look.redirect(leave_path(member_id))
        return await pages.show_removal(visitor, member_id, {})

    @post(_ONE + "/remove", guards=[door.needs("members:write")])
    async def remove_member(request: AnyRequest, visitor: SignedIn, form: Sent, member_id: MemberId) -> Response[str]:
        member = await pages.members.get(visitor.principal, member_id)
        if _is_self(visitor, member.user_id):
            return pages.look.redirect(leave_path(member_id))
        is_invited = member.status is MemberStatus.INVITED
        if member.status is MemberStatus.ACTIVE and form.text("status") == MemberStatus.INVITED:
            # accepted meanwhile: to remove a member is another question
            return await pages.show_removal(visitor, member_id, {"status": "The user has accepted the invitation."})
        try:
            await pages.members.remove(visitor.principal, principal_author(request, visitor.principal), member_id)
        except LastOwnerError:
            return await pages.show_removal(visitor, member_id, {"last": await _why_last(pages, visitor, member_id)})
        except ScopeEscalationError as error:
            return await pages.show_removal(visitor, member_id, {"last": _fault(error)["role"]})
        notice = Notice.INVITATION_WITHDRAWN if is_invited else Notice.MEMBER_REMOVED
        return pages.look.tell(visitor, notice, f"{visitor.base}{SECTION}")

    return [show_remove_member, remove_member]


def may_transfer(visitor: Visitor) -> bool:
    """Whether the visitor may hand the organization over."""
    return visitor.may("tenants:write") and visitor.is_owner


def _notice_of_new(status: MemberStatus) -> Notice:
    return Notice.MEMBER_INVITED if status is MemberStatus.INVITED else Notice.MEMBER_ADDED


def _fault(error: DomainError) -> dict[str, str]:
    if isinstance(error, PlanLimitReachedError):
        return {"userId": f"{error.detail} Remove members until there are fewer, or compare the plans under Billing."}
    return dict([_REFUSALS[type(error)]])


async def _why_last(pages: _MemberPages, visitor: Visitor, member_id: str) -> str:
    member = await pages.members.get(visitor.principal, member_id)
    tenant = await pages.tenants.get(visitor.principal, visitor.principal.org_id)
    if member.user_id == tenant.owner_id:
        return "This member owns the organization. Transfer it to another member first."
    return "This is the last owner. Make another member an owner first."


def _is_self(visitor: Visitor, user_id: str) -> bool:
    return user_id == visitor.session.subject


def _check_is_sure(before: Role, after: Role, *, sure: bool) -> None:
    """Raise `FaultyFormError` where somebody would make themselves less and has not said that they know."""
    if lower_role(before, after) is not before and not sure:
        raise FaultyFormError({"sure": "This is your own role. Tick this to lower it: you cannot raise it again."})


def _may_manage(principal: Principal, member: Member) -> bool:
    try:
        check_may_manage(principal, member.role)
    except DomainError:
        return False
    return True


def _roles_to_give(principal: Principal) -> list[tuple[str, str]]:
    return [(role, text) for role, text in ROLES if _may_give(principal, role)]


def _may_give(principal: Principal, role: Role) -> bool:
    try:
        check_may_give(principal, role)
    except DomainError:
        return False
    return True
