"""Changes that wait until the standbys that answer checks have replayed them.

Processes register the standbys that they use in ``check_standbys``, on the primary. A change reads
that table after its commit: a standby that is registered later gets positions from after the commit
only. A change waits for every row, expired or not. A process that meets an expired row ends it, and
removes it when no position counts any more that shows it. The rules are in
`tenantry.domain.standby_checks`.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Final

import msgspec
import psycopg

from tenantry.common.cancellation import cancel
from tenantry.common.clock import exponential
from tenantry.db.connection import Connection, Rows
from tenantry.db.roles import TAKE_STATISTICS
from tenantry.db.statements import BIGINT, TEXTS, BoundStatement, Statement
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.domain.standby_checks import (
    CHANGE_WAIT,
    REGISTRATION_SECONDS,
    ReplicatingStandby,
    have_replayed,
)
from tenantry.domain.telemetry import SILENT, Telemetry

# With `off`, others see a change before it is in the log: a position that they read then would not
# contain it. A standby reports what it has replayed as soon as that is all that it has received,
# so `remote_apply` gains nothing (docs/decisions/0077-changes-on-standbys.md).
PREPARE_CHANGE: Final = Statement(
    """
SELECT set_config(
           'synchronous_commit',
           CASE current_setting('synchronous_commit') WHEN 'off' THEN 'local'
                ELSE current_setting('synchronous_commit') END,
           true
       )
"""
)
"""Prepares a transaction that changes what checks read, at any time before its commit."""

# Only a hint that no process uses a standby: a step of the clock makes a registration look expired,
# or valid for too long. Without a row no function is called: a service that is compatible with
# PostgreSQL may lack them.
_REGISTERED: Final = Statement(
    """
SELECT name,
       ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint,
       (pg_current_wal_flush_lsn() - '0/0')::bigint,
       (expires_at BETWEEN clock_timestamp() AND clock_timestamp() + $1 * interval '1 s') IS NOT TRUE
  FROM check_standbys
""",
    BIGINT,
)
_END_EXPIRED: Final = Statement(
    """
UPDATE check_standbys
   SET expires_at = NULL, version = gen_random_uuid()
 WHERE NOT (expires_at BETWEEN clock_timestamp() AND clock_timestamp() + $1 * interval '1 s')
""",
    BIGINT,
)
_ENDED: Final = Statement("SELECT version::text FROM check_standbys WHERE expires_at IS NULL")
# By the version: a process may have registered the standby again since, and another one ended that.
_REMOVE: Final = Statement("DELETE FROM check_standbys WHERE version::text = ANY($1)", TEXTS)
_REPLICATING: Final = Statement(
    """
SELECT own.timeline, standby.application_name, (standby.replay_lsn - '0/0')::bigint
  FROM (SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint AS timeline) AS own
  LEFT JOIN pg_stat_replication AS standby ON true
"""
)
_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.02
_WARNING_INTERVAL: Final = 60.0
"""Seconds."""

logger = logging.getLogger(__name__)


class CommittedChange(msgspec.Struct, frozen=True):
    """A committed change of what checks read, and the standbys that must replay it."""

    committed_at: float
    """When the commit was known, on the monotonic clock."""
    standbys: tuple[str, ...] | None
    """The names of the registered ones; None if they could not be read."""
    timeline: int = 0
    lsn: int = 0
    """A position in the primary's log after the commit, in bytes."""
    has_expired: bool = False
    """Whether a registration has expired or been ended."""

    @property
    def is_awaited(self) -> bool:
        """Whether it must wait for standbys."""
        return self.standbys != ()


class ReplicationReport(msgspec.Struct, frozen=True):
    """What a primary knows of its standbys."""

    timeline: int
    standbys: tuple[ReplicatingStandby, ...]


AskPrimary = Callable[[Sequence[BoundStatement]], Awaitable[list[Rows]]]
"""Runs statements in a transaction on the primary. Raises `DatabaseUnavailableError` and
`psycopg.Error`. Not for concurrent use.
"""


async def commit_change(
    connection: Connection,
    *calls: BoundStatement,
    entering: Sequence[BoundStatement] = (),
) -> CommittedChange:
    """Run the calls, commit, and read which standbys must replay the change, in one round trip.

    ``entering`` takes a role that may read the standbys, if the session has none.
    """
    after = await connection.commit_and_run(calls, (*entering, _REGISTERED(REGISTRATION_SECONDS)))
    committed_at = time.monotonic()
    if after is None:
        return CommittedChange(committed_at, None)
    rows = after[-1]
    return CommittedChange(
        committed_at,
        tuple(name for name, _, _, _ in rows),
        max((timeline for _, timeline, _, _ in rows), default=0),
        max((lsn for _, _, lsn, _ in rows), default=0),
        any(is_expired for _, _, _, is_expired in rows),
    )


