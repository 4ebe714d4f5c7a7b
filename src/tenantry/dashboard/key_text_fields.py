"""The optional fields of a key that its form shows as text. Each is a row of `TEXT_FIELDS`."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.common.encoding import NOT_JSON
from tenantry.dashboard.forms import InvalidFormError, field_errors
from tenantry.domain.api_keys import ApiKey, KeyChanges, check_optional_terms
from tenantry.domain.errors import ValidationError
from tenantry.domain.key_metadata import LONGEST_EXTERNAL_ID

_OFF: Final = "switched off"
_DIGITS: Final = re.compile("[0-9]{1,9}")
_NOT_LINES = "Use one line for each, such as team=growth."


def metadata_text(metadata: Mapping[str, str]) -> str:
    """Return metadata as lines of ``name=value``; as JSON if lines cannot hold all of it."""
    lines = "\n".join(map("=".join, metadata.items()))
    is_exact = not lines.startswith("{") and _parse_lines(lines) == metadata
    return lines if is_exact else msgspec.json.encode(metadata).decode()


def parse_metadata(text: str) -> dict[str, str]:
    """Parse what `metadata_text` returns. Raises `InvalidFormError`."""
    if text.startswith("{"):
        return _parse_json(text)
    metadata = _parse_lines(text)
    if metadata is None:
        raise InvalidFormError({"metadata": _NOT_LINES})
    return metadata


def _parse_lines(text: str) -> dict[str, str] | None:
    """Return None if a line has no name or no value, or if two have one name."""
    lines = [line for line in text.split("\n") if line.strip()]
    metadata = {}
    for line in lines:
        name, separator, value = line.partition("=")
        if not separator:
            return None
        metadata[name.strip()] = value.strip()
    return metadata if len(metadata) == len(lines) else None


def _parse_json(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except NOT_JSON:
        raise InvalidFormError({"metadata": "Use a JSON object of strings."}) from None


def _read_limit(text: str) -> int | None:
    if text and not _DIGITS.fullmatch(text):
        raise InvalidFormError({"requestsPerMinute": "Enter a whole number, such as 120."})
    return int(text) if text else None


class KeyFlag(NamedTuple):
    """The words of a field that is on or off. Its text is the word where it is off, else empty."""

    word: str
    """Of a key where it is off, beside the status."""
    turn_off: str
    turn_on: str


class KeyTextField(NamedTuple):
    """An optional field of a key as the form shows it.

    ``read`` raises `InvalidFormError`.
    """

    name: str
    """In the API and in the form."""
    attribute: str
    """Of `ApiKey`, `KeyTerms` and `KeyChanges`."""
    label: str
    help: str
    longest: int
    show: Callable[[Any], str]
    """Makes the text of a key's value."""
    read: Callable[[str], Any]
    """Makes the value of a submitted text."""
    is_long: bool = False
    """Whether the text may have several lines."""
    is_fact: bool = True
    """Whether the page of a key shows it among its facts, and not in a section of its own."""
    flag: KeyFlag | None = None
    """Of a field that the page of a key turns off and on."""

    def text_of(self, key: ApiKey) -> str:
        """Return a key's value as text."""
        return self.show(getattr(key, self.attribute))


TEXT_FIELDS: Final = (
    KeyTextField(
        "externalId",
        "external_id",
        "External id",
        "The id that another system of yours gives the key, such as that of a customer. "
        "Several keys may have the same.",
        LONGEST_EXTERNAL_ID,
        lambda external_id: external_id or "",
        lambda text: text or None,
    ),
    KeyTextField(
        "metadata",
        "metadata",
        "Metadata",
        "What your systems store with the key: one name=value on each line, or a JSON object of texts. Never a secret.",
        2000,
        metadata_text,
        parse_metadata,
        is_long=True,
        is_fact=False,
    ),
    KeyTextField(
        "allowedAddresses",
        "allowed_addresses",
        "Allowed addresses",
        "The IP addresses and networks from which the key may be used, one on each line, such as 192.0.2.0/24. "
        "Empty for any.",
        2000,
        "\n".join,
        lambda text: tuple(text.replace(",", " ").split()),
        is_long=True,
    ),
    KeyTextField(
        "enabled",
        "enabled",
        "Switched off",
        "Requests with the key are rejected until you switch it on.",
        20,
        lambda enabled: "" if enabled else _OFF,
        lambda text: not text,
        flag=KeyFlag(_OFF, "Switch off", "Switch on"),
    ),
    KeyTextField(
        "requestsPerMinute",
        "requests_per_minute",
        "Requests a minute",
        "The most requests of this key in a minute. The plan may allow fewer. Empty for no limit of its own.",
        9,
        lambda limit: "" if limit is None else str(limit),
        _read_limit,
    ),
)


def texts_of(key: ApiKey) -> dict[str, str]:
    """Return the texts with which the form of a key begins, by name."""
    return {field.name: field.text_of(key) for field in TEXT_FIELDS}


def words_of(key: ApiKey) -> list[str]:
    """Return the words of what is off, which a page shows beside the status of a key."""
    return [text for field in TEXT_FIELDS if field.flag and (text := field.text_of(key))]


def read_texts(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of submitted texts by attribute. Raises `InvalidFormError`."""
    return {
        field.attribute: field.read(texts[field.name])
        for field in TEXT_FIELDS
        if field.name in texts
    }


def text_errors(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the errors of all submitted texts by name."""
    found = dict[str, str]()
    for name, text in texts.items():
        try:
            check_optional_terms(KeyChanges(**read_texts({name: text})))
        except (InvalidFormError, ValidationError) as error:
            found |= field_errors(error)
    return found
