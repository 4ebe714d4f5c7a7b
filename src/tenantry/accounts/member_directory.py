"""The users of a tenant for its pages: found by any part of name, address or user id."""

from dataclasses import dataclass

from tenantry.accounts import member_directory_store as directory
from tenantry.accounts.member_directory_store import (
    ClaimedUser,
    ListedMember,
    UserCounts,
    UserSearch,
)
from tenantry.db.connection import of_tenant
from tenantry.db.database import Database
from tenantry.db.numbered_pages import NumberedPage, PageRequest
from tenantry.domain.issuers import Issuers
from tenantry.domain.members import MemberStatus
from tenantry.domain.permissions import RequestPrincipal


@dataclass(frozen=True)
class MemberDirectory:
    """The users of a principal's tenant. ``issuers`` are as in `MemberService`."""

    database: Database
    issuers: Issuers | None

    async def members(
        self,
        principal: RequestPrincipal,
        wanted: UserSearch,
        status: MemberStatus,
        page: PageRequest,
    ) -> NumberedPage[ListedMember]:
        """Read a page of members with this status, newest first. Raises `InvalidCursorError`."""
        org_id = principal.org_id
        async with self.database.transaction(of_tenant(org_id)) as connection:
            return await directory.read_members(
                connection,
                org_id,
                self.issuers,
                wanted,
                status,
                page,
            )

    async def claimed(
        self, principal: RequestPrincipal, wanted: UserSearch, page: PageRequest
    ) -> NumberedPage[ClaimedUser]:
        """Read a page of the users who have access by a claim alone, the last seen first.

        Raises `InvalidCursorError`.
        """
        org_id = principal.org_id
        async with self.database.transaction(of_tenant(org_id)) as connection:
            return await directory.read_claimed(
                connection,
                org_id,
                self.issuers,
                wanted,
                page,
            )

    async def counts(self, principal: RequestPrincipal) -> UserCounts:
        """Count the members, invitations by user id, and users by claim."""
        org_id = principal.org_id
        async with self.database.transaction(of_tenant(org_id)) as connection:
            return await directory.count(connection, org_id, self.issuers)
