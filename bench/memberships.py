"""The lookup of a user's tenant, where the token names none, by how many tenants the user is in.

Run it from the repository's folder: ``python -m bench.memberships``. It times the service's own lookup on a database of
its own, for one user alone and for a batch of ten, each with a page of projects. Figures are in ms, and this machine's.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import psycopg

from tenantry.auth.authentication_store import UserQuery, find_seats
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.db.migrate import migrate
from tenantry.domain.projects import Window
from tenantry_devkit.embedded_postgres import EmbeddedServer

ISSUER: Final = "https://login.example"
TENANTS: Final = (1, 20, 15_000)
ROUNDS: Final = 15
_FILL: Final = """
INSERT INTO tenants (id, name, owner_id, owner_email)
SELECT 'of-' || %(n)s || '-' || g, 'Bench', 'x', 'x@x.example' FROM generate_series(1, %(n)s) g;
INSERT INTO memberships (tenant_id, issuer, subject, role)
SELECT 'of-' || %(n)s || '-' || g, %(issuer)s, 'user-' || %(n)s, 'owner' FROM generate_series(1, %(n)s) g;
"""


def main() -> None:
    """Fill a database, and print one line for each number of tenants."""
    with tempfile.TemporaryDirectory(prefix="tenantry-bench-") as folder:
        server = EmbeddedServer(Path(folder))
        server.start()
        try:
            migrate(server.conninfo)
            asyncio.run(_measure(server.conninfo))
        finally:
            server.stop()


async def _measure(conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True, cursor_factory=psycopg.ClientCursor) as filling:
        for number in TENANTS:
            filling.execute(_FILL, {"n": number, "issuer": ISSUER})
        filling.execute("ANALYZE tenants, memberships")
    database = Database(conninfo, pool_size=1)
    await database.open()
    try:
        for number in TENANTS:
            user = UserQuery(ISSUER, f"user-{number}", None, Window(20))
            one, ten = [await _median(database, [user] * batch) for batch in (1, 10)]
            sys.stdout.write(f"{number:>6} tenants: {one:8.2f} ms alone, {ten:8.2f} ms for ten at once\n")
    finally:
        await database.close()


async def _median(database: Database, users: list[UserQuery]) -> float:
    taken = []
    for _ in range(ROUNDS):
        async with database.transaction(ACROSS_TENANTS) as connection:
            began = time.perf_counter()
            await find_seats(connection, users)
            taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


if __name__ == "__main__":
    main()
