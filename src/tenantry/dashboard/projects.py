"""The pages of projects."""

from typing import Final

from litestar import Response, get, post
from msgspec import UNSET

from tenantry.api.projects import NewProject, ProjectId
from tenantry.dashboard import forms
from tenantry.dashboard.context import Context, PageContext, waits_for_duplicate
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.guards import ORG, needs
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

_reader = needs("projects:read")
_writer = needs("projects:write")


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
    return await _confirmation_page(ctx, "project.html", project_id)


@get(PATH + "/new", guards=[_writer])
async def show_new_project(ctx: Context) -> Response[str]:
    return _form_page(ctx, {"name": "", "description": ""}, None)


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
            await ctx.claim(),
        )
    except PlanLimitReachedError as error:
        limit = {"name": f"{error.detail} Delete a project, or change the plan."}
        return _form_page(
            ctx,
            values,
            None,
            forms.InvalidFormError(limit),
        )
    except (forms.InvalidFormError, ValidationError) as error:
        return _form_page(ctx, values, None, error)
    return ctx.redirect(f"{ctx.user.base}/projects/{project.id}")


@get(_PROJECT + "/edit", guards=[_writer])
async def show_edit_project(ctx: Context, project_id: ProjectId) -> Response[str]:
    project = await ctx.services.projects.get(ctx.principal, project_id)
    return _form_page(ctx, _current_values(project), project)


@post(_PROJECT + "/edit", guards=[_writer])
async def edit_project(ctx: Context, project_id: ProjectId) -> Response[str]:
    project = await ctx.services.projects.get(ctx.principal, project_id)
    submitted = _values(ctx.form)
    current = _current_values(project)
    changed, conflicts = forms.find_edits(ctx.form, submitted, current)
    values = {
        field: submitted[field] if field in changed else current[field] for field in submitted
    }
    try:
        valid = forms.validate(
            NewProject,
            values,
            _MESSAGES,
            conflicts,
        )
        name = valid.name if "name" in changed else UNSET
        description = (valid.description or None) if "description" in changed else UNSET
        await ctx.services.projects.update(
            ctx.principal,
            ctx.author,
            project_id,
            name,
            description,
        )
    except (forms.InvalidFormError, ValidationError) as error:
        return _form_page(ctx, values, project, error)
    return ctx.redirect(f"{ctx.user.base}/projects/{project_id}")


@get(_PROJECT + "/delete", guards=[_writer])
async def show_delete_project(ctx: Context, project_id: ProjectId) -> Response[str]:
    return await _confirmation_page(ctx, "project_delete.html", project_id)


@post(_PROJECT + "/delete", guards=[_writer])
async def delete_project(ctx: Context, project_id: ProjectId) -> Response[str]:
    project = await ctx.services.projects.get(ctx.principal, project_id)
    typed = ctx.form.text("name")
    errors = forms.confirmation_errors(
        typed, "name", forms.confirmation_text(project.name, project.id)
    )
    if errors:
        return await _confirmation_page(
            ctx,
            "project_delete.html",
            project_id,
            errors=errors,
            typed=typed,
        )
    await ctx.services.projects.delete(ctx.principal, ctx.author, project_id)
    return ctx.redirect_with(FlashMessage.PROJECT_DELETED, f"{ctx.user.base}/projects")


def _form_page(
    ctx: PageContext,
    values: dict[str, str],
    project: Project | None,
    error: Exception | None = None,
) -> Response[str]:
    return ctx.render(
        "project_form.html",
        error,
        values=values,
        project_id=project.id if project else None,
        digests=forms.field_digests(_current_values(project)) if project else {},
    )


async def _confirmation_page(
    ctx: PageContext, template: str, project_id: str, **context: object
) -> Response[str]:
    project = await ctx.services.projects.get(ctx.principal, project_id)
    expected = forms.confirmation_text(project.name, project.id)
    return ctx.render(
        template,
        None,
        project=project,
        expected=expected,
        **context,
    )


def _current_values(project: Project) -> dict[str, str]:
    """Return a project's fields as an unchanged form submits them."""
    return {
        "name": project.name.strip(),
        "description": forms.unix_lines(project.description or "").strip(),
    }


def _values(form: forms.Form) -> dict[str, str]:
    return {"name": form.text("name"), "description": forms.unix_lines(form.text("description"))}
