"""Reading submitted forms: fields, CSRF token, validation, concurrent edits, and double
submission.
"""

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Mapping
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec
from litestar.datastructures import FormMultiDict
from litestar.exceptions import ClientException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge

from tenantry.api.guards import AnyRequest
from tenantry.dashboard.labels import isolated, shown_name
from tenantry.domain.errors import ValidationError
from tenantry.server.repeated_items import has_too_many_fields

TOKEN_FIELD: Final = "form_token"  # noqa: S105  # a name
MOST_BYTES: Final = 64 * 1024
_OTHER_SITES: Final = frozenset({"cross-site", "same-site"})
_DIGEST_PREFIX: Final = "shown-"
_BEYOND_YEARS: Final = re.compile(r"\+?\d{5,}-\d\d-\d\d", re.ASCII)
_FIELDS: Final = {"scopes": "scope", "expiresAt": "until"}
"""The fields of forms by those of the API, where they differ."""

_CONFLICT: Final = (
    "This was changed after you opened the form. It is now: {}. Save again to replace it."
)

Body = TypeVar("Body", bound=msgspec.Struct)


class Form:
    """The fields of a submitted form. All are texts: `read_form` takes no files."""

    def __init__(self, fields: FormMultiDict) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """Return a field without surrounding blanks and NULs; empty if it is missing."""
        return _cleaned(self._fields.get(name, ""))

    def all(self, name: str) -> list[str]:
        """Return every value of a field, without surrounding blanks and NULs."""
        return [_cleaned(value) for value in self._fields.getall(name, [])]

    def entries(self) -> list[tuple[str, str]]:
        """Return the name and value of every field but the CSRF token, in order. No form asks for a
        secret.
        """
        return [(name, value) for name, value in self._fields.multi_items() if name != TOKEN_FIELD]

    def checked(self, name: str) -> bool:
        return bool(self.text(name))


def _cleaned(value: object) -> str:
    return str(value).replace("\x00", "").strip()  # no column of the database takes a NUL


async def read_form(request: AnyRequest) -> Form:
    """Read the form of a request. Raises `ClientException` for another content type, or too many
    bytes or fields.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ClientException("This address takes an HTML form.")
    body = await request.body()
    if len(body) > MOST_BYTES or has_too_many_fields(body):
        raise RequestEntityTooLarge("The form is too large. Go back and shorten it.")
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


def confirmation_text(name: str, fallback: str) -> str:
    """Return what a user types to confirm: the `shown_name`, with single blanks."""
    return " ".join(unicodedata.normalize("NFC", shown_name(name, fallback)).split())


def confirmation_errors(typed: str, field: str, expected: str) -> dict[str, str]:
    """Return the error of a field that does not hold the `confirmation_text`; empty if it does."""
    if confirmation_text(typed, "") == expected:
        return {}
    return {field: "The name does not match. Nothing was changed. Type it again."}


def field_digests(fields: Mapping[str, str]) -> dict[str, str]:
    """Return hidden fields for an edit form: the digests of what it shows."""
    return {_DIGEST_PREFIX + name: _digest(text) for name, text in fields.items()}


def find_edits(
    form: Form, submitted: Mapping[str, str], current: Mapping[str, str]
) -> tuple[set[str], dict[str, str]]:
    """Return the fields that a user changed, and the errors of those that another user changed
    meanwhile.

    The form carries the `field_digests` of what it showed.
    """
    changed = set()
    conflicts = {}
    for name, text in submitted.items():
        shown = form.text(_DIGEST_PREFIX + name)
        now = _digest(current[name])
        if _digest(text) in (shown, now):
            continue
        changed.add(name)
        if now != shown:
            conflicts[name] = _CONFLICT.format(isolated(current[name]) or "empty")
    return changed, conflicts


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
