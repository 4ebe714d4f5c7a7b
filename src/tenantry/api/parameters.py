"""Types of request fields and parameters that several routes share."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from litestar.params import PathParameter, QueryParameter

from tenantry.domain.key_metadata import LONGEST_EXTERNAL_ID, MAX_METADATA_BYTES, METADATA_TEXT
from tenantry.domain.names import NAME_RULE, REFUSED_CHARACTERS
from tenantry.domain.roles import ROLE_FORM
from tenantry.domain.scopes import SCOPE_FORM

# In Python, `$` also matches before a newline at the end; elsewhere `(?!\n)` changes nothing.
END: Final = r"$(?!\n)"
DEFAULT_LIMIT: Final = 20
MOST_ON_A_PAGE: Final = 100
LONGEST_CURSOR: Final = 1000
LONGEST_USER_ID: Final = 255
VISIBLE: Final = f"^[!-~]*{END}"
WEB_ADDRESS: Final = "^https?://[!-~]+$"
_NO_NUL: Final = r"^[^\u0000]*$"
_EMAIL: Final = (
    rf"^[^@\s\u0000-\u001f\u007f<>,;:\"()\[\]\\]+@[^@\s\u0000-\u001f\u007f<>,;:\"()\[\]\\]+{END}"
)
_IDENTIFIER: Final = f"^[A-Za-z0-9_-]+{END}"
_SCOPE: Final = f"^(?:{SCOPE_FORM}|OWNER){END}"
ROLE_PATTERN: Final = f"^{ROLE_FORM}{END}"
_FORMS: Final[Mapping[str, str]] = {
    VISIBLE: "must be visible ASCII characters without spaces",
    WEB_ADDRESS: "is not an http or https address",
    _NO_NUL: "must not contain a NUL",
    _EMAIL: "is not an email address",
    _IDENTIFIER: "must contain only letters, digits, _ and -",
    ROLE_PATTERN: "must be the id of a role",
    _SCOPE: "must be <resource>:<action>, such as projects:read; either part may be *",
}

Name = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=200,
        description=f"What people call it. It {NAME_RULE}.",
        # the services check it: see `check_name`
        extra_json_schema={"pattern": f"^[^{REFUSED_CHARACTERS}]*{END}"},
    ),
]
Description = Annotated[str, msgspec.Meta(max_length=2000, pattern=_NO_NUL)]
Email = Annotated[
    str, msgspec.Meta(max_length=254, pattern=_EMAIL, description="Where billing mail goes.")
]
InvitedEmail = Annotated[
    str, msgspec.Meta(max_length=254, pattern=_EMAIL, description="The invited address.")
]
OrgId = Annotated[
    str, msgspec.Meta(max_length=64, pattern=_IDENTIFIER, description="The organization's id.")
]
ScopeName = Annotated[
    str,
    msgspec.Meta(
        pattern=_SCOPE, max_length=65, description="`<resource>:<action>`; either part may be `*`."
    ),
]
UserId = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=LONGEST_USER_ID,
        pattern=VISIBLE,
        description="The user's id at the identity provider: `sub` of their tokens.",
    ),
]
RoleId = Annotated[str, msgspec.Meta(pattern=ROLE_PATTERN, max_length=32)]
CustomerId = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=_IDENTIFIER)]
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
_METADATA_PATTERN: Final = f"^{METADATA_TEXT}*{END}"
Metadata = Annotated[
    dict[str, Annotated[str, msgspec.Meta(extra_json_schema={"pattern": _METADATA_PATTERN})]],
    msgspec.Meta(
        description=f"What your systems store with the key: at most {MAX_METADATA_BYTES:,} bytes as JSON in UTF-8, "
        "without control characters or line breaks. Never a secret.",
        examples=[{"team": "growth"}],
        # the services check it: see `check_key_metadata`
        extra_json_schema={"propertyNames": {"minLength": 1, "pattern": _METADATA_PATTERN}},
    ),
]
ExpiresAt = Annotated[datetime, msgspec.Meta(tz=True, description="When the key ends (RFC 3339).")]
GrantEnd = Annotated[datetime, msgspec.Meta(tz=True)]

Limit = Annotated[
    int,
    QueryParameter(
        name="limit",
        ge=1,
        le=MOST_ON_A_PAGE,
        description="Most objects on a page.",
    ),
]
Cursor = Annotated[
    str | None,
    QueryParameter(
        name="cursor", max_length=LONGEST_CURSOR, description="`nextCursor` of the page before."
    ),
]


class PageQuery(msgspec.Struct):
    """The query of a list that bypasses the framework: the same `Limit` and `Cursor`."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_ON_A_PAGE)] = DEFAULT_LIMIT
    cursor: Annotated[str, msgspec.Meta(max_length=LONGEST_CURSOR)] | None = None


def in_words(message: str) -> str:
    """Return what a pattern asks for instead of msgspec's message, which shows the pattern; other
    messages stay.
    """
    for pattern, words in _FORMS.items():
        if message == f"Expected `str` matching regex {pattern!r}":
            return words
    return message


def path_parameter(description: str, example: str) -> Any:  # noqa: ANN401  # Litestar's own has no public type
    """Describe a parameter of a path: ``Annotated[str, path_parameter("The key's id.",
    "key_0197...")]``.
    """
    return PathParameter(description=description, schema_extra={"example": example})


def nul_faults(texts: Mapping[str, str | None]) -> list[tuple[str, str]]:
    """Return the fault of each parameter with a NUL, which no column of the database takes."""
    return [
        (name, "must not contain a NUL") for name, text in texts.items() if "\x00" in (text or "")
    ]
