"""A grant ends at its second on every process, without a job."""

import asyncio
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import httpx2

from tests.support import figures
from tests.support.command_runner import invoke_async
from tests.support.commands import SECRETS
from tests.support.deployment import add_owner, deployed

PROCESSES: Final = 4
CONNECTIONS: Final = 16
LASTS: Final = 5
"""Seconds from when the grant is set to its end, at most."""


class Asked(NamedTuple):
    """A request: when it was sent, when its answer was there, and the access that it said."""

    started: float
    ended: float
    access: tuple[str, str, str]


def access_of(answer: httpx2.Response) -> tuple[str, str, str]:
    headers = answer.headers
    return headers["x-access"], headers["x-effective-plan"], headers["x-plan"]


async def test_a_grant_ends_at_its_second_on_every_process(
    database_url: str, tmp_path: Path, record_property: figures.RecordProperty
) -> None:
    owner = await add_owner(database_url, tmp_path)

    async def ask(client: httpx2.AsyncClient, until: float) -> list[Asked]:
        """Ask over one connection, again and again, until the grant has ended."""
        asked = list[Asked]()
        while not asked or asked[-1].started < until:
            started = time.time()
            answer = await client.get("/api/v1/auth/verify/-")
            asked.append(Asked(started, time.time(), access_of(answer)))
        return asked

    async with deployed(database_url, tmp_path, WORKERS=str(PROCESSES)) as deployment:
        clients = [
            httpx2.AsyncClient(
                base_url=deployment.base_url,
                headers={"Authorization": f"Bearer {owner}"},
                trust_env=False,
                timeout=30,
            )
            for _ in range(CONNECTIONS)
        ]
        for client in clients:
            await client.get("/api/v1/auth/verify/-")
        until = math.floor(time.time()) + LASTS
        terms = ("--plan", "pro", "--until", datetime.fromtimestamp(until, UTC).isoformat())
        done = await invoke_async(
            *("admin", "grant", "acme", "contract", *terms, "--reason", "by invoice"),
            folder=tmp_path,
            DATABASE_URL=database_url,
            **SECRETS,
        )
        assert done.code == 0, done.err
        results = await asyncio.gather(*(ask(client, until) for client in clients))
        for client in clients:
            await client.aclose()
    asked = [each for result in results for each in result]
    before = [each.access for each in asked if each.ended < until]
    after = [each.access for each in asked if each.started >= until]
    wrong = len([each for each in before if each != ("full", "pro", "pro")])
    wrong += len([each for each in after if each != ("none", "free", "free")])
    ran = {"processes": PROCESSES, "before": len(before), "after": len(after)}
    figures.record(record_property, "Requests around the end of a grant", ran, {"tenantry": wrong})
    assert (len(after), wrong) == (CONNECTIONS, 0)
