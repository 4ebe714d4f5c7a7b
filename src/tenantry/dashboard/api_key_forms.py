"""The form of an API key: name, scopes, expiry."""

from collections.abc import Collection, Iterable
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.api.parameters import Name, ScopeName
from tenantry.dashboard.forms import Form
from tenantry.domain.access import ANYTHING, MAX_SCOPES, OWNER_ALIAS, AccessLevel, Mode
from tenantry.domain.api_keys import ApiKey
from tenantry.domain.names import NAME_RULE, is_printable_name


class Known(NamedTuple):
    """A scope that a route of the API needs."""

    scope: str
    allows: str


class Subject(NamedTuple):
    """What some of the known scopes are about."""

    name: str
    scopes: tuple[Known, ...]


# A test holds this against what the routes say that they need.
SUBJECTS: Final = (
    Subject(
        "Projects",
        (Known("projects:read", "See projects"), Known("projects:write", "Create, change and delete projects")),
    ),
    Subject(
        "API keys",
        (
            Known("api-keys:read", "See API keys, never their secrets"),
            Known("api-keys:write", "Create, change, rotate and revoke API keys that may do no more than this one"),
        ),
    ),
    Subject(
        "Organization",
        (
            Known("tenants:read", "See the organization's name, plan and subscription"),
            Known("tenants:write", "Change the organization's name and the address for billing mail"),
        ),
    ),
    Subject(
        "Members",
        (
            Known("members:read", "See members and their roles"),
            Known("members:write", "Add and remove members, and change their roles"),
        ),
    ),
    Subject(
        "Billing",
        (
            Known("billing:read", "See what the payment provider reported"),
            Known("billing:write", "Begin a checkout, and open the customer portal"),
        ),
    ),
    Subject("Audit trail", (Known("audit:read", "See and export who changed what"),)),
)
KNOWN: Final = {known.scope: known.allows for subject in SUBJECTS for known in subject.scopes}
_ACTIONS: Final = {"read": "See", "write": "Change"}


def in_words(scope: str) -> str:
    """What a scope allows; empty for one that is not of this API."""
    if scope in KNOWN:
        return KNOWN[scope]
    if scope == ANYTHING:
        return "Everything but what takes an OWNER key"
    resource, _, action = scope.partition(":")
    if resource == "*":
        return f"{_ACTIONS[action]} everything" if action in _ACTIONS else f"{action} on everything"
    if action == "*" and any(known.startswith(f"{resource}:") for known in KNOWN):
        return f"Everything with {resource}"
    return ""


