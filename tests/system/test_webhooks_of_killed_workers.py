"""Workers are killed again and again, and the receiver fails often: each event arrives."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

from tenantry.common.clock import system_clock
from tests.support.outbound_webhooks import Sending, ids, signature_of
from tests.support.patience import patient_database, patient_queue
from tests.support.service import ManualClock
from tests.support.webhook_endpoint import SECRET, UnreliableServer, endpoint_at, listening

ROOT: Final = Path(__file__).parents[2]
SPEED: Final = "5000"
"""The ten hours between two attempts take 7 s."""
WRITERS: Final = 8
EVENTS: Final = 50
KILLS: Final = (60, 150, 240)
"""After how many requests both workers are killed."""


async def test_killed_workers_and_a_failing_receiver_lose_no_event(conninfo: str) -> None:
    server = UnreliableServer(45)
    async with listening(server), patient_database(conninfo, pool_size=WRITERS) as database:
        beginning = system_clock()
        sending = Sending(database, [endpoint_at(server.url)], ManualClock(beginning))
        await sending.begin()
        queue = patient_queue(conninfo)
        await queue.open()
        writing = asyncio.gather(*(sending.publish(EVENTS) for _ in range(WRITERS)))
        for number in KILLS:
            async with workers(conninfo, server.url, beginning):
                await server.until(number)
            await queue.requeue_stalled(stalled_after=0)
        await writing
        async with workers(conninfo, server.url, beginning):
            await sending.until_delivered(WRITERS * EVENTS)
        await queue.close()
        published = await sending.events()
    assert len(published) == WRITERS * EVENTS
    assert sorted(server.accepted) == sorted(published)
    assert set(ids(server.received)) == set(server.accepted)
    for each in server.received:
        assert each.headers["webhook-signature"] == signature_of(each, SECRET)


@asynccontextmanager
async def workers(conninfo: str, url: str, beginning: datetime) -> AsyncIterator[None]:
    """Two workers, which are killed at the end of the block."""
    arguments = ["-m", "tests.support.webhook_worker", conninfo, url, beginning.isoformat(), SPEED]
    running = [
        await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=ROOT) for _ in range(2)
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            await process.wait()
