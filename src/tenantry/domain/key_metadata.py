"""What other systems know of an API key: the id that they give it, and metadata."""

import re
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from tenantry.domain.errors import ValidationError
from tenantry.domain.names import END, REFUSED_CHARACTERS, VISIBLE

LONGEST_EXTERNAL_ID: Final = 255
MAX_METADATA_BYTES: Final = 2048
"""The size of metadata as compact JSON in UTF-8."""
METADATA_TEXT: Final = f"[^{REFUSED_CHARACTERS}]"
"""A character of metadata, as a regular expression: those of names."""
ExternalId = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=LONGEST_EXTERNAL_ID,
        pattern=VISIBLE,
        description="The id that another system of yours gives the key. Several keys may have it.",
        examples=["cus_4711"],
    ),
]
"""The external id in a request."""
_METADATA_PATTERN: Final = f"^{METADATA_TEXT}*{END}"
Metadata = Annotated[
    dict[str, Annotated[str, msgspec.Meta(extra_json_schema={"pattern": _METADATA_PATTERN})]],
    msgspec.Meta(
        description=f"What your systems store with the key: at most {MAX_METADATA_BYTES:,} bytes as JSON in UTF-8, "
        "without control characters or line breaks. Never a secret.",
        examples=[{"team": "growth"}],
        # the services check it: see `check_optional_terms`
        extra_json_schema={"propertyNames": {"minLength": 1, "pattern": _METADATA_PATTERN}},
    ),
]
"""The metadata of a request."""
_EXTERNAL_ID: Final = re.compile(f"[!-~]{{1,{LONGEST_EXTERNAL_ID}}}")
_METADATA_NAME: Final = re.compile(f"{METADATA_TEXT}+")
_METADATA_VALUE: Final = re.compile(f"{METADATA_TEXT}*")
# As long as no text that shows both ends of a key; with another prefix, as long as a key.
_WHOLE_KEY: Final = re.compile(
    r"svc_(?:live|test)_[0-9A-Za-z]{22}|[0-9a-z]{2,16}_(?:live|test)_[0-9A-Za-z]{49}"
)
_FORM: Final = f"must be 1 to {LONGEST_EXTERNAL_ID} visible ASCII characters without spaces"
_STORES_KEY: Final = "contains an API key: never store a secret here"


def check_external_id(external_id: str | None) -> None:
    """Raise `ValidationError` for a faulty external id."""
    if faults := [("externalId", fault) for fault in external_id_faults(external_id)]:
        raise ValidationError(*faults)


def external_id_faults(external_id: str | None) -> Iterator[str]:
    """Yield what is wrong with an external id; None is none."""
    if external_id is None:
        return
    if _EXTERNAL_ID.fullmatch(external_id) is None:
        yield _FORM
    if contains_secret(external_id):
        yield _STORES_KEY


def metadata_faults(metadata: dict[str, str] | None) -> Iterator[str]:
    """Yield what is wrong with metadata; of one that is too large nothing else is examined."""
    if not metadata:
        return
    size = len(msgspec.json.encode(metadata))
    if size > MAX_METADATA_BYTES:
        yield f"must have at most {MAX_METADATA_BYTES:,} bytes as JSON; it has {size:,}"
        return
    if not all(map(_METADATA_NAME.fullmatch, metadata)):
        yield "must not have empty names, or names with control characters or line breaks"
    if not all(map(_METADATA_VALUE.fullmatch, metadata.values())):
        yield "must not have values with control characters or line breaks"
    if any(map(contains_secret, (*metadata, *metadata.values()))):
        yield _STORES_KEY


def contains_secret(text: str) -> bool:
    """Whether a text has more of a key's secret than its ends, at any place."""
    return _WHOLE_KEY.search(text) is not None
