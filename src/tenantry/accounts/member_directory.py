"""The users of a tenant for its pages: found by any part of name, address or user id."""

from dataclasses import dataclass

from tenantry.accounts import member_directory_store as directory
from tenantry.accounts.member_directory_store import (
    ClaimedUser,
    ListedInvitation,
    ListedMember,
    UserCounts,
    UserSearch,
)
from tenantry.common.clock import Clock
from tenantry.db.connection import of_tenant
from tenantry.db.database import Database
from tenantry.db.numbered_pages import NumberedPage, PageRequest
from tenantry.db.tenants_store import TenantUsers
from tenantry.domain.issuers import Issuers
from tenantry.domain.permissions import RequestPrincipal


@dataclass(frozen=True)
class MemberDirectory:
    """The users of a principal's tenant. ``issuers`` are as in `MemberService`."""

    database: Database
    issuers: Issuers | None
    clock: Clock

    async def members(
        self,
        principal: RequestPrincipal,
        wanted: UserSearch,
        page: PageRequest,
        *,
        removed: bool = False,
    ) -> NumberedPage[ListedMember]:
        """Read a page of active or removed members, newest first. Raises `InvalidCursorError`."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await directory.read_members(
                connection,
                self._users(principal),
                wanted,
                page,
                removed=removed,
            )

    async def invited(
        self,
        principal: RequestPrincipal,
        wanted: UserSearch,
        page: PageRequest,
        *,
        closed: bool = False,
    ) -> NumberedPage[ListedInvitation]:
        """Read a page of pending invitations, by mail or user id, or of those that were accepted or
        withdrawn, newest first. Raises `InvalidCursorError`.
        """
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await directory.read_invited(
                connection,
                self._users(principal),
                wanted,
                page,
                self.clock(),
                closed=closed,
            )

    async def claimed(
        self, principal: RequestPrincipal, wanted: UserSearch, page: PageRequest
    ) -> NumberedPage[ClaimedUser]:
        """Read a page of the users who have access by a claim alone, the last seen first.

        Raises `InvalidCursorError`.
        """
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await directory.read_claimed(
                connection,
                self._users(principal),
                wanted,
                page,
            )

    async def counts(self, principal: RequestPrincipal) -> UserCounts:
        """Count the members, pending invitations, and users by claim."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await directory.count(connection, self._users(principal))

    def _users(self, principal: RequestPrincipal) -> TenantUsers:
        return TenantUsers(principal.org_id, self.issuers)
