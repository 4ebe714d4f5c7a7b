"""A worker that sets seats in a separate process, which a test can kill; its arguments: CONNINFO
PROVIDER_URL ISSUER CATALOG, which is TOML.
"""

import asyncio
import sys
from contextlib import aclosing
from datetime import timedelta

from tenantry.billing.seats import SeatService
from tenantry.common.clock import system_clock
from tenantry.common.secret import Secret
from tenantry.db.outbox import Outbox
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.issuers import Issuers
from tenantry.domain.plans import parse_catalog
from tenantry.integrations.stripe.client import ProviderApi
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tenantry_devkit.simulator import SECRET_KEY
from tests.support.patience import patient_database, patient_queue


async def main(conninfo: str, provider_url: str, issuer: str, catalog: str) -> None:
    database, queue = patient_database(conninfo, pool_size=2), patient_queue(conninfo)
    await database.open()
    await queue.open()
    policy = BillingPolicy(parse_catalog(catalog))
    async with aclosing(ProviderApi(Secret(SECRET_KEY), provider_url)) as provider:
        seats = SeatService(database, provider, policy, Outbox(), system_clock, Issuers(issuer))
        retention = RetentionService(database, timedelta(days=90), system_clock)
        await queue.run_worker(Work(None, retention, seats=seats))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
