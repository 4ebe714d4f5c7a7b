"""Projects of a tenant."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.accounts import projects_store as projects
from tenantry.audit import trail as audit
from tenantry.common.clock import Clock, to_micros
from tenantry.common.encoding import new_id
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim, once
from tenantry.db.pagination import Page, Position, encode_cursor, window_after
from tenantry.db.tenants_store import get_tenant
from tenantry.domain.access import limit_text, limits_of
from tenantry.domain.audit import Action, Author
from tenantry.domain.errors import NotFoundError, PlanLimitReachedError
from tenantry.domain.names import check_name
from tenantry.domain.permissions import Principal
from tenantry.domain.plans import Catalog, Count, PlanLimit, count_up_to
from tenantry.domain.tenants import Project, access_of

_document: Final = msgspec.json.Decoder(Project)
MOST_COUNTED: Final = 10_000
"""Pages count at most this many projects, because counting reads them."""


@dataclass(frozen=True)
class ProjectService:
    """The projects of a principal's tenant; test-mode principals see test-mode projects only.

    Changes are recorded in the audit trail.
    """

    database: Database
    catalog: Catalog
    clock: Clock

    async def list_page(self, principal: Principal, limit: int, cursor: str | None) -> Page[Project]:
        """Read a page of the principal's projects, newest first. Raises `InvalidCursorError`."""
        window = window_after(limit, cursor)
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await projects.read_page(connection, principal.org_id, principal.mode, window)

    async def count(self, principal: Principal) -> PlanLimit:
        """Return the use of the plan's limit of projects."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            used = await count_for_page(connection, principal)
        return PlanLimit(used, limits_of(principal.access_phase, self.catalog).projects)

    async def create(
        self, principal: Principal, author: Author, name: str, description: str | None, claim: Claim | None
    ) -> Project:
        """Create a project. Raises `ValidationError`, and `PlanLimitReachedError` at the plan's limit in this mode."""
        check_name(name)
        now, org_id = self.clock(), principal.org_id
        async with self.database.transaction(of_tenant(org_id)) as connection:

            async def create() -> Project:
                tenant = (await get_tenant(connection, org_id, lock=True)).record
                access = access_of(tenant, self.catalog, now)
                most = limits_of(access, self.catalog).projects
                if most is not None and await projects.count(connection, org_id, principal.mode, most) >= most:
                    raise PlanLimitReachedError(limit_text(access, tenant.plan, self.catalog, f"{most} projects"))
                project = Project(new_id("proj"), org_id, name, description, principal.mode, now, now)
                await projects.insert(connection, project)
                await _record(connection, author, Action.PROJECT_CREATED, None, project, now)
                return project

            return await once(connection, claim, Project, now, create)

    async def get(self, principal: Principal, project_id: str) -> Project:
        """Read a project. Raises `NotFoundError`."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return _require(await projects.find(connection, principal.org_id, principal.mode, project_id))

    async def update(
        self,
        principal: Principal,
        author: Author,
        project_id: str,
        name: str | UnsetType = UNSET,
        description: str | UnsetType | None = UNSET,
    ) -> Project:
        """Change the given fields. Raises `NotFoundError` and `ValidationError`."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            now = self.clock()
            project = _require(await projects.find(connection, principal.org_id, principal.mode, project_id, lock=True))
            name = project.name if name is UNSET else name
            description = project.description if description is UNSET else description
            check_name(name, project.name)
            changed = msgspec.structs.replace(project, name=name, description=description, updated_at=now)
            await projects.update(connection, changed)
            await _record(connection, author, Action.PROJECT_UPDATED, project, changed, now)
            return changed

    async def delete(self, principal: Principal, author: Author, project_id: str) -> None:
        """Delete a project permanently. Raises `NotFoundError`."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            project = _require(await projects.find(connection, principal.org_id, principal.mode, project_id, lock=True))
            await projects.delete(connection, principal.org_id, principal.mode, project_id)
            await _record(connection, author, Action.PROJECT_DELETED, project, None, self.clock())


async def _record(
    connection: Connection, author: Author, action: Action, before: Project | None, after: Project | None, now: datetime
) -> None:
    """Record a change of a project, unless only its time of change differs."""
    if before and after and msgspec.structs.replace(after, updated_at=before.updated_at) == before:
        return
    target = _require(after or before)
    await audit.record(connection, author, action, (target.org_id, target.id), now, before=before, after=after)


async def count_for_page(connection: Connection, principal: Principal) -> Count:
    """Count the projects of the principal's tenant in its mode."""
    return count_up_to(
        await projects.count(connection, principal.org_id, principal.mode, MOST_COUNTED + 1), MOST_COUNTED
    )


def page_of(documents: Sequence[str], limit: int) -> bytes:
    """Return the JSON of a page, from the JSON of its projects and of one more if there are more."""
    if len(documents) <= limit:
        return b'{"data":[%b],"nextCursor":null}' % ",".join(documents).encode()
    last = _document.decode(documents[limit - 1])
    next_cursor = encode_cursor(Position(to_micros(last.created_at), last.id))
    return b'{"data":[%b],"nextCursor":"%b"}' % (",".join(documents[:limit]).encode(), next_cursor.encode())


def _require(project: Project | None) -> Project:
    if project is None:
        raise NotFoundError("project")
    return project
