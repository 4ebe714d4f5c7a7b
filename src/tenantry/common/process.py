"""Process settings: garbage collection, signals, and the limit of open files."""

import gc
import logging
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_GC_THRESHOLDS: Final = (20_000, 2, 40)
# open files for all but client connections: database, mail, provider, logs
RESERVED_FILES: Final = 256

logger = logging.getLogger(__name__)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect no garbage while this process imports modules.

    Nearly all objects of an import stay. The collector would look at them again and again, for a
    tenth of the time of the import.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def set_for_serving() -> None:
    """Exclude the objects that exist now from garbage collection, and collect less often.

    Most objects of a request are freed by reference counting. With the default thresholds the
    collector would scan all requests in progress several times a batch. The oldest generation is
    collected in portions: scanning thousands of new connections at once would delay every request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def is_deaf_to_hangup() -> bool:
    """Return whether the process was started to ignore SIGHUP, which a closed terminal sends, as
    ``nohup`` does: then it handles no SIGHUP.
    """
    return signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def allow_connections(wanted: int) -> int:
    """Raise the limit of open files for this many connections; return how many it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    needed = wanted + RESERVED_FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    allowed = max(1, min(wanted, soft - RESERVED_FILES))
    if allowed < wanted:
        logger.warning(
            "accepting at most %d connections, not %d: the limit of open files is %d",
            allowed,
            wanted,
            soft,
        )
    return allowed
