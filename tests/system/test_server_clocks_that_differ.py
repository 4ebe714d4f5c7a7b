"""Clocks of servers that differ, or are stepped. `tests/integration` has services whose clocks
differ.
"""

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import psycopg

from tenantry.db.connection import of_tenant
from tenantry.db.migrate import migrate
from tenantry.domain.standby_checks import CheckSource
from tests.support.database_server import Pair, server_folder
from tests.support.guarded_events import written_by_test
from tests.support.patience import patient_database
from tests.support.required import debian_program
from tests.support.standby_lookups import MovableClock, lookups
from tests.support.standby_pairs import NAMED

ROOT: Final = Path(__file__).parents[2]
HOUR: Final = 3600
RETRY: Final = 5.0
"""Seconds after which a process surely registers a standby again."""


class SteppedClock:
    """The clock of processes with this environment, ahead by what a file says."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.step_to(0)
        environment = [debian_program("faketime"), "-f", "+0", "printenv", "LD_PRELOAD"]
        self.environment: Final = {
            "LD_PRELOAD": subprocess.check_output(environment, text=True).strip(),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def step_to(self, seconds: int) -> None:
        """Set the clock ahead of the true time by so many seconds."""
        self._file.write_text(f"{seconds:+d}")


async def test_a_question_is_put_off_for_a_moment_by_the_clock_of_the_database(
    conninfo: str,
) -> None:
    asking = (sys.executable, "-m", "tests.support.asking", conninfo)
    process = await asyncio.create_subprocess_exec(
        debian_program("faketime"), "-f", "+12h", *asking, cwd=ROOT
    )
    assert await process.wait() == 0
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        cursor = await connection.execute(
            "SELECT scheduled_at < now() + interval '1 hour' FROM procrastinate_jobs"
        )
        assert await cursor.fetchall() == [(True,)]


async def test_no_check_misses_a_change_after_the_clock_of_the_primary_was_stepped() -> None:
    with server_folder() as folder:
        pair, clock = Pair(folder, NAMED), SteppedClock(folder / "clock")
        pair.primary.environment = clock.environment
        pair.start()
        try:
            migrate(pair.primary.conninfo)
            await change_after_steps(pair, clock)
        finally:
            pair.stop()


async def change_after_steps(pair: Pair, clock: SteppedClock) -> None:
    """Check on a standby that replays nothing, after a step forwards and one backwards."""
    lease_clock = MovableClock()
    async with (
        lookups(pair.primary.conninfo, pair.standby.conninfo, lease_clock) as found,
        patient_database(pair.primary.conninfo, pool_size=1) as database,
    ):
        for number, ahead in enumerate((HOUR, -HOUR)):
            await found.until(CheckSource.STANDBY)
            pair.standby.rows("SELECT pg_wal_replay_pause()")
            pair.standby.until("SELECT pg_get_wal_replay_pause_state() = 'paused'")
            clock.step_to(ahead)
            is_stepped = f"SELECT abs(extract(epoch FROM now()) - {time.time() + ahead}) < 60"  # noqa: S608
            pair.primary.until(is_stepped)
            await found.until(CheckSource.STANDBY)
            async with database.change(of_tenant(f"org-{number}")) as connection:
                await written_by_test(connection)
                await connection.execute(
                    "INSERT INTO tenants (id, name, owner_id, owner_email) VALUES (%s, '', '', '')",
                    (f"org-{number}",),
                )
            assert await found.value("SELECT count(*) FROM tenants") == number + 1
            pair.standby.rows("SELECT pg_wal_replay_resume()")
            lease_clock.move(RETRY)
