"""The audit page: entries of the trail, filters, and the export."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, Final

import msgspec
from litestar import Response, get

from tenantry.api.audit import EXPORT_TYPE, ndjson
from tenantry.api.parameters import Cursor
from tenantry.audit.trail import AuditFilter
from tenantry.dashboard import forms
from tenantry.dashboard.audit_entries import ShownEntry, names_of_users, shown_entries
from tenantry.dashboard.context import Context
from tenantry.dashboard.guards import ORG, needs
from tenantry.domain.audit import Action, AuditEvent

PATH: Final = ORG + "/settings/audit"
_PAGE_SIZE: Final = 20
_Id = Annotated[str, msgspec.Meta(max_length=255)]
_MESSAGES: Final = {
    "action": "Choose one of these actions.",
    **dict.fromkeys(("actorId", "targetId"), "Enter an id."),
}
_DAYS: Final = ("since", "until")
_FILTERS: Final = (*_MESSAGES, *_DAYS)


class AuditForm(msgspec.Struct, frozen=True, rename="camel"):
    """The filters. Days are in UTC, and ``until`` is included."""

    action: Action | None
    actor_id: _Id | None
    target_id: _Id | None
    since: date | None
    until: date | None


def _parse(submitted: Mapping[str, str]) -> AuditFilter:
    """Return the filter. Raises `InvalidFormError`."""
    messages = {**_MESSAGES, **{name: forms.day_fault(submitted[name]) for name in _DAYS}}
    valid = forms.validate(
        AuditForm, {name: value or None for name, value in submitted.items()}, messages
    )
    since = datetime.combine(valid.since, time(), UTC) if valid.since else None
    until = None
    if valid.until is not None and valid.until < date.max:
        until = datetime.combine(valid.until + timedelta(days=1), time(), UTC)
    return AuditFilter(
        valid.action,
        valid.actor_id,
        valid.target_id,
        since,
        until,
    )


@get(PATH, guards=[needs("audit:read")])
async def show_audit(ctx: Context, cursor: Cursor = None) -> Response[str]:
    services = ctx.services
    principal = ctx.principal
    submitted = {name: ctx.query(name) for name in _FILTERS}
    entries = list[ShownEntry]()
    page = None
    rejection = None
    try:
        page, names = await services.trail.search_page(
            principal,
            _parse(submitted),
            _PAGE_SIZE,
            cursor,
        )
    except forms.InvalidFormError as error:
        rejection = error
    else:
        entries = shown_entries(page.data, names)
    return ctx.render(
        "audit.html",
        rejection,
        entries=entries,
        users=await names_of_users(ctx, entries),
        page=page,
        wanted=submitted,
        query=forms.query_string(submitted),
    )


@get(PATH + "/export", guards=[needs("audit:read")])
async def export_audit(ctx: Context) -> Response[Any]:
    submitted = {name: ctx.query(name) for name in _FILTERS}
    try:
        wanted = _parse(submitted)
    except forms.InvalidFormError:
        # that page shows the errors beside the fields
        return ctx.redirect(f"{ctx.user.base}/settings/audit?{forms.query_string(submitted)}")
    pages = ctx.services.trail.export(ctx.principal, wanted)
    first: list[AuditEvent] = await anext(pages)  # raises before the answer begins
    name = f"audit-{ctx.principal.org_id}-{ctx.services.clock():%Y-%m-%d}.ndjson"
    return ctx.renderer.file(ndjson(first, pages), name, EXPORT_TYPE)
