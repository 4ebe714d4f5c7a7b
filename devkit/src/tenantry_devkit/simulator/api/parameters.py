"""Parameters as the provider takes them: forms and queries with brackets in the names."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from tenantry_devkit.simulator.errors import ApiError

_NAME: Final = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")
_PART: Final = re.compile(r"\[([^\[\]]*)\]")
_MOST: Final = 2000
_TRUE: Final = {"true": True, "false": False}


class Parameters:
    """Named values; a value is a text or, where names had brackets, parameters again.

    The getters raise `ApiError` for values of another kind, as the provider words it.
    """

    def __init__(self, values: Mapping[str, Any] | None = None, within: str = "") -> None:
        self._values = values or {}
        self._within = within

    @classmethod
    def parse(cls, *encoded: str) -> "Parameters":
        """The parameters of queries and forms, such as ``items[0][price]=price_pro&expand[]=customer``."""
        values: dict[str, Any] = {}
        for text in encoded:
            try:
                pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST)
            except ValueError as error:
                raise ApiError(400, "Too many parameters.") from error
            for name, value in pairs:
                _put(values, name, value)
        return cls(values)

    @property
    def values(self) -> Mapping[str, Any]:
        """All of them as nested dicts, to compare requests by."""
        return self._values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def name_of(self, name: str) -> str:
        """The parameter's whole name, as messages give it."""
        return f"{self._within}[{name}]" if self._within else name

    def text(self, name: str) -> str | None:
        """A text; None if it is not there or empty, by which a request unsets a value."""
        value = self._values.get(name)
        if isinstance(value, dict):
            raise ApiError(400, f"Invalid string: {self.name_of(name)}", param=self.name_of(name))
        return value or None

    def required(self, name: str) -> str:
        """A text that must be there."""
        value = self.text(name)
        if value is None:
            raise missing_parameter(self.name_of(name))
        return value

    def integer(self, name: str) -> int | None:
        """A whole number."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            full = self.name_of(name)
            raise ApiError(400, f"Invalid integer: {text}", code="parameter_invalid_integer", param=full) from None

    def boolean(self, name: str) -> bool | None:
        """``true`` or ``false``."""
        text = self.text(name)
        if text is not None and text not in _TRUE:
            raise ApiError(400, f"Invalid boolean: {text}", param=self.name_of(name))
        return None if text is None else _TRUE[text]

    def choice(self, name: str, allowed: tuple[str, ...]) -> str | None:
        """One of ``allowed``."""
        text = self.text(name)
        if text is not None and text not in allowed:
            message = f"Invalid {self.name_of(name)}: must be one of {', '.join(allowed)}"
            raise ApiError(400, message, param=self.name_of(name))
        return text

    def inner(self, name: str) -> "Parameters":
        """The parameters within this one; none if it is not there."""
        value = self._values.get(name, {})
        if not isinstance(value, dict):
            raise ApiError(400, "Invalid object", param=self.name_of(name))
        return Parameters(value, self.name_of(name))

    def each(self, name: str) -> "list[Parameters]":
        """The members of a list of objects, in the order of their numbers."""
        inner = self.inner(name)
        return [inner.inner(number) for number in inner.keys_in_order()]

    def texts(self, name: str) -> list[str]:
        """The members of a list of texts."""
        if isinstance(self._values.get(name), str):
            return [self._values[name]]
        inner = self.inner(name)
        return [inner.required(number) for number in inner.keys_in_order()]

    def metadata(self, name: str = "metadata") -> dict[str, str] | None:
        """Keys and values, empty ones too; None if there are none."""
        if name not in self._values:
            return None
        inner = self.inner(name)
        return {key: inner.text(key) or "" for key in inner.values}

    def keys_in_order(self) -> list[str]:
        """The names, numbers among them in their order."""
        return sorted(self._values, key=lambda key: (not key.isdigit(), int(key) if key.isdigit() else 0))


def missing_parameter(name: str) -> ApiError:
    """A parameter that must be there is not."""
    return ApiError(400, f"Missing required param: {name}.", code="parameter_missing", param=name)


def _put(values: dict[str, Any], name: str, value: str) -> None:
    match = _NAME.fullmatch(name)
    if match is None:
        raise ApiError(400, f"Invalid parameter name: {name}", param=name)
    *path, last = match[1], *_PART.findall(match[2])
    for part in path:
        inner = values.setdefault(part or str(len(values)), {})
        if not isinstance(inner, dict):
            raise ApiError(400, "Invalid object", param=name)
        values = inner
    values[last or str(len(values))] = value
