"""A primary and a standby with the service's schema, on which checks can be answered."""

from collections.abc import Iterator
from typing import Final

from tenantry.db.migrate import migrate
from tests.support.database_server import FAST_SETTINGS, Pair, server_folder

NAMED: Final = (*FAST_SETTINGS, "cluster_name=near")
"""Settings of a standby that the primary sees under this name."""


def migrated_pair() -> Iterator[Pair]:
    """Start both, and stop them at the end; for fixtures."""
    with server_folder() as folder:
        pair = Pair(folder, NAMED)
        pair.start()
        try:
            migrate(pair.primary.conninfo)
            yield pair
        finally:
            pair.stop()


def catch_up(pair: Pair) -> None:
    """Wait until the standby has replayed all that is committed."""
    [[lsn]] = pair.primary.rows("SELECT pg_current_wal_flush_lsn()::text")
    pair.standby.until(f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'")
