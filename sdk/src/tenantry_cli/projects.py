"""``tenantry projects``."""

import click

from tenantry_cli.api_command import (
    ApiCommand,
    ApiContext,
    Rows,
    end_command,
    id_argument,
    show_command,
)
from tenantry_cli.listing import list_command
from tenantry_cli.output import Column, columns, day, pairs
from tenantry_sdk import Project

_COLUMNS = (
    *columns(
        "id",
        "name",
        created="created_at",
        loose="name",
    ),
    Column("DESCRIPTION", lambda project: project.description or None, loose=True, wide=True),
)


@list_command("projects", "a project", _COLUMNS)
def list_projects() -> str:
    """List the projects of the organization, the newest first.

    \b
      tenantry projects list --limit 5
    """
    return "There are no projects."


@show_command("projects", "PROJECT")
def show(_: ApiContext, project: Project) -> Rows:
    """Show a project.

    \b
      tenantry projects show proj_01a1f97751a3e4c5b6d7f8091a2b3c4d
    """
    return pairs(
        project,
        "id",
        "name",
        "description",
        "mode",
        organization="org_id",
        created="created_at",
        updated="updated_at",
    )


@click.command("create", cls=ApiCommand, json_help="The project as one JSON document.")
@click.option("--name", required=True, help="The name.")
@click.option("--description", help="What it is for.")
def create(api: ApiContext, *, name: str, description: str | None) -> None:
    """Create a project and print its id, alone, on stdout.

    \b
      PROJECT=$(tenantry projects create --name "First project")
    """
    project = api.client.projects.create(name=name, description=description)
    api.done(
        project,
        f'Made "{project.name}" ({project.mode}).',
        project.id,
    )


@click.command("update", cls=ApiCommand, json_help="The project as one JSON document.")
@id_argument("project_id", "PROJECT", "projects")
@click.option("--name", help="The new name.")
@click.option("--description", help="The new description.")
@click.option("--no-description", is_flag=True, help="Remove the description.")
def update(
    api: ApiContext,
    *,
    project_id: str,
    name: str | None,
    description: str | None,
    no_description: bool,
) -> None:
    """Change a project's name or description.

    \b
      tenantry projects update proj_01a1f97751a3e4c5b6d7f8091a2b3c4d --name Shop
    """
    if description is not None and no_description:
        raise click.UsageError("Pass --description or --no-description, not both.")
    changes: dict[str, str | None] = {}
    if name is not None:
        changes["name"] = name
    if description is not None or no_description:
        changes["description"] = description
    if not changes:
        raise click.UsageError("Name a change: --name, --description or --no-description.")
    project = api.client.projects.update(project_id, **changes)  # type: ignore[arg-type]  # a name is never None here
    api.done(project, f'Changed "{project.name}" ({project.id}).')


@end_command("delete", "projects", "PROJECT", "Deleted", deleted=True)
def delete(api: ApiContext, project_id: str) -> str:
    """Delete projects. You cannot undo that.

    \b
      tenantry projects delete proj_01a1f97751a3e4c5b6d7f8091a2b3c4d --yes
    """
    project = api.client.projects.get(project_id)
    return f'Delete the {project.mode} project "{project.name}", created {day(project.created_at)}?'
