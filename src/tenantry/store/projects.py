"""Projects. Every statement names the tenant and the mode."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from tenantry.db.connection import Connection
from tenantry.domain.access import Mode
from tenantry.domain.projects import Project

_COLUMNS: Final = "id, org_id, name, description, mode, created_at, updated_at"


class PageQuery(NamedTuple):
    """Which page of a tenant's projects: up to ``limit`` + 1 rows after a position, newest first."""

    org_id: str
    mode: Mode
    limit: int
    after_at: datetime | None
    after_id: str | None


# One statement for many requests; each gets one row more than asked for, which says that there is a next page.
PAGES: Final = """
SELECT q.number, p.id, p.org_id, p.name, p.description, p.mode, p.created_at, p.updated_at
  FROM unnest(%b::int[], %b::text[], %b::text[], %b::int[], %b::timestamptz[], %b::text[])
       AS q (number, org_id, mode, most, after_at, after_id)
 CROSS JOIN LATERAL (
         SELECT * FROM projects
          WHERE org_id = q.org_id AND mode = q.mode
            AND (created_at, id) < (coalesce(q.after_at, 'infinity'), coalesce(q.after_id, ''))
          ORDER BY created_at DESC, id DESC
          LIMIT q.most) AS p
"""


async def read_pages(connection: Connection, queries: Sequence[PageQuery]) -> list[list[Project]]:
    """The pages asked for, each with one project more than its limit if there are more."""
    pages: list[list[Project]] = [[] for _ in queries]
    cursor = await connection.execute(
        PAGES,
        (
            list(range(len(queries))),
            [query.org_id for query in queries],
            [query.mode.value for query in queries],
            [query.limit + 1 for query in queries],
            [query.after_at for query in queries],
            [query.after_id for query in queries],
        ),
        binary=True,
    )
    for number, *project in await cursor.fetchall():
        pages[number].append(Project(*project))
    return pages


async def count(connection: Connection, org_id: str, mode: Mode) -> int:
    """How many projects a tenant has in one mode."""
    cursor = await connection.execute("SELECT count(*) FROM projects WHERE org_id = %s AND mode = %s", (org_id, mode))
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


async def delete(connection: Connection, org_id: str, mode: Mode, project_id: str) -> bool:
    """Delete a project; False if there was none."""
    cursor = await connection.execute(
        "DELETE FROM projects WHERE org_id = %s AND mode = %s AND id = %s", (org_id, mode, project_id)
    )
    return cursor.rowcount == 1


async def read_all(connection: Connection, org_id: str, mode: Mode) -> list[Project]:
    """Every project of a tenant in one mode, oldest first."""
    cursor = await connection.execute(
        f"SELECT {_COLUMNS} FROM projects WHERE org_id = %s AND mode = %s ORDER BY created_at, id",  # noqa: S608
        (org_id, mode),
    )
    return [Project(*row) for row in await cursor.fetchall()]
