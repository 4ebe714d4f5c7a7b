"""Registered standbys that answer checks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg


async def register(conninfo: str, name: str, *, timeline: int = 1, seconds: float = 60) -> None:
    """Register a standby at the primary, as the processes that use it do; negative ``seconds``
    leave a registration that looks expired.
    """
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        await connection.execute(
            "INSERT INTO check_standbys (name, timeline, expires_at) "
            "VALUES (%s, %s, now() + make_interval(secs => %s))",
            (name, timeline, seconds),
        )


@asynccontextmanager
async def registered(conninfo: str, name: str) -> AsyncIterator[None]:
    """Register a standby for the block, on a database that others use."""
    await register(conninfo, name)
    yield
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        await connection.execute("DELETE FROM check_standbys WHERE name = %s", (name,))
