"""``tenantry doctor``: checks of the settings, connections and the database. Here: what a check finds."""

from enum import StrEnum
from typing import NamedTuple

import msgspec


class Level(StrEnum):
    """How serious a finding is: with an error, something does not work."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """The result of a check; for a problem also ``why`` it matters and the ``remedy``."""

    level: Level
    subject: str
    message: str
    remedy: str | None = None
    why: str | None = None


class Diagnosis(NamedTuple):
    """A problem that `doctor` recognizes. ``message`` and ``remedy`` are format strings."""

    level: Level
    subject: str
    message: str
    why: str
    remedy: str

    def found(self, **facts: object) -> Finding:
        return Finding(self.level, self.subject, self.message.format(**facts), self.remedy.format(**facts), self.why)

    def found_if(self, number: object, **facts: object) -> list[Finding]:
        """Return the finding in a list, or an empty list if ``number`` is zero, empty or None."""
        return [self.found(number=number, **facts)] if number else []


class Subject(NamedTuple):
    """What a check is about."""

    name: str

    def ok(self, message: str) -> Finding:
        return Finding(Level.OK, self.name, message)

    def warning(self, message: str, why: str, remedy: str) -> Diagnosis:
        return Diagnosis(Level.WARNING, self.name, message, why, remedy)

    def error(self, message: str, why: str, remedy: str) -> Diagnosis:
        return Diagnosis(Level.ERROR, self.name, message, why, remedy)
