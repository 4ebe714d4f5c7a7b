"""A worker that sends webhooks in a separate process, which a test can kill; its arguments:
CONNINFO URL, and if its clock shall be fast, BEGINNING SPEED.
"""

import asyncio
import sys
from datetime import datetime, timedelta

from tenantry.common.clock import Clock, system_clock
from tenantry.db.outbox import Outbox
from tenantry.integrations.webhook_client import WebhookClient
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tenantry.outbound.webhooks import OutboundWebhooks
from tests.support.patience import patient_database, patient_queue
from tests.support.webhook_endpoint import endpoint_at


def fast_clock(beginning: datetime, speed: int) -> Clock:
    """A clock that is right at the beginning, and fast since then."""
    return lambda: beginning + (system_clock() - beginning) * speed


async def main(conninfo: str, url: str, beginning: str = "", speed: str = "1") -> None:
    database, queue = patient_database(conninfo, pool_size=2), patient_queue(conninfo)
    await database.open()
    await queue.open()
    clock = fast_clock(datetime.fromisoformat(beginning), int(speed)) if beginning else system_clock
    endpoints = [endpoint_at(url)]
    webhooks = OutboundWebhooks(database, Outbox(), WebhookClient(timeout=1.0), clock, endpoints)
    retention = RetentionService(database, timedelta(days=90), system_clock, ["app"])
    await queue.run_worker(Work(None, retention, webhooks=webhooks))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
