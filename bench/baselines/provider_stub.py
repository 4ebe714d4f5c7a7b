"""Answers the one question that dj-stripe asks the provider's API for each event, at once and
always the same.

``python -m bench.baselines.provider_stub PORT``: ``GET /v1/subscriptions/sub_<n>`` is tenant n's
subscription to ``price_pro``, whatever the events said.
"""

import asyncio
import json
import re
import sys
from typing import Final

from bench.events import BEGIN, compose

_PATH: Final = re.compile(rb"GET /v1/subscriptions/sub_(\d+)[ ?]")


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(_answer(head))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _answer(head: bytes) -> bytes:
    asked = _PATH.match(head)
    if asked is None:
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}"
    event = json.loads(compose(int(asked[1]), "evt_stub", BEGIN))
    body = json.dumps(event["data"]["object"]).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


async def main(port: int) -> None:
    """Serve until a signal comes."""
    server = await asyncio.start_server(_serve, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
