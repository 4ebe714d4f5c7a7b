"""The audit page: entries of the trail by day, filters, and the exports."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum
from itertools import groupby
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from litestar import Response, get

from tenantry.api.audit import EXPORT_TYPE, ndjson
from tenantry.audit.trail import AuditFilter
from tenantry.common.time_zones import zone_of
from tenantry.dashboard import forms
from tenantry.dashboard.audit_entries import ShownEntry, names_of_users, shown_entries
from tenantry.dashboard.audit_export import CSV_TYPE, csv_lines
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.guards import ORG, needs
from tenantry.dashboard.labels import labels
from tenantry.dashboard.pager import requested_page
from tenantry.domain.audit import Action, AuditEvent

PATH: Final = ORG + "/settings/audit"
_PAGE_SIZE: Final = 25
_Id = Annotated[str, msgspec.Meta(max_length=255)]
_MESSAGES: Final = {
    "action": "Choose one of these actions.",
    **dict.fromkeys(("actorId", "targetId"), "Enter an id."),
}
_DAYS: Final = ("since", "until")
_FILTERS: Final = (*_MESSAGES, *_DAYS)
_UTC: Final = "utc"
"""The value of the parameter `zone` that chooses UTC, not the organization's zone."""


class ExportFormat(StrEnum):
    CSV = "csv"
    NDJSON = "ndjson"


class AuditForm(msgspec.Struct, frozen=True, rename="camel"):
    """The filters. ``until`` is included."""

    action: Action | None
    actor_id: _Id | None
    target_id: _Id | None
    since: date | None
    until: date | None


class AuditDay(NamedTuple):
    """The entries of a day, newest first."""

    date: date
    entries: list[ShownEntry]


class TrailZone(NamedTuple):
    """The zone in which the page shows times. ``of_organization`` is None if it has set none."""

    zone: tzinfo
    name: str
    of_organization: str | None


@get(PATH, guards=[needs("audit:read")])
async def show_audit(ctx: Context) -> Response[str]:
    zone = _zone(ctx)
    submitted = _submitted(ctx)
    entries = list[ShownEntry]()
    page = None
    rejection = None
    try:
        page, names = await ctx.services.trail.search_page(
            ctx.principal,
            _parse(submitted, zone.zone),
            requested_page(ctx, _PAGE_SIZE),
        )
    except forms.InvalidFormError as error:
        rejection = error
    else:
        entries = shown_entries(page.data, names)
    return ctx.render(
        "audit.html",
        rejection,
        days=_by_day(entries, zone.zone),
        users=await names_of_users(ctx, entries),
        actors=_keys_among(entries),
        page=page,
        wanted={**submitted, "zone": ctx.query("zone")},
        query=forms.query_string(submitted),
        actions=[("", "All"), *_action_names()],
        zone=zone.zone,
        zone_name=zone.name,
        zones=_zone_chips(ctx, zone, submitted),
        utc=UTC,
    )


@get(PATH + "/export", guards=[needs("audit:read")])
async def export_audit(ctx: Context) -> Response[Any]:
    submitted = _submitted(ctx)
    zone = _zone(ctx)
    try:
        wanted = _parse(submitted, zone.zone)
    except forms.InvalidFormError:
        # that page shows the errors beside the fields
        return ctx.redirect(f"{ctx.user.base}/settings/audit?{forms.query_string(submitted)}")
    pages = ctx.services.trail.export(ctx.principal, wanted)
    first: list[AuditEvent] = await anext(pages)  # raises before the answer begins
    name = f"audit-{ctx.principal.org_id}-{ctx.services.clock():%Y-%m-%d}"
    if ctx.choice("format", ExportFormat) is ExportFormat.CSV:
        return ctx.renderer.file(csv_lines(first, pages), f"{name}.csv", CSV_TYPE)
    return ctx.renderer.file(ndjson(first, pages), f"{name}.ndjson", EXPORT_TYPE)


def _keys_among(entries: Sequence[ShownEntry]) -> dict[str, str]:
    """Return the names of the keys that made these changes, by id."""
    actors = [entry.actor for entry in entries]
    return {actor.id: actor.name for actor in actors if actor.id and actor.name}


def _submitted(ctx: PageContext) -> dict[str, str]:
    return {name: ctx.query(name) for name in _FILTERS}


def _parse(submitted: Mapping[str, str], zone: tzinfo) -> AuditFilter:
    """Return the filter; its days are those of ``zone``. Raises `InvalidFormError`."""
    messages = {**_MESSAGES, **{name: forms.day_fault(submitted[name]) for name in _DAYS}}
    valid = forms.validate(
        AuditForm, {name: value or None for name, value in submitted.items()}, messages
    )
    since = datetime.combine(valid.since, time(), zone) if valid.since else None
    until = None
    if valid.until is not None and valid.until < date.max:
        until = datetime.combine(valid.until + timedelta(days=1), time(), zone)
    return AuditFilter(
        valid.action,
        valid.actor_id,
        valid.target_id,
        since,
        until,
    )


def _zone(ctx: PageContext) -> TrailZone:
    """Return the organization's zone, unless it has none or the address asks for UTC."""
    of_organization = ctx.user.tenant.time_zone if ctx.user.tenant else None
    if of_organization is None or ctx.query("zone") == _UTC:
        return TrailZone(UTC, "UTC", of_organization)
    return TrailZone(zone_of(of_organization), of_organization, of_organization)


def _zone_chips(
    ctx: PageContext, zone: TrailZone, submitted: Mapping[str, str]
) -> list[tuple[str, str, None, bool]]:
    """Return the text and address of each zone, and which one is shown; none without a choice."""
    if zone.of_organization is None:
        return []
    address = f"{ctx.user.base}/settings/audit?{forms.query_string(submitted)}"
    is_utc = zone.name == "UTC"
    return [
        (zone.of_organization, address.removesuffix("?"), None, not is_utc),
        ("UTC", f"{address}zone={_UTC}", None, is_utc),
    ]


def _action_names() -> list[tuple[str, str]]:
    return [(action.value, label.short) for action, label in labels().audit_actions.items()]


def _by_day(entries: Sequence[ShownEntry], zone: tzinfo) -> list[AuditDay]:
    by_day = groupby(entries, lambda entry: entry.event.at.astimezone(zone).date())
    return [AuditDay(day, list(of_day)) for day, of_day in by_day]
