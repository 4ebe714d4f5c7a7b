"""Texts of the plan catalog that people read: names and sentences of features and scopes."""

from typing import Final

LONGEST_NAME: Final = 60
"""In characters."""


def check_text(field: str, text: str | None, longest: int = LONGEST_NAME) -> None:
    """Raise `ValueError` for a text that is blank, too long, or has a character that people can't
    see. None is no text.
    """
    if text is None:
        return
    if not text.strip() or len(text) > longest or not text.isprintable():
        raise ValueError(f"{field} must be 1 to {longest} printable characters")
