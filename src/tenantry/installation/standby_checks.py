"""Checks of the standbys that may answer checks of keys and tokens, and of the changes that wait
for them.
"""

import asyncio
import time
from typing import Final

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.db.connection import Connection
from tenantry.db.database import standby_hosts
from tenantry.db.standby_store import (
    StandbyIdentity,
    UnusableStandbyError,
    check_replicating,
    read_identity,
    read_position,
)
from tenantry.domain.standby_checks import CHANGE_WAIT, LEASE
from tenantry.installation import checks_store as store
from tenantry.installation.connection_troubles import trouble_of
from tenantry.installation.findings import CheckedDatabase, Finding, Level, ok, problem

_SUBJECT: Final = "standbys"
_LOOK: Final = 0.01
"""Seconds between two looks at a standby that is behind."""
_IS_PRIMARY: Final = "not in hot standby mode"


class StandbyLag(msgspec.Struct, frozen=True):
    """How far a standby is behind the primary."""

    name: str
    """By which the primary sees it."""
    position_seconds: float
    """How long the primary's answer took."""
    lag_bytes: int
    """How much of the log the standby lacked when the answer was there."""
    lag_seconds: float | None
    """How long it took to replay that; None: more than `LEASE`."""


async def check_standbys(database: CheckedDatabase) -> list[Finding]:
    """Check each standby of `DATABASE_CHECKS_URL` in the way in which a process does before it uses
    one, and each that changes wait for.
    """
    primary, conninfo = database.connection, database.settings.database_checks_url
    hosts = [] if conninfo is None else standby_hosts(conninfo)
    findings = [await _check_standby(primary, host) for host in hosts]
    registered = await store.read_registered_standbys(primary)
    if not registered and hosts:
        findings.append(Finding(Level.INFO, _SUBJECT, "no process uses one now"))
    return findings + [await _check_registered(primary, standby) for standby in registered]


async def _check_standby(primary: Connection, conninfo: str) -> Finding:
    place = _place_of(conninfo)
    try:
        return judge_lag(place, await _measure(primary, conninfo))
    except UnusableStandbyError as error:
        return problem("standbys.unusable", place=place, trouble=error)
    except (psycopg.OperationalError, TimeoutError) as error:
        if _IS_PRIMARY in str(error):
            return Finding(Level.INFO, _SUBJECT, f"{place} is the primary: checks skip it")
        return problem("standbys.unreachable", place=place, trouble=trouble_of(error))


def _place_of(conninfo: str) -> str:
    given = conninfo_to_dict(conninfo)
    host = given.get("host") or given.get("hostaddr") or "the local socket"
    return f"{host}:{given.get('port', 5432)}"


async def _measure(primary: Connection, conninfo: str) -> StandbyLag:
    """Raises `UnusableStandbyError`, `psycopg.OperationalError` and `TimeoutError`."""
    async with asyncio.timeout(DEFAULT_TIMEOUTS.connect):
        standby = await Connection.connect(conninfo, autocommit=True)
    async with standby, asyncio.timeout(DEFAULT_TIMEOUTS.statement):
        identity = await read_identity(standby)
        await check_replicating(primary, identity)
        return await _measure_lag(primary, standby, identity.name)


async def _measure_lag(primary: Connection, standby: Connection, name: str) -> StandbyLag:
    asked_at = time.monotonic()
    position = await read_position(primary)
    answered_at = time.monotonic()
    lag_bytes = lacking = position.lsn - await store.read_replayed(standby)
    while lacking > 0 and time.monotonic() - answered_at <= LEASE:
        await asyncio.sleep(_LOOK)
        lacking = position.lsn - await store.read_replayed(standby)
    lag_seconds = None if lacking > 0 else time.monotonic() - answered_at
    return StandbyLag(name, answered_at - asked_at, max(0, lag_bytes), lag_seconds)


def judge_lag(place: str, lag: StandbyLag) -> Finding:
    """Judge whether a standby is close enough to the primary to answer."""
    behind = f"{place} ({lag.name}) is {lag.lag_bytes} bytes behind"
    if lag.lag_seconds is None:
        return problem("standbys.behind", behind=behind, lease=LEASE, wait=CHANGE_WAIT)
    text = (
        f"{behind} and caught up in {_milliseconds(lag.lag_seconds)}; the primary's position takes "
        f"{_milliseconds(lag.position_seconds)} of the lease of {LEASE} s"
    )
    return ok(_SUBJECT, text)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


async def _check_registered(primary: Connection, standby: store.RegisteredStandby) -> Finding:
    if standby.seconds_left is None:
        text = f"the next change waits for {standby.name}, and removes its expired registration"
        return Finding(Level.INFO, _SUBJECT, text)
    what = f"{standby.name}, registered for {standby.seconds_left} s more"
    try:
        await check_replicating(primary, StandbyIdentity(standby.name))
    except UnusableStandbyError as error:
        return problem("standbys.awaited", what=what, trouble=error, wait=CHANGE_WAIT)
    return ok(_SUBJECT, f"changes wait for {what}")
