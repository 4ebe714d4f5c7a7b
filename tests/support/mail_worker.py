"""A worker in a separate process, which a test can kill; its arguments: CONNINFO SMTP_URL."""

import asyncio
import sys
from datetime import timedelta

from tenantry.common.clock import system_clock
from tenantry.integrations.smtp import Mailer, parse_smtp_url
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tenantry.notifications.mail_delivery import MailService
from tests.support.patience import patient_database, patient_queue


async def main(conninfo: str, smtp_url: str) -> None:
    database, queue = patient_database(conninfo, pool_size=2), patient_queue(conninfo)
    await database.open()
    await queue.open()
    mailer = Mailer(parse_smtp_url(smtp_url, "billing@example.com"))
    work = Work(
        MailService(database, mailer, system_clock),
        RetentionService(database, timedelta(days=90), system_clock),
    )
    await queue.run_worker(work)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
