"""Projects."""

from collections.abc import Sequence
from typing import Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from msgspec import UNSET

from tenantry.accounts.projects import ProjectService
from tenantry.api.guards import AnyRequest, principal_author
from tenantry.api.parameters import Cursor
from tenantry.api.projects import NewProject, ProjectId
from tenantry.dashboard.flash_messages import Notice
from tenantry.dashboard.forms import (
    FaultyFormError,
    Form,
    checked,
    edits,
    faults_of_typed,
    form_claim,
    lines,
    marks,
    once_token,
    retry_while_in_flight,
    to_be_typed,
)
from tenantry.dashboard.guards import ORG, Sent, SessionGuard, SignedIn, Visitor
from tenantry.dashboard.renderer import Renderer
from tenantry.domain.errors import PlanLimitReachedError
from tenantry.domain.names import NAME_RULE, is_printable_name
from tenantry.domain.plans import Catalog
from tenantry.domain.projects import Project

SECTION: Final = "/projects"
PATH: Final = ORG + SECTION
_ONE: Final = PATH + "/{project_id:str}"
_ON_A_PAGE: Final = 50
_WORDS: Final = {"name": "At most 200 characters.", "description": "At most 2000 characters."}
_OVERTAKEN: Final = (
    "Somebody else changed this meanwhile. Now it is: {}. Save again to have what is typed here instead."
)


def project_pages(
    projects: ProjectService, door: SessionGuard, look: Renderer, catalog: Catalog
) -> Sequence[HTTPRouteHandler]:
    """The routes of projects."""
    return [
        *_reading(projects, door, look, catalog),
        *_making(projects, door, look, catalog),
        *_deleting(projects, door, look),
    ]


def _reading(projects: ProjectService, door: SessionGuard, look: Renderer, catalog: Catalog) -> list[HTTPRouteHandler]:
    @get(PATH, guards=[door.needs("projects:read")])
    async def show_projects(visitor: SignedIn, cursor: Cursor = None) -> Response[str]:
        page, room = await projects.show(visitor.principal, _ON_A_PAGE, cursor)
        return look.page(
            "projects.html",
            visitor=visitor,
            section=SECTION,
            page=page,
            room=room,
            plan=catalog.name(visitor.principal.plan),
            is_first=cursor is None,
        )

    @get(_ONE, guards=[door.needs("projects:read")])
    async def show_project(visitor: SignedIn, project_id: ProjectId) -> Response[str]:
        project = await projects.get(visitor.principal, project_id)
        return look.page(
            "project.html",
            visitor=visitor,
            section=SECTION,
            project=project,
            expected=to_be_typed(project.name, project.id),
            name="",
            faults={},
        )

    return [show_projects, show_project]


