"""The pages of billing events, and the event stream that updates them."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Final

import msgspec
from litestar import Response, get, post
from litestar.params import PathParameter, QueryParameter
from litestar.response import Stream

from tenantry.billing.event_feed import FeedWatcher
from tenantry.billing.ledger_queries_store import EventFilter
from tenantry.billing.replay import MOST_AT_ONCE, FieldComparison, RecentReplay
from tenantry.common.encoding import NOT_JSON
from tenantry.dashboard import forms
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.guards import ORG, SCRIPT_ONLY, needs
from tenantry.dashboard.labels import (
    Change,
    event_type_choices,
    event_types_named,
    field_label,
    labels,
    shown_value,
)
from tenantry.dashboard.pager import requested_page
from tenantry.db.numbered_pages import PageRequest
from tenantry.domain.billing.events import Outcome
from tenantry.domain.errors import DatabaseUnavailableError, NotFoundError, OverloadedError
from tenantry.domain.grants import given_words
from tenantry.domain.plans import Catalog
from tenantry.server.security_headers import PAGE_HEADERS

PATH: Final = f"{ORG}/events"
_EVENT: Final = PATH + "/{event_id:str}"
_SCOPE: Final = "billing:read"
_PAYLOAD_SCOPE: Final = "billing:write"
"""Payloads hold the payer's address and the last digits of cards."""
_PAGE_SIZE: Final = 25
_MOST_PAYLOAD_CHARACTERS: Final = 40_000
_OUTCOMES: Final = (
    Outcome.APPLIED,
    Outcome.NO_CHANGE,
    Outcome.LATE,
    Outcome.IGNORED,
    Outcome.INVALID,
)
_UNSAFE_IN_FILE_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")

EventId = Annotated[str, PathParameter(name="event_id", max_length=255)]
_owner = needs(_SCOPE, owner_only="replay the ledger")


@get(PATH, guards=[needs(_SCOPE)])
async def show_events(
    ctx: Context,
    event_type: Annotated[str, QueryParameter(name="type", max_length=255)] = "",
    outcome: Annotated[str, QueryParameter(name="outcome", max_length=20)] = "",
) -> Response[str]:
    billing = ctx.services.billing
    search = ctx.query("search")
    types = event_type_choices()
    wanted = EventFilter(
        event_type=types.get(event_type),
        outcome=Outcome(outcome) if outcome in set(Outcome) else None,
        search=search or None,
        named_types=event_types_named(search),
    )
    chosen = event_type if event_type in types else None
    filters = {"search": search, "type": chosen, "outcome": wanted.outcome}
    request = requested_page(ctx, _PAGE_SIZE)
    # first, so that the stream repeats events rather than skip one
    newest = await billing.newest_arrival(ctx.principal)
    return ctx.render(
        "events.html",
        page=await billing.numbered_page(ctx.principal, wanted, request),
        is_live=request == PageRequest(_PAGE_SIZE),
        newest=newest,
        wanted=wanted,
        types=[(name, labels().event_types[each]) for name, each in types.items()],
        outcomes=[(each, labels().outcomes[each].short) for each in _OUTCOMES],
        filters=filters,
        query=forms.query_string(filters),
    )


@get(_EVENT, guards=[needs(_SCOPE)])
async def show_event(ctx: Context, event_id: EventId) -> Response[str]:
    event = await ctx.services.billing.get_event(ctx.principal, event_id)
    subject = await ctx.services.billing.get_subject(ctx.principal, event_id)
    may_see_payload = ctx.user.may(_PAYLOAD_SCOPE)
    body = await ctx.services.billing.get_body(ctx.principal, event_id) if may_see_payload else None
    payload = None if body is None else readable_payload(body)
    return ctx.render(
        "event.html",
        event=event,
        subject=subject,
        gives=given_words(subject.grant, ctx.services.catalog) if subject.grant else [],
        may_see_payload=may_see_payload,
        payload=payload and payload[:_MOST_PAYLOAD_CHARACTERS],
        is_truncated=payload is not None and len(payload) > _MOST_PAYLOAD_CHARACTERS,
    )


@get(_EVENT + "/payload", guards=[needs(_PAYLOAD_SCOPE)])
async def download_payload(ctx: Context, event_id: EventId) -> Response[Any]:
    body = await ctx.services.billing.get_body(ctx.principal, event_id)
    if body is None:
        raise NotFoundError("payload")
    return ctx.renderer.file(
        body, f"{_UNSAFE_IN_FILE_NAME.sub('_', event_id)}.json", "application/json"
    )


