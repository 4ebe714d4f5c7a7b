"""What people typed into a form, checked as the API checks its bodies, and carried out once."""

import asyncio
import hashlib
import secrets
import unicodedata
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from tenantry.api.guards import AnyRequest, claimant
from tenantry.dashboard.forms import Form
from tenantry.dashboard.words import shown_name
from tenantry.db.idempotency_store import Claim
from tenantry.domain.access import Principal
from tenantry.domain.errors import IdempotencyInFlightError, InvalidIdempotencyKeyError

ONCE_FIELD: Final = "once"
_SHOWN: Final = "shown-"
_TRIES: Final = 20
_BETWEEN_TRIES: Final = 0.1
_SHORTEST_ONCE: Final = 16

Body = TypeVar("Body", bound=msgspec.Struct)
Made = TypeVar("Made")


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


async def patiently(act: Callable[[], Awaitable[Made]]) -> Made:
    """Do it; while the same form of a double click is being carried out, wait for what that gives."""
    for _ in range(_TRIES):
        try:
            return await act()
        except IdempotencyInFlightError:
            await asyncio.sleep(_BETWEEN_TRIES)
    return await act()