def _making(projects: ProjectService, door: SessionGuard, look: Renderer, catalog: Catalog) -> list[HTTPRouteHandler]:
    def show(
        visitor: Visitor, typed: dict[str, str], project: Project | None, *, faults: dict[str, str], refusal: str = ""
    ) -> Response[str]:
        return look.page(
            "project_form.html",
            status_code=422 if faults or refusal else 200,
            visitor=visitor,
            section=SECTION,
            typed=typed,
            project_id=project.id if project else None,
            marks=marks(_as_typed(project)) if project else {},
            faults=faults,
            refusal=refusal,
            plan=catalog.name(visitor.principal.plan),
            most=catalog.limits(visitor.principal.plan).projects,
            once=once_token(),
        )

    @get(PATH + "/new", guards=[door.needs("projects:write")])
    async def show_new_project(visitor: SignedIn) -> Response[str]:
        return show(visitor, {"name": "", "description": ""}, None, faults={})

    @post(PATH + "/new", guards=[door.needs("projects:write")])
    async def create_project(request: AnyRequest, visitor: SignedIn, form: Sent) -> Response[str]:
        typed = _typed(form)
        try:
            wanted = checked(NewProject, typed, _WORDS, _name_faults(typed["name"]))
            claim = await form_claim(request, visitor.principal, form)
            author = principal_author(request, visitor.principal)
            made = await retry_while_in_flight(
                lambda: projects.create(visitor.principal, author, wanted.name, wanted.description or None, claim)
            )
        except FaultyFormError as error:
            return show(visitor, typed, None, faults=error.faults)
        except PlanLimitReachedError:
            return show(visitor, typed, None, faults={}, refusal="full")
        return look.redirect(f"{visitor.base}{SECTION}/{made.id}")

    @get(_ONE + "/edit", guards=[door.needs("projects:write")])
    async def show_edit_project(visitor: SignedIn, project_id: ProjectId) -> Response[str]:
        project = await projects.get(visitor.principal, project_id)
        return show(visitor, _as_typed(project), project, faults={})

    @post(_ONE + "/edit", guards=[door.needs("projects:write")])
    async def edit_project(request: AnyRequest, visitor: SignedIn, form: Sent, project_id: ProjectId) -> Response[str]:
        project = await projects.get(visitor.principal, project_id)
        typed, present = _typed(form), _as_typed(project)
        made, overtaken = edits(form, typed, present)
        typed = {field: typed[field] if field in made else present[field] for field in typed}
        faults = {field: _OVERTAKEN.format(present[field] or "nothing") for field in typed if field in overtaken}
        try:
            wanted = checked(NewProject, typed, _WORDS, _name_faults(typed["name"]) if "name" in made else None)
        except FaultyFormError as error:
            return show(visitor, typed, project, faults={**error.faults, **faults})
        if faults:
            return show(visitor, typed, project, faults=faults)
        await projects.update(
            visitor.principal,
            principal_author(request, visitor.principal),
            project_id,
            wanted.name if "name" in made else UNSET,
            (wanted.description or None) if "description" in made else UNSET,
        )
        return look.redirect(f"{visitor.base}{SECTION}/{project_id}")

    return [show_new_project, create_project, show_edit_project, edit_project]


def _deleting(projects: ProjectService, door: SessionGuard, look: Renderer) -> list[HTTPRouteHandler]:
    async def show(visitor: Visitor, project_id: str, faults: dict[str, str], name: str = "") -> Response[str]:
        project = await projects.get(visitor.principal, project_id)
        return look.page(
            "project_delete.html",
            status_code=422 if faults else 200,
            visitor=visitor,
            section=SECTION,
            project=project,
            expected=to_be_typed(project.name, project.id),
            name=name,
            faults=faults,
        )

    @get(_ONE + "/delete", guards=[door.needs("projects:write")])
    async def show_delete_project(visitor: SignedIn, project_id: ProjectId) -> Response[str]:
        return await show(visitor, project_id, {})

    @post(_ONE + "/delete", guards=[door.needs("projects:write")])
    async def delete_project(
        request: AnyRequest, visitor: SignedIn, form: Sent, project_id: ProjectId
    ) -> Response[str]:
        project = await projects.get(visitor.principal, project_id)
        typed = form.text("name")
        faults = faults_of_typed(typed, "name", to_be_typed(project.name, project.id))
        if faults:
            return await show(visitor, project_id, faults, typed)
        await projects.delete(visitor.principal, principal_author(request, visitor.principal), project_id)
        return look.tell(visitor, Notice.PROJECT_DELETED, f"{visitor.base}{SECTION}")

    return [show_delete_project, delete_project]


def _as_typed(project: Project) -> dict[str, str]:
    """A project's fields as a form has them that nobody has changed."""
    return {"name": project.name.strip(), "description": lines(project.description or "").strip()}


def _typed(form: Form) -> dict[str, str]:
    return {"name": form.text("name"), "description": lines(form.text("description"))}


def _name_faults(name: str) -> dict[str, str]:
    return {} if is_printable_name(name) else {"name": f"The name {NAME_RULE}."}
