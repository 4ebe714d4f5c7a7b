"""The form that creates or changes an API key: name, access, scopes, mode, expiry."""

from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, time, timedelta
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.api.parameters import Name
from tenantry.dashboard.forms import Form, InvalidFormError, validate
from tenantry.dashboard.labels import labels
from tenantry.domain.api_keys import ApiKey
from tenantry.domain.permissions import MAX_SCOPES, OWNER_ALIAS, AccessLevel, Mode, is_scope

DAYS: Final = ("30", "90", "365")
_SCOPED: Final = "scoped"
_OWNER: Final = "owner"
_ON_A_DATE: Final = "date"
_NEVER: Final = "never"
_UNCHANGED: Final = "as-it-is"
_DAY: Final = timedelta(days=1)
_MESSAGES: Final = {"name": "Use at most 200 characters.", "mode": "Choose live or test."}


class KeyForm(msgspec.Struct, frozen=True):
    """The form's values as a user submitted them, or as the page first shows them."""

    name: str = ""
    access: str = _SCOPED
    checked: tuple[str, ...] = ()
    """The scopes whose boxes are checked."""
    own: str = ""
    """Other scopes, separated by blanks or commas."""
    sure: bool = False
    mode: str = Mode.LIVE
    expiry: str = "90"
    until: str = ""

    @property
    def scopes(self) -> tuple[str, ...]:
        if self.access == _OWNER:
            return (OWNER_ALIAS,)
        return tuple(dict.fromkeys([*self.checked, *self.own.replace(",", " ").split()]))

    @property
    def editable(self) -> dict[str, str]:
        """The fields of an edit that another user may change meanwhile."""
        return {"name": self.name, "scope": " ".join(sorted(self.scopes))}


def submitted_values(form: Form) -> KeyForm:
    texts = {name: form.text(name) for name in ("name", "access", "own", "expiry", "until")}
    mode = form.text("mode") or Mode.LIVE  # a form of an existing key has none
    return KeyForm(checked=tuple(form.all("scope")), sure=form.checked("sure"), mode=mode, **texts)


def values_of(key: ApiKey) -> KeyForm:
    """Return the values with which the form of an existing key begins."""
    name = key.name.strip()  # as a form submits it
    if key.access_level is AccessLevel.OWNER:
        return KeyForm(name=name, access=_OWNER, mode=key.mode, expiry=_UNCHANGED)
    known = labels().scopes
    checked = tuple(scope for scope in key.scopes if scope in known)
    own = " ".join(scope for scope in key.scopes if scope not in known)
    return KeyForm(name=name, checked=checked, own=own, mode=key.mode, expiry=_UNCHANGED)


def only_changed(values: KeyForm, changed: Collection[str], key: ApiKey) -> KeyForm:
    """Return the submitted values, but the key's own name or scopes if they are not among the ``changed`` fields."""
    current = values_of(key)
    if "name" not in changed:
        values = msgspec.structs.replace(values, name=current.name)
    if "scope" not in changed:
        values = msgspec.structs.replace(values, access=current.access, checked=current.checked, own=current.own)
    return values


class _CheckedFields(msgspec.Struct):
    name: Name
    mode: Mode


def check(
    values: KeyForm, now: datetime, key: ApiKey | None = None, further: Mapping[str, str] = MappingProxyType({})
) -> datetime | UnsetType | None:
    """Check the form, and return when the key expires: unset if that stays as it is. ``key`` is the key to change.

    Raises `InvalidFormError`, also for ``further`` errors.
    """
    found = {**further, **_scope_errors(values, key)}
    expires_at: datetime | UnsetType | None = UNSET
    if key is None or values.expiry != _UNCHANGED:
        try:
            expires_at = _parse_expiry(values, now)
        except InvalidFormError as error:
            found |= error.errors
    validate(_CheckedFields, {"name": values.name, "mode": values.mode}, _MESSAGES, found)
    return expires_at


def _scope_errors(values: KeyForm, key: ApiKey | None) -> dict[str, str]:
    scopes = values.scopes
    if values.access == _OWNER:
        is_owner_key = key is not None and key.access_level is AccessLevel.OWNER
        is_sure = values.sure or is_owner_key
        return {} if is_sure else {"sure": "Check this box to create an OWNER key, or choose scopes instead."}
    if invalid := [scope for scope in scopes if not is_scope(scope)]:
        return {"own": f"Use the form resource:action in lowercase. Invalid: {', '.join(invalid)[:200]}"}
    if len(scopes) > MAX_SCOPES:
        return {"own": f"Choose at most {MAX_SCOPES} scopes."}
    return {} if scopes else {"scope": "Choose at least one scope, or enter your own."}


def _parse_expiry(values: KeyForm, now: datetime) -> datetime | None:
    if values.expiry == _NEVER:
        return None
    if values.expiry in DAYS:
        return now + int(values.expiry) * _DAY
    if values.expiry != _ON_A_DATE:
        raise InvalidFormError({"expiry": "Choose when the key expires."})
    try:
        return datetime.combine(date.fromisoformat(values.until) + _DAY, time(), UTC)
    except (ValueError, OverflowError):
        raise InvalidFormError({"until": "Enter a day, such as 2027-01-31."}) from None
