"""The audit page: entries of the trail as sentences, filters, and the export."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from litestar import Response, get

from tenantry.api.audit import EXPORT_TYPE, ndjson
from tenantry.api.guards import AnyRequest
from tenantry.api.parameters import Cursor
from tenantry.audit.trail import AuditFilter, AuditNames
from tenantry.dashboard.context import Context
from tenantry.dashboard.forms import InvalidFormError
from tenantry.dashboard.guards import ORG, needs
from tenantry.dashboard.labels import labels
from tenantry.domain.audit import Action, ActorKind, AuditEvent
from tenantry.domain.members import MemberStatus

PATH: Final = ORG + "/settings/audit"
_PAGE_SIZE: Final = 20
_LONGEST_ID: Final = 255
_ABOUT_ACTOR: Final = (Action.MEMBER_ACCEPTED, Action.MEMBER_DECLINED, Action.MEMBER_LEFT)
_OTHER_ACTORS: Final = {
    ActorKind.OPERATOR: "The operator",
    ActorKind.SYSTEM: "The service",
    ActorKind.ANYBODY: "An anonymous client",
}


class AuditParty(msgspec.Struct, frozen=True):
    """The actor or target of an entry: its name, its id, and the path of its page.

    ``label`` is a fixed text, shown apart from names, which users choose. ``user_id`` is set for users.
    """

    name: str = ""
    id: str | None = None
    page: str | None = None
    label: str | None = None
    user_id: str | None = None


class AuditSentence(msgspec.Struct, frozen=True):
    """An entry as a sentence: actor, verb, target, ending."""

    event: AuditEvent
    actor: AuditParty
    verb: str
    target: AuditParty | None
    ending: str


class AuditQuery(msgspec.Struct, frozen=True):
    """The filters as submitted. Days are in UTC, and ``until`` is included."""

    action: str
    actor_id: str = msgspec.field(name="actorId")
    target_id: str = msgspec.field(name="targetId")
    since: str
    until: str

    @property
    def query(self) -> str:
        """The filters as a query string that ends with ``&``; empty without filters."""
        given = {name: value for name, value in msgspec.to_builtins(self).items() if value}
        return urlencode(given) + "&" if given else ""

    def filter(self) -> AuditFilter:
        """Return the filter. Raises `InvalidFormError`."""
        errors = {}
        if self.action and self.action not in set(Action):
            errors["action"] = "Choose one of these actions."
        for name, text in (("actorId", self.actor_id), ("targetId", self.target_id)):
            if "\x00" in text or len(text) > _LONGEST_ID:
                errors[name] = "Enter an id."
        for name, text in (("since", self.since), ("until", self.until)):
            if text and _day(text) is None:
                errors[name] = "Enter a day, such as 2027-01-31."
        if errors:
            raise InvalidFormError(errors)
        until = _day(self.until)
        return AuditFilter(
            Action(self.action) if self.action else None,
            self.actor_id or None,
            self.target_id or None,
            _day(self.since),
            until + timedelta(days=1) if until and until.date() < date.max else None,
        )


def _query(request: AnyRequest) -> AuditQuery:
    given = (request.query_params.get(name, "").strip() for name in ("action", "actorId", "targetId", "since", "until"))
    return AuditQuery(*given)


@get(PATH, guards=[needs("audit:read")])
async def show_audit(ctx: Context, cursor: Cursor = None) -> Response[str]:
    services, principal, wanted = ctx.services, ctx.principal, _query(ctx.request)
    sentences, page, errors = [], None, {}
    try:
        page, names = await services.trail.search_page(principal, wanted.filter(), _PAGE_SIZE, cursor)
    except InvalidFormError as error:
        errors = error.errors
    else:
        users = await services.sessions.names_of(ctx.user.session, principal.org_id, _user_ids(page.data, names))
        sentences = [_sentence(event, names, users) for event in page.data]
    return ctx.render(
        "audit.html",
        sentences=sentences,
        page=page,
        wanted=wanted,
        filtered=bool(wanted.query),
        is_first=cursor is None,
        errors=errors,
    )


@get(PATH + "/export", guards=[needs("audit:read")])
async def export_audit(ctx: Context) -> Response[Any]:
    wanted = _query(ctx.request)
    try:
        found = wanted.filter()
    except InvalidFormError:
        return ctx.redirect(f"{ctx.user.base}/settings/audit?{wanted.query}")  # shows the errors beside the fields
    pages = ctx.services.trail.export(ctx.principal, found)
    first: list[AuditEvent] = await anext(pages)  # raises before the answer begins
    name = f"audit-{ctx.principal.org_id}-{ctx.services.clock():%Y-%m-%d}.ndjson"
    return ctx.renderer.file(ndjson(first, pages), name, EXPORT_TYPE)


def _user_ids(events: list[AuditEvent], names: AuditNames) -> set[str]:
    actors = {event.actor_id for event in events if event.actor_kind is ActorKind.USER and event.actor_id}
    return actors | {user for event in events if (user := _member_user(event, names)) is not None}


def _sentence(event: AuditEvent, names: AuditNames, users: Mapping[str, str]) -> AuditSentence:
    """Write an entry as a sentence; ``users`` are names by id."""
    verb, ending = labels().audit_actions[event.action].long, "as leaked" if event.action is Action.KEY_LEAKED else ""
    role = _field_text(event, "role")
    if event.action in (Action.MEMBER_ADDED, Action.MEMBER_INVITED):
        again = "again" if event.action is Action.MEMBER_INVITED and event.before else ""
        ending = " ".join(filter(None, (again, f"as {role}" if role else "")))
    elif event.action is Action.MEMBER_REMOVED and (event.before or {}).get("status") == MemberStatus.INVITED:
        verb = "withdrew the invitation of"
    elif event.action is Action.MEMBER_UPDATED and role:
        ending = f"to {role}"
    target = None if event.action in _ABOUT_ACTOR else _target(event, names, users)
    return AuditSentence(event, _actor(event, names, users), verb, target, ending)


def _actor(event: AuditEvent, names: AuditNames, users: Mapping[str, str]) -> AuditParty:
    if event.actor_id is None or event.actor_kind in _OTHER_ACTORS:
        return AuditParty(id=event.actor_id, label=_OTHER_ACTORS.get(event.actor_kind, "Unknown"))
    if event.actor_kind is ActorKind.API_KEY:
        page = f"/settings/api-keys/{event.actor_id}" if event.actor_id in names.keys else None
        return AuditParty(names.keys.get(event.actor_id, event.actor_id), event.actor_id, page, label="The key")
    return AuditParty(users.get(event.actor_id, event.actor_id), event.actor_id, user_id=event.actor_id)


def _target(event: AuditEvent, names: AuditNames, users: Mapping[str, str]) -> AuditParty | None:
    target_id = event.target_id
    match event.action.partition(".")[0]:
        case "api_key":
            known, path = names.keys, "/settings/api-keys/"
        case "project":
            known, path = names.projects, "/projects/"
        case "member":
            user = _member_user(event, names) or target_id
            page = f"/settings/members/{target_id}" if target_id in names.members else None
            return AuditParty(users.get(user, user), target_id, page, user_id=user)
        case _:
            return None
    name = known.get(target_id) or _field_text(event, "name") or target_id
    return AuditParty(name, target_id, f"{path}{target_id}" if target_id in known else None)


def _member_user(event: AuditEvent, names: AuditNames) -> str | None:
    return names.members.get(event.target_id) or _field_text(event, "userId") or None


def _field_text(event: AuditEvent, field: str) -> str:
    return str((event.after or {}).get(field) or (event.before or {}).get(field) or "")


def _day(text: str) -> datetime | None:
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    except ValueError:
        return None
