"""Ctrl-C during long work: the batch in flight ends, and the command says what was done and how to
go on.
"""

import asyncio
import shlex
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from tenantry_cli.output import CommandError, own_command, print_lines, say

STOPPED: Final = "Interrupted."
"""What a JSON document has as the reason why the work stopped."""


_STOPPED_AT_ONCE: Final = (
    "Stopped at once. What was done before the batch in flight is kept; that batch is kept whole or rolled back. Run "
    "the same command again: nothing counts twice."
)


def named(tenants: Sequence[str]) -> list[str]:
    """Return the options that name these tenants."""
    return [word for tenant_id in tenants for word in ("--org", tenant_id)]


class Interruption:
    """Whether Ctrl-C was pressed: `is_requested` tells the work to stop after the batch in
    flight.
    """

    def __init__(self) -> None:
        self._presses = 0

    def is_requested(self) -> bool:
        return self._presses > 0

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Handle Ctrl-C during the block, where no task runs: the first one asks to stop, the
        second one ends the block.

        Raises `CommandError` at the second.
        """

        def press(*_: object) -> None:
            if self._is_first_press():
                return
            raise KeyboardInterrupt

        try:
            before = signal.signal(signal.SIGINT, press)
        except ValueError:  # not in the main thread: no signal arrives here
            yield
            return
        try:
            yield
        except KeyboardInterrupt:
            raise CommandError(_STOPPED_AT_ONCE) from None
        finally:
            signal.signal(signal.SIGINT, before)

    def _is_first_press(self) -> bool:
        self._presses += 1
        if self._presses == 1:
            say("Stopping after the batch in flight. Press Ctrl-C again to stop at once.")
        return self._presses == 1

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Handle Ctrl-C during the block, in the running task: the first one asks to stop, the
        second one cancels it.

        Raises `CommandError` at the second.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()

        def press() -> None:
            if not self._is_first_press() and task is not None:
                task.cancel()

        with suppress(RuntimeError, ValueError):  # not in the main thread: no signal arrives here
            loop.add_signal_handler(signal.SIGINT, press)
        try:
            yield
        except asyncio.CancelledError:
            if task is None or self._presses <= 1:
                raise
            task.uncancel()
            raise CommandError(_STOPPED_AT_ONCE) from None
        finally:
            loop.remove_signal_handler(signal.SIGINT)


class LongWork(Interruption):
    """Work in batches that Ctrl-C stops, and the command that asked for it: its words without
    --dry-run and --json.
    """

    def __init__(self, *words: str, dry_run: bool, as_json: bool) -> None:
        super().__init__()
        self._words = words
        self.dry_run = dry_run
        self.as_json = as_json

    def show(self, lines: Iterable[str]) -> None:
        """Print results as they come, which --json prints at the end."""
        if not self.as_json:
            print_lines(lines)

    def continued(self, *options: str) -> str:
        """Return the command that continues stopped work, with the flags that it had."""
        flags = ["--dry-run"] * self.dry_run + ["--json"] * self.as_json
        return f"{own_command()} {shlex.join([*self._words, *options, *flags])}"
