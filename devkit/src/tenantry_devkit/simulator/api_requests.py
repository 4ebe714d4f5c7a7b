"""Requests to the simulated provider's API: parameters, pages of lists, and errors."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl

from tenantry_devkit.simulator.shapes import Json, Shape, as_list, render

T = TypeVar("T")


class ApiError(Exception):
    """An error answer: its HTTP status and the fields of its ``error`` object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",  # noqa: A002  # the provider's name for it
        code: str | None = None,
        param: str | None = None,
        **more: str,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = {
            name: value
            for name, value in {"type": type, "code": code, "param": param, "message": message, **more}.items()
            if value is not None
        }

    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        return {"error": self.error}


def missing(kind: str, wanted: str, *, param: str = "id") -> ApiError:
    """There is no such object: 404 where the address names it, 400 where a parameter does."""
    status = 404 if param == "id" else 400
    return ApiError(status, f"No such {kind}: '{wanted}'", code="resource_missing", param=param)


def found(table: Mapping[str, T], kind: str, wanted: str, *, param: str = "id") -> T:
    """The object of this id; raises `ApiError` if there is none."""
    thing = table.get(wanted)
    if thing is None:
        raise missing(kind, wanted, param=param)
    return thing


def check_url(url: str | None, param: str) -> None:
    """Raise `ApiError` for a text that is not an address on the web."""
    if url is not None and not url.startswith(("https://", "http://")):
        raise ApiError(400, "Not a valid URL", code="url_invalid", param=param)


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


_DEFAULT_LIMIT: Final = 10
_LARGEST_LIMIT: Final = 100
_COMPARE: Final = ("gt", "gte", "lt", "lte")


class Listed(Protocol):
    """What can be in a list."""

    @property
    def id(self) -> str: ...
    @property
    def created(self) -> int: ...


L = TypeVar("L", bound=Listed)


def page(newest_first: Sequence[L], kind: str, parameters: Parameters) -> tuple[list[L], bool]:
    """The page that the parameters ask for, and whether there is more in the direction of reading."""
    limit = parameters.integer("limit")
    if limit is None:
        limit = _DEFAULT_LIMIT
    if not 1 <= limit <= _LARGEST_LIMIT:
        message = f"This value must be between 1 and {_LARGEST_LIMIT}."
        raise ApiError(400, message, code="parameter_invalid_integer", param="limit")
    after, before = parameters.text("starting_after"), parameters.text("ending_before")
    if after is not None and before is not None:
        raise ApiError(400, "You may only specify one of these parameters: starting_after, ending_before.")
    if before is not None:
        rest = newest_first[: _place(newest_first, before, kind, "ending_before")]
        return list(rest[-limit:]), len(rest) > limit
    rest = newest_first if after is None else newest_first[_place(newest_first, after, kind, "starting_after") + 1 :]
    return list(rest[:limit]), len(rest) > limit


def in_range(parameters: Parameters, name: str) -> Callable[[int], bool]:
    """Whether a moment satisfies ``name=...``, ``name[gte]=...`` and so on; without them any does."""
    if name not in parameters:
        return lambda _: True
    if isinstance(parameters.values[name], str):
        exact = parameters.integer(name)
        return lambda value: value == exact
    gt, gte, lt, lte = (parameters.inner(name).integer(comparison) for comparison in _COMPARE)
    return lambda value: (
        (gt is None or value > gt)
        and (gte is None or value >= gte)
        and (lt is None or value < lt)
        and (lte is None or value <= lte)
    )


def _place(things: Sequence[L], wanted: str, kind: str, param: str) -> int:
    for place, thing in enumerate(things):
        if thing.id == wanted:
            return place
    raise missing(kind, wanted, param=param)


@dataclass(frozen=True)
class Call:
    """A request, understood: ``ids`` are those in its address."""

    path: str
    ids: tuple[str, ...]
    parameters: Parameters
    shape: Shape

    @property
    def id(self) -> str:
        """The id of the object that the address names."""
        return self.ids[0]

    def render(self, thing: object) -> Json:
        """An object in the shape that was asked for."""
        return render(thing, self.shape)

    def page(self, oldest_first: Iterable[L], kind: str, show: Callable[[L], Json] | None = None) -> Json:
        """The page of a list that was asked for."""
        found, has_more = page(list(oldest_first)[::-1], kind, self.parameters)
        return as_list(self.path, [(show or self.render)(thing) for thing in found], has_more=has_more)


Handler = Callable[[Call], Json]


class Route:
    """A method and a path, in which ``{}`` stands for an id."""

    def __init__(self, method: str, path: str, handler: Handler) -> None:
        self.method = method
        self.handler = handler
        self._pattern = re.compile(re.escape(path).replace(r"\{\}", "([^/]+)"))

    def ids(self, method: str, path: str) -> tuple[str, ...] | None:
        """The ids in the address of a request that is for this route, else None."""
        match = self._pattern.fullmatch(path) if method == self.method else None
        return None if match is None else match.groups()


def expand(answer: Json, paths: Sequence[str], look_up: Callable[[str, str], Json | None]) -> None:
    """Put whole objects in the place of ids, as in ``expand[]=data.customer``.

    ``look_up`` is given a field's name and the id there; what it does not know stays an id.
    """
    for path in paths:
        _expand(answer, path.split("."), look_up)


def _expand(thing: object, path: Sequence[str], look_up: Callable[[str, str], Json | None]) -> None:
    if isinstance(thing, list):
        for member in thing:
            _expand(member, path, look_up)
        return
    if not path or not isinstance(thing, dict):
        return
    name, *rest = path
    value = thing.get(name)
    if isinstance(value, str):
        value = thing[name] = look_up(name, value) or value
    _expand(value, rest, look_up)
