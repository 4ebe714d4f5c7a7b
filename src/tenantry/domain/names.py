"""Names that users choose: allowed characters, and their form in mails."""

import re
import unicodedata
from typing import Annotated, Final

import msgspec

from tenantry.domain.errors import ValidationError

END: Final = r"$(?!\n)"
"""The end of a text, as a regular expression.

In Python, `$` also matches before a newline at the end; elsewhere ``(?!\n)`` changes nothing.
"""
VISIBLE: Final = f"^[!-~]*{END}"
"""Visible ASCII characters without spaces, as a regular expression."""

REFUSED_CHARACTERS: Final = (
    r"\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
)
"""Control characters, line separators and bidirectional controls, as a regular expression's
character class.

Terminals execute control characters. Bidirectional controls change the order of the text around a
name.
"""
NAME_RULE: Final = (
    "must not contain control characters, line breaks or bidirectional formatting characters"
)
_refused = re.compile(f"[{REFUSED_CHARACTERS}]")
Name = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=200,
        description=f"What people call it. It {NAME_RULE}.",
        # the services check it: see `check_name`
        extra_json_schema={"pattern": f"^[^{REFUSED_CHARACTERS}]*{END}"},
    ),
]
"""A name in a request."""


def has_refused_characters(text: str) -> bool:
    """Whether a text has one of `REFUSED_CHARACTERS`."""
    return _refused.search(text) is not None


def check_name(name: str) -> None:
    """Raise `ValidationError` for a name with one of `REFUSED_CHARACTERS`."""
    if has_refused_characters(name):
        raise ValidationError(("name", NAME_RULE))


LONGEST: Final = 60
"""The longest name in a mail, in characters."""
_LONGEST_INPUT: Final = 1000
# Invisible, although Unicode does not count them as format characters: fillers, blanks, variation
# selectors.
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0\ufe00-\ufe0f]"
)
_NOT_SHOWN: Final = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"))
# Seven digits are the shortest phone number that mail programs recognize.
_PHONE_LIKE: Final = re.compile(r"\d(?:[\s()\[\]./\\+*#_,:;\u2010-\u2015\u00b7-]{0,3}\d){6,}")
_SLASHES: Final = re.compile(r"[/\\]{2,}")
_INNER_DOT: Final = re.compile(r"[.\u3002](?=\S)")
_INNER_COLON: Final = re.compile(r":(?=\S)")


def display_text(text: str, fallback: str = "(no name)") -> str:
    """Return ``text`` as one line of at most `LONGEST` characters that no mail program turns into a
    link.

    A dot inside a word becomes ``[.]``, ``@`` becomes ``[at]``, a colon inside a word ``[:]``; a
    phone number becomes ``[number]``. Characters that are invisible or change the direction of the
    text are left out.
    """
    text = " ".join(unicodedata.normalize("NFKC", text[:_LONGEST_INPUT]).split())
    text = "".join(letter for letter in text if unicodedata.category(letter) not in _NOT_SHOWN)
    text = " ".join(_INVISIBLE.sub("", text).split())
    text = _PHONE_LIKE.sub("[number]", text)
    text = _SLASHES.sub("/", text)
    text = _INNER_DOT.sub("[.]", text)
    text = _INNER_COLON.sub("[:]", text).replace("@", "[at]")
    if len(text) > LONGEST:
        text = text[: LONGEST - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"
    return text or fallback
