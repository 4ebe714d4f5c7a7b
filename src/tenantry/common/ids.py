"""Identifiers that sort by the time they were made."""

import secrets
import time

_NANOSECONDS_IN_ONE = 1_000_000


def new_id(prefix: str) -> str:
    """Return ``prefix_`` and 32 hex digits: 48 bits of Unix milliseconds, 20 of nanoseconds in one, 60 random ones.

    Ids made later sort later, also those of one process in one transaction, and an index over them grows at its end.
    """
    milliseconds, nanoseconds = divmod(time.time_ns(), _NANOSECONDS_IN_ONE)
    return f"{prefix}_{milliseconds:012x}{nanoseconds:05x}{secrets.randbits(60):015x}"
