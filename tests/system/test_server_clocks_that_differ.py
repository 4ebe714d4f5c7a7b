"""A process whose clock differs from the database's. `tests/integration` has services whose clocks
differ.
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

import psycopg

from tests.support.required import debian_program

ROOT: Final = Path(__file__).parents[2]


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
