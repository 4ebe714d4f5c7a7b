"""The pages of projects."""

from typing import Final

from litestar import Response, get, post

from tenantry.api.projects import NewProject, ProjectId
from tenantry.dashboard import forms
from tenantry.dashboard.context import Context, PageContext, waits_for_duplicate
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.guards import ORG, PageGuard
from tenantry.dashboard.pager import requested_page
from tenantry.domain.errors import PlanLimitReachedError, ValidationError
from tenantry.domain.tenants import Project

PATH: Final = ORG + "/projects"
_PROJECT: Final = PATH + "/{project_id:str}"
_PAGE_SIZE: Final = 25
_MESSAGES: Final = {
    "name": "Use at most 200 characters.",
    "description": "Use at most 2000 characters.",
}

_reader = PageGuard("projects:read")
_writer = PageGuard("projects:write")


@get(PATH, guards=[_reader])
async def show_projects(ctx: Context) -> Response[str]:
    search = ctx.query("search")
    request = requested_page(ctx, _PAGE_SIZE)
    page = await ctx.services.projects.numbered_page(ctx.principal, search or None, request)
    room = await ctx.services.projects.count(ctx.principal)
    return ctx.render(
        "projects.html",
        page=page,
        room=room,
        search=search,
    )


@get(_PROJECT, guards=[_reader])
async def show_project(ctx: Context, project_id: ProjectId) -> Response[str]:
    project = await ctx.services.projects.get(ctx.principal, project_id)
    return ctx.render("project.html", project=project)


@get(PATH + "/new", guards=[_writer])
async def show_new_project(ctx: Context) -> Response[str]:
    return _form_page(ctx, {"name": "", "description": ""})


@post(PATH + "/new", guards=[_writer])
@waits_for_duplicate
async def create_project(ctx: Context) -> Response[str]:
    values = _values(ctx.form)
    try:
        valid = forms.validate(NewProject, values, _MESSAGES)
        project = await ctx.services.projects.create(
            ctx.principal,
            ctx.author,
            valid.name,
            valid.description or None,
            ctx.claim(),
        )
    except PlanLimitReachedError as error:
        limit = {"name": f"{error.detail} Delete a project, or change the plan."}
        return _form_page(ctx, values, error=forms.InvalidFormError(limit))
    except (forms.InvalidFormError, ValidationError) as error:
        return _form_page(ctx, values, error=error)
    return ctx.redirect(f"{ctx.user.base}/projects/{project.id}")


@get(_PROJECT + "/edit", guards=[_writer])
async def show_edit_project(ctx: Context, project_id: ProjectId) -> Response[str]:
    project = await ctx.services.projects.get(ctx.principal, project_id)
    return _form_page(ctx, _current_values(project), project)


@post(_PROJECT + "/edit", guards=[_writer])
@waits_for_duplicate
async def edit_project(ctx: Context, project_id: ProjectId) -> Response[str]:
    project = await ctx.services.projects.get(ctx.principal, project_id)
    edits = forms.find_edits(ctx.form, _values(ctx.form), _current_values(project))
    try:
        valid = forms.validate(NewProject, edits.values, _MESSAGES, edits.conflicts)
        await ctx.services.projects.update(
            ctx.principal,
            ctx.author,
            project_id,
            edits.value("name", valid.name),
            edits.value("description", valid.description or None),
            claim=ctx.claim(),
        )
    except (forms.InvalidFormError, ValidationError) as error:
        return _form_page(ctx, edits.values, project, error)
    return ctx.redirect(f"{ctx.user.base}/projects/{project_id}")


@get(_PROJECT + "/delete", guards=[_writer])
async def show_delete_project(ctx: Context, project_id: ProjectId) -> Response[str]:
    project = await ctx.services.projects.get(ctx.principal, project_id)
    return ctx.render("project_delete.html", project=project)


@post(_PROJECT + "/delete", guards=[_writer])
async def delete_project(ctx: Context, project_id: ProjectId) -> Response[str]:
    project = await ctx.services.projects.get(ctx.principal, project_id)
    if faults := forms.confirmation_errors(ctx.form, "name", project):
        return ctx.render("project_delete.html", forms.InvalidFormError(faults), project=project)
    await ctx.services.projects.delete(ctx.principal, ctx.author, project_id)
    return ctx.redirect_with(FlashMessage.PROJECT_DELETED, f"{ctx.user.base}/projects")


def _form_page(
    ctx: PageContext,
    values: dict[str, str],
    project: Project | None = None,
    error: Exception | None = None,
) -> Response[str]:
    return ctx.render(
        "project_form.html",
        error,
        values=values,
        project_id=project.id if project else None,
        digests=forms.field_digests(_current_values(project)) if project else {},
    )


def _current_values(project: Project) -> dict[str, str]:
    """Return a project's fields as an unchanged form submits them."""
    return {
        "name": project.name.strip(),
        "description": forms.unix_lines(project.description or "").strip(),
    }


def _values(form: forms.Form) -> dict[str, str]:
    return {"name": form.text("name"), "description": forms.unix_lines(form.text("description"))}
