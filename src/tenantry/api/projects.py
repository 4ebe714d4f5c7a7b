"""Routes of projects."""

from typing import Annotated, Final
from urllib.parse import parse_qsl

import msgspec
from litestar import Response, delete, get, patch, post
from litestar.params import JSONBody
from msgspec import UNSET, UnsetType

from tenantry.accounts.projects import ProjectService, page_of
from tenantry.api.guards import (
    Caller,
    ChangeAuthor,
    IdempotencyClaim,
    act_as_operator,
    admit_at_once,
    authenticate,
    key_answer,
    look_up_key,
    needs,
    raises,
)
from tenantry.api.operator_access import OperatorAccess, OperatorRequest
from tenantry.api.parameters import (
    DEFAULT_LIMIT,
    Cursor,
    Description,
    Limit,
    PageQuery,
    path_parameter,
)
from tenantry.api.services import Services
from tenantry.auth.admission import Admission
from tenantry.auth.authentication import Authenticated
from tenantry.common.encoding import doc
from tenantry.db.pagination import Page, Window, window_after
from tenantry.domain.errors import DomainError, ValidationError
from tenantry.domain.names import Name
from tenantry.domain.tenants import Project
from tenantry.server.asgi_types import JSON, DirectRequest, HotRequest, HotResponse
from tenantry.server.problems import fault_of
from tenantry.server.repeated_items import check_query

PATH: Final = "/api/v1/projects"

ProjectId = Annotated[
    str, path_parameter("The project's id.", "proj_01975c3a4f10b7e2d4a6c8f01e3b5d7f")
]


class NewProject(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A project to create."""

    name: Annotated[Name, doc(example="Storefront")]
    description: Annotated[Description | None, doc("What it is for.", "The public shop")] = None


class ProjectChange(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The changes to a project; absent fields stay as they are."""

    name: Annotated[Name | UnsetType, doc(example="Storefront EU")] = UNSET
    description: Annotated[
        Description | UnsetType | None, doc("What it is for; null clears it.")
    ] = UNSET


_READ_SCOPE: Final = "projects:read"
_FIRST: Final = Window(DEFAULT_LIMIT)


class ProjectList:
    """The hot route ``GET /api/v1/projects``: a page of the caller's projects, newest first."""

    def __init__(
        self, admission: Admission, operator: OperatorAccess, projects: ProjectService
    ) -> None:
        self._admission = admission
        self._operator = operator
        self._projects = projects

    async def answer(self, request: HotRequest) -> HotResponse:
        """Answer any request."""
        answer = key_answer(request)
        operator = self._operator.read(request.header) if answer is None else None
        if operator is not None:
            return await self._answer_operator(request, operator)
        try:
            window = parse_window(request.scope["query_string"])
        except DomainError:
            # a rejected caller learns nothing else
            admitted = await authenticate(self._admission, request)
            admitted.principal.require(_READ_SCOPE)
            raise
        admitted = await authenticate(self._admission, request, window, answer=answer)
        return _listed(admitted, window)

    async def _answer_operator(self, request: HotRequest, operator: OperatorRequest) -> HotResponse:
        principal = await act_as_operator(self._operator, operator, request.scope)
        window = parse_window(request.scope["query_string"])
        page = await self._projects.list_page(principal, window)
        return HotResponse(200, [JSON], msgspec.json.encode(page))

    def begin(self, request: DirectRequest) -> bool:
        """Look up the API key and the page, as `DirectHandler.begin`."""
        window = parse_window(request.scope["query_string"])
        return look_up_key(self._admission, request, window)

    def finish(self, request: HotRequest) -> HotResponse | None:
        """Answer with the page, as `DirectHandler.finish`."""
        admitted = admit_at_once(self._admission, request)
        if admitted is None:
            return None
        return _listed(admitted, parse_window(request.scope["query_string"]))


def _listed(admitted: Authenticated, window: Window) -> HotResponse:
    admitted.principal.require(_READ_SCOPE)
    return HotResponse(200, [JSON], page_of(admitted.page, window.limit))


def parse_window(query: bytes) -> Window:
    """Parse the query string of a list. Raises `ValidationError`, `InvalidCursorError`."""
    if not query:
        return _FIRST
    check_query(query)
    values = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    try:
        page = msgspec.convert(values, PageQuery, strict=False)
    except msgspec.ValidationError as error:
        raise ValidationError(fault_of(error)) from error
    return window_after(page.limit, page.cursor)


# The dispatcher answers the list with `ProjectList`. This handler answers variants of the
# address, such as one with a slash at the end, and describes the route for OpenAPI.
@get(PATH, guards=[needs("projects:read")], summary="List projects")
async def list_projects(
    services: Services, principal: Caller, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> Page[Project]:
    """List the projects of the caller's tenant in the caller's mode, newest first."""
    return await services.projects.list_page(principal, window_after(limit, cursor))


@post(
    PATH,
    guards=[needs("projects:write")],
    summary="Create a project",
    opt=raises("plan_limit_reached"),
)
async def create_project(
    services: Services,
    principal: Caller,
    author: ChangeAuthor,
    claim: IdempotencyClaim,
    data: JSONBody[NewProject],
) -> Response[Project]:
    """Create a project in the caller's mode. The plan may limit the projects of each mode."""
    project = await services.projects.create(
        principal,
        author,
        data.name,
        data.description,
        claim,
    )
    return Response(project, headers={"Location": f"{PATH}/{project.id}"})


@get(PATH + "/{project_id:str}", guards=[needs("projects:read")], summary="Get a project")
async def get_project(services: Services, principal: Caller, project_id: ProjectId) -> Project:
    """Return one project of the caller's tenant and mode."""
    return await services.projects.get(principal, project_id)


@patch(
    PATH + "/{project_id:str}",
    guards=[needs("projects:write")],
    summary="Change a project",
)
async def update_project(
    services: Services,
    principal: Caller,
    author: ChangeAuthor,
    project_id: ProjectId,
    data: JSONBody[ProjectChange],
) -> Project:
    """Change the given fields; a null `description` clears it."""
    return await services.projects.update(
        principal,
        author,
        project_id,
        data.name,
        data.description,
    )


@delete(
    PATH + "/{project_id:str}",
    guards=[needs("projects:write")],
    summary="Delete a project",
)
async def delete_project(
    services: Services, principal: Caller, author: ChangeAuthor, project_id: ProjectId
) -> None:
    """Delete the project permanently."""
    await services.projects.delete(principal, author, project_id)
