"""The pages of billing events, and the stream that keeps them current."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from itertools import accumulate
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter, QueryParameter
from litestar.response import Stream

from tenantry.api.guards import AnyRequest
from tenantry.api.parameters import Cursor
from tenantry.billing.event_feed import EventFeed, FeedWatcher
from tenantry.billing.ledger_queries import LedgerQueries
from tenantry.billing.replay import MOST_AT_ONCE, RecentReplay, ReplayService
from tenantry.common.encoding import NOT_JSON
from tenantry.dashboard.guards import BY_SCRIPT, ORG, SessionGuard, SessionState, SignedIn, Visitor
from tenantry.dashboard.labels import TYPES, LedgerWords, difference
from tenantry.dashboard.renderer import Renderer
from tenantry.domain.billing.events import Outcome
from tenantry.domain.errors import DatabaseUnavailableError, DomainError, NotFoundError, OverloadedError
from tenantry.domain.plans import Catalog
from tenantry.server.problems import STATUSES

SCOPE: Final = "billing:read"
HEARTBEAT: Final = 15.0
"""Seconds after which something is sent, also where there is no news; and it is seen to that the visitor may stay."""
_LARGEST: Final = 2**62
_BYES: Final = {SessionState.UNPROVED: "event: bye\ndata: renew\n\n", SessionState.GONE: "event: bye\ndata: over\n\n"}


def is_stream(path: str) -> bool:
    """Whether a path is that of a stream, which is open for as long as somebody looks."""
    return path.startswith("/orgs/") and path.endswith("/events/stream")


def event_stream(
    news: EventFeed, door: SessionGuard, look: Renderer, heartbeat: float = HEARTBEAT
) -> Sequence[HTTPRouteHandler]:
    """The route of the stream.

    Each message ``news`` says up to which arrival number there is news after the one that the page had, ``after``.
    ``live`` says that the stream goes on, and within how many seconds there is another message. ``bye`` is the last one
    where the page is told no more: ``over``, or ``renew`` where it may be again once the provider has vouched for its
    visitor.
    """

    @get(f"{ORG}/events/stream", guards=[door.needs(SCOPE, allow_stale_login=True)], opt={BY_SCRIPT: True})
    async def stream_events(
        request: AnyRequest,
        visitor: SignedIn,
        after: Annotated[int, QueryParameter(name="after", ge=0, le=_LARGEST)] = 0,
    ) -> Stream:
        watcher = f"{visitor.session.issuer} {visitor.session.subject}".encode()
        news.check_room(watcher, visitor.principal.org_id)

        async def messages() -> AsyncIterator[str]:
            with news.watch(visitor.principal.org_id, watcher, after) as watch:
                async for message in messages_of(watch, partial(door.standing, request, SCOPE), heartbeat):
                    yield message

        # a proxy that gathers answers would keep news back
        return Stream(messages, media_type="text/event-stream", headers={**look.headers, "X-Accel-Buffering": "no"})

    return [stream_events]


async def messages_of(
    watch: FeedWatcher, standing: Callable[[], Awaitable[SessionState]], heartbeat: float
) -> AsyncIterator[str]:
    """What a stream says, until whoever listens is not welcome any more, or the process stops.

    Before anything is said, also that there is no news, it is asked whether they are. Where that cannot be told, the
    stream ends, and the page connects again.
    """
    arrival = None
    while not watch.has_ended:
        try:
            now = await standing()
        except DatabaseUnavailableError:
            return
        if now is not SessionState.WELCOME:
            yield _BYES[now]
            return
        yield (f"event: live\ndata: {heartbeat:g}\n\n" if arrival is None else f"event: news\ndata: {arrival}\n\n")
        arrival = await watch.wait(heartbeat)


PATH: Final = f"{ORG}/events"
SECTION: Final = "/events"
PAYLOAD_SCOPE: Final = "billing:write"
"""Payloads hold what the provider knows of whoever pays: addresses, and the last digits of cards."""
_ON_A_PAGE: Final = 25
_MOST_SHOWN: Final = 40_000
_FILTERED: Final = (Outcome.APPLIED, Outcome.NO_CHANGE, Outcome.LATE, Outcome.IGNORED, Outcome.INVALID)
_TYPE: Final = re.compile(r"[a-z0-9_.]+")
"""What types of events look like. Nothing else of an address is shown: it could be a sentence of anybody's."""
_DEEPEST: Final = 32
_NO_BRACKETS: Final = re.compile(rb"[^][{}]+")
# They make a text look other than it is; in JSON's strings, the only place for them, an escape means the same.
_DECEIVING: Final = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_NO_FILE_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")

EventId = Annotated[str, PathParameter(name="event_id", max_length=255)]


