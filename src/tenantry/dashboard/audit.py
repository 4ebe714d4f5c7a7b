"""The audit page: entries of the trail, filters, and the export."""

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from itertools import chain
from typing import Annotated, Any, Final

import msgspec
from litestar import Response, get

from tenantry.api.audit import EXPORT_TYPE, ndjson
from tenantry.api.parameters import Cursor
from tenantry.audit.trail import AuditFilter
from tenantry.dashboard import forms
from tenantry.dashboard.context import Context
from tenantry.dashboard.guards import ORG, needs
from tenantry.domain.audit import Action, ActorKind, AuditEvent
from tenantry.domain.members import User

PATH: Final = ORG + "/settings/audit"
_PAGE_SIZE: Final = 20
_OTHER_ACTORS: Final = {
    ActorKind.OPERATOR: "The operator",
    ActorKind.SYSTEM: "The service",
    ActorKind.ANYBODY: "An anonymous client",
}
_PAGES: Final = {
    "api_key": "/settings/api-keys",
    "project": "/projects",
    "member": "/settings/members",
}
"""The pages of targets, by the first word of an action."""
_GRANT: Final = "grant"


class AuditParty(msgspec.Struct, frozen=True):
    """The actor or target of an entry: its name, its id, and the path of its page.

    ``label`` is a fixed text, shown apart from names, which users choose. Users have a ``user_id``
    instead of a name.
    """

    name: str = ""
    id: str | None = None
    page: str | None = None
    label: str | None = None
    user_id: str | None = None


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
    entries: list[tuple[AuditEvent, AuditParty, AuditParty | None]] = []
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
        entries = [(event, _actor(event, names), _target(event, names)) for event in page.data]
    parties = chain.from_iterable((actor, target) for _, actor, target in entries)
    return ctx.render(
        "audit.html",
        rejection,
        entries=entries,
        users=await _names_of_users(ctx, filter(None, parties)),
        page=page,
        wanted=submitted,
        query=forms.query_string(submitted),
    )


async def _names_of_users(ctx: Context, parties: Iterable[AuditParty]) -> dict[str, str]:
    """Return the names of users by user id; entries name a user by the subject alone."""
    users = {User(ctx.user.session.issuer, party.user_id) for party in parties if party.user_id}
    names = await ctx.services.profiles.names_of(ctx.principal.org_id, sorted(users))
    return {user.subject: name for user, name in names.items()}


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


def _actor(event: AuditEvent, names: Mapping[str, str]) -> AuditParty:
    if event.actor_id is None or event.actor_kind in _OTHER_ACTORS:
        return AuditParty(id=event.actor_id, label=_OTHER_ACTORS.get(event.actor_kind, "Unknown"))
    if event.actor_kind is ActorKind.API_KEY:
        page = f"/settings/api-keys/{event.actor_id}" if event.actor_id in names else None
        return AuditParty(
            names.get(event.actor_id, event.actor_id),
            event.actor_id,
            page,
            label="The key",
        )
    return AuditParty(id=event.actor_id, user_id=event.actor_id)


def _target(event: AuditEvent, names: Mapping[str, str]) -> AuditParty | None:
    kind = event.action.partition(".")[0]
    target_id = event.target_id
    if kind == _GRANT:
        return AuditParty(target_id)
    if kind not in _PAGES:
        return None
    page = f"{_PAGES[kind]}/{target_id}" if target_id in names else None
    is_member = kind == "member"
    name = names.get(target_id) or _field_text(event, "userId" if is_member else "name")
    shown = {"user_id" if is_member else "name": name or target_id}
    return AuditParty(id=target_id, page=page, **shown)


def _field_text(event: AuditEvent, field: str) -> str:
    return str((event.after or {}).get(field) or (event.before or {}).get(field) or "")
