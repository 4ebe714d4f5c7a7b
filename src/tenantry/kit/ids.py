"""Identifiers that sort by the time they were made."""

import secrets
import time


def new_id(prefix: str) -> str:
    """Return ``prefix_`` and 32 hex digits: 48 bits of Unix milliseconds, then 80 random bits.

    Ids made later sort later, so that an index over them grows at its end.
    """
    return f"{prefix}_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"
