"""Follow the feed of changes, and keep each event together with the cursor after it."""

import asyncio
import json
import random
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from bench.torture.client import OK, LoadClient
from bench.torture.deployment import OPERATOR, Deployment

_PATH: Final = "/api/v1/operator/events"
_WAIT: Final = 5
"""Seconds that the service may wait for the next event."""
_EXPIRED: Final = 410
_PAUSE: Final = 0.1


class FollowedEvent(NamedTuple):
    """An event as the follower got it."""

    id: str
    type: str
    org_id: str
    version: int
    data: dict[str, Any]


class Follower:
    """Follows until it is canceled; after each failure at another port."""

    def __init__(self, site: Deployment, chance: random.Random) -> None:
        self.events: list[FollowedEvent] = []
        """In the order in which they came."""
        self.expired = 0
        """How many cursors got 410, after each of which the follower began anew."""
        self._client = LoadClient(site.ports, chance, host=site.host)

    async def run(self) -> None:
        """Ask for the events after the last one, again and again."""
        cursor: str | None = None
        header = f"Authorization: Bearer {OPERATOR}"
        while True:
            query = {"wait": _WAIT, **({"after": cursor} if cursor else {})}
            answer = await self._client.send("GET", f"{_PATH}?{urlencode(query)}", header)
            if answer.status == OK:
                page = json.loads(answer.body)
                cursor = page["nextCursor"]
                self.events += [
                    FollowedEvent(
                        each["id"], each["type"], each["orgId"], each["version"], each["data"]
                    )
                    for each in page["data"]
                ]
            elif answer.status == _EXPIRED and cursor:
                cursor, self.expired = None, self.expired + 1
            else:
                self._client.close()
                await asyncio.sleep(_PAUSE)
