"""The stream that tells an open page of events as they come in (server-sent events)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Final

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter
from litestar.response import Stream

from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.http.access import AnyRequest
from tenantry.http.dashboard.look import Look
from tenantry.http.dashboard.visitor import ORG, Door, SignedIn
from tenantry.services.news import LedgerNews, Watch

SCOPE: Final = "billing:read"
HEARTBEAT: Final = 15.0
"""Seconds after which something is sent, also where there is no news; and it is seen to that the visitor may stay."""
_LAST: Final = "last-event-id"
_LARGEST: Final = 2**62
_LONGEST_NUMBER: Final = 18
_BEGINNING: Final = "retry: 3000\n\n"
_STILL_HERE: Final = ":\n\n"
_BYE: Final = "event: bye\ndata: sign in again\n\n"


def is_stream(path: str) -> bool:
    """Whether a path is that of a stream, which is open for as long as somebody looks."""
    return path.startswith("/orgs/") and path.endswith("/events/stream")


def event_stream(news: LedgerNews, door: Door, look: Look, heartbeat: float = HEARTBEAT) -> Sequence[HTTPRouteHandler]:
    """The route of the stream.

    Each message says up to which arrival number there is news after the one that the page had, given as ``after`` or,
    by a browser that connects again, as ``Last-Event-ID``. ``bye`` is the last one where to connect again is no use.
    """

    @get(f"{ORG}/events/stream", guards=[door.needs(SCOPE)])
    async def stream_events(
        request: AnyRequest,
        visitor: SignedIn,
        after: Annotated[int, QueryParameter(name="after", ge=0, le=_LARGEST)] = 0,
    ) -> Stream:
        last = request.headers.get(_LAST, "")
        seen = int(last) if last.isascii() and last.isdecimal() and len(last) <= _LONGEST_NUMBER else after
        watcher = f"{visitor.session.issuer} {visitor.session.subject}".encode()
        news.check_room(watcher, visitor.principal.org_id)

        async def messages() -> AsyncIterator[str]:
            with news.watch(visitor.principal.org_id, watcher, seen) as watch:
                async for message in messages_of(watch, partial(door.still_lets_in, request, SCOPE), heartbeat):
                    yield message

        # a proxy that gathers answers would keep news back
        return Stream(messages, media_type="text/event-stream", headers={**look.headers, "X-Accel-Buffering": "no"})

    return [stream_events]


async def messages_of(watch: Watch, is_welcome: Callable[[], Awaitable[bool]], heartbeat: float) -> AsyncIterator[str]:
    """What a stream says, until whoever listens is not welcome any more, or the process stops.

    Before anything is said, also that there is no news, it is asked whether they are. Where that cannot be told, the
    stream ends, and the browser connects again.
    """
    yield _BEGINNING
    while True:
        arrival = await watch.wait(heartbeat)
        if watch.has_ended:
            return
        try:
            is_still_welcome = await is_welcome()
        except DatabaseUnavailableError:
            return
        if not is_still_welcome:
            yield _BYE
            return
        yield _STILL_HERE if arrival is None else f"id: {arrival}\nevent: news\ndata: {arrival}\n\n"
