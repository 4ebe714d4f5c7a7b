"""Mistakes that are easy to make in the checks on standbys: `tests/laws/test_standby_laws.py` would
find each of them.
"""

import math

import pytest
from msgspec.structs import replace

from tenantry.domain import standby_checks as rules
from tenantry.domain.standby_checks import (
    CheckSource,
    Position,
    Positions,
    StandbySession,
    StandbyState,
)
from tests.laws.test_standby_laws import runs
from tests.support.standby_simulation import Protocol

MOST_RUNS = 3000


def _any_answer(position: Position, session: StandbySession, state: StandbyState) -> bool:
    return state.is_in_recovery


def _any_history(position: Position, session: StandbySession, state: StandbyState) -> bool:
    proven = replace(session, proven_timeline=position.timeline)
    return rules.answer_counts(position, proven, state)


def _over_a_restart(
    positions: Positions, session: StandbySession, name: str, now: float
) -> Position | CheckSource:
    earlier = replace(session, connected_at=-math.inf)
    return rules.position_to_reach(positions, earlier, name, now)


def _without_a_registration(
    positions: Positions, session: StandbySession, name: str, now: float
) -> Position | CheckSource:
    registered = [replace(position, registrations={name: ""}) for position in positions]
    return rules.position_to_reach(tuple(registered), session, name, now)


MISTAKES = {
    "the position is left out": Protocol(answer_counts=_any_answer),
    "the wait is left out": Protocol(have_replayed=lambda *_: True),
    "one statement asks for both": Protocol(asks_in_one_statement=True),
    "a position is kept over a restart of the standby": Protocol(position_to_reach=_over_a_restart),
    "a standby of a former timeline counts": Protocol(answer_counts=_any_history),
    "registrations are read before the commit": Protocol(reads_registrations_early=True),
    "a position without the registration counts": Protocol(
        position_to_reach=_without_a_registration
    ),
    "a change does not wait for an expired registration": Protocol(waits_for_expired=False),
    "a registration is removed at once": Protocol(removes_after_a_wait=False),
    "a registration is removed that was written again": Protocol(removes_by_version=False),
    "the age is looked at before the last request joins": Protocol(looks_at_age_early=True),
    "a change waits for half a lease": Protocol(
        is_waited_out=lambda committed_at, now: now - committed_at >= rules.LEASE / 2
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_makes_a_check_stale(mistake: str) -> None:
    simulations = runs(MISTAKES[mistake], MOST_RUNS)
    assert any(simulation.stale for simulation in simulations)
