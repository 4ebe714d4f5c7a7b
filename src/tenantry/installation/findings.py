"""What a check of the installation reads, and what it finds."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import NamedTuple, Protocol, Self

import msgspec

from tenantry.common.secret import Secret
from tenantry.db.connection import Connection
from tenantry.domain.api_keys import KeyFormat
from tenantry.domain.billing.state import BillingPolicy
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.smtp import SmtpConfig


class CheckedSettings(Protocol):
    """The settings that checks read. `doctor` has some that are faulty: reading one then raises its
    fault.
    """

    @property
    def base_url(self) -> str: ...
    @property
    def billing(self) -> BillingPolicy: ...
    @property
    def database_checks_url(self) -> str | None: ...
    @property
    def imported_key_pattern(self) -> re.Pattern[bytes] | None: ...
    @property
    def key_format(self) -> KeyFormat: ...
    @property
    def oidc(self) -> OidcConfig | None: ...
    @property
    def peppers(self) -> Sequence[Secret]: ...
    @property
    def provider_api_base(self) -> str: ...
    @property
    def provider_secret_key(self) -> Secret | None: ...
    @property
    def reconcile_hours(self) -> int: ...
    @property
    def smtp(self) -> SmtpConfig | None: ...
    @property
    def stale_tenant_hours(self) -> int: ...


class CheckedDatabase(NamedTuple):
    """The database that checks read, on one connection; the settings, and the time.

    ``entries`` limits how many entries of the ledger a check looks at, the latest ones, and how
    many deliveries of an endpoint it counts; None: all.
    """

    connection: Connection
    settings: CheckedSettings
    now: datetime
    entries: int | None = None


class Level(StrEnum):
    """How serious a finding is: with an error, something does not work; information asks for
    nothing.
    """

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """The result of a check; for a problem also ``why`` it matters and the ``remedy``.

    ``name`` is that of a known problem, such as ``webhooks.held``; ``tenants`` are the first ones
    that it is about.
    """

    level: Level
    subject: str
    message: str
    remedy: str | None = None
    why: str | None = None
    name: str | None = None
    tenants: Sequence[str] = ()

    @property
    def is_problem(self) -> bool:
        return self.level in (Level.WARNING, Level.ERROR)

    def about(self, tenants: Sequence[str]) -> Self:
        """Return the finding with the tenants that it is about."""
        return msgspec.structs.replace(self, tenants=tenants)


class DoctorProblem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A problem that the checks recognize. The texts are format strings."""

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
        name,
    )


def problem_if(number: object, name: str, /, **facts: object) -> list[Finding]:
    """Return the problem in a list, or an empty list if ``number`` is zero, empty or None."""
    return [problem(name, number=number, **facts)] if number else []


@cache
def _problems() -> dict[str, dict[str, DoctorProblem]]:
    text = resources.files(__package__).joinpath("problems.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, dict[str, DoctorProblem]])


def problems_of(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that are problems, the errors first."""
    found = [each for each in findings if each.is_problem]
    return sorted(found, key=lambda each: each.level is not Level.ERROR)
