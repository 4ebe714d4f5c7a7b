"""How the values of a token are written for people."""

import json
from datetime import UTC, datetime
from typing import Final

import msgspec

_MOST_SHOWN: Final = 120
_UNITS: Final = (("d", 24 * 3600), ("h", 3600), ("min", 60), ("s", 1))


def as_json(value: object) -> str:
    """A value of a token as JSON, cut to what fits a line."""
    if value is msgspec.UNSET:
        return "none"
    try:
        text = json.dumps(value)
    except RecursionError:
        return "nested deeply"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text):,} characters)"


def moment(seconds: float, now: float) -> str:
    """A time of a token beside its distance to the present: ``2026-01-01T13:00:00Z, in 59 min 30 s``."""
    try:
        shown = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return as_json(seconds)
    distance = int(seconds - now)
    if not distance:
        return f"{shown}, now"
    return f"{shown}, in {span(distance)}" if distance > 0 else f"{shown}, {span(-distance)} ago"


def span(seconds: float) -> str:
    """A length of time in its two biggest units: ``1 h``, ``59 min 30 s``."""
    parts, rest = [], int(seconds)
    for unit, size in _UNITS:
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
    return " ".join(parts[:2]) or "0 s"
