"""The mails of a tenant, for the operator."""

from dataclasses import dataclass

from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.db.numbered_pages import NumberedPage, PageRequest
from tenantry.domain.owner_mails import ListedMail
from tenantry.notifications import mails_store


@dataclass(frozen=True)
class MailHistory:
    """Reads which mails went to a tenant's people, without their content."""

    database: Database

    async def read_page(self, tenant_id: str, request: PageRequest) -> NumberedPage[ListedMail]:
        """Read a numbered page, the last one due first. Raises `InvalidCursorError`."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await mails_store.read_page(connection, tenant_id, request)
