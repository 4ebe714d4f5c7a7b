"""Both ends of a relay: a receiver over HTTP, the service over HTTP, and an observer that
records.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from tenantry.app import build_app
from tenantry.common.clock import system_clock
from tenantry.common.secret import Secret
from tenantry.integrations.stripe.client import ProviderApi
from tenantry.integrations.stripe.signature import SignatureVerifier
from tenantry.server.asgi_types import AsgiApp, Receive, Scope, Send
from tenantry_devkit.local.endpoint import RetryPolicy
from tenantry_devkit.local.relay import Relay, RelayAttempt, RelayOutcome
from tenantry_devkit.serving import serving
from tenantry_devkit.simulator import Simulator
from tests.support.app import lifespan, make_settings

SECRET: Final = "whsec_of_a_relay_0123456789"
QUICK: Final = RetryPolicy(interval=0.01, first=0.01, ceiling=0.02, retries=2)
_TIMEOUT: Final = 30.0


class Receiver:
    """A webhook endpoint: stores accepted events, and answers with ``statuses`` until they are used
    up, then with 200.

    While ``open`` is not set, it does not answer.
    """

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[bytes] = []
        self.statuses: deque[int] = deque()
        self.text = "No."
        self.open = asyncio.Event()
        self.open.set()
        self._verifier = SignatureVerifier([SECRET], tolerance=300)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The accepted events, in order of arrival."""
        return [json.loads(body) for body in self.bodies]

    @property
    def ids(self) -> list[str]:
        """The ids of the accepted events, in order of arrival."""
        return [event["id"] for event in self.events]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        await self.open.wait()
        headers = dict(scope["headers"])
        assert headers[b"provider-signature"] == headers[b"stripe-signature"]
        now = system_clock().timestamp()
        assert self._verifier.check(headers[b"provider-signature"], body, now) is None
        status = self.statuses.popleft() if self.statuses else 200
        if status == 200:
            self.bodies.append(body)
        text = b"OK" if status == 200 else self.text.encode()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": text})


class Served:
    """An application with an address."""

    def __init__(self, app: AsgiApp) -> None:
        self.url = ""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


@asynccontextmanager
async def served_service(conninfo: str, **values: str) -> AsyncIterator[str]:
    """Serve the whole service over HTTP, in the test's event loop; give its address."""
    app = build_app(make_settings(PROVIDER_WEBHOOK_SECRET=SECRET, **values), conninfo)
    async with lifespan(app), serving(Served(app)) as served:
        yield served.url


class RelayRecorder:
    """Records the attempts and notices of a relay."""

    def __init__(self) -> None:
        self.attempts: list[RelayAttempt] = []
        self.notices: list[str] = []
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, outcome: RelayOutcome) -> list[RelayAttempt]:
        """Return the attempts with this outcome."""
        return [attempt for attempt in self.attempts if attempt.outcome is outcome]

    async def until(self, is_so: Callable[["RelayRecorder"], bool]) -> None:
        """Wait until the condition holds."""
        async with asyncio.timeout(_TIMEOUT), self._changed:
            await self._changed.wait_for(lambda: is_so(self))

    async def until_delivered(self, count: int) -> None:
        """Wait for so many deliveries."""
        await self.until(lambda recorder: len(recorder.of(RelayOutcome.DELIVERED)) >= count)

    def attempted(self, attempt: RelayAttempt) -> None:
        self.attempts.append(attempt)
        self._wake()

    def notice(self, text: str) -> None:
        self.notices.append(text)
        self._wake()

    def _wake(self) -> None:
        task = asyncio.ensure_future(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def provider_api(simulator: Simulator, key: str | None = None) -> AsyncIterator[ProviderApi]:
    """Give a client of this provider, with its key or another."""
    provider = ProviderApi(Secret(key or simulator.secret_key), simulator.url)
    try:
        yield provider
    finally:
        await provider.aclose()


@asynccontextmanager
async def running(relay: Relay) -> AsyncIterator["asyncio.Task[None]"]:
    """Run the relay for the length of the block."""
    task = asyncio.create_task(relay.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
