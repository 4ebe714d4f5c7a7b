"""Reading submitted forms: fields, CSRF token, validation, concurrent edits, and double
submission.
"""

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec
from litestar.datastructures import FormMultiDict
from litestar.exceptions import ClientException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge
from msgspec import UNSET, UnsetType

from tenantry.api.guards import AnyRequest
from tenantry.dashboard.labels import isolated, shown_name
from tenantry.domain.api_keys import ApiKey
from tenantry.domain.errors import DomainError, ValidationError
from tenantry.domain.tenants import Project, Tenant
from tenantry.server.repeated_items import has_too_many_fields

TOKEN_FIELD: Final = "form_token"  # noqa: S105  # a name
MOST_BYTES: Final = 64 * 1024
_TOO_LARGE: Final = "The form is too large. Go back and shorten it."
_OTHER_SITES: Final = frozenset({"cross-site", "same-site"})
_DIGEST_PREFIX: Final = "shown-"
_BEYOND_YEARS: Final = re.compile(r"\+?\d{5,}-\d\d-\d\d", re.ASCII)
_FIELDS: Final = {"scopes": "scope", "expiresAt": "until"}
"""The fields of forms by those of the API, where they differ."""

_CONFLICT: Final = (
    "This was changed after you opened the form. It is now: {}. Save again to replace it."
)

Body = TypeVar("Body", bound=msgspec.Struct)
T = TypeVar("T")
FieldErrors = Mapping[type[DomainError], tuple[str, str]]
"""The field of a form that shows an error, and its text; empty for the error's own."""


