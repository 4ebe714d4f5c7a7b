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

from tenantry.api.parameters import Name
from tenantry.dashboard.forms import (
    Form,
    InvalidFormError,
    day_fault,
    field_errors,
    unix_lines,
    validate,
)
from tenantry.dashboard.guards import DashboardUser
from tenantry.dashboard.key_metadata_form import metadata_text, parse_metadata
from tenantry.dashboard.labels import labels
from tenantry.domain.api_keys import ApiKey, expires_later
from tenantry.domain.errors import ValidationError
from tenantry.domain.key_metadata import check_key_metadata
from tenantry.domain.permissions import OWNER_ALIAS, AccessLevel, Mode
from tenantry.domain.scopes import ANYTHING, MAX_SCOPES, is_scope

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
    "externalId",
    "metadata",
)
"""The fields in the order of the form: the first one with an error takes the focus."""
FOLDED: Final = frozenset({"mode", "expiry", "until", "externalId", "metadata"})
"""The fields that the form of a new key shows on request."""
_ATTRIBUTES: Final = {
    "name": ("name",),
    "scope": ("access", "checked", "own"),
    "externalId": ("external_id",),
    "metadata": ("metadata",),
}
"""What `KeyForm` has of each field of `KeyForm.editable`."""
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
    external_id: str = ""
    metadata: str = ""
    """As `metadata_text` returns it."""

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
            "externalId": self.external_id,
            "metadata": self.metadata,
        }


def submitted_values(form: Form) -> KeyForm:
    texts = {name: form.text(name) for name in ("name", "access", "own", "expiry", "until")}
    return KeyForm(
        checked=tuple(form.all("scope")),
        sure=form.checked("sure"),
        everything=form.checked("everything"),
        mode=form.text("mode") or Mode.LIVE,  # a form of an existing key has none
        external_id=form.text("externalId"),
        metadata=unix_lines(form.text("metadata")),
        **texts,
    )


def first_values(presets: Sequence[KeyPreset]) -> KeyForm:
    """Return the values with which the form of a new key begins."""
    return KeyForm(access=presets[0].name if presets else _SCOPED)


def values_of(key: ApiKey) -> KeyForm:
    """Return the values with which the form of an existing key begins."""
    is_owner_key = key.access_level is AccessLevel.OWNER
    scopes = () if is_owner_key else key.scopes
    known = labels().scopes
    return KeyForm(
        name=key.name.strip(),  # as a form submits it
        access=_OWNER if is_owner_key else _SCOPED,
        checked=tuple(filter(known.__contains__, scopes)),
        own=" ".join(filterfalse(known.__contains__, scopes)),
        mode=key.mode,
        expiry=_UNCHANGED,
        external_id=key.external_id or "",
        metadata=metadata_text(key.metadata),
    )


def only_changed(values: KeyForm, changed: Collection[str], key: ApiKey) -> KeyForm:
    """Return the submitted values, but the key's own of the fields that are not among the
    ``changed`` ones.
    """
    current = values_of(key)
    kept: dict[str, object] = {}
    for field in _ATTRIBUTES.keys() - changed:
        kept |= {name: getattr(current, name) for name in _ATTRIBUTES[field]}
    return msgspec.structs.replace(values, **kept)


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
    found = {**_metadata_errors(values), **further, **_scope_errors(values, key)}
    expires_at: datetime | UnsetType | None = UNSET
    if key is None or values.expiry != _UNCHANGED:
        try:
            expires_at = _parse_expiry(values, now, _latest_end(key))
        except InvalidFormError as error:
            found |= error.errors
    try:
        validate(
            _CheckedFields,
            {"name": values.name, "mode": values.mode},
            _MESSAGES,
            found,
        )
    except InvalidFormError as error:
        raise InvalidFormError(
            {name: error.errors[name] for name in _ORDER if name in error.errors}
        ) from None
    return expires_at


def _scope_errors(values: KeyForm, key: ApiKey | None) -> dict[str, str]:
    if values.access == _OWNER:
        if values.sure or (key is not None and key.access_level is AccessLevel.OWNER):
            return {}
        return {"sure": "Check this box to create an OWNER key, or choose scopes instead."}
    if not values.scopes:
        return {"scope": "Choose at least one scope, or enter your own."}
    return _own_errors(values.scopes) | _everything_errors(values, key)


def _metadata_errors(values: KeyForm) -> dict[str, str]:
    try:
        check_key_metadata(values.external_id or None, parse_metadata(values.metadata))
    except (InvalidFormError, ValidationError) as error:
        return field_errors(error)
    return {}


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
