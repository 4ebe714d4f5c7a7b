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
from tenantry.dashboard.audit_export import audit_lines
from tenantry.dashboard.audit_search import AuditParties, actors_called, targets_called
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.csv_files import CSV_TYPE
from tenantry.dashboard.guards import ORG, PageGuard
from tenantry.dashboard.pager import requested_page
from tenantry.domain.audit import Action, ActorKind, AuditEvent
from tenantry.domain.operator_acts import OperatorAction, OperatorPerson

PATH: Final = ORG + "/settings/audit"
_PAGE_SIZE: Final = 25
_Party = Annotated[str, msgspec.Meta(max_length=255)]
_MESSAGES: Final = {
    "action": "Choose one of these actions.",
    **dict.fromkeys(("actorId", "targetId"), "Enter a name or an id."),
}
_DAYS: Final = ("since", "until")
_FILTERS: Final = (*_MESSAGES, *_DAYS)
_UTC: Final = "utc"
"""The value of the parameter `zone` that chooses UTC, not the organization's zone."""


class ExportFormat(StrEnum):
    CSV = "csv"
    NDJSON = "ndjson"


class AuditForm(msgspec.Struct, frozen=True, rename="camel"):
    """The filters: actor and target by a name or an id. ``until`` is included."""

    action: Action | None
    actor_id: _Party | None
    target_id: _Party | None
    since: date | None
    until: date | None


class AuditDay(NamedTuple):
    """The entries of a day, newest first."""

    date: date
    entries: list[ShownEntry]


class AuditSearch(NamedTuple):
    """What the page searches; there is no filter where a name is that of several."""

    wanted: AuditFilter | None
    actor: AuditParties
    target: AuditParties


class TrailZone(NamedTuple):
    """The zone in which the page shows times. ``of_organization`` is None if it has set none."""

    zone: tzinfo
    name: str
    of_organization: str | None


@get(PATH, guards=[PageGuard("audit:read")])
async def show_audit(ctx: Context) -> Response[str]:
    zone = _zone(ctx)
    submitted = _submitted(ctx)
    entries = list[ShownEntry]()
    page = search = rejection = None
    try:
        search = await _search(ctx, submitted, zone.zone)
    except forms.InvalidFormError as error:
        rejection = error
    if search is not None and search.wanted is not None:
        page, names = await ctx.services.trail.search_page(
            ctx.principal, search.wanted, requested_page(ctx, _PAGE_SIZE)
        )
        entries = shown_entries(page.data, names, await _people_of(ctx, page.data))
    return ctx.render(
        "audit.html",
        rejection,
        days=_by_day(entries, zone.zone),
        users=await names_of_users(ctx, entries),
        actors=_keys_among(entries),
        search=search,
        page=page,
        wanted={**submitted, "zone": ctx.query("zone")},
        query=forms.query_string(submitted),
        zone=zone,
        utc=UTC,
    )


@get(PATH + "/export", guards=[PageGuard("audit:read")])
async def export_audit(ctx: Context) -> Response[Any]:
    submitted = _submitted(ctx)
    zone = _zone(ctx)
    try:
        wanted = (await _search(ctx, submitted, zone.zone)).wanted
    except forms.InvalidFormError:
        wanted = None
    if wanted is None:  # that page shows the errors beside the fields, or lets people choose
        return ctx.redirect(f"{ctx.user.base}/settings/audit?{forms.query_string(submitted)}")
    pages = ctx.services.trail.export(ctx.principal, wanted)
    first: list[AuditEvent] = await anext(pages)  # raises before the answer begins
    name = f"audit-{ctx.principal.org_id}-{ctx.services.clock():%Y-%m-%d}"
    format_ = ctx.choice("format", ExportFormat) or ExportFormat.NDJSON
    await ctx.record_act(OperatorAction.AUDIT_EXPORTED, format_)
    if format_ is ExportFormat.CSV:
        return ctx.renderer.file(audit_lines(first, pages), f"{name}.csv", CSV_TYPE)
    return ctx.renderer.file(ndjson(first, pages), f"{name}.ndjson", EXPORT_TYPE)


async def _people_of(ctx: PageContext, events: Sequence[AuditEvent]) -> dict[str, OperatorPerson]:
    """Return the people behind the operator's entries, by the entry's id; none for customers."""
    if not ctx.user.acts_as_operator:
        return {}
    by_operator = [event.id for event in events if event.actor_kind is ActorKind.OPERATOR]
    return await ctx.services.operator_trail.people_of(by_operator)


def _keys_among(entries: Sequence[ShownEntry]) -> dict[str, str]:
    """Return the names of the keys that made these changes, by id."""
    actors = [entry.actor for entry in entries]
    return {actor.id: actor.name for actor in actors if actor.id and actor.name}


def _submitted(ctx: PageContext) -> dict[str, str]:
    return {name: ctx.query(name) for name in _FILTERS}


async def _search(ctx: PageContext, submitted: Mapping[str, str], zone: tzinfo) -> AuditSearch:
    """Return what to search; the days are those of ``zone``. Raises `InvalidFormError`."""
    messages = {**_MESSAGES, **{name: forms.day_fault(submitted[name]) for name in _DAYS}}
    valid = forms.validate(
        AuditForm, {name: value or None for name, value in submitted.items()}, messages
    )
    since = None if valid.since is None else datetime.combine(valid.since, time(), zone)
    until = _end_of(valid.until, zone)
    actor = await actors_called(ctx, valid.actor_id or "")
    target = await targets_called(ctx, valid.target_id or "")
    is_clear = not actor.choices and not target.choices
    wanted = AuditFilter(valid.action, actor.id, target.id, since, until) if is_clear else None
    return AuditSearch(wanted, actor, target)


def _end_of(day: date | None, zone: tzinfo) -> datetime | None:
    """Return when a day ends; None for none, and for the last of all days."""
    if day is None or day == date.max:
        return None
    return datetime.combine(day + timedelta(days=1), time(), zone)


def _zone(ctx: PageContext) -> TrailZone:
    """Return the organization's zone, unless it has none or the address asks for UTC."""
    of_organization = ctx.user.tenant.time_zone if ctx.user.tenant else None
    if of_organization is None or ctx.query("zone") == _UTC:
        return TrailZone(UTC, "UTC", of_organization)
    return TrailZone(zone_of(of_organization), of_organization, of_organization)


def _by_day(entries: Sequence[ShownEntry], zone: tzinfo) -> list[AuditDay]:
    by_day = groupby(entries, lambda entry: entry.event.at.astimezone(zone).date())
    return [AuditDay(day, list(of_day)) for day, of_day in by_day]
