"""Types of request fields and parameters that several routes share."""

from datetime import datetime
from typing import Annotated, Final

import msgspec
from litestar.params import Parameter

from tenantry.domain.access import SCOPE_PATTERN

NO_CONTROL_CHARACTERS: Final = r"^[^\u0000-\u001f\u007f]*$"

Name = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=200, pattern=NO_CONTROL_CHARACTERS, description="What people call it."),
]
Description = Annotated[str, msgspec.Meta(max_length=2000, pattern=r"^[^\u0000]*$")]
Email = Annotated[
    str,
    msgspec.Meta(
        max_length=254,
        pattern=r"^[^@\s\u0000-\u001f\u007f<>,;:\"()\[\]\\]+@[^@\s\u0000-\u001f\u007f<>,;:\"()\[\]\\]+$",
        description="Where billing mail goes.",
    ),
]
OrgId = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[A-Za-z0-9_-]+$", description="The organization's id.")]
ScopeName = Annotated[
    str,
    msgspec.Meta(
        pattern=f"{SCOPE_PATTERN}|^OWNER$", max_length=65, description="`<resource>:<action>`; either part may be `*`."
    ),
]
UserId = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"^[\u0021-\u007e]*$")]
CustomerId = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9_-]+$")]
ExpiresAt = Annotated[datetime, msgspec.Meta(tz=True, description="When the key ends (RFC 3339).")]

Limit = Annotated[int, Parameter(query="limit", ge=1, le=100, description="Most objects on a page.")]
Cursor = Annotated[
    str | None, Parameter(query="cursor", max_length=1000, description="`nextCursor` of the page before.")
]
DEFAULT_LIMIT: Final = 20
