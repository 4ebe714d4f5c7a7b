"""All tenants, for the operator: lists with filters, and the search for one."""

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tenantry.accounts import tenant_directory_store as directory
from tenantry.audit import trail_store as trail
from tenantry.audit.trail import AuditFilter
from tenantry.auth.operator_keys import OperatorKeyService
from tenantry.billing.ledger_queries_store import tenants_after
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS, OF_PEOPLE, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.numbered_pages import NumberedPage, PageRequest
from tenantry.db.pagination import Page, window_after
from tenantry.domain.api_keys import ApiKey
from tenantry.domain.audit import AuditEvent
from tenantry.domain.plans import Catalog
from tenantry.domain.tenant_search import TenantFilter, TenantMatch
from tenantry.domain.tenants import ManagedTenant

_EXPORT_ROWS: Final = 500
_TENANTS_AT_A_TIME: Final = 100


@dataclass
class _TrailReading:
    """How far the trails of all tenants were read: those up to the tenant ``done``, and of the next
    tenant, by its id, the entries before a cursor.
    """

    wanted: AuditFilter
    done: str = ""
    following: dict[str, str] = field(default_factory=dict)
    is_over: bool = False

    async def next_part(self, connection: Connection) -> list[AuditEvent]:
        """Read some entries of one or more tenants."""
        part = list[AuditEvent]()
        tenants = await tenants_after(connection, self.done, _TENANTS_AT_A_TIME)
        self.is_over = not tenants
        for tenant_id in tenants:
            part += await self._next_page(connection, tenant_id)
            if self.following or len(part) >= _EXPORT_ROWS:
                break
        return part

    async def _next_page(self, connection: Connection, tenant_id: str) -> list[AuditEvent]:
        await connection.enter(of_tenant(tenant_id))
        window = window_after(_EXPORT_ROWS, self.following.pop(tenant_id, None))
        page = await trail.read_page(connection, tenant_id, self.wanted, window)
        if page.next_cursor is None:
            self.done = tenant_id
        else:
            self.following[tenant_id] = page.next_cursor
        return page.data


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

    async def search_page(
        self, wanted: TenantFilter, request: PageRequest
    ) -> NumberedPage[ManagedTenant]:
        """Read a numbered page of a bounded search. Raises as `list_page`."""
        self.keys.key_format.check_search(wanted.search or "")
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await directory.search_page(
                connection, wanted, request, catalog=self.catalog, now=self.clock()
            )

    async def by_id(self, ids: Collection[str]) -> dict[str, ManagedTenant]:
        """Read those of these tenants that have not ended, by id."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await directory.read_by_id(connection, ids, self.catalog, self.clock())

    async def export_trail(self, since: datetime | None) -> AsyncGenerator[list[AuditEvent], None]:
        """Read the audit trail of all tenants since a time, also of ended ones: in parts of one
        short transaction each, tenant by tenant, newest first.
        """
        reading = _TrailReading(AuditFilter(since=since))
        while not reading.is_over:
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                part = await reading.next_part(connection)
            yield part

    async def find(self, text: str, most_keys: int = directory.MOST_FOUND) -> list[TenantMatch]:
        """Find tenants by their id, a customer, the owner's address, a key's id, first or last
        characters, or a member's id, user id, address or name; a tenant that has several only by
        the first of them that is no key. Of keys, only the newest ``most_keys`` are read.

        Raises `ValidationError` for a whole secret.
        """
        self.keys.key_format.check_search(text)
        keys = list[ApiKey]()
        if self.keys.key_format.find_hint(text) is not None:
            keys = (await self.keys.search(text, most_keys, None)).data
        now = self.clock()
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            named = await directory.read_named(connection, text, self.catalog, now)
            async with connection.within(OF_PEOPLE):
                people = await directory.read_of_person(connection, text)
            ids = {key.org_id for key in keys} | {tenant_id for _, _, tenant_id in people}
            tenants = await directory.read_by_id(connection, ids, self.catalog, now)
        matches = {
            tenant.id: TenantMatch(found_by, given, tenant) for found_by, given, tenant in named
        }
        for found_by, given, tenant_id in people:
            if tenant_id in tenants:
                matches.setdefault(tenant_id, TenantMatch(found_by, given, tenants[tenant_id]))
        by_key = [
            TenantMatch("key", key.id, tenants[key.org_id], key)
            for key in keys
            if key.org_id in tenants
        ]
        return [*matches.values(), *by_key]
