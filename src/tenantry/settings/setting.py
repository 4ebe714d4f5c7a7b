"""One setting: a descriptor that reads its variable, or the file of its secret, when first used."""

import copy
from collections.abc import Iterable, Mapping
from itertools import compress
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar, overload

from tenantry.settings.kinds import Kind

FILE_SUFFIX: Final = "_FILE"
REQUIRED: Final[Any] = object()
"""The default of a setting that must be set."""
DEMO_FLAG: Final = "TENANTRY_DEMO"
"""`tenantry demo` sets this for its own server processes, and three more; they are no settings for
users.
"""
_LARGEST_SECRET_FILE: Final = 64 * 1024

Value = TypeVar("Value")


class SettingsError(ValueError):
    """The settings are invalid; ``faults`` has one message for each fault, starting with the
    variable's name.
    """

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


def reject(faults: Mapping[str, object]) -> None:
    """Raise `SettingsError` with the messages of those faults that are there."""
    if any(faults.values()):
        raise SettingsError(list(compress(faults, faults.values())))


class SettingValues:
    """The variables that settings are read from.

    In the demo, secrets may be weak.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        self.demo = values.get(DEMO_FLAG) == "true"

    def replace(self, **values: object) -> Self:
        """Return a copy with other values of these attributes."""
        changed = copy.copy(self)
        changed.__dict__.update(values)
        return changed

    def check(self, names: Iterable[str]) -> Self:
        """Read these attributes. Raises `SettingsError` with every fault."""
        faults: list[str] = []
        for name in names:
            try:
                getattr(self, name)
            except SettingsError as error:
                faults += [fault for fault in error.faults if fault not in faults]
        if faults:
            raise SettingsError(faults)
        return self


class Setting(Generic[Value]):
    """One setting. As an attribute of settings it reads its variable.

    ``default_text`` describes the default in the reference where the value does not.
    """

    def __init__(
        self,
        name: str,
        kind: Kind[Value],
        default: Value,
        *,
        default_text: str = "",
    ) -> None:
        self.name = name
        self.kind = kind
        self.default = default
        self.default_text = default_text
        self.is_secret = kind.is_secret
        self.file_name = name + FILE_SUFFIX

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute = attribute

    @overload
    def __get__(self, settings: None, owner: type) -> Self: ...
    @overload
    def __get__(self, settings: SettingValues, owner: type) -> Value: ...
    def __get__(self, settings: SettingValues | None, owner: type) -> Self | Value:
        if settings is None:
            return self
        value = self.read(settings.values, is_demo=settings.demo)
        # from now on Python finds the value before this descriptor
        settings.__dict__[self.attribute] = value
        return value

    def read(self, values: Mapping[str, str], *, is_demo: bool) -> Value:
        """Return the value. Raises `SettingsError`."""
        text = self.text(values)
        if text is None:
            reject({f"{self.name}: is missing": self.default is REQUIRED})
            return self.default
        parse = (is_demo and self.kind.parse_in_demo) or self.kind.parse
        try:
            return parse(text)
        except ValueError as error:
            raise SettingsError([f"{self.name}: {fault}" for fault in error.args]) from None

    def text(self, values: Mapping[str, str]) -> str | None:
        """The text of the variable or of its file; None if it is missing or empty. Raises
        `SettingsError`.
        """
        text = values.get(self.name, "").strip() or None
        path = self.file(values)
        if path is None:
            return text
        reject({f"{self.file_name}: {self.name} is set too: remove one of them": text})
        try:
            return secret_in(path)
        except ValueError as error:
            raise SettingsError([f"{self.file_name}: {error}"]) from error

    def file(self, values: Mapping[str, str]) -> str | None:
        """The path of the file that holds the secret, if a variable names one."""
        return (values.get(self.file_name, "").strip() or None) if self.is_secret else None


def secret_in(path: str) -> str:
    """Return the text of a secret's file, without surrounding white space. Raises `ValueError`."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST_SECRET_FILE + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    return _checked_text(path, content)


def _checked_text(path: str, content: bytes) -> str:
    if len(content) > _LARGEST_SECRET_FILE:
        raise ValueError(f"{path} is larger than 64 KiB")
    try:
        text = content.decode().strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text") from error
    if not text or "\0" in text:
        raise ValueError(f"{path} {'contains a NUL' if text else 'is empty'}")
    return text
