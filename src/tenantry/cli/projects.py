"""``tenantry projects``."""

from collections.abc import Iterator

import click

from tenantry.cli.api_client import PAGE, Api, Column
from tenantry.cli.api_command import ApiCommand, Id, completed, limit_option, yes_option
from tenantry.cli.text import day, shown
from tenantry_sdk import Project

_COLUMNS = (
    Column[Project]("ID", lambda project: project.id),
    Column[Project]("NAME", lambda project: project.name, loose=True),
    Column[Project]("CREATED", lambda project: day(project.created_at)),
    Column[Project]("DESCRIPTION", lambda project: project.description or "-", loose=True, wide=True),
)


@click.command("list", cls=ApiCommand, json_help="One line of JSON a project.")
@limit_option
def list_projects(api: Api, *, limit: int | None) -> None:
    """List the projects of the organization, the newest first."""
    api.list(api.client.projects.list(limit=min(limit or PAGE, PAGE)), limit, _COLUMNS, "There are no projects.")


@click.command("show", cls=ApiCommand)
@click.argument("project_id", metavar="PROJECT", type=Id(), shell_complete=completed("projects"))
def show(api: Api, *, project_id: str) -> None:
    """Show a project."""
    project = api.client.projects.get(project_id)
    api.record(project, _rows(project))


@click.command("create", cls=ApiCommand, json_help="The project as one JSON document.")
@click.option("--name", required=True, help="What people call it.")
@click.option("--description", help="What it is for.")
def create(api: Api, *, name: str, description: str | None) -> None:
    """Make a project and print its id, alone, on stdout."""
    project = api.client.projects.create(name=name, description=description)
    if api.as_json:
        api.document(project)
        return
    api.say(f'Made "{project.name}" ({project.mode}).')
    api.result(project.id)


@click.command("update", cls=ApiCommand, json_help="The project as one JSON document.")
@click.argument("project_id", metavar="PROJECT", type=Id(), shell_complete=completed("projects"))
@click.option("--name", help="The new name.")
@click.option("--description", help="The new description.")
@click.option("--no-description", is_flag=True, help="Take the description away.")
def update(api: Api, *, project_id: str, name: str | None, description: str | None, no_description: bool) -> None:
    """Change a project; what is not said stays."""
    if description is not None and no_description:
        raise click.UsageError("Give --description or --no-description, not both.")
    changes: dict[str, str | None] = {}
    if name is not None:
        changes["name"] = name
    if description is not None or no_description:
        changes["description"] = description
    if not changes:
        raise click.UsageError("Say what to change: --name, --description or --no-description.")
    project = api.client.projects.update(project_id, **changes)  # type: ignore[arg-type]  # a name is never None here
    if api.as_json:
        api.document(project)
    else:
        api.say(f'Changed "{project.name}" ({project.id}).')


@click.command("delete", cls=ApiCommand, json_help="One line of JSON a project.")
@click.argument(
    "project_ids", metavar="PROJECT...", nargs=-1, required=True, type=Id(), shell_complete=completed("projects")
)
@yes_option
def delete(api: Api, *, project_ids: tuple[str, ...], yes: bool) -> None:
    """Delete projects. That cannot be taken back."""

    def question(project_id: str) -> str:
        project = api.client.projects.get(project_id)
        return f'Delete the {project.mode} project "{project.name}", made {day(project.created_at)}?'

    api.end_each(
        project_ids,
        question=question,
        end=api.client.projects.delete,
        verb="Deleted",
        outcome={"deleted": True},
        yes=yes,
    )


def _rows(project: Project) -> Iterator[tuple[str, str]]:
    yield "id", project.id
    yield "name", project.name
    yield "description", project.description or "-"
    yield "mode", project.mode
    yield "organization", project.org_id
    yield "created", shown(project.created_at)
    yield "updated", shown(project.updated_at)
