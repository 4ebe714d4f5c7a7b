"""A machine's watchdog, for Patroni's driver for tests: it writes to a named pipe what it would ask
of a device.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_TIMEOUT: Final = re.compile(rb"Ctimeout=(\d+)\n")
_DISARM: Final = b"V"
_LARGEST: Final = 4096


class Watchdog:
    """Calls ``reset`` if it is armed and gets no sign of life in time. Enter it in a running
    loop.
    """

    def __init__(self, device: Path, reset: Callable[[], object]) -> None:
        self.device = device
        self.resets = 0
        self._reset = reset
        self._timeout = 60.0
        self._timer: asyncio.TimerHandle | None = None
        self._pipe = -1

    def __enter__(self) -> Self:
        os.mkfifo(self.device)
        self.device.chmod(0o666)
        self._pipe = os.open(self.device, os.O_RDWR | os.O_NONBLOCK)
        asyncio.get_running_loop().add_reader(self._pipe, self._read)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe)
        self._disarm()
        os.close(self._pipe)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            written = os.read(self._pipe, _LARGEST)
            for match in _TIMEOUT.finditer(written):
                self._timeout = float(match[1])
            self._disarm()
            if not written.endswith(_DISARM):
                self._timer = asyncio.get_running_loop().call_later(self._timeout, self._fire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self.resets += 1
        self._reset()
