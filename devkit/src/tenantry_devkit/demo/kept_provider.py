"""The demo's payment provider: a simulated one whose account is kept in a file from one start to the next."""

import asyncio
import logging
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from tenantry.common.clock import from_epoch
from tenantry_devkit.demo.setup import write_private
from tenantry_devkit.simulator import AccountState, Simulator
from tenantry_devkit.simulator.engine import decoded, encoded
from tenantry_devkit.simulator.http import Receive, Scope, Send

_log = logging.getLogger(__name__)

FILE: Final = "payment-provider.json"
"""In the data folder."""
_POLL_SECONDS: Final = 0.1
_SAVE_SECONDS: Final = 1.0


class KeptProvider:
    """Serves ``simulator``, and writes its account to ``file`` after each request and after each second of changes.

    The account of the run before is restored when `url` is set. Simulated time continues from there, and reaches
    ``not_before`` at least. What became due meanwhile happens after `begin`, once the service takes events.
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
        """Where it is served, without a slash at the end."""
        return self.simulator.url

    @url.setter
    def url(self, url: str) -> None:
        self.simulator.url = url
        if self._restored is not None:
            self.simulator.restore(self._restored)
            self._restored = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.simulator(scope, receive, send)
        self._keep()

    def begin(self) -> None:
        """Let time pass, and send events. Any thread may call it."""
        self._has_begun.set()

    async def run(self) -> None:
        """Do what becomes due, until cancelled; then write the account a last time."""
        try:
            while not self._has_begun.is_set():  # noqa: ASYNC110  # another thread sets it
                await asyncio.sleep(_POLL_SECONDS)
            await self.simulator.advance(max(self._not_before - self.simulator.now, timedelta(0)))
            async with asyncio.TaskGroup() as group:
                group.create_task(self.simulator.run())
                while True:
                    self._keep()
                    await asyncio.sleep(_SAVE_SECONDS)
        finally:
            self._keep(always=True)

    def _keep(self, *, always: bool = False) -> None:
        """Write the account if more than its time has changed."""
        state = self.simulator.state()
        content = encoded(replace(state, now=0))
        if always or content != self._written:
            self._written = content
            write_private(self._file, encoded(state))


def _read(file: Path) -> AccountState | None:
    try:
        return decoded(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("%s cannot be read, so the payment provider begins anew: %s", file, error)
        return None
