"""Ctrl-C during long work: the batch in flight ends, and the command says what was done and how to
go on.
"""

import asyncio
import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from tenantry.cli.output import FAILED, CommandError, own_command, say

STOPPED: Final = "Interrupted."
"""What a JSON document has as the reason why the work stopped."""


def continued(words: Sequence[str], *, dry_run: bool, as_json: bool) -> str:
    """Return the command that continues stopped work, with the flags that it had."""
    flags = ["--dry-run"] * dry_run + ["--json"] * as_json
    return f"{own_command()} {shlex.join([*words, *flags])}"


def named(tenants: Sequence[str]) -> list[str]:
    """Return the options that name these tenants."""
    return [word for tenant_id in tenants for word in ("--tenant", tenant_id)]


class Interruption:
    """Whether Ctrl-C was pressed: `is_requested` tells the work to stop after the batch in
    flight.
    """

    def __init__(self) -> None:
        self._presses = 0

    def is_requested(self) -> bool:
        return self._presses > 0

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Handle Ctrl-C during the block, in the running task: the first one asks to stop, the
        second one cancels it.

        Raises `CommandError` at the second.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()

        def press() -> None:
            self._presses += 1
            if self._presses == 1:
                say("Stopping after the batch in flight. Press Ctrl-C again to stop at once.")
            elif task is not None:
                task.cancel()

        with suppress(RuntimeError, ValueError):  # not in the main thread: no signal arrives here
            loop.add_signal_handler(signal.SIGINT, press)
        try:
            yield
        except asyncio.CancelledError:
            if task is None or self._presses <= 1:
                raise
            task.uncancel()
            raise CommandError(
                "Stopped at once. What was done before the batch in flight is kept; that batch is kept whole or rolled "
                "back. Run the same command again: nothing counts twice.",
                FAILED,
            ) from None
        finally:
            loop.remove_signal_handler(signal.SIGINT)
