"""Settings of this process: garbage collection and the limit of open files."""

import gc
import logging
import resource
from typing import Final

_YOUNG: Final = 20_000
_YOUNG_BEFORE_MIDDLE: Final = 2
_MIDDLE_BEFORE_ALL: Final = 40


def set_for_serving() -> None:
    """Leave what is there now out of every collection, and look less often for what requests leave behind.

    Almost everything that a request makes goes as soon as it is answered, without the collector, which by default goes
    through all that is in flight several times for each batch of requests. What lives longer, as connections do, is
    gone through in portions: in one go, thousands of new ones would hold up everybody for as long as that takes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _YOUNG_BEFORE_MIDDLE, _MIDDLE_BEFORE_ALL)


# How many files a process may open; every connection is one


KEPT: Final = 256
"""Files for all that is no client's connection: the database, mail, the provider, logs."""

logger = logging.getLogger(__name__)


def allow_connections(wanted: int) -> int:
    """Allow this process as many files as so many connections need, or as it gets; returns for how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    needed = wanted + KEPT
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    given = max(1, min(wanted, soft - KEPT))
    if given < wanted:
        logger.warning("%d connections at most, not %d: this process may open %d files", given, wanted, soft)
    return given
