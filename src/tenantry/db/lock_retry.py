"""Changing tables that are in use: waiting briefly for a lock, and trying again."""

import logging
import time
from collections.abc import Callable
from typing import Final

import psycopg

SET_LOCK_TIMEOUT: Final = "SET lock_timeout = '2s'"
"""How long a statement waits for a lock: whoever wants the table after it waits behind it."""
_PAUSE: Final = 3.0
_TRIES: Final = 100
"""A transaction that runs for some minutes, such as a backup, is outlasted."""

logger = logging.getLogger(__name__)


def patiently(change: Callable[[], None]) -> None:
    """Make a change, again where it has not got its locks in time; it leaves nothing of a try that failed.

    Raises `psycopg.errors.LockNotAvailable` or `DeadlockDetected` when it has been tried for some minutes.
    """
    for left in reversed(range(_TRIES)):
        try:
            change()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            if not left:
                raise
            logger.warning("a migration waits for a table that is in use; it tries again in %g s", _PAUSE)
            time.sleep(_PAUSE)
        else:
            return
