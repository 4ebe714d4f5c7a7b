"""An API request as a value."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Final, Protocol, TypedDict, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UnsetType

from tenantry_sdk._secret import Secret

T = TypeVar("T")

_VISIBLE: Final = re.compile(r"[\x21-\x7e]{1,255}")
_CREDENTIAL: Final = re.compile(
    r"svc_\w{8,}|[a-z0-9]{2,16}_(?:live|test)_\w{20,}|eyJ[\w-]{8,}(?:\.[\w-]*)*"
)


class Content(bytes):
    """The body of a request. It may contain a secret, so its ``repr`` shows only its length."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Content({len(self)} bytes)"


class Call(msgspec.Struct, frozen=True):
    """A request."""

    method: str
    path: str
    query: dict[str, str] = {}
    body: Content | None = None
    headers: dict[str, str] = {}
    idempotency_key: str | None = None
    vanishes: bool = False
    """Whether the object does not exist after this deletion: a 404 after a lost response then means
    success.
    """
    authorization: Secret | None = None
    """The header of another caller, for a check. The client's own credential is not sent."""
    secret_headers: Mapping[str, Secret | None] = {}
    """Further headers with a credential of another caller; with None the header is not sent."""
    is_anonymous: bool = False
    """Whether the client's own credential and organization are not sent."""
    is_check: bool = False
    """Whether another request waits for it: it is retried once, if the connection was lost, and at
    no rejection.
    """
    wait: float = 0.0
    """Seconds that the service itself waits before it answers; time limits count from then on."""
    accepted: int | None = None
    """A status that is a result too, not an error."""

    @property
    def is_by_caller(self) -> bool:
        """Whether it has the credential of a caller of the program's own service, or would have."""
        return self.is_check or self.authorization is not None or bool(self.secret_headers)

    @property
    def repeatable(self) -> bool:
        """Whether it may be retried after a lost response: reads, deletions, and requests with an
        idempotency key.
        """
        return self.method in {"GET", "HEAD", "DELETE"} or self.idempotency_key is not None

    @property
    def summary(self) -> str:
        """The method and the path, for logs and errors. A credential that was passed as an id is
        hidden.
        """
        return f"{self.method} {_CREDENTIAL.sub('**********', self.path)}"


class CallFacts(TypedDict, total=False):
    """What is known of a call whenever one of its errors is made."""

    idempotency_key: str | None
    after_lost_answer: bool


def path(template: str, *parts: str) -> str:
    """Return the template with each ``{}`` replaced by an id, as one path segment. Raises
    `ValueError`.
    """
    for part in parts:
        if not part or part in {".", ".."}:
            raise ValueError(f"{part!r} is not an id")
    return template.format(*(quote(part, safe="") for part in parts))


def query(**values: str | int | bool | datetime | None) -> dict[str, str]:
    """Return query parameters in the API's spelling, without those that are None."""
    return {_camel(name): _text(value) for name, value in values.items() if value is not None}


def body(**values: Any) -> Content:  # noqa: ANN401
    """Encode a JSON object in the API's spelling, without values that are `msgspec.UNSET`."""
    fields = {
        _camel(name): _field(value) for name, value in values.items() if value is not msgspec.UNSET
    }
    return Content(msgspec.json.encode(fields))


def given(**values: T | None) -> dict[str, T]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def creation(path: str, content: Content, idempotency_key: str | None) -> Call:
    """Return a creation, with a random idempotency key by default. Raises `ValueError`."""
    key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
    return Call("POST", path, {}, content, idempotency_key=visible(key, "idempotency_key"))


def visible(value: str, what: str) -> str:
    """Return a value that a header can carry: 1 to 255 visible ASCII characters. Raises
    `ValueError`.
    """
    if not _VISIBLE.fullmatch(value):
        raise ValueError(f"{what} must be 1 to 255 visible ASCII characters")
    return value


class Strings(Protocol):
    """A list, tuple or set of strings. A string is none: its ``in`` takes strings alone, not any
    object.
    """

    def __contains__(self, value: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...


def listed_if_set(values: Strings | UnsetType, what: str) -> list[str] | UnsetType:
    """Return the values as a list, if they are set. Raises `TypeError` for a string."""
    return values if isinstance(values, UnsetType) else listed(values, what)


def listed(values: Strings, what: str) -> list[str]:
    """Return the values as a list. Raises `TypeError` for a string, which callers without a type
    checker may pass.
    """
    passed: object = values
    if isinstance(passed, str):
        raise TypeError(f"{what} must be a list of strings, not the string {passed!r}")
    return [*values]


def _camel(name: str) -> str:
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(word.capitalize() for word in rest)


def _text(value: str | float | datetime) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case datetime():
            return _utc(value)
        case _:
            return str(value)


def _field(value: object) -> object:
    return _utc(value) if isinstance(value, datetime) else value


def _utc(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise ValueError("a datetime needs a time zone, such as datetime.timezone.utc")
    return moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
