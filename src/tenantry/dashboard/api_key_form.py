"""The form that creates or changes an API key: name, access, scopes, mode, expiry, external id,
metadata.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from itertools import filterfalse
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.dashboard.forms import (
    Edits,
    Form,
    InvalidFormError,
    day_fault,
    unix_lines,
    validate,
)
from tenantry.dashboard.guards import DashboardUser
from tenantry.dashboard.key_text_fields import TEXT_FIELDS, text_errors, texts_of
from tenantry.domain.api_keys import ApiKey, expires_later
from tenantry.domain.names import Name
from tenantry.domain.permissions import OWNER_ALIAS, AccessLevel, Mode
from tenantry.domain.plans import Catalog
from tenantry.domain.scopes import ANYTHING, MAX_SCOPES, OWN_SCOPES, is_scope

DAYS: Final = ("30", "90", "365")
_SCOPED: Final = "scoped"
_OWNER: Final = "owner"
_ON_A_DATE: Final = "date"
_NEVER: Final = "never"
_UNCHANGED: Final = "as-it-is"
_DAY: Final = timedelta(days=1)
_EVERY_CHANGE: Final = frozenset({ANYTHING, "*:write"})
_ORDER: Final = (
    "name",
    "sure",
    "everything",
    "scope",
    "own",
    "mode",
    "expiry",
    "until",
    *(field.name for field in TEXT_FIELDS),
)
"""The fields in the order of the form: the first one with an error takes the focus."""
FOLDED: Final = frozenset({"mode", "expiry", "until"} | {field.name for field in TEXT_FIELDS})
"""The fields that the form of a new key shows on request."""
NO_TEXTS: Final = MappingProxyType({field.name: "" for field in TEXT_FIELDS})
_MESSAGES: Final = {"name": "Use at most 200 characters.", "mode": "Choose live or test."}


class KeyPreset(msgspec.Struct, frozen=True):
    """Scopes that the form of a new key offers as one choice."""

    name: str
    """The value of the field ``access``."""
    label: str
    help: str
    scopes: tuple[str, ...]


EVERYTHING: Final = KeyPreset(
    "everything",
    "Everything",
    "Does all that you may do here. Only if scopes are not enough.",
    (ANYTHING,),
)
PRESETS: Final = (
    KeyPreset(
        "read-only",
        "Read-only",
        "Sees everything in this organization and changes nothing.",
        ("*:read",),
    ),
    KeyPreset(
        "ci",
        "CI",
        "Sees, creates, changes and deletes projects. For builds and deployments.",
        ("projects:read", "projects:write"),
    ),
    EVERYTHING,
)
_PRESET_SCOPES: Final = {preset.name: preset.scopes for preset in PRESETS}


def offered_presets(user: DashboardUser) -> list[KeyPreset]:
    """Return the presets whose scopes the user may give. An owner chooses an OWNER key instead of
    `EVERYTHING`.
    """
    return [
        preset
        for preset in PRESETS
        if all(map(user.may_put_into_key, preset.scopes))
        and not (user.is_owner and preset is EVERYTHING)
    ]


class KeyForm(msgspec.Struct, frozen=True):
    """The form's values as a user submitted them, or as the page first shows them."""

    name: str = ""
    access: str = _SCOPED
    checked: tuple[str, ...] = ()
    """The scopes whose boxes are checked."""
    own: str = ""
    """Other scopes, separated by blanks or commas."""
    sure: bool = False
    everything: bool = False
    """Whether the box is checked that confirms scopes for changing everything."""
    mode: str = Mode.LIVE
    expiry: str = "90"
    until: str = ""
    texts: Mapping[str, str] = NO_TEXTS
    """The optional fields, by name, as `TEXT_FIELDS` shows them."""

    @property
    def scopes(self) -> tuple[str, ...]:
        if self.access == _OWNER:
            return (OWNER_ALIAS,)
        if self.access in _PRESET_SCOPES:
            return _PRESET_SCOPES[self.access]
        return tuple(dict.fromkeys([*self.checked, *self.own.replace(",", " ").split()]))

    @property
    def editable(self) -> dict[str, str]:
        """The fields of an edit that another user may change meanwhile."""
        return {
            "name": self.name,
            "scope": " ".join(sorted(self.scopes)),
            **self.texts,
        }


def submitted_values(form: Form) -> KeyForm:
    texts = {name: form.text(name) for name in ("name", "access", "own", "expiry", "until")}
    return KeyForm(
        checked=tuple(form.all("scope")),
        sure=form.checked("sure"),
        everything=form.checked("everything"),
        mode=form.text("mode") or Mode.LIVE,  # a form of an existing key has none
        texts={field.name: unix_lines(form.text(field.name)) for field in TEXT_FIELDS},
        **texts,
    )


def first_values(presets: Sequence[KeyPreset]) -> KeyForm:
    """Return the values with which the form of a new key begins."""
    return KeyForm(access=presets[0].name if presets else _SCOPED)


def values_of(key: ApiKey, catalog: Catalog) -> KeyForm:
    """Return the values with which the form of an existing key begins."""
    is_owner_key = key.access_level is AccessLevel.OWNER
    scopes = () if is_owner_key else key.scopes
    known = OWN_SCOPES | {scope.id for scope in catalog.scopes}
    return KeyForm(
        name=key.name.strip(),  # as a form submits it
        access=_OWNER if is_owner_key else _SCOPED,
        checked=tuple(filter(known.__contains__, scopes)),
        own=" ".join(filterfalse(known.__contains__, scopes)),
        mode=key.mode,
        expiry=_UNCHANGED,
        texts=texts_of(key),
    )


