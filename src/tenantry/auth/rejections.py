"""Read why requests of a tenant were refused."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from tenantry.audit.trail_store import read_names
from tenantry.auth import rejections_store as store
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.numbered_pages import NumberedPage, PageRequest
from tenantry.db.pagination import Page, Window, window_after
from tenantry.domain.permissions import ACCEPTED_MODES, RequestPrincipal
from tenantry.domain.rejections import Rejection, RejectionFilter

_MOST_KEYS: Final = 100


class LatestRejections(NamedTuple):
    """The newest rejections, and the names of their keys by id."""

    data: Sequence[Rejection]
    names: dict[str, str]


class RejectionSearch(NamedTuple):
    """A page of rejections; the ids of keys that have any, those of the newest ones first, and the
    names of keys by id.
    """

    page: NumberedPage[Rejection]
    key_ids: Sequence[str]
    names: dict[str, str]


@dataclass(frozen=True)
class RejectionService:
    """Reads the rejections of a principal's tenant. Callers check the scope ``audit:read``."""

    database: Database

    async def list_page(
        self,
        principal: RequestPrincipal,
        limit: int,
        cursor: str | None,
        *,
        key_id: str | None = None,
        since: datetime | None = None,
    ) -> Page[Rejection]:
        """Read a page in the principal's mode, newest first: of all senders, or of one key. Raises
        `InvalidCursorError`.
        """
        org_id = principal.org_id
        window = window_after(limit, cursor)
        async with self.database.transaction(of_tenant(org_id)) as connection:
            return await store.read_page(
                connection, org_id, window, mode=principal.mode, key_id=key_id, since=since
            )

    async def latest(
        self, principal: RequestPrincipal, most: int, key_id: str | None = None
    ) -> LatestRejections:
        """Read the newest rejections in both modes: of all senders, or of one key. Raises
        `ModeMismatchError`.
        """
        principal.require_mode(ACCEPTED_MODES["live"])
        org_id = principal.org_id
        async with self.database.transaction(of_tenant(org_id)) as connection:
            page = await store.read_page(connection, org_id, Window(most), key_id=key_id)
            return LatestRejections(page.data, await _names(connection, org_id, page.data))

    async def search_page(
        self, principal: RequestPrincipal, wanted: RejectionFilter, request: PageRequest
    ) -> RejectionSearch:
        """Read a numbered page in both modes. Raises `InvalidCursorError` and
        `ModeMismatchError`.
        """
        principal.require_mode(ACCEPTED_MODES["live"])
        org_id = principal.org_id
        async with self.database.transaction(of_tenant(org_id)) as connection:
            page = await store.search_page(connection, org_id, wanted, request)
            key_ids = await store.latest_keys(connection, org_id, _MOST_KEYS)
            names = await _names(connection, org_id, page.data, key_ids)
        return RejectionSearch(page, key_ids, names)


async def _names(
    connection: Connection,
    org_id: str,
    rejections: Iterable[Rejection],
    further: Iterable[str] = (),
) -> dict[str, str]:
    """Return the names of the keys of rejections, and of further ones, by id."""
    key_ids = {each.key_id for each in rejections if isinstance(each.key_id, str)}.union(further)
    return await read_names(connection, org_id, key_ids) if key_ids else {}
