"""Settings, Audit."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from tenantry.api.audit import EXPORT_TYPE, ndjson
from tenantry.api.parameters import Cursor
from tenantry.audit.trail import AuditService, Filter
from tenantry.auth.sessions import SessionService
from tenantry.common.clock import Clock
from tenantry.dashboard.audit_view import ACTIONS, people_in, tell
from tenantry.dashboard.forms import FaultyFormError
from tenantry.dashboard.guards import ORG, SessionGuard, SignedIn
from tenantry.dashboard.renderer import Renderer
from tenantry.domain.audit import Action, AuditEvent

SECTION: Final = "/settings/audit"
PATH: Final = ORG + SECTION
_ON_A_PAGE: Final = 20
_LONGEST: Final = 255
_NO_DAY: Final = "A day, such as 2027-01-31."
_LAST_DAY: Final = datetime(9999, 12, 31, tzinfo=UTC)

OnlyAction = Annotated[str, QueryParameter(name="action", max_length=_LONGEST)]
OnlyActor = Annotated[str, QueryParameter(name="actorId", max_length=_LONGEST)]
OnlyTarget = Annotated[str, QueryParameter(name="targetId", max_length=_LONGEST)]
Since = Annotated[str, QueryParameter(name="since", max_length=_LONGEST)]
Until = Annotated[str, QueryParameter(name="until", max_length=_LONGEST)]


class Asked(msgspec.Struct, frozen=True):
    """What is asked of the trail, as it was typed; days are those of UTC, and ``until`` is in."""

    action: str
    actor_id: str = msgspec.field(name="actorId")
    target_id: str = msgspec.field(name="targetId")
    since: str
    until: str

    @property
    def query(self) -> str:
        """The same as a part of an address; empty where nothing is asked."""
        asked = {name: value for name, value in msgspec.to_builtins(self).items() if value}
        return urlencode(asked) + "&" if asked else ""

    def filter(self) -> Filter:
        """What it means. Raises `FaultyFormError`."""
        faults = {}
        if self.action and self.action not in set(Action):
            faults["action"] = "Choose one of these."
        for name, text in (("actorId", self.actor_id), ("targetId", self.target_id)):
            if "\x00" in text:
                faults[name] = "An id has no such character."
        for name, text in (("since", self.since), ("until", self.until)):
            if text and _day(text) is None:
                faults[name] = _NO_DAY
        if faults:
            raise FaultyFormError(faults)
        until = _day(self.until)
        return Filter(
            Action(self.action) if self.action else None,
            self.actor_id or None,
            self.target_id or None,
            _day(self.since),
            until + timedelta(days=1) if until and until < _LAST_DAY else None,
        )


def audit_pages(
    trail: AuditService, sessions: SessionService, door: SessionGuard, look: Renderer, clock: Clock
) -> Sequence[HTTPRouteHandler]:
    """The routes that show the trail."""
    asked_of_query = {"asked": Provide(_asked, sync_to_thread=False)}

    @get(PATH, guards=[door.needs("audit:read")], dependencies=asked_of_query)
    async def show_trail(visitor: SignedIn, asked: NamedDependency[Asked], cursor: Cursor = None) -> Response[str]:
        told, page, faults = [], None, {}
        try:
            page, names = await trail.show(visitor.principal, asked.filter(), _ON_A_PAGE, cursor)
        except FaultyFormError as error:
            faults = error.faults
        else:
            people = await sessions.names_of(visitor.session, visitor.principal.org_id, people_in(page.data, names))
            told = [tell(event, names, people) for event in page.data]
        return look.page(
            "audit.html",
            status_code=422 if faults else 200,
            visitor=visitor,
            section=SECTION,
            told=told,
            page=page,
            asked=asked,
            actions=[(each.value, text) for each, text in ACTIONS.items()],
            filtered=bool(asked.query),
            is_first=cursor is None,
            faults=faults,
        )

    @get(PATH + "/export", guards=[door.needs("audit:read")], dependencies=asked_of_query)
    async def export_trail(visitor: SignedIn, asked: NamedDependency[Asked]) -> Response[Any]:
        try:
            wanted = asked.filter()
        except FaultyFormError:
            return look.redirect(f"{visitor.base}{SECTION}?{asked.query}")  # where each fault is beside its field
        pages = trail.read_pages(visitor.principal, wanted)
        first: list[AuditEvent] = await anext(pages)  # what is refused is refused before the answer begins
        name = f"audit-{visitor.principal.org_id}-{clock():%Y-%m-%d}.ndjson"
        return look.file(ndjson(first, pages), name, EXPORT_TYPE)

    return [show_trail, export_trail]


def _asked(
    action: OnlyAction = "", actor_id: OnlyActor = "", target_id: OnlyTarget = "", since: Since = "", until: Until = ""
) -> Asked:
    return Asked(action, actor_id.strip(), target_id.strip(), since.strip(), until.strip())


def _day(text: str) -> datetime | None:
    try:
        day = date.fromisoformat(text)
        return datetime(day.year, day.month, day.day, tzinfo=UTC)
    except ValueError:
        return None
