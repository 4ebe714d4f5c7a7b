"""A receiver of the simulator's events, and the simulator that the tests start with."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import httpx2

from tenantry.integrations.stripe.signature import SignatureVerifier
from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry_devkit.simulator import ProviderEvent, Simulator

START: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
WALL_CLOCK: Final = datetime(2026, 3, 1, tzinfo=UTC)
"""The time by which signatures are made: not the simulated one."""
SECRET: Final = "whsec_only_for_tests_of_the_simulator"
WEBHOOK: Final = "http://receiver.example/webhook"
DAY: Final = 86_400
_PATIENCE: Final = 20.0


def a_simulator(**options: Any) -> Simulator:
    """A simulator that does the same each time."""
    return Simulator(**{"start": START, "wall_clock": lambda: WALL_CLOCK, **options})


class Receiver:
    """A webhook endpoint: keeps what it takes, and answers with ``statuses`` until they are used
    up, then with 200.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []
        self.statuses: deque[int] = deque()
        self._arrival = asyncio.Condition()
        self._verifier = SignatureVerifier([SECRET], tolerance=3600)

    @property
    def ids(self) -> list[str]:
        """The ids of the events that it took, in the order in which they came."""
        return [event["id"] for event in self.events]

    @property
    def types(self) -> list[str]:
        """Their types."""
        return [event["type"] for event in self.events]

    async def until_taken(self, count: int) -> None:
        """Wait for so many events."""
        async with asyncio.timeout(_PATIENCE), self._arrival:
            await self._arrival.wait_for(lambda: len(self.events) >= count)

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        header = dict(_scope["headers"])[b"stripe-signature"]
        assert self._verifier.check(header, body, WALL_CLOCK.timestamp()) is None
        status = self.statuses.popleft() if self.statuses else 200
        (self.events if status == 200 else self.refused).append(json.loads(body))
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        async with self._arrival:
            self._arrival.notify_all()


@asynccontextmanager
async def simulator_with_receiver(**options: Any) -> AsyncIterator[tuple[Simulator, Receiver]]:
    """A simulator that sends all events to a receiver, without a network between."""
    receiver = Receiver()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(receiver)) as client:
        sim = a_simulator(client=client, **options)
        sim.add_endpoint(WEBHOOK, SECRET)
        yield sim, receiver


def types(events: list[ProviderEvent]) -> list[str]:
    """The types of events."""
    return [event.type for event in events]
