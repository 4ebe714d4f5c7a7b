"""Requests and responses: HTTP over ASGI, parameters, pages of lists, and errors."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec

from tenantry.server.asgi_types import MAX_BODY, Receive, Scope, Send
from tenantry_devkit.simulator.shapes import Json, Shape, as_list, render

T = TypeVar("T")


class ApiError(Exception):
    """An error response: its HTTP status and its ``error`` object."""

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


def missing(kind: str, wanted: str, *, param: str = "id") -> ApiError:
    """Return the error for an unknown id: 404 in the path, 400 in a parameter."""
    status = 404 if param == "id" else 400
    return ApiError(status, f"No such {kind}: '{wanted}'", code="resource_missing", param=param)


def found(table: Mapping[str, T], kind: str, wanted: str, *, param: str = "id") -> T:
    """Return the object with this id; raises `ApiError` if there is none."""
    thing = table.get(wanted)
    if thing is None:
        raise missing(kind, wanted, param=param)
    return thing


def check_url(url: str | None, param: str) -> None:
    """Raise `ApiError` unless it is a web address."""
    if url is not None and not url.startswith(("https://", "http://")):
        raise ApiError(400, "Not a valid URL", code="url_invalid", param=param)


_NAME: Final = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")
_PART: Final = re.compile(r"\[([^\[\]]*)\]")
_MOST: Final = 2000
_BOOLEANS: Final = {"true": True, "false": False}


class Parameters:
    """Named values, nested where names have brackets. The getters raise `ApiError` for values of another type."""

    def __init__(self, values: Mapping[str, Any] | None = None, within: str = "") -> None:
        self._values = values or {}
        self._within = within

    @classmethod
    def parse(cls, *encoded: str) -> "Parameters":
        """Parse queries and forms such as ``items[0][price]=price_pro&expand[]=customer``."""
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
        return self._values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def name_of(self, name: str) -> str:
        return f"{self._within}[{name}]" if self._within else name

    def text(self, name: str) -> str | None:
        """Return a string; None if it is missing or empty, which unsets a value."""
        value = self._values.get(name)
        if isinstance(value, dict):
            raise ApiError(400, f"Invalid string: {self.name_of(name)}", param=self.name_of(name))
        return value or None

    def required(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise missing_parameter(self.name_of(name))
        return value

    def integer(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            full = self.name_of(name)
            raise ApiError(400, f"Invalid integer: {text}", code="parameter_invalid_integer", param=full) from None

    def boolean(self, name: str) -> bool | None:
        text = self.text(name)
        if text is not None and text not in _BOOLEANS:
            raise ApiError(400, f"Invalid boolean: {text}", param=self.name_of(name))
        return None if text is None else _BOOLEANS[text]

    def choice(self, name: str, allowed: tuple[str, ...]) -> str | None:
        text = self.text(name)
        if text is not None and text not in allowed:
            message = f"Invalid {self.name_of(name)}: must be one of {', '.join(allowed)}"
            raise ApiError(400, message, param=self.name_of(name))
        return text

    def inner(self, name: str) -> "Parameters":
        """Return the nested parameters; none if it is missing."""
        value = self._values.get(name, {})
        if not isinstance(value, dict):
            raise ApiError(400, "Invalid object", param=self.name_of(name))
        return Parameters(value, self.name_of(name))

    def each(self, name: str) -> "list[Parameters]":
        """Return a list of objects, in the order of their numbers."""
        inner = self.inner(name)
        return [inner.inner(number) for number in inner.keys_in_order()]

    def texts(self, name: str) -> list[str]:
        if isinstance(self._values.get(name), str):
            return [self._values[name]]
        inner = self.inner(name)
        return [inner.required(number) for number in inner.keys_in_order()]

    def metadata(self, name: str = "metadata") -> dict[str, str] | None:
        """Return keys and values, including empty ones; None if it is missing."""
        if name not in self._values:
            return None
        inner = self.inner(name)
        return {key: inner.text(key) or "" for key in inner.values}

    def keys_in_order(self) -> list[str]:
        return sorted(self._values, key=lambda key: (not key.isdigit(), int(key) if key.isdigit() else 0))


def missing_parameter(name: str) -> ApiError:
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
_COMPARE: Final = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}


class Listable(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def created(self) -> int: ...


L = TypeVar("L", bound=Listable)


def page(newest_first: Sequence[L], kind: str, parameters: Parameters) -> tuple[list[L], bool]:
    """Return the requested page, and whether there are more objects in the direction of reading."""
    given = parameters.integer("limit")
    limit = _DEFAULT_LIMIT if given is None else given
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
    """Return a test for ``name=...``, ``name[gte]=...`` and so on."""
    if name not in parameters:
        return lambda _: True
    if isinstance(parameters.values[name], str):
        exact = parameters.integer(name)
        return lambda value: value == exact
    inner = parameters.inner(name)
    bounds = [(compare, bound) for key, compare in _COMPARE.items() if (bound := inner.integer(key)) is not None]
    return lambda value: all(compare(value, bound) for compare, bound in bounds)


def _place(things: Sequence[L], wanted: str, kind: str, param: str) -> int:
    for place, thing in enumerate(things):
        if thing.id == wanted:
            return place
    raise missing(kind, wanted, param=param)


@dataclass(frozen=True)
class ApiCall:
    """``ids`` are those in the path."""

    path: str
    ids: tuple[str, ...]
    parameters: Parameters
    shape: Shape

    @property
    def id(self) -> str:
        return self.ids[0]

    def render(self, thing: object) -> Json:
        return render(thing, self.shape)

    def page(self, oldest_first: Iterable[L], kind: str, show: Callable[[L], Json] | None = None) -> Json:
        """Return the requested page of a list."""
        found, has_more = page(list(oldest_first)[::-1], kind, self.parameters)
        return as_list(self.path, [(show or self.render)(thing) for thing in found], has_more=has_more)


H = TypeVar("H")


class Routes(Generic[H]):
    """Handlers by method and path, in which ``{}`` is an id."""

    def __init__(self, handlers: Mapping[str, H]) -> None:
        """``handlers`` are by texts such as ``GET /v1/prices/{}``."""
        self._routes = [(re.compile(re.escape(route).replace(r"\{\}", "([^/]+)")), handler)
                        for route, handler in handlers.items()]  # fmt: skip

    def find(self, method: str, path: str) -> tuple[H, tuple[str, ...]] | None:
        """Return the handler of a request, and the ids in its path."""
        matches = ((pattern.fullmatch(f"{method} {path}"), handler) for pattern, handler in self._routes)
        return next(((handler, match.groups()) for match, handler in matches if match), None)


def expand(answer: Json, paths: Sequence[str], look_up: Callable[[str, str], Json | None]) -> None:
    """Replace ids by objects, as in ``expand[]=data.customer``; ``look_up`` returns the object of a field and id."""
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


FORM: Final = "application/x-www-form-urlencoded"


class BodyTooLargeError(Exception):
    """The body is larger than 1 MiB."""


class ClientDisconnectedError(Exception):
    """The client disconnected before the end of its request."""


@dataclass(frozen=True)
class HttpRequest:
    """Header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass
class HttpResponse:
    status: int
    body: bytes
    content_type: str
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, value: object, status: int = 200) -> "HttpResponse":
        """Return JSON, indented like the provider's."""
        return cls(status, msgspec.json.format(msgspec.json.encode(value), indent=2), "application/json")

    @classmethod
    def of_error(cls, error: ApiError) -> "HttpResponse":
        return cls.json({"error": error.error}, error.status)


async def read_request(scope: Scope, receive: Receive) -> HttpRequest:
    """Read a request; raises `BodyTooLargeError` and `ClientDisconnectedError`."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY:
            raise BodyTooLargeError
    return HttpRequest(
        method=scope["method"],
        path=scope["path"],
        query=scope["query_string"].decode("latin-1"),
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
        body=body,
    )


async def send_response(send: Send, response: HttpResponse) -> None:
    headers = {"Content-Type": response.content_type, "Content-Length": str(len(response.body)), **response.headers}
    encoded = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": encoded})
    await send({"type": "http.response.body", "body": response.body})
