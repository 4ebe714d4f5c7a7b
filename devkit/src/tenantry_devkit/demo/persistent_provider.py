"""The demo's payment provider: a simulator whose account is stored in a file between runs."""

import asyncio
import logging
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from tenantry.common.clock import from_epoch
from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry_devkit.files import write_private
from tenantry_devkit.simulator import AccountState, Simulator

_log = logging.getLogger(__name__)

FILE: Final = "payment-provider.json"
_POLL_SECONDS: Final = 0.1
_SAVE_SECONDS: Final = 1.0


class PersistentProvider:
    """Serves ``simulator``, and writes its account to ``file`` after each request and each second of changes.

    Setting `url` restores the account of the previous run. Simulated time continues from there, and reaches
    ``not_before`` at least. What became due meanwhile happens after `begin`, once the service accepts events.
    """

    def __init__(self, file: Path, *, secret_key: str, seed: int, not_before: datetime) -> None:
        self._file = file
        self._not_before = not_before
        self._has_begun = threading.Event()
        self._written = b""
        self._restored = _read(file)
        start = not_before if self._restored is None else from_epoch(self._restored.now)
        self.simulator = Simulator(secret_key=secret_key, seed=seed, prices={}, start=start, running=True)

    @property
    def url(self) -> str:
        return self.simulator.url

    @url.setter
    def url(self, url: str) -> None:
        self.simulator.url = url
        if self._restored is not None:
            self.simulator.restore(self._restored)
            self._restored = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.simulator(scope, receive, send)
        self._save()

    def begin(self) -> None:
        """Let time pass, and send events. Any thread may call it."""
        self._has_begun.set()

    async def run(self) -> None:
        """Do what becomes due, until canceled; then save the account."""
        try:
            while not self._has_begun.is_set():  # noqa: ASYNC110  # another thread sets it
                await asyncio.sleep(_POLL_SECONDS)
            await self.simulator.advance(max(self._not_before - self.simulator.now, timedelta(0)))
            async with asyncio.TaskGroup() as group:
                group.create_task(self.simulator.run())
                while True:
                    self._save()
                    await asyncio.sleep(_SAVE_SECONDS)
        finally:
            self._save(always=True)

    def _save(self, *, always: bool = False) -> None:
        """Write the account if more than its time has changed."""
        state = self.simulator.state()
        content = replace(state, now=0).encode()
        if always or content != self._written:
            self._written = content
            write_private(self._file, state.encode())


def _read(file: Path) -> AccountState | None:
    try:
        return AccountState.decode(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("cannot read %s, so the payment provider starts empty: %s", file, error)
        return None
