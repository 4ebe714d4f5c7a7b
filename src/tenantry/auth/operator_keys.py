"""API keys of all tenants, for the operator: search by what people know of a key, and
revocation.
"""

from dataclasses import dataclass

from tenantry.auth import api_keys_store
from tenantry.auth.api_keys import ApiKeyService
from tenantry.auth.api_keys_store import KeyFilter
from tenantry.db.connection import ACROSS_TENANTS, of_tenant
from tenantry.db.pagination import Page, window_after
from tenantry.db.tenants_store import get_tenant
from tenantry.domain.api_keys import ApiKey, KeyFormat, KeyState
from tenantry.domain.audit import Author
from tenantry.domain.errors import NotFoundError, ValidationError
from tenantry.domain.key_import import ImportedKeyCounts
from tenantry.domain.permissions import operator_principal


@dataclass(frozen=True)
class OperatorKeyService:
    """The keys of all tenants. ``keys`` changes those of one."""

    keys: ApiKeyService

    @property
    def key_format(self) -> KeyFormat:
        """How the secrets of keys look."""
        return self.keys.key_format

    async def search(self, text: str, limit: int, cursor: str | None) -> Page[ApiKey]:
        """Read a page of the keys with this id, or these first or last characters, newest first.

        Raises `ValidationError` for a text that names no key, and for a whole secret, and
        `InvalidCursorError`.
        """
        self.key_format.check_search(text)
        hint = self.key_format.find_hint(text)
        window = window_after(limit, cursor)
        if hint is None:
            raise ValidationError(
                ("search", "must be a key's id, or four characters of its start or end")
            )
        now = self.keys.clock()
        async with self.keys.database.transaction(ACROSS_TENANTS) as connection:
            page = await api_keys_store.find_hinted(connection, hint, window)
            found = []
            for key_id, org_id in page.data:
                async with connection.within(of_tenant(org_id)):
                    found.append(
                        await api_keys_store.find(
                            connection,
                            org_id,
                            key_id,
                            now,
                            test_only=False,
                        )
                    )
        return Page([key for key in found if key is not None], page.next_cursor)

    async def count_imported(self) -> list[ImportedKeyCounts]:
        """Count the imported keys of each tenant that has one."""
        async with self.keys.database.transaction(ACROSS_TENANTS) as connection:
            return await api_keys_store.count_imported(connection, self.keys.clock())

    async def list_imported(
        self, org_id: str, limit: int, cursor: str | None, *, unused: bool
    ) -> Page[ApiKey]:
        """Read a page of a tenant's imported keys, newest first; with ``unused`` only active ones
        that were not used yet. Raises `NotFoundError` and `InvalidCursorError`.
        """
        async with self.keys.database.transaction(of_tenant(org_id)) as connection:
            await get_tenant(connection, org_id, even_ended=True)
        wanted = KeyFilter(is_imported=True, state=KeyState.IMPORTED if unused else None)
        return await self.keys.list_page(operator_principal(org_id), wanted, limit, cursor)

    async def get(self, key_id: str) -> ApiKey:
        """Read a key of any tenant. Raises `NotFoundError`."""
        return await self.keys.get(operator_principal(await self._tenant_of(key_id)), key_id)

    async def revoke(self, author: Author, key_id: str, *, force: bool = False) -> ApiKey:
        """Revoke a key of any tenant and return it. Raises as
        `ApiKeyService.revoke_as_operator`.
        """
        return await self.keys.revoke_as_operator(
            await self._tenant_of(key_id),
            author,
            key_id,
            force=force,
        )

    async def _tenant_of(self, key_id: str) -> str:
        async with self.keys.database.transaction(ACROSS_TENANTS) as connection:
            org_id = await api_keys_store.find_tenant_of_key(connection, key_id)
        if org_id is None:
            raise NotFoundError("API key")
        return org_id
