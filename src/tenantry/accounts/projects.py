"""Projects of a tenant."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.accounts import projects_store as projects
from tenantry.audit import trail as audit
from tenantry.billing import ledger_store as billing
from tenantry.common.clock import Clock, to_micros
from tenantry.common.encoding import Position, new_id
from tenantry.common.encoding import encode as encode_cursor
from tenantry.db.connection import Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.idempotency_store import Claim, once
from tenantry.db.pagination import parse_time_cursor, to_page
from tenantry.domain.access import Principal
from tenantry.domain.audit import Action, Author
from tenantry.domain.errors import NotFoundError, PlanLimitReachedError
from tenantry.domain.names import check_name
from tenantry.domain.pages import Count, Page, Room, count_up_to
from tenantry.domain.plans import Catalog
from tenantry.domain.projects import Project, Window

_document: Final = msgspec.json.Decoder(Project)


MOST_COUNTED: Final = 10_000
"""A page counts no more projects than this: to count is to read them."""


class ProjectService:
    """Listing, making, changing and deleting projects. Test-mode principals meet test-mode projects only.

    Each change is entered into the audit trail in its own transaction.
    """

    def __init__(self, database: Database, catalog: Catalog, clock: Clock) -> None:
        self._database = database
        self._catalog = catalog
        self._clock = clock

    async def list_page(self, principal: Principal, limit: int, cursor: str | None) -> Page[Project]:
        """A page of the principal's projects, newest first. Raises `InvalidCursorError`."""
        window = window_after(limit, cursor)
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            rows = await projects.read_page(connection, principal.org_id, principal.mode, window)
        return to_page(rows, limit, _position)

    async def show(self, principal: Principal, limit: int, cursor: str | None) -> tuple[Page[Project], Room]:
        """A page as `list_page` has it, and how much room there is for more."""
        window = window_after(limit, cursor)
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            rows = await projects.read_page(connection, principal.org_id, principal.mode, window)
            used = await count_for_page(connection, principal)
        return to_page(rows, limit, _position), Room(used, self._catalog.limits(principal.plan).projects)

    async def create(
        self, principal: Principal, author: Author, name: str, description: str | None, claim: Claim | None
    ) -> Project:
        """Make a project.

        Raises `ValidationError`, and `PlanLimitReachedError` when the plan allows no more in this mode.
        """
        check_name(name)
        now = self._clock()
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:

            async def make() -> Project:
                await billing.lock_account(connection, principal.org_id)
                most = self._catalog.limits(principal.plan).projects
                if most is not None and await self._has(connection, principal, most):
                    raise PlanLimitReachedError(
                        f"The plan {self._catalog.name(principal.plan)} allows {most} projects."
                    )
                project = Project(new_id("proj"), principal.org_id, name, description, principal.mode, now, now)
                await projects.insert(connection, project)
                await _record(connection, author, Action.PROJECT_CREATED, None, project, now)
                return project

            project, _ = await once(connection, claim, Project, now, make)
            return project

    async def _has(self, connection: Connection, principal: Principal, number: int) -> bool:
        return await projects.count(connection, principal.org_id, principal.mode, number) >= number

    async def get(self, principal: Principal, project_id: str) -> Project:
        """One project. Raises `NotFoundError`."""
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            return _found(await projects.find(connection, principal.org_id, principal.mode, project_id))

    async def update(
        self,
        principal: Principal,
        author: Author,
        project_id: str,
        name: str | UnsetType = UNSET,
        description: str | UnsetType | None = UNSET,
    ) -> Project:
        """Change what is given. Raises `NotFoundError` and `ValidationError`."""
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            now = self._clock()
            project = _found(await projects.find(connection, principal.org_id, principal.mode, project_id, lock=True))
            if name is not UNSET:
                check_name(name, project.name)
            changed = msgspec.structs.replace(
                project,
                name=project.name if name is UNSET else name,
                description=project.description if description is UNSET else description,
                updated_at=now,
            )
            await projects.update(connection, changed)
            await _record(connection, author, Action.PROJECT_UPDATED, project, changed, now)
            return changed

    async def delete(self, principal: Principal, author: Author, project_id: str) -> None:
        """Delete a project for good. Raises `NotFoundError`."""
        async with self._database.transaction(of_tenant(principal.org_id)) as connection:
            project = _found(await projects.find(connection, principal.org_id, principal.mode, project_id, lock=True))
            await projects.delete(connection, principal.org_id, principal.mode, project_id)
            await _record(connection, author, Action.PROJECT_DELETED, project, None, self._clock())


async def _record(
    connection: Connection, author: Author, action: Action, before: Project | None, after: Project | None, now: datetime
) -> None:
    """Enter a change of a project into the audit trail; a new time of change alone is no change."""
    if before and after and msgspec.structs.replace(after, updated_at=before.updated_at) == before:
        return
    thing = _found(after or before)
    await audit.record(
        connection, author, action, org_id=thing.org_id, target_id=thing.id, before=before, after=after, now=now
    )


async def count_for_page(connection: Connection, principal: Principal) -> Count:
    """How many projects the principal's tenant has in its mode."""
    return count_up_to(
        await projects.count(connection, principal.org_id, principal.mode, MOST_COUNTED + 1), MOST_COUNTED
    )


def window_after(limit: int, cursor: str | None) -> Window:
    """The page of ``limit`` projects that a cursor leads to; the first one without. Raises `InvalidCursorError`."""
    return Window(limit, *parse_time_cursor(cursor))


def page_of(documents: Sequence[str], limit: int) -> bytes:
    """The JSON of a page of projects, of the JSON of up to ``limit`` of them, and of one more if there are more."""
    if len(documents) <= limit:
        return b'{"data":[%b],"nextCursor":null}' % ",".join(documents).encode()
    last = _position(_document.decode(documents[limit - 1]))
    return b'{"data":[%b],"nextCursor":"%b"}' % (",".join(documents[:limit]).encode(), encode_cursor(last).encode())


def _position(project: Project) -> Position:
    return Position(to_micros(project.created_at), project.id)


def _found(project: Project | None) -> Project:
    if project is None:
        raise NotFoundError("project")
    return project
