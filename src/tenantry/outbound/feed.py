"""The feed: all events of changes, in an order that a reader can continue from."""

import asyncio
import base64
from contextlib import suppress
from datetime import timedelta
from typing import Final

import msgspec

from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.db.pagination import INVALID_CURSOR
from tenantry.domain.errors import CursorExpiredError, InvalidCursorError
from tenantry.domain.outbound_events import NOW, FeedPage, version_of
from tenantry.outbound import events_store as store
from tenantry.outbound.events_store import BEGINNING, EventFilter, Portion, Position

EVENTS_KEPT: Final = timedelta(days=30)
LONGEST_WAIT: Final = timedelta(seconds=20)
_PAUSE_SECONDS: Final = 0.25
"""Between two looks for new events, each for all readers that wait."""
_READS_AT_ONCE: Final = 2
"""Of a process, so that many readers leave connections of the pool to other requests."""
_SCAN_SECONDS: Final = 2.0
"""How much longer than the wait a read looks for the first event that its filter lets pass."""
_EXPIRED: Final = (
    "Events after this cursor were removed, or its own event was lost when a backup or a standby replaced the "
    "database. "
    "Take a new cursor with after=now, read the objects again, and continue from that cursor."
)
_MAX_EPOCH: Final = 2**31
_MAX_NUMBER: Final = 2**62


class _Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    epoch: int
    xid: int
    version: int
    token: str


_decoder: Final = msgspec.msgpack.Decoder(_Cursor)


class ChangeFeed:
    """Reads the feed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ended = asyncio.Event()
        self._turn = asyncio.Semaphore(_READS_AT_ONCE)
        self._looking: asyncio.Task[Position] | None = None

    async def read(
        self, after: str | None, wanted: EventFilter, limit: int, wait: timedelta
    ) -> FeedPage:
        """Read up to ``limit`` events after a cursor, or after the event that has this id; wait for
        the first one, if there is none.

        None begins with the oldest event that is kept, and `NOW` with those that follow. Events of
        a transaction are read once all earlier transactions have ended. Raises
        `InvalidCursorError`, and `CursorExpiredError` if events after it are not kept any more.
        """
        deadline = asyncio.get_running_loop().time() + wait.total_seconds()
        while True:
            async with self._turn:
                portion, cursor = await self._read_portion(after, wanted, limit)
            left = deadline - asyncio.get_running_loop().time()
            patience = 0 if portion.is_last else _SCAN_SECONDS
            if portion.events or left + patience <= 0 or self._ended.is_set():
                return FeedPage(portion.events, cursor)
            after = cursor
            if portion.is_last:
                await self._wait_for_event(portion.end, left)

    def end(self) -> None:
        """Return from all reads that wait, for the end of the process."""
        self._ended.set()

    async def _wait_for_event(self, after: Position, seconds: float) -> None:
        """Wait until an event after a position can be read, at most so long, or until the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._ended.is_set() and await self._next_look() <= after:
                    pass

    async def _next_look(self) -> Position:
        """Wait for the next look of this process, and return the newest position that it found."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(_ignore_error)
        return await asyncio.shield(self._looking)

    async def _look(self) -> Position:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_SECONDS):
                await self._ended.wait()
                return BEGINNING
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            epoch = await store.newest_epoch(connection)
            return await store.newest_position(connection, epoch)

    async def _read_portion(
        self, after: str | None, wanted: EventFilter, limit: int
    ) -> tuple[Portion, str]:
        """Read without a wait; return the cursor of the end, too."""
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            epoch = await store.newest_epoch(connection)
        async with self._database.transaction(ACROSS_TENANTS, is_snapshot=True) as connection:
            if after == NOW:
                newest = await store.newest_position(connection, epoch)
                portion = Portion([], newest, is_last=True)
            else:
                until = await store.horizon(connection, epoch)
                position = await _position(connection, after, until)
                portion = await store.read(connection, position, until, wanted, limit)
            token = await store.token_of(connection, portion.end.epoch)
        return portion, _encode(portion.end, token or "")


def _ignore_error(looking: asyncio.Task[Position]) -> None:
    """Do nothing: those that still wait get the error."""
    if not looking.cancelled():
        looking.exception()


async def _position(connection: Connection, after: str | None, until: Position) -> Position:
    """Return the position of a cursor, or of an event by its id, before the horizon ``until``.
    Raises `InvalidCursorError` and `CursorExpiredError`.
    """
    if after is None:
        return await store.oldest_position(connection)
    version = version_of(after)
    if version is None:
        position = await _position_of_cursor(connection, _decode(after))
    else:
        position = await store.position_of(connection, version)
    if position is None or position >= until or await store.is_purged_after(connection, position):
        raise CursorExpiredError(_EXPIRED)
    return position


async def _position_of_cursor(connection: Connection, cursor: _Cursor) -> Position | None:
    """Return the position of a cursor; None if this database has lost its epoch, or its event."""
    if await store.token_of(connection, cursor.epoch) != cursor.token:
        return None
    position = Position(cursor.epoch, cursor.xid, cursor.version)
    names_event = position.version > 0
    if names_event and not await store.is_remembered(connection, position):
        return None
    return position


def _encode(position: Position, token: str) -> str:
    raw = msgspec.msgpack.encode(_Cursor(*position, token))
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(cursor: str) -> _Cursor:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        decoded = _decoder.decode(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, msgspec.MsgspecError) as error:
        raise InvalidCursorError(INVALID_CURSOR) from error
    numbers = decoded.epoch, decoded.xid, decoded.version
    if not all(0 <= number < _MAX_NUMBER for number in numbers) or decoded.epoch >= _MAX_EPOCH:
        raise InvalidCursorError(INVALID_CURSOR)
    return decoded
