"""Which characters the names of tenants, projects and API keys may contain."""

import re
from typing import Final

from tenantry.domain.errors import ValidationError

REFUSED_CHARACTERS: Final = r"\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Control characters, line separators and bidirectional controls, as the inside of a regular expression's class.

Terminals obey control characters. Bidirectional controls change the order in which the text around a name is shown.
"""
NAME_RULE: Final = "must not contain control characters, line breaks or bidirectional formatting characters"
_refused = re.compile(f"[{REFUSED_CHARACTERS}]")


def is_printable_name(name: str) -> bool:
    """Whether a name contains none of `REFUSED_CHARACTERS`."""
    return _refused.search(name) is None


def check_name(name: str, present: str | None = None) -> None:
    """Raise `ValidationError` for a name with a refused character, unless it equals the ``present`` name."""
    if name != present and not is_printable_name(name):
        raise ValidationError(("name", NAME_RULE))
