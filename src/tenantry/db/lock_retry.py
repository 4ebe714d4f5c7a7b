"""Lock retry: migrations of tables in use get a short lock timeout and retry."""

import logging
import time
from collections.abc import Callable
from typing import Final

import psycopg

SET_LOCK_TIMEOUT: Final = "SET lock_timeout = '2s'"  # statements of other users queue behind one that waits for a lock
_PAUSE: Final = 3.0
_ATTEMPTS: Final = 100  # enough to outlast a transaction of some minutes, such as a backup

logger = logging.getLogger(__name__)


def retry_on_lock_timeout(change: Callable[[], None], *, pause: float = _PAUSE) -> None:
    """Call ``change``, and again ``pause`` seconds after each lock timeout or deadlock. A failed call must roll back.

    Raises `psycopg.errors.LockNotAvailable` or `DeadlockDetected` after 100 attempts.
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            change()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            if not left:
                raise
            logger.warning("a migration waits for a table that is in use; it retries in %g s", pause)
            time.sleep(pause)
        else:
            return
