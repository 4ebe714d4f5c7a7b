"""Strict checks on standbys: which answers of a standby count, and how long a change waits.

A process knows *positions*: how far the primary's log had been written at a moment of the process's
own clock. A standby's answer counts if the standby had replayed one that is younger than `LEASE`
before it read. A change is acknowledged when every registered standby has replayed it, or after
`CHANGE_WAIT`: then no position from before it counts any more.

All times are seconds on one process's monotonic clock. No times of two machines are compared, and
no wall clock decides whether an answer counts (docs/decisions/0089-end-of-a-registration.md).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from tenantry.common.clock import exponential

LEASE: Final = 1.5
"""How long a position counts, in seconds from the moment before the primary was asked."""
RENEWAL_INTERVAL: Final = 0.25
"""Seconds between two positions."""
ANSWER_TIMEOUT: Final = 0.4
"""How long a check waits for a standby, in seconds, before the primary is asked."""
CHANGE_WAIT: Final = 1.6
"""How long a change waits for standbys, in seconds after its commit: `LEASE`, and a margin for
clocks that run at different rates.
"""
REGISTRATION_SECONDS: Final = 120
"""How long after its last extension a registration may be ended, by the primary's clock. A step of
that clock ends registrations early or late, and makes no check stale.
"""
EXTENSION_INTERVAL: Final = 30.0
"""Seconds between two extensions of a registration."""
EXTENSION_TRUSTED: Final = 60.0
"""How long a process relies on an extension, in seconds from the moment before it asked for it.
With each one it asks how the primary sees the standby.
"""
NEARER_HOST_INTERVAL: Final = 30.0
"""Seconds after the last error of a standby, before a process on a farther one tries it again."""
_FIRST_REST: Final = 1.0
_LONGEST_REST: Final = 10.0


class CheckSource(StrEnum):
    """Where a check was answered, and if not by a standby, why."""

    STANDBY = "standby"
    NO_CONNECTION = "no_connection"
    """There is no connection to a standby, or it rests after an error."""
    UNREGISTERED = "unregistered"
    """The primary shows no registration of the standby, or that of a former primary; or this
    process did not extend it in time.
    """
    NO_POSITION = "no_position"
    """No position is young enough, newer than the connection, and shows the registration."""
    BEHIND = "behind"
    """The standby had not replayed the position, or its history does not contain it."""
    ERROR = "error"
    """The standby failed, or did not answer within `ANSWER_TIMEOUT`."""


class Position(msgspec.Struct, frozen=True):
    """How far the primary's log had been written: every change that was acknowledged before
    ``taken_at`` is in it.
    """

    taken_at: float
    """Before the primary was asked."""
    timeline: int
    """Of the primary. A promotion increases it."""
    lsn: int
    """The position in the log, in bytes."""
    registrations: Mapping[str, str] = {}
    """The registrations that the primary showed before it told the position, without those that a
    process has ended: their versions, by the names of the standbys.
    """


Positions = tuple[Position, ...]
"""Positions of one timeline, the oldest first."""


class StandbySession(msgspec.Struct, frozen=True):
    """A connection to a standby. A standby that crashes may go back in the log, but it loses its
    connections.
    """

    connected_at: float
    proven_timeline: int | None = None
    """The newest timeline that the standby's history is known to contain: it has shown a
    registration that was written on this timeline.
    """


class StandbyState(msgspec.Struct, frozen=True):
    """What a standby says of itself, in a statement before that of the lookup. In one statement
    with it, the lookup's snapshot would be older than ``replayed_lsn``.
    """

    is_in_recovery: bool
    replayed_lsn: int
    """How far it has replayed the primary's log, in bytes."""


class HostFailures(msgspec.Struct, frozen=True):
    """The errors of a host of a standby, in turn: it could not be connected to, or a lookup failed.
    An answer ends them.
    """

    number: int = 0
    last_at: float = -math.inf


class ReplicatingStandby(msgspec.Struct, frozen=True):
    """A standby as the primary sees it."""

    name: str
    replayed_lsn: int | None
    """None if the standby has not reported any, or the login may not see it."""


