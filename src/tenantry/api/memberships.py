"""Routes of a user's own memberships. They take any token of the user: no scope, and no organization."""

from collections.abc import Sequence
from typing import Annotated, Final

from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter, QueryParameter

from tenantry.accounts.members_store import User
from tenantry.accounts.memberships import MembershipService
from tenantry.api.author import user_author
from tenantry.api.guards import Access, AnyRequest, CallerClaims, idempotency_claim, user_claimant
from tenantry.api.parameters import DEFAULT_LIMIT, Cursor, Limit
from tenantry.domain.members import Membership, MemberStatus
from tenantry.domain.pages import Page
from tenantry.integrations.oidc.tokens import Claims

OWN_PATH: Final = "/api/v1/me/memberships"
PATH: Final = "/api/v1/memberships"

MembershipId = Annotated[str, PathParameter(description="The membership's id.")]


def membership_routes(memberships: MembershipService, access: Access) -> Sequence[HTTPRouteHandler]:
    """The routes of a user's own memberships."""

    @get(OWN_PATH, guards=[access.needs_user()], summary="List the caller's memberships")
    async def list_own_memberships(
        claims: CallerClaims,
        status: Annotated[
            MemberStatus | None,
            QueryParameter(name="status", description="Only `active` ones, or only `invited` ones: invitations."),
        ] = None,
        limit: Limit = DEFAULT_LIMIT,
        cursor: Cursor = None,
    ) -> Page[Membership]:
        return await memberships.list_page(_user(claims), status, limit, cursor)

    @post(PATH + "/{membership_id:str}/accept", guards=[access.needs_user()], status_code=200,
          summary="Accept an invitation")  # fmt: skip
    async def accept_membership(request: AnyRequest, claims: CallerClaims, membership_id: MembershipId) -> Membership:
        claim = await idempotency_claim(request, user_claimant(claims))
        return await memberships.accept(_user(claims), user_author(request, claims), membership_id, claim)

    @delete(OWN_PATH + "/{membership_id:str}", guards=[access.needs_user()],
            summary="Decline an invitation, or leave a tenant")  # fmt: skip
    async def delete_own_membership(request: AnyRequest, claims: CallerClaims, membership_id: MembershipId) -> None:
        await memberships.end(_user(claims), user_author(request, claims), membership_id)

    return [list_own_memberships, accept_membership, delete_own_membership]


def _user(claims: Claims) -> User:
    return User(claims.issuer, claims.subject)
