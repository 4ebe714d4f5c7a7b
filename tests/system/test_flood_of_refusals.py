"""Refused requests of one key as fast as a load generator sends them, to two processes."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psycopg
import pytest

from tests.support.deployment import Deployment, add_owner, deployed
from tests.support.postgres import as_url
from tests.support.required import debian_program
from tests.support.service import JsonObject

FLOOD: Final = 10_000
NEEDED: Final = "/api/v1/auth/verify/members:read"
ROWS: Final = """
SELECT principal, count(*), count(DISTINCT (minute, code)), sum(counted)::bigint
  FROM rejections
 GROUP BY principal
"""


CONNECTIONS: Final = 32
SCRIPT: Final = """
refused = 0
function setup(thread) only = thread end
function response(status) if status == 403 or status == 429 then refused = refused + 1 end end
function done() io.write(string.format("REFUSED %d\\n", only:get("refused"))) end
"""
"""Counts the refusals: a process that has too much to do answers with 503 and records nothing."""


@pytest.fixture
def wrk(tmp_path: Path) -> Sequence[str]:
    """The command of three seconds of load."""
    script = tmp_path / "refused.lua"
    script.write_text(SCRIPT)
    return debian_program("wrk"), "-t1", f"-c{CONNECTIONS}", "-d3s", "-s", str(script)


async def test_a_flood_writes_a_row_a_minute_and_reason_and_pushes_out_no_others(
    conninfo: str, tmp_path: Path, wrk: Sequence[str]
) -> None:
    address = as_url(conninfo)
    credential = await add_owner(address, tmp_path)
    runs, refused = 0, 0
    async with deployed(address, tmp_path, credential=credential) as deployment:
        quiet, flooding = [await new_key(deployment, name) for name in ("Quiet", "Flooding")]
        async with deployment.client(quiet["secret"]) as client:
            assert (await client.get(NEEDED)).status_code == 403
        while refused < FLOOD:
            refused += await flood(wrk, deployment.base_url + NEEDED, flooding["secret"])
            runs += 1
        await deployment.command.end(signal.SIGTERM)  # writes the last ones
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        rows = await (await connection.execute(ROWS)).fetchall()
    found = {principal: numbers for principal, *numbers in rows}
    assert found[quiet["id"]] == [1, 1, 1]
    number, kinds, counted = found[flooding["id"]]
    assert number == kinds < 20
    assert refused <= counted <= refused + runs * CONNECTIONS, "the last answers may be on the way"


async def new_key(deployment: Deployment, name: str) -> JsonObject:
    async with deployment.client() as owner:
        body = {"orgId": "acme", "name": name, "scopes": ["projects:read"]}
        made: JsonObject = (await owner.post("/api/v1/api-keys", json=body)).json()
        return made


async def flood(wrk: Sequence[str], url: str, secret: str) -> int:
    """Load the service; return how many requests were refused."""
    process = await asyncio.create_subprocess_exec(
        *wrk, "-H", f"Authorization: Bearer {secret}", url, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return int(output.partition(b"REFUSED ")[2])
