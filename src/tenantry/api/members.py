"""Routes of members and of the caller's own memberships."""

from typing import Annotated, Final

import msgspec
from litestar import Response, delete, get, patch, post
from litestar.params import JSONBody, QueryParameter

from tenantry.accounts.members_store import MemberFilter
from tenantry.api import tenants
from tenantry.api.guards import (
    Caller,
    CallerClaims,
    ChangeAuthor,
    IdempotencyClaim,
    VerifiedAddress,
    needs,
    needs_user,
    raises,
)
from tenantry.api.parameters import (
    DEFAULT_LIMIT,
    LONGEST_USER_ID,
    ROLE_PATTERN,
    Cursor,
    Email,
    Limit,
    ReasonText,
    RoleId,
    UserId,
    path_parameter,
)
from tenantry.api.services import Services
from tenantry.common.encoding import doc
from tenantry.db.pagination import Page
from tenantry.domain.members import Member, Membership, MemberStatus, assignable_roles
from tenantry.domain.names import VISIBLE
from tenantry.domain.tenants import Tenant

PATH: Final = "/api/v1/members"
ROLES_PATH: Final = "/api/v1/roles"
OWN_PATH: Final = "/api/v1/me/memberships"
_MEMBERSHIPS_PATH: Final = "/api/v1/memberships"

MemberId = Annotated[
    str, path_parameter("The member's id.", "mbr_01975c3a5b3ef0a1b2c3d4e5f6071829")
]
MembershipId = Annotated[
    str, path_parameter("The membership's id.", "mbr_01975c3a5b3ef0a1b2c3d4e5f6071829")
]
_OfUser = Annotated[
    str | None,
    QueryParameter(
        name="userId",
        min_length=1,
        max_length=LONGEST_USER_ID,
        pattern=VISIBLE,
        description="Only this user, by the id at the identity provider.",
    ),
]


