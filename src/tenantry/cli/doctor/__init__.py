"""``tenantry doctor``: checks of the settings, connections and the database. Here: what a check finds."""

from enum import StrEnum
from functools import cache
from importlib import resources
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


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A problem that `doctor` recognizes. The texts are format strings."""

    message: str
    why: str
    remedy: str
    level: Level = Level.WARNING


class Subject(NamedTuple):
    """What a check is about. ``problems.toml`` has the problems of each subject."""

    name: str

    def ok(self, message: str) -> Finding:
        return Finding(Level.OK, self.name, message)

    def found(self, problem: str, **facts: object) -> Finding:
        known = _problems()[self.name][problem]
        message, remedy = known.message.format(**facts), known.remedy.format(**facts)
        return Finding(known.level, self.name, message, remedy, known.why)

    def found_if(self, number: object, problem: str, **facts: object) -> list[Finding]:
        """Return the finding in a list, or an empty list if ``number`` is zero, empty or None."""
        return [self.found(problem, number=number, **facts)] if number else []


@cache
def _problems() -> dict[str, dict[str, Problem]]:
    text = resources.files(__package__).joinpath("problems.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, dict[str, Problem]])
