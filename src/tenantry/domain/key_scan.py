"""Finding API keys in bytes of any kind: text, binary, UTF-16."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tenantry.domain.api_keys import SECRET_LENGTH, is_well_formed, shown_parts

LONGEST: Final = 2 * SECRET_LENGTH
"""How many bytes a key takes at most: in UTF-16."""

# The digits are looked at without being taken, for a key may begin within what only looked like the end of another.
_NARROW: Final = re.compile(rb"svc_(?:live|test)_(?=([0-9A-Za-z]{49}))")
# Both byte orders: between two characters there is a zero in either.
_WIDE: Final = re.compile(rb"s\0v\0c\0_\0(?:l\0i\0v\0e|t\0e\0s\0t)\0_(?=((?:\0[0-9A-Za-z]){49}))")
_WIDE_BEGINNING: Final = b"s\0v\0c\0_\0"

Bytes = bytes | bytearray


class Found(NamedTuple):
    """A key, where it begins, and the characters of it that may be shown; ``wide`` in UTF-16."""

    offset: int
    wide: bool
    start: str
    last4: str


def may_hold_key(text: Bytes, length: int) -> bool:
    """Whether the first ``length`` bytes hold what looks like a key, checksum aside: quick, and mostly no."""
    if _NARROW.search(text, 0, length):
        return True
    return text.find(b"\0", 0, length) >= 0 and text.find(_WIDE_BEGINNING, 0, length) >= 0


def find_keys(text: Bytes) -> Iterator[Found]:
    """Every key with a true checksum, in order.

    Other text passes for a key once in 62 ** 6 times, 57 billion, that it has the form.
    """
    matches = [(match, False) for match in _NARROW.finditer(text)]
    if text.find(_WIDE_BEGINNING) >= 0:
        matches = sorted([*matches, *((match, True) for match in _WIDE.finditer(text))], key=lambda one: one[0].start())
    for match, wide in matches:
        secret = bytes(match[0] + match[1])
        if wide:
            secret = secret.replace(b"\0", b"")
        if is_well_formed(secret):
            yield Found(match.start(), wide, *shown_parts(secret.decode("ascii")))
