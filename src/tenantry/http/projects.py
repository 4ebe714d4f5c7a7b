"""Routes of projects."""

from collections.abc import Sequence
from typing import Annotated, Any, Final
from urllib.parse import parse_qs

import msgspec
from litestar import Response, delete, get, patch, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from msgspec import UNSET, UnsetType

from tenantry.domain.access import Principal
from tenantry.domain.errors import ValidationError
from tenantry.domain.projects import Project
from tenantry.http.access import Access, AnyRequest, claimant, idempotency_claim
from tenantry.http.fields import DEFAULT_LIMIT, Description, Name
from tenantry.http.raw import RawAnswer, RawRequest
from tenantry.services.authentication import Authenticator
from tenantry.services.projects import ProjectService

PATH: Final = "/api/v1/projects"
_MOST: Final = 100
_LONGEST_CURSOR: Final = 1000

ProjectId = Annotated[str, Parameter(description="The project's id.")]


class NewProject(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A project to make."""

    name: Name
    description: Description | None = None


class ProjectChange(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """What to change of a project; what is left out stays."""

    name: Name | UnsetType = UNSET
    description: Description | UnsetType | None = UNSET


class ProjectList:
    """The hot route ``GET /api/v1/projects``."""

    def __init__(self, authenticator: Authenticator, projects: ProjectService) -> None:
        self._authenticator = authenticator
        self._projects = projects
        self._encoder = msgspec.json.Encoder()

    async def handle(self, request: RawRequest) -> RawAnswer:
        """A page of the caller's projects, newest first."""
        principal = await self._authenticator.authenticate(
            request.header(b"authorization"), request.header(b"x-organization-id")
        )
        principal.require("projects:read")
        limit, cursor = parse_page(request.scope["query_string"])
        page = await self._projects.list_page(principal, limit, cursor)
        return RawAnswer.json(self._encoder.encode(page))


def parse_page(query: bytes) -> tuple[int, str | None]:
    """The ``limit`` and ``cursor`` of a query string. Raises `ValidationError`."""
    if not query:
        return DEFAULT_LIMIT, None
    values = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=None)
    cursor = values["cursor"][-1] if "cursor" in values else None
    if cursor is not None and len(cursor) > _LONGEST_CURSOR:
        raise ValidationError(("cursor", f"Expected `str` of length <= {_LONGEST_CURSOR}"))
    if "limit" not in values:
        return DEFAULT_LIMIT, cursor
    text = values["limit"][-1]
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_MOST)) and 1 <= int(text) <= _MOST):
        raise ValidationError(("limit", f"Expected `int`, 1 to {_MOST}"))
    return int(text), cursor


def project_routes(projects: ProjectService, access: Access) -> Sequence[HTTPRouteHandler]:
    """The routes of projects, except the hot one."""

    @post(PATH, guards=[access.needs("projects:write")], summary="Create a project")
    async def create_project(request: AnyRequest, principal: Principal, data: NewProject) -> Response[Project]:
        claim = await idempotency_claim(request, claimant(principal))
        project = await projects.create(principal, data.name, data.description, claim)
        return Response(project, headers={"Location": f"{PATH}/{project.id}"})

    @get(PATH + "/{project_id:str}", guards=[access.needs("projects:read")], summary="Get a project")
    async def get_project(principal: Principal, project_id: ProjectId) -> Project:
        return await projects.get(principal, project_id)

    @patch(PATH + "/{project_id:str}", guards=[access.needs("projects:write")], summary="Change a project")
    async def update_project(principal: Principal, project_id: ProjectId, data: ProjectChange) -> Project:
        return await projects.update(principal, project_id, data.name, data.description)

    @delete(PATH + "/{project_id:str}", guards=[access.needs("projects:write")], summary="Delete a project")
    async def delete_project(principal: Principal, project_id: ProjectId) -> None:
        await projects.delete(principal, project_id)

    return [create_project, get_project, update_project, delete_project]


OPERATION: Final[dict[str, Any]] = {
    "summary": "List projects",
    "operationId": "ListProjects",
    "description": "The projects of the caller's tenant in the caller's mode, newest first.",
    "parameters": [
        {
            "name": "limit",
            "in": "query",
            "required": False,
            "schema": {"type": "integer", "minimum": 1, "maximum": _MOST, "default": DEFAULT_LIMIT},
            "description": "Most objects on a page.",
        },
        {
            "name": "cursor",
            "in": "query",
            "required": False,
            "schema": {"type": "string", "maxLength": _LONGEST_CURSOR},
            "description": "`nextCursor` of the page before.",
        },
    ],
}
"""What the OpenAPI document says of the hot route; its answers are added there."""