class Form:
    """The fields of a submitted form. All are texts: `read_form` takes no files. Without ``fields``
    it is that of a page which follows no form.
    """

    def __init__(self, fields: FormMultiDict | None = None) -> None:
        self._fields = fields or FormMultiDict()

    def text(self, name: str) -> str:
        """Return a field without surrounding blanks and NULs; empty if it is missing."""
        return cleaned(self._fields.get(name, ""))

    def all(self, name: str) -> list[str]:
        """Return every value of a field, without surrounding blanks and NULs."""
        return [cleaned(value) for value in self._fields.getall(name, [])]

    def entries(self) -> list[tuple[str, str]]:
        """Return the name and value of every field but the CSRF token, in order. No form asks for a
        secret.
        """
        return [(name, value) for name, value in self._fields.items() if name != TOKEN_FIELD]

    def checked(self, name: str) -> bool:
        return bool(self.text(name))

    def over(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the values with which a form begins, replaced by those that a user submitted."""
        return {
            name: self.text(name) if name in self._fields else value
            for name, value in values.items()
        }


def cleaned(value: object) -> str:
    """Return a submitted value without surrounding blanks and NULs."""
    return str(value).replace("\x00", "").strip()  # no column of the database takes a NUL


async def read_form(request: AnyRequest) -> Form:
    """Read the form of a request. Raises `ClientException` for another content type, or too many
    bytes or fields.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ClientException("This address takes an HTML form.")
    if (request.content_length or 0) > MOST_BYTES:
        raise RequestEntityTooLarge(_TOO_LARGE)
    body = await request.body()
    if len(body) > MOST_BYTES or has_too_many_fields(body):
        raise RequestEntityTooLarge(_TOO_LARGE)
    return Form(await request.form())


def is_cross_site(request: AnyRequest) -> bool:
    """Whether the browser says that another site sent the request (Fetch Metadata)."""
    return request.headers.get("sec-fetch-site", "") in _OTHER_SITES


def is_same_origin(request: AnyRequest) -> bool:
    """Whether the browser says that a page of the dashboard sent the request. Old browsers do not
    say it.
    """
    return request.headers.get("sec-fetch-site") == "same-origin"


def has_token(form: Form, expected: str) -> bool:
    return hmac.compare_digest(form.text(TOKEN_FIELD).encode(), expected.encode())


class InvalidFormError(Exception):
    """A form with invalid fields: ``errors`` maps fields to messages, in the order of the form."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        self.errors = dict(errors)


def field_errors(error: object) -> dict[str, str]:
    """Return the errors of a rejected form by field; empty for errors that concern no field."""
    if isinstance(error, InvalidFormError):
        return error.errors
    if isinstance(error, ValidationError):
        return {
            _FIELDS.get(field, field): f"{text[:1].upper()}{text[1:]}."
            for field, text in error.faults
        }
    return {}


@contextmanager
def at_fields(fields: FieldErrors) -> Iterator[None]:
    """Raise `InvalidFormError` for the errors of the block that a field shows."""
    try:
        yield
    except tuple(fields) as error:
        field, text = fields[type(error)]
        raise InvalidFormError({field: text or error.detail}) from error


def validate(
    kind: type[Body],
    values: Mapping[str, object],
    messages: Mapping[str, str],
    further: Mapping[str, str] | None = None,
) -> Body:
    """Convert form values to a request body of the API; ``messages`` say what each field accepts.

    Raises `InvalidFormError` with every invalid field, in the order of ``values``. ``further`` are
    errors of fields that are otherwise valid, or that the body does not have; those come last.
    """
    errors = dict(further or {})
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        try:
            msgspec.convert(values[name], field.type)
        except msgspec.ValidationError:
            errors[name] = "Fill in this field." if values[name] == "" else messages[name]
    if errors:
        raise InvalidFormError(
            {name: errors[name] for name in dict.fromkeys([*values, *errors]) if name in errors}
        )
    return msgspec.convert(values, kind)


def day_fault(text: str) -> str:
    """Say what is wrong with a text that is no day from year 1 to 9999."""
    if _BEYOND_YEARS.fullmatch(text):
        return "This day is too far ahead. Enter an earlier one."
    return "Enter a day, such as 2027-01-31."


def unix_lines(text: str) -> str:
    """Replace the line ends of HTML forms by those that every other client sends."""
    return text.replace("\r\n", "\n")


def query_string(filters: Mapping[str, str | None]) -> str:
    """Return the filters of a list as a query string that ends with ``&``; empty without
    filters.
    """
    given = {name: value for name, value in filters.items() if value}
    return urlencode(given) + "&" if given else ""


def confirmation_text(thing: ApiKey | Project | Tenant) -> str:
    """Return what a user types to confirm what happens to an object: its name, with single
    blanks. An object without a visible one has its id, and a key its last characters.
    """
    fallback = thing.last4 if isinstance(thing, ApiKey) else thing.id
    return _single_blanks(shown_name(thing.name, fallback))


def confirmation_errors(form: Form, field: str, thing: ApiKey | Project | Tenant) -> dict[str, str]:
    """Return the error of a field that does not hold the `confirmation_text`; empty if it does."""
    if _single_blanks(form.text(field)) == confirmation_text(thing):
        return {}
    return {field: "The name does not match. Nothing was changed. Type it again."}


def _single_blanks(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def field_digests(fields: Mapping[str, str]) -> dict[str, str]:
    """Return hidden fields for an edit form: the digests of what it shows."""
    return {_DIGEST_PREFIX + name: _digest(text) for name, text in fields.items()}


class Edits(NamedTuple):
    """What a user changed in an edit form."""

    values: dict[str, str]
    """The fields: submitted texts of the changed ones, and present texts of the others."""
    changed: set[str]
    conflicts: dict[str, str]
    """The errors of changed fields that another user changed meanwhile."""

    def value(self, name: str, value: T) -> T | UnsetType:
        """Return the value of a field; unset if the user did not change it."""
        return value if name in self.changed else UNSET


def find_edits(
    form: Form,
    submitted: Mapping[str, str],
    current: Mapping[str, str],
    *,
    as_a_whole: bool = False,
) -> Edits:
    """Compare the submitted texts with the present ones. The form carries the `field_digests` of
    what it showed.

    A form ``as_a_whole`` sets its fields even if the user left them as they were: those conflict,
    too.
    """
    edits = Edits(dict(current), set(), {})
    for name, text in submitted.items():
        shown = form.text(_DIGEST_PREFIX + name)
        now = _digest(current[name])
        if _digest(text) == now or (_digest(text) == shown and not as_a_whole):
            continue
        edits.changed.add(name)
        edits.values[name] = text
        if now != shown:
            edits.conflicts[name] = _CONFLICT.format(isolated(current[name]) or "empty")
    return edits


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
