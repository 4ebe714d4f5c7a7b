"""Projects of a tenant."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.accounts import projects_store as projects
from tenantry.auth.changes import Changes, Repeated
from tenantry.common.clock import Clock, to_micros
from tenantry.common.encoding import new_id
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim
from tenantry.db.numbered_pages import NumberedPage, PageRequest
from tenantry.db.pagination import Page, Position, Window, encode_cursor
from tenantry.domain.access import limits_of
from tenantry.domain.audit import Action, Author
from tenantry.domain.errors import NotFoundError
from tenantry.domain.names import check_name
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plan_limits import PROJECTS, limit_in_force
from tenantry.domain.plans import Catalog, Count, PlanLimit, count_up_to
from tenantry.domain.tenants import Project

_SCOPE: Final = "projects:write"
_document: Final = msgspec.json.Decoder(Project)
MOST_COUNTED: Final = 10_000
"""Pages count at most this many projects, because counting reads them."""


@dataclass(frozen=True)
class ProjectService:
    """The projects of a principal's tenant; test-mode principals see test-mode projects only.

    Changes to the projects of one tenant run one after another, and are recorded in the audit
    trail.
    """

    database: Database
    catalog: Catalog
    clock: Clock

    @property
    def _changes(self) -> Changes:
        return Changes(self.database, self.clock)

    async def list_page(self, principal: RequestPrincipal, window: Window) -> Page[Project]:
        """Read a page of the principal's projects, newest first."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await projects.read_page(
                connection,
                principal.org_id,
                principal.mode,
                window,
            )

    async def numbered_page(
        self, principal: RequestPrincipal, search: str | None, request: PageRequest
    ) -> NumberedPage[Project]:
        """Read a page of the principal's projects, newest first; with ``search`` of those with this
        text in their name, id or description. Raises `InvalidCursorError`.
        """
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await projects.read_numbered(
                connection,
                principal.org_id,
                principal.mode,
                search,
                request,
            )

    async def count(self, principal: RequestPrincipal) -> PlanLimit:
        """Return the use of the plan's limit of projects."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            used = await count_for_page(connection, principal)
        return PlanLimit(used, limits_of(principal.access_phase, self.catalog).projects)

    async def create(
        self,
        principal: RequestPrincipal,
        author: Author,
        name: str,
        description: str | None,
        claim: Claim | None,
    ) -> Project:
        """Create a project.

        Raises `ValidationError`, `PlanLimitReachedError` at the plan's limit in this mode, the
        errors of idempotency and those of `Changes.begin`.
        """
        check_name(name)
        mode = principal.mode
        async with self._changes.begin_once(
            principal, author, _SCOPE, claim=claim, kind=Project
        ) as change:
            if isinstance(change, Repeated):
                return change.first_answer
            limit = limit_in_force(PROJECTS, change.tenant.record, self.catalog, change.now)
            if limit is not None:
                used = await projects.count(change.connection, change.org_id, mode, limit.most)
                limit.check(used)
            project = Project(
                new_id("proj"),
                change.org_id,
                name,
                description,
                mode,
                change.now,
                change.now,
            )
            await projects.insert(change.connection, project)
            await change.record(Action.PROJECT_CREATED, project.id, after=project)
            return change.answer(project)

    async def get(self, principal: RequestPrincipal, project_id: str) -> Project:
        """Read a project. Raises `NotFoundError`."""
        async with self.database.transaction(of_tenant(principal.org_id)) as connection:
            return await _find(connection, principal, project_id)

    async def update(
        self,
        principal: RequestPrincipal,
        author: Author,
        project_id: str,
        name: str | UnsetType = UNSET,
        description: str | UnsetType | None = UNSET,
        *,
        claim: Claim | None = None,
    ) -> Project:
        """Change the given fields. Raises `NotFoundError`, `ValidationError`, the errors of
        idempotency and those of `Changes.begin`.
        """
        async with self._changes.begin_once(
            principal, author, _SCOPE, claim=claim, kind=Project
        ) as change:
            if isinstance(change, Repeated):
                return change.first_answer
            project = await _find(change.connection, principal, project_id)
            name = project.name if name is UNSET else name
            description = project.description if description is UNSET else description
            check_name(name)
            changed = msgspec.structs.replace(
                project,
                name=name,
                description=description,
                updated_at=change.now,
            )
            await projects.update(change.connection, changed)
            if (name, description) != (project.name, project.description):
                await change.record(
                    Action.PROJECT_UPDATED, project.id, before=project, after=changed
                )
            return change.answer(changed)

    async def delete(self, principal: RequestPrincipal, author: Author, project_id: str) -> None:
        """Delete a project permanently. Raises `NotFoundError` and as `Changes.begin`."""
        async with self._changes.begin(principal, author, _SCOPE) as change:
            project = await _find(change.connection, principal, project_id)
            await projects.delete(change.connection, change.org_id, principal.mode, project_id)
            await change.record(Action.PROJECT_DELETED, project.id, before=project)


async def count_for_page(connection: Connection, principal: RequestPrincipal) -> Count:
    """Count the projects of the principal's tenant in its mode."""
    return count_up_to(
        await projects.count(
            connection,
            principal.org_id,
            principal.mode,
            MOST_COUNTED + 1,
        ),
        MOST_COUNTED,
    )


def page_of(documents: Sequence[str], limit: int) -> bytes:
    """Return the JSON of a page, from the JSON of its projects and of one more if there are
    more.
    """
    if len(documents) <= limit:
        return b'{"data":[%b],"nextCursor":null}' % ",".join(documents).encode()
    last = _document.decode(documents[limit - 1])
    next_cursor = encode_cursor(Position(to_micros(last.created_at), last.id))
    return b'{"data":[%b],"nextCursor":"%b"}' % (
        ",".join(documents[:limit]).encode(),
        next_cursor.encode(),
    )


async def _find(connection: Connection, principal: RequestPrincipal, project_id: str) -> Project:
    project = await projects.find(connection, principal.org_id, principal.mode, project_id)
    if project is None:
        raise NotFoundError("project")
    return project
