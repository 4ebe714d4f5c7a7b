"""A progress bar on stderr for runs that last, where somebody is looking."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

PATIENCE: Final = 1.0
"""Seconds that a run may last without a bar."""


@contextmanager
def progress(
    what: str, total: int, *, console: Console | None = None, patience: float = PATIENCE
) -> Iterator[Callable[[int], None]]:
    """A function to call with how many of ``total`` have been done since the last call."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    begun = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # what goes into a file or pipe must not end up on stderr
    )
    task = bar.add_task(what, total=total)

    def advance(done: int) -> None:
        bar.advance(task, done)
        if not bar.live.is_started and time.monotonic() - begun >= patience:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()
