"""Types of request fields and parameters that several routes share."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from litestar.params import PathParameter, QueryParameter

from tenantry.domain.errors import ValidationError
from tenantry.domain.names import END, VISIBLE
from tenantry.domain.reasons import LONGEST_REASON
from tenantry.domain.roles import ROLE_FORM
from tenantry.domain.scopes import SCOPE_PATTERN
from tenantry.server.problems import with_json_types

DEFAULT_LIMIT: Final = 20
MOST_ON_A_PAGE: Final = 100
LONGEST_CURSOR: Final = 1000
LONGEST_USER_ID: Final = 255
WEB_ADDRESS: Final = "^https?://[!-~]+$"
_NO_NUL: Final = r"^[^\u0000]*$"
_EMAIL: Final = (
    rf"^[^@\s\u0000-\u001f\u007f<>,;:\"()\[\]\\]+@[^@\s\u0000-\u001f\u007f<>,;:\"()\[\]\\]+{END}"
)
IDENTIFIER: Final = f"^[A-Za-z0-9_-]+{END}"
ROLE_PATTERN: Final = f"^{ROLE_FORM}{END}"
_FORMS: Final[Mapping[str, str]] = {
    VISIBLE: "must be visible ASCII characters without spaces",
    WEB_ADDRESS: "is not an http or https address",
    _NO_NUL: "must not contain a NUL",
    _EMAIL: "is not an email address",
    IDENTIFIER: "must contain only letters, digits, _ and -",
    ROLE_PATTERN: "must be the id of a role",
    SCOPE_PATTERN: "must be <resource>:<action>, such as projects:read; either part may be *",
}

Description = Annotated[str, msgspec.Meta(max_length=2000, pattern=_NO_NUL)]
Email = Annotated[
    str, msgspec.Meta(max_length=254, pattern=_EMAIL, description="Where billing mail goes.")
]
InvitedEmail = Annotated[
    str, msgspec.Meta(max_length=254, pattern=_EMAIL, description="The invited address.")
]
OrgId = Annotated[
    str, msgspec.Meta(max_length=64, pattern=IDENTIFIER, description="The organization's id.")
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
CustomerId = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=IDENTIFIER)]

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


Reason = Annotated[
    str | None,
    QueryParameter(
        name="reason",
        min_length=1,
        max_length=LONGEST_REASON,
        description="Why: the audit trail shows it, also to the tenant.",
    ),
]
"""The reason of a deletion; `Author.because` checks its characters."""
ReasonText = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_REASON)]
"""The reason of a change, as a field of a body."""


class PageQuery(msgspec.Struct):
    """The query of a list that bypasses the framework: the same `Limit` and `Cursor`."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_ON_A_PAGE)] = DEFAULT_LIMIT
    cursor: Annotated[str, msgspec.Meta(max_length=LONGEST_CURSOR)] | None = None


def in_words(message: str) -> str:
    """Return what a pattern asks for instead of msgspec's message, which shows the pattern; other
    messages name the types of JSON.
    """
    named = with_json_types(message)
    for pattern, words in _FORMS.items():
        if named == f"Expected `string` matching regex {pattern!r}":
            return words
    return named


def path_parameter(description: str, example: str) -> Any:  # noqa: ANN401  # Litestar's own has no public type
    """Describe a parameter of a path: ``Annotated[str, path_parameter("The key's id.",
    "key_0197...")]``.
    """
    return PathParameter(description=description, schema_extra={"example": example})


def zone_faults(moments: Mapping[str, datetime | None]) -> list[tuple[str, str]]:
    """Return a fault for each given moment without a zone."""
    return [
        (name, "needs a zone, such as the Z in 2027-01-31T00:00:00Z")
        for name, moment in moments.items()
        if moment is not None and moment.tzinfo is None
    ]


def nul_faults(texts: Mapping[str, str | None]) -> list[tuple[str, str]]:
    """Return the fault of each parameter with a NUL, which no column of the database takes."""
    return [
        (name, "must not contain a NUL") for name, text in texts.items() if "\x00" in (text or "")
    ]


def check_texts(texts: Mapping[str, str | None]) -> None:
    """Check the texts of a query. Raises `ValidationError` for those with a NUL."""
    if faults := nul_faults(texts):
        raise ValidationError(*faults)
