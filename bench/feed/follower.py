"""Follow the feed, and store each event together with the cursor after it: ``python -m
bench.feed.follower FILE PORT...``.

It may be killed at any moment, and continues where it was.
"""

import contextlib
import http.client
import json
import os
import random
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from bench.faults.client import LOOPBACK, OK

TOKEN: Final = "BENCH_OPERATOR_TOKEN"  # noqa: S105  # the name of a variable
WAIT: Final = 5
_PATH: Final = "/api/v1/operator/events"
_EXPIRED: Final = 410
_TIMEOUT: Final = 15.0
_PAUSE: Final = 0.1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cursors (kind TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class FollowedEvent(NamedTuple):
    """An event as the follower stored it."""

    id: str
    type: str
    org_id: str
    version: int
    data: dict[str, Any]


class EventFile:
    """The follower's database."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.executescript(_SCHEMA)

    @property
    def cursor(self) -> str | None:
        """The cursor after the last event."""
        return self._value("next")

    @property
    def has_expired(self) -> bool:
        """Whether a cursor was answered with 410."""
        return self._value("expired") is not None

    def add(self, page: dict[str, Any]) -> None:
        """Store a page and its cursor, both or none."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(
            "INSERT INTO events (event) VALUES (?)", [(json.dumps(each),) for each in page["data"]]
        )
        self._set("next", page["nextCursor"])
        self._connection.execute("COMMIT")

    def note_expired(self, cursor: str) -> None:
        """Store that a cursor was answered with 410, and begin anew."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._set("expired", cursor)
        self._connection.execute("DELETE FROM cursors WHERE kind = 'next'")
        self._connection.execute("COMMIT")

    def count(self) -> int:
        """Return how many events are stored."""
        [[number]] = self._connection.execute("SELECT count(*) FROM events").fetchall()
        return int(number)

    def events(self) -> list[FollowedEvent]:
        """Return the events in the order in which they were stored."""
        rows = self._connection.execute("SELECT event FROM events ORDER BY number").fetchall()
        stored = [json.loads(text) for (text,) in rows]
        return [
            FollowedEvent(each["id"], each["type"], each["orgId"], each["version"], each["data"])
            for each in stored
        ]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _value(self, kind: str) -> str | None:
        row = self._connection.execute(
            "SELECT value FROM cursors WHERE kind = ?", (kind,)
        ).fetchone()
        return None if row is None else str(row[0])

    def _set(self, kind: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO cursors VALUES (?, ?)", (kind, value))


def follow(file: EventFile, ports: Sequence[int], chance: random.Random) -> None:
    """Follow the feed until the process ends; after each failure at another port."""
    while True:
        try:
            _follow_at(file, chance.choice(ports))
        except (OSError, http.client.HTTPException):
            time.sleep(_PAUSE)


def _follow_at(file: EventFile, port: int) -> None:
    """Follow the feed at a port until it refuses. Raises what its connection raises."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_TIMEOUT)
    with contextlib.closing(connection):
        while True:
            cursor = file.cursor
            given = {"wait": WAIT, **({"after": cursor} if cursor else {})}
            headers = {"Authorization": f"Bearer {os.environ[TOKEN]}"}
            connection.request("GET", f"{_PATH}?{urlencode(given)}", headers=headers)
            response = connection.getresponse()
            body = response.read()
            if response.status == _EXPIRED and cursor:
                file.note_expired(cursor)
            elif response.status != OK:
                raise http.client.HTTPException(f"{response.status} {body!r}")
            else:
                file.add(json.loads(body))


if __name__ == "__main__":
    _, path, *given_ports = sys.argv
    follow(EventFile(Path(path)), [int(port) for port in given_ports], random.SystemRandom())