class StandbyWaits:
    """Waits of a process's changes for standbys. One question to the primary serves all of them.

    Without ``ask`` a change waits for its full time.
    """

    def __init__(
        self,
        ask: AskPrimary | None = None,
        telemetry: Telemetry = SILENT,
    ) -> None:
        self._ask = ask
        self._telemetry = telemetry
        self._waiting: dict[asyncio.Future[None], CommittedChange] = {}
        self._asking: asyncio.Task[None] | None = None
        self._removing: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()  # of questions to the primary
        self._questions = 0
        self._report: ReplicationReport | None = None
        self._warned_at = -math.inf

    async def wait(self, change: CommittedChange) -> bool:
        """Return whether every registered standby has replayed the change: as soon as that is
        known, or `CHANGE_WAIT` seconds after the commit. Raises no error.
        """
        if not change.is_awaited:
            return True
        if change.has_expired and self._removing is None:
            self._removing = asyncio.create_task(self._remove_expired(), context=Context())
        replayed = asyncio.get_running_loop().create_future()
        self._waiting[replayed] = change
        self._questions = 0
        if self._asking is None:
            self._asking = asyncio.create_task(self._follow(), context=Context())
        try:
            left = change.committed_at + CHANGE_WAIT - time.monotonic()
            await asyncio.wait([replayed], timeout=max(0, left))
        finally:
            del self._waiting[replayed]
        waited = time.monotonic() - change.committed_at
        self._telemetry.change_waited(waited, replayed=replayed.done())
        if not replayed.done():
            self._warn(change)
        return replayed.done()

    async def close(self) -> None:
        """Ask no more. A change that still waits does so for its full time."""
        self._ask = None
        await cancel(self._asking, self._removing)

    async def _follow(self) -> None:
        """Ask the primary while changes wait."""
        try:
            while self._waiting:
                self._questions += 1
                await asyncio.sleep(_pause_before(self._questions))
                self._report = await self._ask_primary()
                self._resolve(self._report)
        finally:
            self._asking = None

    async def _remove_expired(self) -> None:
        """End the registrations that have expired, and remove them when no position that shows them
        counts any more. One whose standby is registered again meanwhile stays.
        """
        try:
            if (answer := await self._run(_END_EXPIRED(REGISTRATION_SECONDS), _ENDED())) is None:
                return
            versions = [version for (version,) in answer[-1]]
            await asyncio.sleep(CHANGE_WAIT)
            await self._run(_REMOVE(versions))
        finally:
            self._removing = None

    async def _ask_primary(self) -> ReplicationReport | None:
        """Return what the primary knows of its standbys; None if it does not say."""
        if (answer := await self._run(TAKE_STATISTICS(), _REPLICATING())) is None:
            return None
        rows = answer[-1]
        named = [ReplicatingStandby(name, lsn) for _, name, lsn in rows if name is not None]
        return ReplicationReport(rows[0][0], tuple(named))

    async def _run(self, *calls: BoundStatement) -> list[Rows] | None:
        """Return the rows of each statement; None if they fail."""
        async with self._turn:
            if self._ask is None:
                return None
            try:
                return await self._ask(calls)
            except (DatabaseUnavailableError, psycopg.Error):
                return None

    def _resolve(self, report: ReplicationReport | None) -> None:
        for replayed, change in self._waiting.items():
            if not replayed.done() and reason_to_wait(change, report) is None:
                replayed.set_result(None)

    def _warn(self, change: CommittedChange) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _WARNING_INTERVAL:
            self._warned_at = now
            logger.warning(
                "a change waited for standbys for its longest time, %.1f s: %s; "
                "run `tenantry doctor`",
                CHANGE_WAIT,
                reason_to_wait(change, self._report),
            )


def _pause_before(question: int) -> float:
    """Return the seconds before a question to the primary, from 1."""
    return exponential(question, first=_FIRST_PAUSE, factor=1.5, ceiling=_LONGEST_PAUSE)


def reason_to_wait(change: CommittedChange, report: ReplicationReport | None) -> str | None:
    """Return why it is not known that all standbys have replayed a change, with the next step; None
    if it is known.
    """
    if change.standbys is None:
        return "the registered standbys could not be read"
    if report is None:
        return "the primary does not tell how far its standbys are"
    if report.timeline != change.timeline:
        return "another server has become the primary"
    for name in change.standbys:
        if not have_replayed([name], report.standbys, change.lsn):
            return _reason_of(name, report)
    return None


def _reason_of(name: str, report: ReplicationReport) -> str:
    match [standby for standby in report.standbys if standby.name == name]:
        case []:
            return f"standby {name!r} is not connected to the primary"
        case [ReplicatingStandby(replayed_lsn=None)]:
            return (
                f"how far standby {name!r} is may not be seen: "
                "GRANT pg_read_all_stats to the login of DATABASE_URL"
            )
        case [_]:
            return f"standby {name!r} is behind"
        case _:
            return f"several standbys are named {name!r}: give each an application_name of its own"
