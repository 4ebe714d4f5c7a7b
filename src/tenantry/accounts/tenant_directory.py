"""All tenants, for the operator: lists with filters, and the search for one."""

from dataclasses import dataclass

import msgspec

from tenantry.accounts import tenant_directory_store as directory
from tenantry.accounts.tenant_directory_store import TenantFilter
from tenantry.auth.operator_keys import OperatorKeyService
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.db.pagination import Page, window_after
from tenantry.domain.api_keys import ApiKey
from tenantry.domain.plans import Catalog
from tenantry.domain.tenants import ManagedTenant


class TenantMatch(msgspec.Struct, frozen=True, rename="camel"):
    """A tenant, and what it was found by: ``id``, ``customer``, ``email`` or ``key``. ``given`` is
    what matched.
    """

    found_by: str
    given: str
    tenant: ManagedTenant
    key: ApiKey | None = None


@dataclass(frozen=True)
class TenantDirectory:
    """Reads across tenants. Ended tenants are left out."""

    database: Database
    catalog: Catalog
    keys: OperatorKeyService
    clock: Clock

    async def list_page(
        self, wanted: TenantFilter, limit: int, cursor: str | None
    ) -> Page[ManagedTenant]:
        """Read a page of tenants, newest first.

        Raises `InvalidCursorError`, and `ValidationError` for a search for a whole secret.
        """
        self.keys.key_format.check_search(wanted.search or "")
        window = window_after(limit, cursor)
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await directory.read_page(
                connection,
                wanted,
                window,
                self.catalog,
                self.clock(),
            )

    async def find(self, text: str) -> list[TenantMatch]:
        """Find tenants by their id, a customer, the owner's address, or a key's id, first or last
        characters.

        Raises `ValidationError` for a whole secret.
        """
        self.keys.key_format.check_search(text)
        keys = list[ApiKey]()
        if self.keys.key_format.find_hint(text) is not None:
            keys = (await self.keys.search(text, directory.MOST_FOUND, None)).data
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            named = await directory.read_named(
                connection,
                text,
                self.catalog,
                self.clock(),
            )
            owners = {key.org_id for key in keys}
            tenants = await directory.read_by_id(
                connection,
                owners,
                self.catalog,
                self.clock(),
            )
        matches = [TenantMatch(found_by, given, tenant) for found_by, given, tenant in named]
        return matches + [
            TenantMatch("key", key.id, tenants[key.org_id], key)
            for key in keys
            if key.org_id in tenants
        ]
