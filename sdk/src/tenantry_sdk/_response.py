"""A raw response, and the base class of the records that it contains."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

import msgspec

from tenantry_sdk._encoding import NOT_JSON
from tenantry_sdk._secret import Secret
from tenantry_sdk.errors import (
    APIError,
    Fault,
    FeatureNotGrantedError,
    QuotaExceededError,
    UnknownFeatureError,
    UnreadableAnswerError,
)

if TYPE_CHECKING:
    import httpx2

_TITLE: Final = re.compile(r"<title>\s*([^<]+?)\s*</title>", re.IGNORECASE)
_MOST_BYTES: Final = 256 * 1024 * 1024
PASSED_ON: Final = frozenset({401, 403, 429, 431, 503})
"""The statuses of rejections that a service passes on to its caller."""
_EXTRA: Final = "_extra"
_RESPONSE: Final = "_response"

T = TypeVar("T")
Convert: TypeAlias = "Callable[[Any, Any, Response], Any]"
"""Makes decoded JSON of a response what is wanted."""


class Response:
    """A raw response."""

    __slots__ = ("content", "headers", "idempotency_key", "status_code")

    status_code: int
    """The HTTP status."""
    headers: Mapping[str, str]
    """The headers; their names are in lower case."""
    content: bytes
    """The body."""
    idempotency_key: str | None
    """The idempotency key of the call, if it had one."""

    def __init__(
        self,
        status_code: int,
        headers: Mapping[str, str],
        content: bytes,
        idempotency_key: str | None = None,
    ) -> None:
        self.status_code = status_code
        self.headers = headers
        self.content = content
        self.idempotency_key = idempotency_key

    @property
    def request_id(self) -> str | None:
        """The id of the request in the service's log."""
        return self.headers.get("x-request-id")

    def json(self) -> Any:  # noqa: ANN401
        """Decode the content to plain Python values. Raises `UnreadableAnswerError`."""
        return self.parse(cast("type[Any]", Any))

    def parse(self, kind: type[T], convert: Convert | None = None) -> T:
        """Decode the content to ``kind``, by another function than `converted` if there is one.

        Raises `UnreadableAnswerError`.
        """
        try:
            record: T = (convert or converted)(msgspec.json.decode(self.content), kind, self)
        except NOT_JSON as error:
            raise UnreadableAnswerError(
                f"The response ({self.status_code}, request {self.request_id}) is not one of tenantry: {error}",
                self.request_id,
                idempotency_key=self.idempotency_key,
            ) from error
        return record

    def __repr__(self) -> str:
        # The content may contain a secret.
        return f"Response({self.status_code}, {len(self.content)} bytes, request {self.request_id})"


class ResponseReader:
    """Collects a response while it is received."""

    def __init__(self, response: httpx2.Response, idempotency_key: str | None) -> None:
        """``idempotency_key`` is that of the call: the header may be a default of the caller's own
        HTTP client.
        """
        self._status_code = response.status_code
        self._headers = {name.lower(): value for name, value in response.headers.items()}
        self._idempotency_key = idempotency_key
        self._content = bytearray()

    def add(self, piece: bytes) -> None:
        """Add received bytes. Raises `UnreadableAnswerError` for a body larger than any of
        tenantry's.
        """
        self._content += piece
        if len(self._content) > _MOST_BYTES:
            raise UnreadableAnswerError(
                f"The response ({self._status_code}) is too large.",
                idempotency_key=self._idempotency_key,
            )

    def response(self) -> Response:
        """Return the complete response."""
        content = bytes(self._content)
        return Response(self._status_code, self._headers, content, self._idempotency_key)


def is_whole(response: Response) -> bool:
    """Whether a successful response is complete. HTTP does not report a connection that was closed
    too early.
    """
    if not 200 <= response.status_code < 300 or response.status_code == 204:  # noqa: PLR2004
        return True
    if not response.headers.get("content-type", "").startswith("application/json"):
        return True
    try:
        msgspec.json.decode(response.content)
    except NOT_JSON:
        return False
    return True


_BY_STATUS: Final[dict[int | None, type[APIError]]] = {
    kind.status: kind for kind in APIError.__subclasses__()
}
_BY_CODE: Final[dict[str, type[APIError]]] = {
    "feature_not_granted": FeatureNotGrantedError,
    "quota_exceeded": QuotaExceededError,
    "unknown_feature": UnknownFeatureError,
}


class _Problem(msgspec.Struct):
    code: str
    detail: str
    errors: list[Fault] = []


