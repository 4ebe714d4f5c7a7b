"""The billing history of a tenant, and the event stream that updates pages."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Annotated, Final

from litestar import Response, get
from litestar.params import PathParameter, QueryParameter
from litestar.response import Stream

from tenantry.billing.event_feed import FeedWatcher
from tenantry.billing.ledger_queries_store import EventFilter
from tenantry.dashboard import forms
from tenantry.dashboard.context import Context
from tenantry.dashboard.guards import ORG, SCRIPT_ONLY, PageGuard
from tenantry.dashboard.labels import event_types_named
from tenantry.dashboard.pager import requested_page
from tenantry.db.numbered_pages import PageRequest
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.server.security_headers import PAGE_HEADERS
from tenantry.server.waiting_paths import MAY_WAIT

PATH: Final = f"{ORG}/events"
_EVENT: Final = PATH + "/{event_id:str}"
_SCOPE: Final = "billing:read"
_PAGE_SIZE: Final = 25

EventId = Annotated[str, PathParameter(name="event_id", max_length=255)]


@get(PATH, guards=[PageGuard(_SCOPE)])
async def show_history(ctx: Context) -> Response[str]:
    billing = ctx.services.billing
    search = ctx.query("search")
    shows_all = ctx.query("all") == "yes"
    wanted = EventFilter(
        search=search or None, named_types=event_types_named(search), of_history=not shows_all
    )
    filters = {"search": search, "all": "yes" if shows_all else ""}
    request = requested_page(ctx, _PAGE_SIZE)
    # first, so that the stream repeats events rather than skip one
    newest = await billing.newest_arrival(ctx.principal)
    return ctx.render(
        "events.html",
        page=await billing.numbered_page(ctx.principal, wanted, request),
        is_live=request == PageRequest(_PAGE_SIZE),
        newest=newest,
        shows_all=shows_all,
        filters=filters,
        query=forms.query_string(filters),
    )


@get(_EVENT, guards=[PageGuard(_SCOPE)])
async def show_entry(ctx: Context, event_id: EventId) -> Response[str]:
    billing = ctx.services.billing
    return ctx.render(
        "event.html",
        event=await billing.get_history_entry(ctx.principal, event_id),
        subject=await billing.get_subject(ctx.principal, event_id),
    )


HEARTBEAT: Final = 15.0
"""Seconds between two messages of a stream at most. Before each, the stream checks the session
again.
"""
_MOST_ARRIVAL: Final = 2**62


@get(
    PATH + "/stream",
    guards=[PageGuard(_SCOPE, allow_stale_login=True)],
    opt={SCRIPT_ONLY: True, **MAY_WAIT},  # it stays open while a page is visible
)
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