def split(scopes: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The scopes that the picker offers, and the others."""
    scopes = tuple(scopes)
    return tuple(one for one in scopes if one in KNOWN), tuple(one for one in scopes if one not in KNOWN)


SCOPED: Final = "scoped"
OWNER: Final = "owner"
DAYS: Final = ("30", "90", "365")
ON_A_DATE: Final = "date"
NEVER: Final = "never"
AS_IT_IS: Final = "as-it-is"
_DAY: Final = timedelta(days=1)

Faults = dict[str, str]
"""What is wrong, by field, in the order in which the fields stand in the form."""


class Typed(msgspec.Struct, frozen=True):
    """The form's fields as they were typed, or as they are shown at first."""

    name: str = ""
    access: str = SCOPED
    ticked: tuple[str, ...] = ()
    own: str = ""
    sure: bool = False
    mode: str = Mode.LIVE
    expiry: str = "90"
    until: str = ""

    @classmethod
    def of_form(cls, form: Form) -> "Typed":
        """What a form sent."""
        return cls(
            name=form.text("name"),
            access=form.text("access") or SCOPED,
            ticked=tuple(form.all("scope")),
            own=form.text("own"),
            sure=form.checked("sure"),
            mode=form.text("mode") or Mode.LIVE,
            expiry=form.text("expiry"),
            until=form.text("until"),
        )

    @property
    def scopes(self) -> tuple[str, ...]:
        """All scopes that were chosen, each once."""
        if self.access == OWNER:
            return (OWNER_ALIAS,)
        return tuple(dict.fromkeys([*self.ticked, *self.own.replace(",", " ").split()]))

    @classmethod
    def of_key(cls, key: ApiKey) -> "Typed":
        """What the form of a key that exists shows."""
        name = key.name.strip()  # as a form sends it
        if key.access_level is AccessLevel.OWNER:
            return cls(name=name, access=OWNER, mode=key.mode, expiry=AS_IT_IS)
        ticked, others = split(key.scopes)
        return cls(name=name, ticked=ticked, own=" ".join(others), mode=key.mode, expiry=AS_IT_IS)

    @classmethod
    def of_replacement(cls, key: ApiKey) -> "Typed":
        """What the form of a key shows that takes the place of another one: the same, but for the expiry."""
        return msgspec.structs.replace(cls.of_key(key), expiry=cls().expiry)

    def only(self, made: Collection[str], key: ApiKey) -> "Typed":
        """The same with nothing changed of the key but the fields in ``made``, which are those of `as_typed`."""
        shown = Typed.of_key(key)
        return msgspec.structs.replace(
            self,
            **({} if "name" in made else {"name": shown.name}),
            **({} if "scopes" in made else {"access": shown.access, "ticked": shown.ticked, "own": shown.own}),
            **({} if "expiry" in made else {"expiry": AS_IT_IS}),
        )


def as_typed(typed: Typed) -> dict[str, str]:
    """What may be changed of a key, each field as one text; without the expiry where it is to stay as it is."""
    fields = {"name": typed.name, "scopes": " ".join(sorted(typed.scopes))}
    return fields if typed.expiry == AS_IT_IS else {**fields, "expiry": f"{typed.expiry} {typed.until}".strip()}


def as_shown(key: ApiKey) -> dict[str, str]:
    """The same of a key as it is."""
    ends = key.expires_at.strftime("%Y-%m-%d %H:%M:%S UTC") if key.expires_at else NEVER
    return {**as_typed(Typed.of_key(key)), "expiry": ends}


class Wanted(msgspec.Struct, frozen=True):
    """What the form means. ``expires_at`` is unset where it is to stay as it is."""

    name: str
    scopes: tuple[str, ...]
    mode: Mode
    expires_at: datetime | UnsetType | None


def understand(typed: Typed, now: datetime, before: ApiKey | None = None) -> Wanted | Faults:
    """What was typed, or what is wrong with it. ``before`` is the key that is to be changed."""
    faults: Faults = {}
    name = _name(typed, before, faults)
    scopes = _scopes(typed, before, faults)
    mode = _mode(typed, faults)
    expires_at = _expiry(typed, now, before, faults)
    return faults or Wanted(name, scopes, mode, expires_at)


def _name(typed: Typed, before: ApiKey | None, faults: Faults) -> str:
    if before is not None and typed.name == before.name.strip():
        return before.name
    try:
        name = msgspec.convert(typed.name, Name)
    except msgspec.ValidationError:
        faults["name"] = "Use at most 200 characters." if typed.name else "Give the key a name."
        return ""
    if not is_printable_name(name):
        faults["name"] = f"The name {NAME_RULE}."
    return name


def _scopes(typed: Typed, before: ApiKey | None, faults: Faults) -> tuple[str, ...]:
    if typed.access == OWNER:
        is_one = before is not None and before.access_level is AccessLevel.OWNER
        if not typed.sure and not is_one:
            faults["sure"] = "Tick this to make an OWNER key, or choose scopes instead."
        return typed.scopes
    scopes = typed.scopes
    if OWNER_ALIAS in scopes:
        faults["own"] = "OWNER is no scope. It is a choice of its own, for those who may make it."
    elif wrong := [scope for scope in scopes if not _is_scope_name(scope)]:
        faults["own"] = f"Not of the form resource:action, in small letters: {', '.join(wrong)[:200]}"
    elif len(scopes) > MAX_SCOPES:
        faults["own"] = f"A key has {MAX_SCOPES} scopes at most."
    elif not scopes:
        faults["scope"] = "Tick at least one, or give one of your own. A key without scopes could do nothing."
    return scopes


def _is_scope_name(text: str) -> bool:
    try:
        msgspec.convert(text, ScopeName)
    except msgspec.ValidationError:
        return False
    return True


def _mode(typed: Typed, faults: Faults) -> Mode:
    try:
        return msgspec.convert(typed.mode, Mode)
    except msgspec.ValidationError:
        faults["mode"] = "Choose live or test."
        return Mode.LIVE


def _expiry(typed: Typed, now: datetime, before: ApiKey | None, faults: Faults) -> datetime | UnsetType | None:
    if typed.expiry == AS_IT_IS and before is not None:
        return UNSET
    if typed.expiry == NEVER:
        return None
    if typed.expiry in DAYS:
        return now + int(typed.expiry) * _DAY
    if typed.expiry != ON_A_DATE:
        faults["expiry"] = "Choose when the key ends."
        return None
    try:
        end = datetime.combine(date.fromisoformat(typed.until) + _DAY, clock_time(), UTC)
    except (ValueError, OverflowError):
        faults["until"] = "Give a day, such as 2027-01-31."
        return None
    if end <= now:
        faults["until"] = "That day is over."
    return end