def error_of(
    response: Response,
    retry_after: float | None,
    *,
    after_lost_answer: bool = False,
    by_caller: bool = False,
) -> APIError:
    """Return the error of a response. ``by_caller``: to the credential of your service's caller."""
    status, content = response.status_code, response.content
    try:
        document = msgspec.json.decode(content, type=dict[str, Any])
        problem = msgspec.convert(document, _Problem)
    except NOT_JSON:
        # A gateway in front of the service answered.
        document = {}
        problem = _Problem(f"http_{status}", _excerpt(content) or "The response gives no reason.")
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(status, APIError)
    return kind(
        status,
        code=problem.code,
        detail=problem.detail,
        errors=problem.errors,
        headers=response.headers,
        retry_after=retry_after,
        document=document,
        content=content,
        request_id=response.request_id,
        idempotency_key=response.idempotency_key,
        after_lost_answer=after_lost_answer,
        is_for_caller=by_caller and bool(document) and status in PASSED_ON,
    )


def _excerpt(content: bytes) -> str:
    text = " ".join(content[:2000].decode("utf-8", "replace").split())
    title = _TITLE.search(text)  # of a page
    return "".join(c for c in (title[1] if title else text) if c.isprintable())[:200]


_recorders: Final[ContextVar[tuple[list[Response], ...]]] = ContextVar(
    "tenantry_sdk_recorders", default=()
)


@contextmanager
def record_responses() -> Generator[list[Response]]:
    """Collect the raw responses received within the block, those of failed attempts included."""
    responses: list[Response] = []
    token = _recorders.set((*_recorders.get(), responses))
    try:
        yield responses
    finally:
        _recorders.reset(token)


def record(response: Response) -> None:
    """Pass a response to the recorders."""
    for responses in _recorders.get():
        responses.append(response)


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel", dict=True):
    """A record of the API, with field names in snake case."""

    @property
    def extra_fields(self) -> Mapping[str, Any]:
        """The fields that this version of the client does not know, in the API's spelling."""
        extra: Mapping[str, Any] = vars(self).get(_EXTRA, {})
        return extra

    @property
    def response(self) -> Response:
        """The raw response that the record came with: its status, headers, ``request_id`` and body.

        Raises `AttributeError` for a record that did not come from the service.
        """
        try:
            response: Response = vars(self)[_RESPONSE]
        except KeyError:
            raise AttributeError(
                f"This {type(self).__name__} did not come with a response."
            ) from None
        return response

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values in the API's spelling, unknown fields included.

        The secret of a new key stays a `Secret`, which no JSON encoder accepts: reveal it where
        that is intended.
        """
        fields = {
            one.encode_name: _plain(getattr(self, one.name)) for one in msgspec.structs.fields(self)
        }
        return {**fields, **self.extra_fields}

    def __copy__(self) -> Model:
        return _with(msgspec.structs.replace(self), vars(self))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return _rebuild, (
            type(self),
            fields,
            {name: vars(self)[name] for name in vars(self).keys() & _KEPT},
        )


_KEPT: Final = frozenset({_EXTRA, _RESPONSE})


def _rebuild(kind: type[Model], fields: dict[str, Any], attributes: dict[str, Any]) -> Model:
    return _with(kind(**fields), attributes)


def _with(record: Model, attributes: Mapping[str, Any]) -> Model:
    vars(record).update(attributes)
    return record


def _plain(value: object) -> object:
    match value:
        case Model():
            return value.to_dict()
        case list():
            return [_plain(item) for item in cast("list[object]", value)]
        case datetime():
            return msgspec.to_builtins(value)
        case _:
            return value


def converted(document: Any, kind: Any, response: Response | None = None) -> Any:  # noqa: ANN401
    """Return decoded JSON as ``kind``, whose records keep unknown fields and the response.

    Raises `msgspec.ValidationError` if a field is missing or of another type.
    """
    value = msgspec.convert(document, kind, dec_hook=_secret)
    _attach(value, document, {} if response is None else {_RESPONSE: response})
    return value


def _attach(value: object, document: Any, attributes: dict[str, Any]) -> None:  # noqa: ANN401  # of the same shape
    match value:
        case Model():
            names = {one.encode_name: one.name for one in msgspec.structs.fields(value)}
            extra = {name: field for name, field in document.items() if name not in names}
            _with(value, {_EXTRA: extra, **attributes})
            for encoded in names.keys() & document.keys():
                _attach(getattr(value, names[encoded]), document[encoded], attributes)
        case list():
            for item, part in zip(cast("list[object]", value), document, strict=True):
                _attach(item, part, attributes)
        case _:
            pass


def _secret(kind: type, value: object) -> object:
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    raise ValueError(f"{kind.__name__} must be a string")


def check_deleted(response: Response) -> None:
    """Raise `UnreadableAnswerError` if something else than the service answered a deletion."""
    if response.status_code not in {204, 404}:
        raise UnreadableAnswerError(
            f"The response to a deletion ({response.status_code}, request {response.request_id}) "
            "is not one of tenantry.",
            response.request_id,
        )