class NewMember(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A user to invite."""

    user_id: Annotated[UserId, doc(example="user_grace")]
    role: Annotated[RoleId, doc("What the user may do.", "admin")]


class MemberChange(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The changes to a member."""

    role: Annotated[RoleId, doc("What the user may do from now on.", "member")]


class RoleDefinition(msgspec.Struct, rename="camel", frozen=True):
    """A role that members may have."""

    id: Annotated[str, doc("The role's id, as in a member's `role`.", "support")]
    name: Annotated[str, doc("What people call it.", "Support")]
    scopes: Annotated[tuple[str, ...], doc("What its users may do.", ["projects:read"])]
    gives: Annotated[
        list[str], doc("The roles that its users may give, change and remove, by id.", [])
    ]
    assignable: Annotated[bool, doc("Whether the caller may give it.", example=True)]


class OwnerTransfer(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The new owner of a tenant and the address for billing mail."""

    user_id: Annotated[
        UserId,
        doc("The new owner: an active member's user id at the identity provider.", "user_grace"),
    ]
    owner_email: Annotated[Email, doc(example="grace@acme.example")]
    reason: Annotated[
        ReasonText | None, doc("Why: the audit trail shows it.", "Ada has left the company")
    ] = None


@get(PATH, guards=[needs("members:read")], summary="List members")
async def list_members(
    services: Services,
    principal: Caller,
    user_id: _OfUser = None,
    role: Annotated[
        str | None,
        QueryParameter(
            name="role",
            max_length=32,
            pattern=ROLE_PATTERN,
            description="Only members with this role.",
        ),
    ] = None,
    status: Annotated[
        MemberStatus | None,
        QueryParameter(
            name="status",
            description="Only these. Without it: the active and the invited ones.",
        ),
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Member]:
    """List the tenant's members and invitations, newest first.

    Users who have only an organization claim in their token are not listed.
    """
    wanted = MemberFilter(
        user_id,
        role,
        status,
        current=status is None,
    )
    return await services.members.list_page(
        principal,
        wanted,
        limit,
        cursor,
    )


@get(ROLES_PATH, guards=[needs("members:read")], summary="List the roles")
async def list_roles(services: Services, principal: Caller) -> Page[RoleDefinition]:
    """List the roles that members may have on one page, the highest first.

    `owner`, `admin` and `member` are built in. The plan catalog may define others.
    """
    roles = services.catalog.roles
    assignable = assignable_roles(principal, roles)
    found = [
        RoleDefinition(
            role.id,
            role.name,
            role.scopes,
            [given.id for given in roles.given_by(role)],
            role in assignable,
        )
        for role in roles
    ]
    return Page(found, None)


@post(
    PATH,
    guards=[needs("members:write")],
    summary="Invite a member",
    opt=raises(
        "scope_escalation",
        "mode_mismatch",
        "member_exists",
        "plan_limit_reached",
        "last_owner",
        "identity_provider_not_configured",
    ),
)
async def create_member(
    services: Services,
    principal: Caller,
    author: ChangeAuthor,
    claim: IdempotencyClaim,
    data: JSONBody[NewMember],
) -> Response[Member]:
    """Invite a user of the identity provider.

    The membership is `invited` until the user accepts; a user who adds themselves is active
    immediately, and one whom the operator adds. A removed member can be invited again and keeps the
    id. Invitations count against the plan's limit `members`. The caller must hold everything that
    the role grants, with a token
    or a key that does not expire.
    """
    member = await services.members.add(
        principal,
        author,
        user_id=data.user_id,
        role=data.role,
        claim=claim,
    )
    return Response(member, headers={"Location": f"{PATH}/{member.id}"})


@get(PATH + "/{member_id:str}", guards=[needs("members:read")], summary="Get a member")
async def get_member(services: Services, principal: Caller, member_id: MemberId) -> Member:
    """Return a member of the caller's tenant, including a removed one."""
    return await services.members.get(principal, member_id)


@patch(
    PATH + "/{member_id:str}",
    guards=[needs("members:write")],
    summary="Change a member's role",
    opt=raises(
        "scope_escalation",
        "mode_mismatch",
        "member_not_active",
        "last_owner",
    ),
)
async def update_member(
    services: Services,
    principal: Caller,
    author: ChangeAuthor,
    member_id: MemberId,
    data: JSONBody[MemberChange],
) -> Member:
    """Change the role.

    It counts from the member's next request. A higher role needs the same rights as an
    invitation. Only an OWNER can change an owner.
    """
    return await services.members.change_role(
        principal,
        author,
        member_id,
        data.role,
    )


@delete(
    PATH + "/{member_id:str}",
    guards=[needs("members:write")],
    summary="Remove a member",
    opt=raises("scope_escalation", "mode_mismatch", "last_owner"),
)
async def delete_member(
    services: Services, principal: Caller, author: ChangeAuthor, member_id: MemberId
) -> None:
    """Remove a member or withdraw an invitation.

    After this answer every process rejects the user's requests, whatever the token claims. Only
    an OWNER can remove an owner, or a user whose token claims the role owner. Removing again
    succeeds. The record stays, with `removedAt`.
    """
    await services.members.remove(principal, author, member_id)


@post(
    tenants.PATH + "/{tenant_id:str}/transfer",
    guards=[needs("tenants:write")],
    status_code=200,
    summary="Transfer a tenant to another owner",
    opt=raises("scope_escalation", "identity_provider_not_configured"),
)
async def transfer_tenant(
    services: Services,
    address: VerifiedAddress,
    principal: Caller,
    author: ChangeAuthor,
    claim: IdempotencyClaim,
    tenant_id: tenants.TenantId,
    data: JSONBody[OwnerTransfer],
) -> Tenant:
    """Make an active member the owner of the tenant.

    This sets `ownerId`, the role owner, and the address for billing mail. A previous owner who
    is a member becomes an admin. Only an OWNER may do this.
    """
    return await services.tenants.transfer(
        principal,
        author.because(data.reason),
        tenant_id,
        user_id=data.user_id,
        owner_email=data.owner_email,
        claim=claim,
        address=address,
    )


@get(OWN_PATH, guards=[needs_user()], summary="List the caller's memberships")
async def list_own_memberships(
    services: Services,
    claims: CallerClaims,
    status: Annotated[
        MemberStatus | None,
        QueryParameter(
            name="status",
            description="Only `active` ones, or only `invited` ones: invitations.",
        ),
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Membership]:
    """List the user's memberships and invitations, newest first.

    An invitation shows only the tenant's id and name.
    """
    return await services.memberships.list_page(
        claims.user,
        status,
        limit,
        cursor,
    )


@post(
    _MEMBERSHIPS_PATH + "/{membership_id:str}/accept",
    guards=[needs_user()],
    status_code=200,
    summary="Accept an invitation",
    opt=raises("member_not_active"),
)
async def accept_membership(
    services: Services,
    claims: CallerClaims,
    author: ChangeAuthor,
    claim: IdempotencyClaim,
    membership_id: MembershipId,
) -> Membership:
    """Accept an invitation. Accepting again succeeds. Another user's membership is not
    found.
    """
    return await services.memberships.accept(
        claims.user,
        author,
        membership_id,
        claim,
    )


@delete(
    OWN_PATH + "/{membership_id:str}",
    guards=[needs_user()],
    summary="Decline an invitation, or leave a tenant",
    opt=raises("last_owner"),
)
async def delete_own_membership(
    services: Services, claims: CallerClaims, author: ChangeAuthor, membership_id: MembershipId
) -> None:
    """Decline an invitation or leave the tenant; repeating it succeeds.

    The tenant's owner, and its last one, must transfer it first.
    """
    await services.memberships.end(claims.user, author, membership_id)
