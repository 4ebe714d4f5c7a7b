"""Lookups that a standby answers where that is as strict as at the primary, else the primary."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec
import psycopg

from tenantry.common.clock import Timeouts
from tenantry.db.batcher import BatchMetrics
from tenantry.db.connection import Rows
from tenantry.db.database import Lane
from tenantry.db.standby_connector import StandbyConnector, StandbyLink
from tenantry.db.standby_store import REGISTRATION_SHOWN, STANDBY_STATE
from tenantry.db.statements import BoundStatement
from tenantry.domain.standby_checks import (
    ANSWER_TIMEOUT,
    CheckSource,
    Position,
    StandbyState,
    answer_counts,
)
from tenantry.domain.telemetry import SILENT, Telemetry


class LookupLane(Protocol):
    """Where the lookups of a batcher are answered."""

    @property
    def metrics(self) -> BatchMetrics: ...
    @property
    def timeouts(self) -> Timeouts: ...
    async def look_up(self, calls: Sequence[BoundStatement], checks: int, /) -> list[Rows]: ...


@dataclass(eq=False)
class StandbyLane:
    """Asks a standby, and the ``primary`` if the standby's answer does not count.

    Not for concurrent use. The statements of a batch are sent at once, that of the standby's state
    first: each has its own snapshot, so the lookups see what the state says. The rules are in
    `tenantry.domain.standby_checks`.
    """

    primary: Lane
    standby: StandbyConnector
    telemetry: Telemetry = SILENT

    @property
    def metrics(self) -> BatchMetrics:
        """The metrics of the batches."""
        return self.primary.metrics

    @property
    def timeouts(self) -> Timeouts:
        """The limits of the batches."""
        return self.primary.timeouts

    async def look_up(self, calls: Sequence[BoundStatement], checks: int, /) -> list[Rows]:
        """Run the lookups of that many checks, and return the rows of each. Raises as
        `Lane.look_up`.
        """
        answer = await self._ask_standby(calls)
        if isinstance(answer, CheckSource):
            self.telemetry.checked(answer, checks)
            return await self.primary.look_up(calls, checks)
        self.telemetry.checked(CheckSource.STANDBY, checks)
        return answer

    async def _ask_standby(self, calls: Sequence[BoundStatement]) -> list[Rows] | CheckSource:
        """Return the rows, or why the standby's answer does not count."""
        link = await self.standby.link()
        if link is None:
            return CheckSource.NO_CONNECTION
        position = self.standby.registry.position_for(link.name, link.session)
        if isinstance(position, CheckSource):
            if self.standby.registry.is_refused(link.name):
                await self.standby.drop(link)
            return position
        if self._was_behind(link):
            return CheckSource.BEHIND
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                with self.primary.span():
                    rows = await self._run(link, position, calls)
        except psycopg.DataError:  # the fault of a request, which the primary rejects too
            return CheckSource.ERROR
        except (psycopg.Error, TimeoutError):
            await self.standby.drop(link)
            return CheckSource.ERROR
        except BaseException:  # canceled: the connection is closed
            await self.standby.drop(link)
            raise
        return CheckSource.BEHIND if rows is None else rows

    def _was_behind(self, link: StandbyLink) -> bool:
        """Whether the standby was behind, and no newer position was taken since: asking it again
        would cost a turn for nothing.
        """
        newest = self.standby.registry.newest
        return newest is not None and link.behind_at == newest.taken_at

    async def _run(
        self, link: StandbyLink, position: Position, calls: Sequence[BoundStatement]
    ) -> list[Rows] | None:
        """Return the rows of the lookups; None if the standby had not replayed the position."""
        is_proven = link.session.proven_timeline == position.timeline
        proof = [] if is_proven else [REGISTRATION_SHOWN(link.name)]
        first, *rows = await link.connection.run_batch(STANDBY_STATE(), *proof, *calls)
        [(is_in_recovery, replayed_lsn, started_at)] = first
        _check_server(link, started_at, is_in_recovery=is_in_recovery)
        if proof:
            self._note_history(link, rows.pop(0))
        self.standby.answered(link)
        newest = self.standby.registry.newest or position
        link.lag = max(0, newest.lsn - replayed_lsn)
        if answer_counts(position, link.session, StandbyState(is_in_recovery, replayed_lsn)):
            return rows
        link.behind_at = newest.taken_at
        return None

    def _note_history(self, link: StandbyLink, shown: Rows) -> None:
        """Note on which timeline the registration was written that the standby shows: it has the
        history of that primary.
        """
        for (version,) in shown:
            timeline = self.standby.registry.timeline_of(link.name, version)
            if timeline is not None:
                link.session = msgspec.structs.replace(link.session, proven_timeline=timeline)


def _check_server(link: StandbyLink, started_at: datetime, *, is_in_recovery: bool) -> None:
    """Raise `psycopg.OperationalError` if the server was promoted, or a pooler has led to another
    one.
    """
    if not is_in_recovery:
        raise psycopg.OperationalError("the standby was promoted")
    if link.started_at is None:
        link.started_at = started_at
    if link.started_at != started_at:
        raise psycopg.OperationalError("the connection leads to another server than before")
