"""Reading forms: their fields, their token, and what a repeated form finds."""

import asyncio
import hashlib
import hmac
import secrets
import unicodedata
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec
from litestar.datastructures import FormMultiDict
from litestar.exceptions import ClientException

from tenantry.api.guards import AnyRequest, claimant
from tenantry.dashboard.labels import shown_name
from tenantry.db.idempotency_store import Claim
from tenantry.domain.access import Principal
from tenantry.domain.errors import IdempotencyInFlightError, InvalidIdempotencyKeyError

TOKEN_FIELD: Final = "form_token"  # noqa: S105  # a name
MOST_BYTES: Final = 64 * 1024
_ELSEWHERE: Final = frozenset({"cross-site", "same-site"})
ONCE_FIELD: Final = "once"
_SHOWN: Final = "shown-"
_TRIES: Final = 20
_BETWEEN_TRIES: Final = 0.1
_SHORTEST_ONCE: Final = 16

Body = TypeVar("Body", bound=msgspec.Struct)
Made = TypeVar("Made")


class Form:
    """The fields of a form, as text without blanks around it."""

    def __init__(self, fields: FormMultiDict | Mapping[str, str]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """A field; empty where it is not there."""
        value = self._fields.get(name, "")
        return value.strip() if isinstance(value, str) else ""

    def all(self, name: str) -> list[str]:
        """Every value of a field that may be there several times."""
        if not isinstance(self._fields, FormMultiDict):
            return [self._fields[name]] if name in self._fields else []
        return [value.strip() for value in self._fields.getall(name, []) if isinstance(value, str)]

    def typed(self) -> list[tuple[str, str]]:
        """Every field but the session's token, in their order; no form of ours asks for a secret."""
        items = self._fields.multi_items() if isinstance(self._fields, FormMultiDict) else self._fields.items()
        return [(name, value) for name, value in items if isinstance(value, str) and name != TOKEN_FIELD]

    def checked(self, name: str) -> bool:
        """Whether a box is ticked."""
        return bool(self.text(name))


async def read_form(request: AnyRequest) -> Form:
    """The form that a request carries. Raises `ClientException` for what no form of ours sends."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ClientException("A form is expected here.")
    if len(await request.body()) > MOST_BYTES:
        raise ClientException("The form is too large.")
    return Form(await request.form())


def comes_from_elsewhere(request: AnyRequest) -> bool:
    """Whether the browser says that another site made it send the request (Fetch Metadata)."""
    return request.headers.get("sec-fetch-site", "") in _ELSEWHERE


def comes_from_here(request: AnyRequest) -> bool:
    """Whether the browser says that a page of ours made it send the request; an old one says nothing."""
    return request.headers.get("sec-fetch-site") == "same-origin"


def is_ours(form: Form, expected: str) -> bool:
    """Whether a form was made for this session."""
    return hmac.compare_digest(form.text(TOKEN_FIELD).encode(), expected.encode())


class Edits(NamedTuple):
    """What somebody changed in a form, by field."""

    made: frozenset[str]
    overtaken: frozenset[str]
    """Those of them that somebody else changed while the form was open."""


class FaultyFormError(Exception):
    """A form that cannot be taken; ``faults`` says why, by field, in the order of the fields."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__()
        self.faults = dict(faults)


def checked(
    kind: type[Body], typed: Mapping[str, object], words: Mapping[str, str], further: Mapping[str, str] | None = None
) -> Body:
    """What was typed as a body of the API; ``words`` say of each field what it takes.

    Raises `FaultyFormError` with every faulty field, and with the ``further`` faults of fields that come after them.
    """
    faults = {}
    for field in msgspec.structs.fields(kind):
        try:
            msgspec.convert(typed[field.encode_name], field.type)
        except msgspec.ValidationError:
            empty = typed[field.encode_name] == ""
            faults[field.encode_name] = "Fill this in." if empty else words[field.encode_name]
    faults |= further or {}
    if faults:
        raise FaultyFormError(faults)
    return msgspec.convert(typed, kind)


def lines(text: str) -> str:
    """The text of several lines with the line ends that everything but a form has."""
    return text.replace("\r\n", "\n")


def to_be_typed(name: str, otherwise: str) -> str:
    """What is to be typed to show that a name was read: what `shown_name` gives, without blanks that nobody sees."""
    return " ".join(unicodedata.normalize("NFC", shown_name(name, otherwise)).split())


def faults_of_typed(typed: str, field: str, expected: str) -> dict[str, str]:
    """What is wrong with a field that should hold what `to_be_typed` gave; empty where it does."""
    return {} if to_be_typed(typed, "") == expected else {field: "This is another name. Nothing was changed."}


def marks(fields: Mapping[str, str]) -> dict[str, str]:
    """What tells each field's text from every other: a form that changes something carries along what it showed."""
    return {_SHOWN + name: hashlib.sha256(text.encode()).hexdigest() for name, text in fields.items()}


def edits(form: Form, typed: Mapping[str, str], present: Mapping[str, str]) -> Edits:
    """Which fields somebody changed in a form with the `marks` of what it showed; ``present`` is how they are now."""
    shown = {name: form.text(_SHOWN + name) for name in typed}
    as_typed, as_is = marks(typed), marks(present)
    made = {name for name in typed if as_typed[_SHOWN + name] not in (shown[name], as_is[_SHOWN + name])}
    return Edits(frozenset(made), frozenset(name for name in made if as_is[_SHOWN + name] != shown[name]))


def once_token() -> str:
    """What makes a form different from every other, so that sending it twice makes one thing."""
    return secrets.token_urlsafe(16)


async def form_claim(request: AnyRequest, principal: Principal, form: Form) -> Claim:
    """The claim of a form: of just these fields, since somebody may go back, change them and mean something else.

    Raises `InvalidIdempotencyKeyError` for a form without a token of its own.
    """
    if len(form.text(ONCE_FIELD)) < _SHORTEST_ONCE:
        raise InvalidIdempotencyKeyError("The form has no token of its own: open the page again.")
    digest = hashlib.sha256(await request.body())
    return Claim(claimant(principal), f"POST {request.url.path}", f"form:{digest.hexdigest()}", digest.digest())


async def retry_while_in_flight(act: Callable[[], Awaitable[Made]]) -> Made:
    """Do it; while the same form of a double click is being carried out, wait for what that gives."""
    for _ in range(_TRIES):
        try:
            return await act()
        except IdempotencyInFlightError:
            await asyncio.sleep(_BETWEEN_TRIES)
    return await act()
