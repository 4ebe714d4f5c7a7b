"""Projects. Every statement names the tenant and the mode."""

from typing import Final

from tenantry.db.connection import Connection
from tenantry.domain.access import Mode
from tenantry.domain.projects import Project, Window

_COLUMNS: Final = "id, org_id, name, description, mode, created_at, updated_at"


async def read_page(connection: Connection, org_id: str, mode: Mode, window: Window) -> list[Project]:
    """A page of a tenant's projects, newest first, with one project more than its limit if there are more."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM projects WHERE org_id = %s AND mode = %s "  # noqa: S608  # our own columns
        "AND (created_at, id) < (coalesce(%s, 'infinity'::timestamptz), coalesce(%s, '')) "
        "ORDER BY created_at DESC, id DESC LIMIT %s",
        (org_id, mode, window.after_at, window.after_id, window.limit + 1),
    )
    return [Project(*row) for row in await cursor.fetchall()]


async def count(connection: Connection, org_id: str, mode: Mode, most: int) -> int:
    """How many projects a tenant has in one mode; no more than ``most`` are counted."""
    # in the order of the index, which is all that is read then
    cursor = await connection.execute(
        "SELECT count(*) FROM (SELECT FROM projects WHERE org_id = %s AND mode = %s "
        "ORDER BY created_at DESC, id DESC LIMIT %s) AS counted",
        (org_id, mode, most),
    )
    row = await cursor.fetchone()
    return int(row[0]) if row else 0


async def insert(connection: Connection, project: Project) -> None:
    """Store a new project."""
    await connection.execute(
        f"INSERT INTO projects ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s)",  # noqa: S608  # our own columns
        (
            project.id,
            project.org_id,
            project.name,
            project.description,
            project.mode,
            project.created_at,
            project.updated_at,
        ),
    )


async def find(
    connection: Connection, org_id: str, mode: Mode, project_id: str, *, lock: bool = False
) -> Project | None:
    """One project of a tenant."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM projects WHERE org_id = %s AND mode = %s AND id = %s"  # noqa: S608  # our own columns
        + (" FOR UPDATE" if lock else ""),
        (org_id, mode, project_id),
    )
    row = await cursor.fetchone()
    return Project(*row) if row else None


async def update(connection: Connection, project: Project) -> None:
    """Write back a project's name and description."""
    await connection.execute(
        "UPDATE projects SET name = %s, description = %s, updated_at = %s WHERE org_id = %s AND id = %s",
        (project.name, project.description, project.updated_at, project.org_id, project.id),
    )


async def delete(connection: Connection, org_id: str, mode: Mode, project_id: str) -> None:
    """Delete a project."""
    await connection.execute(
        "DELETE FROM projects WHERE org_id = %s AND mode = %s AND id = %s", (org_id, mode, project_id)
    )


async def read_all(connection: Connection, org_id: str, mode: Mode) -> list[Project]:
    """Every project of a tenant in one mode, oldest first."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM projects WHERE org_id = %s AND mode = %s ORDER BY created_at, id",  # noqa: S608
        (org_id, mode),
    )
    return [Project(*row) for row in await cursor.fetchall()]
