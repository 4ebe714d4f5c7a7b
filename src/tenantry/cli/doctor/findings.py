"""What a check finds."""

from enum import StrEnum
from typing import NamedTuple

import msgspec


class Level(StrEnum):
    """How serious a finding is: with an error, something does not work."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """What a check found about a subject; for a problem also what to do (``remedy``) and ``why`` it matters."""

    level: Level
    subject: str
    message: str
    remedy: str | None = None
    why: str | None = None


class Problem(NamedTuple):
    """A problem that `doctor` recognizes. ``message`` and ``remedy`` are format strings."""

    subject: str
    message: str
    why: str
    remedy: str
    level: Level = Level.WARNING

    def found(self, **facts: object) -> Finding:
        """The finding, with these facts in its texts."""
        return Finding(self.level, self.subject, self.message.format(**facts), self.remedy.format(**facts), self.why)

    def found_if(self, number: object, **facts: object) -> list[Finding]:
        """The finding as a list, where ``number`` is not zero or empty."""
        return [self.found(number=number, **facts)] if number else []


def ok(subject: str, message: str) -> Finding:
    """Nothing to do."""
    return Finding(Level.OK, subject, message)