def only_changed(values: KeyForm, edits: Edits, current: KeyForm) -> KeyForm:
    """Return the submitted values, but the ``current`` ones of fields that the user did not
    change.
    """
    scopes = values if "scope" in edits.changed else current
    return msgspec.structs.replace(
        values,
        name=edits.values["name"],
        access=scopes.access,
        checked=scopes.checked,
        own=scopes.own,
        texts={name: edits.values[name] for name in NO_TEXTS},
    )


class ExpiryChoices(msgspec.Struct, frozen=True):
    """The expiries that the form offers. A replaced key can only end earlier than it would."""

    days: list[tuple[str, datetime]]
    """Numbers of days, and when they end."""
    first_day: date
    last_day: date | None = None
    """The last one to choose; None without a limit."""

    @property
    def has_day(self) -> bool:
        return self.last_day is None or self.first_day <= self.last_day


def expiry_choices(now: datetime, key: ApiKey | None = None) -> ExpiryChoices:
    """Return what the form offers now; ``key`` is the key to change."""
    days = [(count, now + int(count) * _DAY) for count in DAYS]
    latest = _latest_end(key)
    if latest is None:
        return ExpiryChoices(days, now.date())
    earlier = [(count, end) for count, end in days if end < latest]
    return ExpiryChoices(earlier, now.date(), latest.astimezone(UTC).date() - _DAY)


def _latest_end(key: ApiKey | None) -> datetime | None:
    """Return when a replaced key ends at the latest; None for a key that may be prolonged."""
    return key.expires_at if key is not None and key.superseded_by is not None else None


class _CheckedFields(msgspec.Struct):
    name: Name
    mode: Mode


def check(
    values: KeyForm,
    now: datetime,
    key: ApiKey | None = None,
    further: Mapping[str, str] = MappingProxyType({}),
) -> datetime | UnsetType | None:
    """Check the form, and return when the key expires: unset if that stays as it is. ``key`` is the
    key to change.

    Raises `InvalidFormError`, also for ``further`` errors.
    """
    found = {**text_errors(values.texts), **further, **_scope_errors(values, key)}
    expires_at: datetime | UnsetType | None = UNSET
    if key is None or values.expiry != _UNCHANGED:
        try:
            expires_at = _parse_expiry(values, now, _latest_end(key))
        except InvalidFormError as error:
            found |= error.errors
    checked = dict.fromkeys(_ORDER, "") | {"name": values.name, "mode": values.mode}
    validate(_CheckedFields, checked, _MESSAGES, found)
    return expires_at


def _scope_errors(values: KeyForm, key: ApiKey | None) -> dict[str, str]:
    if values.access == _OWNER:
        if values.sure or (key is not None and key.access_level is AccessLevel.OWNER):
            return {}
        return {"sure": "Check this box to create an OWNER key, or choose scopes instead."}
    if not values.scopes:
        return {"scope": "Choose at least one scope, or enter your own."}
    return _own_errors(values.scopes) | _everything_errors(values, key)


def _own_errors(scopes: Collection[str]) -> dict[str, str]:
    if invalid := [scope for scope in scopes if not is_scope(scope)]:
        return {
            "own": f"Use the form resource:action in lowercase. Invalid: {', '.join(invalid)[:200]}"
        }
    return {} if len(scopes) <= MAX_SCOPES else {"own": f"Choose at most {MAX_SCOPES} scopes."}


def _everything_errors(values: KeyForm, key: ApiKey | None) -> dict[str, str]:
    """Return the error of scopes for every change that the key does not have, without the box that
    confirms them.
    """
    is_confirmed = values.everything or (key is not None and _changes_everything(key.scopes))
    if is_confirmed or not _changes_everything(values.scopes):
        return {}
    return {"everything": "Check this box to give the key these scopes, or enter fewer."}


def _changes_everything(scopes: Collection[str]) -> bool:
    """Whether a scope allows changes of every resource."""
    return not _EVERY_CHANGE.isdisjoint(scopes)


def _parse_expiry(values: KeyForm, now: datetime, latest: datetime | None) -> datetime | None:
    """Return the chosen expiry. Raises `InvalidFormError`, also for one after ``latest``."""
    if values.expiry == _ON_A_DATE:
        return _parse_day(values.until, now, latest)
    if values.expiry not in (*DAYS, _NEVER):
        raise InvalidFormError({"expiry": "Choose when the key expires."})
    end = None if values.expiry == _NEVER else now + int(values.expiry) * _DAY
    if expires_later(latest, end):
        raise InvalidFormError(
            {"expiry": "This key was replaced, so it can only end earlier. Choose an earlier end."}
        )
    return end


def _parse_day(text: str, now: datetime, latest: datetime | None) -> datetime:
    """Return the end of a day. Raises `InvalidFormError`, also for a past day and for an end after
    ``latest``.
    """
    try:
        end = datetime.combine(date.fromisoformat(text) + _DAY, time(), UTC)
    except OverflowError:
        raise InvalidFormError(
            {"until": "This day is too far ahead. Enter an earlier one."}
        ) from None
    except ValueError:
        raise InvalidFormError({"until": day_fault(text)}) from None
    if end <= now:
        raise InvalidFormError({"until": "This day is over. Enter today or a later day."})
    if expires_later(latest, end):
        raise InvalidFormError(
            {"until": "This key was replaced, so it can only end earlier. Enter an earlier day."}
        )
    return end