def with_position(positions: Positions, newest: Position) -> Positions:
    """Add a position, and drop those that count no longer. A promotion drops all former ones; a
    position of a former primary changes nothing.
    """
    if positions and newest.timeline < positions[-1].timeline:
        return positions
    kept = [
        position
        for position in positions
        if position.timeline == newest.timeline and is_young(position, newest.taken_at)
    ]
    return (*kept, newest)


def is_young(position: Position, now: float) -> bool:
    """Whether a position is not older than `LEASE`."""
    return now - position.taken_at <= LEASE


def needs_extension(extended_at: float, now: float) -> bool:
    """Whether it is time to extend a registration."""
    return now - extended_at >= EXTENSION_INTERVAL


def is_trusted(extended_at: float, now: float) -> bool:
    """Whether a process may still rely on the last extension of a registration."""
    return now - extended_at <= EXTENSION_TRUSTED


def position_to_reach(
    positions: Positions, session: StandbySession, name: str, now: float
) -> Position | CheckSource:
    """Return the position that the standby ``name`` must have replayed, or why no answer of it
    counts.

    ``now`` is when the statements are sent: after the last request has joined its batch. Any
    position that is young enough will do, so the oldest is returned: the standby reaches it first.
    It must show the registration, because changes wait for registered standbys only, and must be
    newer than the connection, because a standby may have gone back before that was made.
    """
    if positions and name not in positions[-1].registrations:
        return CheckSource.UNREGISTERED
    usable = (
        position
        for position in positions
        if name in position.registrations
        and position.taken_at >= session.connected_at
        and is_young(position, now)
    )
    return next(usable, CheckSource.NO_POSITION)


def timeline_of(positions: Positions, name: str, version: str) -> int | None:
    """Return on which timeline this version of a standby's registration was written; None if no
    position shows it. The standby of a copy of the database shows another version.
    """
    return next(
        (
            position.timeline
            for position in positions
            if position.registrations.get(name) == version
        ),
        None,
    )


def answer_counts(position: Position, session: StandbySession, state: StandbyState) -> bool:
    """Whether the lookup that followed ``state`` has seen everything up to the position.

    A standby of a former timeline may be farther in the log and lack the new primary's commits, so
    its history must be proven to contain the position's timeline.
    """
    return (
        state.is_in_recovery
        and session.proven_timeline == position.timeline
        and state.replayed_lsn >= position.lsn
    )


def rest_after(failures: int) -> float:
    """Return for how many seconds a process leaves a standby alone after its ``failures``-th error
    in turn, from 1.
    """
    return exponential(failures, first=_FIRST_REST, factor=2, ceiling=_LONGEST_REST)


def hosts_to_try(hosts: Sequence[HostFailures], used: int | None, now: float) -> list[int]:
    """Return the places of the ``hosts`` to connect to, in this order; they are given from the
    nearest, 0.

    Without a connection these are all that do not rest. With one to the host at place ``used``,
    they are the nearer ones, seldom: one that accepts connections but fails at lookups would take
    the checks from a host that works.
    """
    if used is None:
        return [
            place
            for place, host in enumerate(hosts)
            if now - host.last_at >= rest_after(host.number)
        ]
    return [
        place
        for place, host in enumerate(hosts[:used])
        if now - host.last_at >= NEARER_HOST_INTERVAL
    ]


def have_replayed(
    registered_names: Collection[str], replicating: Sequence[ReplicatingStandby], lsn: int
) -> bool:
    """Whether every registered standby is known to have replayed the primary's log up to ``lsn``.

    A name that the primary sees twice says nothing: either of the two may be the registered one.
    """
    return all(_has_replayed(name, replicating, lsn) for name in registered_names)


def _has_replayed(name: str, replicating: Sequence[ReplicatingStandby], lsn: int) -> bool:
    of_name = [standby for standby in replicating if standby.name == name]
    if len(of_name) != 1:
        return False
    replayed = of_name[0].replayed_lsn
    return replayed is not None and replayed >= lsn


def is_waited_out(committed_at: float, now: float) -> bool:
    """Whether a change has waited long enough: no position from before its commit counts. So has
    the end of a registration, before the row is removed.
    """
    return now - committed_at >= CHANGE_WAIT
