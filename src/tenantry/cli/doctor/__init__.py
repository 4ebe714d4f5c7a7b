"""``tenantry doctor``: checks of the settings, connections and the database. Here: what a check
finds.
"""

from enum import StrEnum
from functools import cache
from importlib import resources

import msgspec


class Level(StrEnum):
    """How serious a finding is: with an error, something does not work; information asks for
    nothing.
    """

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """The result of a check; for a problem also ``why`` it matters and the ``remedy``."""

    level: Level
    subject: str
    message: str
    remedy: str | None = None
    why: str | None = None


class DoctorProblem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A problem that `doctor` recognizes. The texts are format strings."""

    message: str
    why: str
    remedy: str
    level: Level = Level.WARNING


def ok(subject: str, message: str) -> Finding:
    return Finding(Level.OK, subject, message)


def problem(name: str, /, **facts: object) -> Finding:
    """Return a problem of problems.toml with these facts; its name there begins with its
    subject.
    """
    subject, _, rest = name.rpartition(".")
    known = _problems()[subject][rest]
    return Finding(
        known.level,
        subject,
        known.message.format(**facts),
        known.remedy.format(**facts),
        known.why,
    )


def problem_if(number: object, name: str, /, **facts: object) -> list[Finding]:
    """Return the problem in a list, or an empty list if ``number`` is zero, empty or None."""
    return [problem(name, number=number, **facts)] if number else []


@cache
def _problems() -> dict[str, dict[str, DoctorProblem]]:
    text = resources.files(__package__).joinpath("problems.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, dict[str, DoctorProblem]])