class EventPages:
    """The pages of the ledger."""

    def __init__(self, billing: LedgerQueries, replay: ReplayService, catalog: Catalog, look: Renderer) -> None:
        self._billing = billing
        self._replay = replay
        self._catalog = catalog
        self._look = look
        self._words = LedgerWords(catalog)

    def routes(self, door: SessionGuard) -> Sequence[HTTPRouteHandler]:
        """The routes."""
        return [*self._timeline(door), *self._of_one(door), *self._of_replay(door)]

    def _timeline(self, door: SessionGuard) -> Sequence[HTTPRouteHandler]:
        @get(PATH, guards=[door.needs("billing:read")])
        async def show_events(
            visitor: SignedIn,
            event_type: Annotated[str, QueryParameter(name="type", max_length=255)] = "",
            outcome: Annotated[str, QueryParameter(name="outcome", max_length=20)] = "",
            cursor: Cursor = None,
        ) -> Response[str]:
            wanted = Outcome(outcome) if outcome in set(Outcome) else None
            of_type = event_type if _TYPE.fullmatch(event_type) else ""
            # before the entries are read: what comes in between is shown, and told of once more
            newest = await self._billing.newest_arrival(visitor.principal)
            page = await self._billing.seek_events(
                visitor.principal, _ON_A_PAGE, cursor, event_type=of_type or None, outcome=wanted
            )
            query = {"type": of_type, "outcome": wanted or ""}
            return self._look.page(
                "events.html",
                visitor=visitor,
                section=SECTION,
                page=page,
                newest=newest,
                event_type=of_type,
                outcome=wanted or "",
                types=TYPES if of_type in ("", *TYPES) else {**TYPES, of_type: of_type},
                filtered_outcomes=_FILTERED,
                query=urlencode({name: text for name, text in query.items() if text}),
                is_first=cursor is None,
                words=self._words,
            )

        return [show_events]

    def _of_one(self, door: SessionGuard) -> Sequence[HTTPRouteHandler]:
        @get(PATH + "/{event_id:str}", guards=[door.needs("billing:read")])
        async def show_event(visitor: SignedIn, event_id: EventId) -> Response[str]:
            event = await self._billing.get_event(visitor.principal, event_id)
            may_see = visitor.may(PAYLOAD_SCOPE)
            body = await self._billing.get_body(visitor.principal, event_id) if may_see else None
            payload = None if body is None else readable(body)
            return self._look.page(
                "event.html",
                visitor=visitor,
                section=SECTION,
                event=event,
                may_see_payload=may_see,
                payload=payload and payload[:_MOST_SHOWN],
                is_cut=payload is not None and len(payload) > _MOST_SHOWN,
                words=self._words,
            )

        @get(PATH + "/{event_id:str}/payload", guards=[door.needs(PAYLOAD_SCOPE)])
        async def download_payload(visitor: SignedIn, event_id: EventId) -> Response[Any]:
            body = await self._billing.get_body(visitor.principal, event_id)
            if body is None:
                raise NotFoundError("payload")
            name = _NO_FILE_NAME.sub("_", event_id)
            return self._look.file(body, f"{name}.json", "application/json")

        return [show_event, download_payload]

    def _of_replay(self, door: SessionGuard) -> Sequence[HTTPRouteHandler]:
        of_owners = door.needs("billing:read", owner_only="replay the ledger")

        @get(PATH + "/replay", guards=[of_owners])
        async def show_replay(visitor: SignedIn) -> Response[str]:
            return self._replay_page(visitor)

        @post(PATH + "/replay", guards=[of_owners], status_code=HTTPStatus.OK)
        async def replay_as_dry_run(visitor: SignedIn) -> Response[str]:
            try:
                found = await self._replay.check_newest(visitor.principal.org_id)
            except (OverloadedError, DatabaseUnavailableError) as error:
                return self._replay_page(visitor, problem=error)
            return self._replay_page(visitor, found)

        return [show_replay, replay_as_dry_run]

    def _replay_page(
        self, visitor: Visitor, found: RecentReplay | None = None, problem: DomainError | None = None
    ) -> Response[str]:
        differences = found.checked.differences if found and found.checked else ()
        return self._look.page(
            "replay.html",
            status_code=STATUSES[type(problem)] if problem else HTTPStatus.OK,
            visitor=visitor,
            section=SECTION,
            found=found,
            differences=[difference(field, self._catalog) for field in differences],
            problem=problem,
            most=MOST_AT_ONCE,
        )


def readable(body: bytes) -> str:
    """A payload for people to read: the same values, a line each; one that is nested like none of the provider's, as
    it is, for its indents alone could be more than the rest.
    """
    depths = accumulate(1 if bracket in b"[{" else -1 for bracket in _NO_BRACKETS.sub(b"", body))
    try:
        text = msgspec.json.format(body, indent=2 if max(depths, default=0) <= _DEEPEST else 0).decode()
    except NOT_JSON:
        text = body.decode(errors="replace")
    return _DECEIVING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