@get(PATH + "/replay", guards=[_owner])
async def show_replay(ctx: Context) -> Response[str]:
    return _replay_page(ctx)


@post(PATH + "/replay", guards=[_owner])
async def replay_as_dry_run(ctx: Context) -> Response[str]:
    try:
        result = await ctx.services.replay.check_newest(ctx.principal.org_id)
    except (OverloadedError, DatabaseUnavailableError) as error:
        return _replay_page(ctx, error=error)
    return _replay_page(ctx, result)


def _replay_page(
    ctx: PageContext, result: RecentReplay | None = None, error: Exception | None = None
) -> Response[str]:
    differences = result.checked.differences if result and result.checked else ()
    return ctx.render(
        "replay.html",
        error,
        result=result,
        differences=[_difference(field, ctx.services.catalog) for field in differences],
        most=MOST_AT_ONCE,
    )


def _difference(field: FieldComparison, catalog: Catalog) -> Change:
    """Return the stored value of a field, and the value that the events give."""
    name = field.field.removeprefix("tipState.").removeprefix("state.")
    label = field_label(name) + (", before the newest second" if field.is_of_checkpoint else "")
    return Change(
        label, shown_value(name, field.stored, catalog), shown_value(name, field.folded, catalog)
    )


_DEEPEST: Final = 32
_NO_BRACKETS: Final = re.compile(rb"[^][{}]+")
# Invisible characters and direction marks, which occur only in strings of JSON. An escape means the
# same there.
_INVISIBLE: Final = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


def readable_payload(body: bytes) -> str:
    """Format JSON with one value a line, without indentation if it is nested too deeply; other
    bytes as they are.
    """
    depths = accumulate(1 if bracket in b"[{" else -1 for bracket in _NO_BRACKETS.sub(b"", body))
    try:
        text = msgspec.json.format(
            body, indent=2 if max(depths, default=0) <= _DEEPEST else 0
        ).decode()
    except NOT_JSON:
        text = body.decode(errors="replace")
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


HEARTBEAT: Final = 15.0
"""Seconds between two messages of a stream at most. Before each, the stream checks the session
again.
"""
_MOST_ARRIVAL: Final = 2**62


def is_stream(path: str) -> bool:
    """Whether a path is that of the event stream, which stays open while a page is visible."""
    return path.startswith("/orgs/") and path.endswith("/events/stream")


@get(PATH + "/stream", guards=[needs(_SCOPE, allow_stale_login=True)], opt={SCRIPT_ONLY: True})
async def stream_events(
    ctx: Context, after: Annotated[int, QueryParameter(name="after", ge=0, le=_MOST_ARRIVAL)] = 0
) -> Stream:
    """Stream server-sent events: ``live``, ``new-events`` and ``bye``.

    ``new-events`` gives the newest arrival number; the page had seen those up to ``after``.
    ``live`` gives the seconds until the next message. ``bye`` is the last message: ``over``, or
    ``renew`` if the identity provider must confirm the user first.
    """
    feed = ctx.services.event_feed
    org_id = ctx.principal.org_id
    session = ctx.user.session
    watcher = f"{session.issuer} {session.subject}".encode()
    feed.check_room(watcher, org_id)

    async def messages() -> AsyncIterator[str]:
        with feed.watch(org_id, watcher, after) as watch:
            async for message in stream_messages(
                watch, partial(ctx.sessions.end_of_stream, ctx.request, _SCOPE)
            ):
                yield message

    # a proxy must not buffer the stream
    headers = {**PAGE_HEADERS, "X-Accel-Buffering": "no"}
    return Stream(messages, media_type="text/event-stream", headers=headers)


async def stream_messages(
    watch: FeedWatcher, end_of_stream: Callable[[], Awaitable[str]], heartbeat: float = HEARTBEAT
) -> AsyncIterator[str]:
    """Yield the messages of a stream until the session or the process ends.

    If the database is unavailable, the stream ends without a ``bye``, and the page connects again.
    """
    arrival = None
    while not watch.has_ended:
        try:
            reason = await end_of_stream()
        except DatabaseUnavailableError:
            return
        if reason:
            yield f"event: bye\ndata: {reason}\n\n"
            return
        yield (
            f"event: live\ndata: {heartbeat:g}\n\n"
            if arrival is None
            else f"event: new-events\ndata: {arrival}\n\n"
        )
        arrival = await watch.wait(heartbeat)
