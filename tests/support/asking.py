"""A request to the provider from a separate process, whose clock may differ; its argument:
CONNINFO.
"""

import asyncio
import sys

from tenantry.db.connection import Connection
from tenantry.db.outbox import Outbox
from tenantry.domain.billing.ledger import SnapshotRequest


async def main(conninfo: str) -> None:
    async with await Connection.connect(conninfo) as connection:
        await Outbox(asks_provider=True).defer_snapshots(
            connection, [SnapshotRequest("acme", later=True)]
        )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
