"""The stream that tells an open page of events as they come in (server-sent events)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Final

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter
from litestar.response import Stream

from tenantry.api.guards import AnyRequest
from tenantry.billing.event_feed import LedgerNews, Watch
from tenantry.dashboard.look import Look
from tenantry.dashboard.visitor import BY_SCRIPT, ORG, Door, SignedIn, Standing
from tenantry.domain.errors import DatabaseUnavailableError

SCOPE: Final = "billing:read"
HEARTBEAT: Final = 15.0
"""Seconds after which something is sent, also where there is no news; and it is seen to that the visitor may stay."""
_LARGEST: Final = 2**62
_BYES: Final = {Standing.UNPROVED: "event: bye\ndata: renew\n\n", Standing.GONE: "event: bye\ndata: over\n\n"}


def is_stream(path: str) -> bool:
    """Whether a path is that of a stream, which is open for as long as somebody looks."""
    return path.startswith("/orgs/") and path.endswith("/events/stream")


def event_stream(news: LedgerNews, door: Door, look: Look, heartbeat: float = HEARTBEAT) -> Sequence[HTTPRouteHandler]:
    """The route of the stream.

    Each message ``news`` says up to which arrival number there is news after the one that the page had, ``after``.
    ``live`` says that the stream goes on, and within how many seconds there is another message. ``bye`` is the last one
    where the page is told no more: ``over``, or ``renew`` where it may be again once the provider has vouched for its
    visitor.
    """

    @get(f"{ORG}/events/stream", guards=[door.needs(SCOPE, even_unproved=True)], opt={BY_SCRIPT: True})
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
    watch: Watch, standing: Callable[[], Awaitable[Standing]], heartbeat: float
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
        if now is not Standing.WELCOME:
            yield _BYES[now]
            return
        yield (f"event: live\ndata: {heartbeat:g}\n\n" if arrival is None else f"event: news\ndata: {arrival}\n\n")
        arrival = await watch.wait(heartbeat)
