"""How many files a process may open; every connection is one."""

import logging
import resource
from typing import Final

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
