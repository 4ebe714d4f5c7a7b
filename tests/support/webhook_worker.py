"""A worker that sends webhooks in a separate process, which a test can kill; its arguments:
CONNINFO URL.
"""

import asyncio
import sys
from datetime import timedelta

from tenantry.common.clock import system_clock
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.integrations.webhook_client import WebhookClient
from tenantry.jobs.queue import JobQueue
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tenantry.outbound.webhooks import OutboundWebhooks
from tests.support.webhook_endpoint import endpoint_at


async def main(conninfo: str, url: str) -> None:
    database, queue = Database(conninfo, pool_size=2), JobQueue(conninfo)
    await database.open()
    await queue.open()
    endpoints = [endpoint_at(url)]
    webhooks = OutboundWebhooks(database, Outbox(), WebhookClient(), system_clock, endpoints)
    retention = RetentionService(database, timedelta(days=90), system_clock, ["app"])
    await queue.run_worker(Work(None, retention, webhooks=webhooks))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
