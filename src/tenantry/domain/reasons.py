"""Reasons of changes, in the words of who makes them."""

from typing import Final

from tenantry.domain.names import NAME_RULE, has_refused_characters

LONGEST_REASON: Final = 500
"""The longest reason, in characters."""


def reason_faults(reason: str) -> list[tuple[str, str]]:
    """Return what is wrong with a reason; nothing if it is valid."""
    faults = list[tuple[str, str]]()
    if not reason.strip() or len(reason) > LONGEST_REASON:
        faults.append(("reason", f"must have 1 to {LONGEST_REASON} characters"))
    if has_refused_characters(reason):
        faults.append(("reason", NAME_RULE))
    return faults
