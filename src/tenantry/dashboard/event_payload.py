"""The raw body of an event, as a page shows it."""

import re
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from tenantry.common.encoding import NOT_JSON

_MOST_CHARACTERS: Final = 40_000
_DEEPEST: Final = 32
_NO_BRACKETS: Final = re.compile(rb"[^][{}]+")
# Invisible characters and direction marks, which occur only in strings of JSON. An escape means the
# same there.
_INVISIBLE: Final = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


class ShownPayload(NamedTuple):
    text: str
    is_truncated: bool


def shown_payload(body: bytes) -> ShownPayload:
    """Format a body for a page, which shows the beginning of a long one."""
    text = readable_payload(body)
    return ShownPayload(text[:_MOST_CHARACTERS], len(text) > _MOST_CHARACTERS)


def readable_payload(body: bytes) -> str:
    """Format JSON with one value a line, without indentation if it is nested too deeply; other
    bytes as they are.
    """
    depths = accumulate(1 if bracket in b"[{" else -1 for bracket in _NO_BRACKETS.sub(b"", body))
    try:
        text = msgspec.json.format(
            body, indent=2 if max(depths, default=0) <= _DEEPEST else 0
        ).decode()
    except NOT_JSON:
        text = body.decode(errors="replace")
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
