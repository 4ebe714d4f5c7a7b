"""Projects. Every statement names the tenant and the mode."""

from typing import Final

import msgspec

from tenantry.db.connection import Connection
from tenantry.db.numbered_pages import EVERY_ROW, NumberedListing, NumberedPage, PageRequest
from tenantry.db.pagination import MAX_SCANNED_RECORDS, Listing, Page, Window
from tenantry.domain.permissions import Mode
from tenantry.domain.tenants import Project

_COLUMNS: Final = "id, org_id, name, description, mode, created_at, updated_at"
_FIND: Final = """
SELECT id, org_id, name, description, mode, created_at, updated_at
  FROM projects
 WHERE org_id = %s AND mode = %s AND id = %s
"""
_READ_ALL: Final = """
SELECT id, org_id, name, description, mode, created_at, updated_at
  FROM projects
 WHERE org_id = %s AND mode = %s
 ORDER BY created_at, id
"""
_INSERT: Final = """
INSERT INTO projects (id, org_id, name, description, mode, created_at, updated_at)
VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
_LISTING: Final = Listing(_COLUMNS, "projects", "created_at", most=MAX_SCANNED_RECORDS)
_OF_TENANT: Final = "org_id = %(org)s AND mode = %(mode)s"
# One value a line, so that no search text matches across two of them.
_FOUND: Final = "position(lower(%(search)s) IN lower(concat_ws(E'\\n', name, id, description))) > 0"
PAGE_OF_CALLER: Final = """ARRAY(SELECT p.document
               FROM projects p
              WHERE p.org_id = {org_id} AND p.mode = {mode}
                AND (p.created_at, p.id) < (coalesce(query.after_at, 'infinity'), coalesce(query.after_id, ''))
              ORDER BY p.created_at DESC, p.id DESC
              LIMIT query.most)"""
"""The page of a caller's projects, which `auth.authentication_store` reads together with the
caller. Reading it by a second batch took 1.23 times the processor time of a list, and gave 0.82
times as many a second.
"""


async def read_page(
    connection: Connection, org_id: str, mode: Mode, window: Window
) -> Page[Project]:
    """Read a page of a tenant's projects, newest first."""
    return await _LISTING.page(
        connection,
        _OF_TENANT,
        {"org": org_id, "mode": mode},
        window,
        lambda row: Project(*row),
    )


async def read_numbered(
    connection: Connection, org_id: str, mode: Mode, search: str | None, request: PageRequest
) -> NumberedPage[Project]:
    """Read a page of a tenant's projects, newest first. Raises `InvalidCursorError`.

    ``search`` is a part of the name, the id or the description, case-insensitive.
    """
    numbered = NumberedListing(
        _LISTING,
        _OF_TENANT,
        {"org": org_id, "mode": mode, "search": search},
        EVERY_ROW if search is None else _FOUND,
    )
    return await numbered.read(connection, request, lambda row: Project(*row))


async def count(connection: Connection, org_id: str, mode: Mode, most: int) -> int:
    """Count a tenant's projects in one mode, up to ``most``."""
    # the order is that of an index, so that nothing else is read
    return await connection.fetch_count(
        "SELECT count(*) FROM (SELECT FROM projects WHERE org_id = %s AND mode = %s "
        "ORDER BY created_at DESC, id DESC LIMIT %s) AS counted",
        (org_id, mode, most),
    )


async def insert(connection: Connection, project: Project) -> None:
    """Store a new project."""
    await connection.execute(_INSERT, msgspec.structs.astuple(project))


async def find(connection: Connection, org_id: str, mode: Mode, project_id: str) -> Project | None:
    """Find a project of a tenant."""
    row = await connection.fetch_row(_FIND, (org_id, mode, project_id))
    return Project(*row) if row else None


async def update(connection: Connection, project: Project) -> None:
    """Store a project's name and description."""
    await connection.execute(
        "UPDATE projects SET name = %s, description = %s, updated_at = %s WHERE org_id = %s AND id = %s",
        (project.name, project.description, project.updated_at, project.org_id, project.id),
    )


async def delete(connection: Connection, org_id: str, mode: Mode, project_id: str) -> None:
    """Delete a project."""
    await connection.execute(
        "DELETE FROM projects WHERE org_id = %s AND mode = %s AND id = %s",
        (org_id, mode, project_id),
    )


async def read_all(connection: Connection, org_id: str, mode: Mode) -> list[Project]:
    """Read every project of a tenant in one mode, oldest first."""
    rows = await connection.fetch(_READ_ALL, (org_id, mode))
    return [Project(*row) for row in rows]
