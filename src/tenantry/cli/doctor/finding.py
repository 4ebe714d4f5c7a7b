"""What a check finds."""

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How bad it is: an error keeps something from working."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """What a check found about a subject, and, unless all is well, how to mend it; ``why`` is why it matters."""

    level: Level
    subject: str
    message: str
    remedy: str | None = None
    why: str | None = None


def ok(subject: str, message: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, subject, message)


def warning(subject: str, message: str, remedy: str, *, why: str) -> Finding:
    """Something to look at; the service works."""
    return Finding(Level.WARNING, subject, message, remedy, why)


def error(subject: str, message: str, remedy: str, *, why: str) -> Finding:
    """Something does not work."""
    return Finding(Level.ERROR, subject, message, remedy, why)
