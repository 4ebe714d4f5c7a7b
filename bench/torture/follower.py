"""Follow the feed, and store each page together with the cursor after it: ``python -m
bench.torture.follower FILE PORT...``.

It may be killed at any moment, and continues where it was.
"""

import contextlib
import http.client
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from bench.torture.client import LOOPBACK, OK

TOKEN: Final = "BENCH_OPERATOR_TOKEN"  # noqa: S105  # the name of a variable
WAIT: Final = 5
_PATH: Final = "/api/v1/operator/events"
_EXPIRED: Final = 410
_TIMEOUT: Final = 15.0
_PAUSE: Final = 0.1

Page = dict[str, Any]
"""The events of an answer and the cursor after it; ``expired`` is a cursor that got 410, after
which the follower begins anew.
"""


class FollowedEvent(NamedTuple):
    """An event as the follower stored it."""

    id: str
    type: str
    org_id: str
    version: int
    data: dict[str, Any]


def read_pages(path: Path) -> list[Page]:
    """Return the pages of a file, a line each; one that was not stored whole is left out."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def followed_events(pages: Sequence[Page]) -> list[FollowedEvent]:
    """Return the events in the order in which they were stored."""
    return [
        FollowedEvent(each["id"], each["type"], each["orgId"], each["version"], each["data"])
        for page in pages
        for each in page["data"]
    ]


def follow(path: Path, ports: Sequence[int], chance: random.Random) -> None:
    """Follow the feed until the process ends; after each failure at another port."""
    path.touch()
    pages = read_pages(path)
    cursor = pages[-1]["nextCursor"] if pages else None
    with path.open("r+b", buffering=0) as file:
        file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.seek(0, os.SEEK_END)
        while True:
            try:
                for page in _pages(cursor, chance.choice(ports)):
                    file.write(json.dumps(page).encode() + b"\n")
                    cursor = page["nextCursor"]
            except (OSError, http.client.HTTPException):
                time.sleep(_PAUSE)


def _pages(cursor: str | None, port: int) -> Iterator[Page]:
    """Yield the pages after a cursor until the port refuses. Raises what its connection raises."""
    headers = {"Authorization": f"Bearer {os.environ[TOKEN]}"}
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_TIMEOUT)
    with contextlib.closing(connection):
        while True:
            given = {"wait": WAIT, **({"after": cursor} if cursor else {})}
            connection.request("GET", f"{_PATH}?{urlencode(given)}", headers=headers)
            response = connection.getresponse()
            body = response.read()
            page: Page
            if response.status == _EXPIRED and cursor:
                page = {"expired": cursor, "data": [], "nextCursor": None}
            elif response.status != OK:
                raise http.client.HTTPException(f"{response.status} {body!r}")
            else:
                page = json.loads(body)
            yield page
            cursor = page["nextCursor"]


if __name__ == "__main__":
    _, name, *given_ports = sys.argv
    follow(Path(name), [int(port) for port in given_ports], random.SystemRandom())
