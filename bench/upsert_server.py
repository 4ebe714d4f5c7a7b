"""The server that `bench.consume` compares with: ``python -m bench.upsert_server PORT CONNINFO``.

What an application does without tenantry: look up the key, and add to the counter below its limit,
in one transaction for each request.
"""

import asyncio
import json
import sys
from typing import Final

import uvicorn
from psycopg_pool import AsyncConnectionPool

from bench.support import PEPPER
from tenantry.common import process
from tenantry.domain.api_keys import Pepper
from tenantry.server.asgi_types import Receive, Scope, Send

_CONNECTIONS: Final = 16
_LIMIT: Final = 1_000_000_000
_FIND_KEY: Final = "SELECT org_id FROM api_keys WHERE digest = %s AND revoked_at IS NULL"
_UPSERT: Final = """
INSERT INTO usage_counters AS c (org_id, feature, mode, period_start, period_end, used)
VALUES (%s, %s, 'live', 0, 1, %s)
ON CONFLICT (org_id, feature, mode, period_start) DO UPDATE SET used = c.used + excluded.used
 WHERE c.used + excluded.used <= %s
RETURNING used
"""


class UpsertApp:
    """Counts each request in a separate transaction."""

    def __init__(self, conninfo: str) -> None:
        self._pool = AsyncConnectionPool(
            conninfo, min_size=_CONNECTIONS, max_size=_CONNECTIONS, open=False
        )
        self._pepper = Pepper(PEPPER.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or the lifespan."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        body = (await receive()).get("body", b"")
        headers = dict(scope["headers"])
        if not body:
            await _answer(send, 404, b"{}")
            return
        secret = headers[b"authorization"].removeprefix(b"Bearer ")
        feature = scope["path"].split("/")[4]
        used = await self._count(secret, feature, json.loads(body)["amount"])
        if used is None:
            await _answer(send, 403, b"{}")
        else:
            await _answer(send, 200, json.dumps({"used": used}).encode())

    async def _count(self, secret: bytes, feature: str, amount: int) -> int | None:
        async with self._pool.connection() as connection:
            key = await connection.execute(_FIND_KEY, (self._pepper.digest(secret),))
            found = await key.fetchone()
            if found is None:
                return None
            values = (found[0], feature, amount, _LIMIT)
            row = await (await connection.execute(_UPSERT, values)).fetchone()
            return None if row is None else int(row[0])

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await self._pool.open(wait=True)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._pool.close()
        await send({"type": "lifespan.shutdown.complete"})


async def _answer(send: Send, status: int, body: bytes) -> None:
    length = (b"content-length", b"%d" % len(body))
    headers = [(b"content-type", b"application/json"), length]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main(port: int, conninfo: str) -> None:
    """Serve in one process, until stopped."""
    config = uvicorn.Config(
        UpsertApp(conninfo), host="127.0.0.1", port=port, log_level="warning", access_log=False
    )
    process.set_for_serving()
    asyncio.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
