"""How often a request may repeat something: counted before any work is done for a single item.

A head or body of the permitted size holds thousands of items. Each may cost the service an object,
a decryption or a regular expression.
"""

from collections.abc import Iterable
from typing import Final

from tenantry.domain.errors import HeadTooLargeError, ValidationError
from tenantry.server.asgi_types import Header

MAX_SEGMENTS: Final = 32  # of a path, except where a gateway appends the path of its own request
MAX_PARAMETERS: Final = 100  # of a query
MAX_FIELDS: Final = 100  # of a form
MAX_MEMBERS: Final = 4096  # of a JSON body: members of objects and items of lists, at any depth
MAX_IMPORT_MEMBERS: Final = 65_536  # of the body of an import, which needs the operator's token
MAX_LIST_ITEMS: Final = 256
"""Of all header values together: items of lists, parameters, cookies and escaped characters.
Browsers send at most 180 cookies.
"""


def has_too_many_segments(path: str, sent: bytes | None = None) -> bool:
    """Whether a decoded path has more than `MAX_SEGMENTS`. Slashes that were ``sent`` encoded
    separate none.
    """
    if path.count("/") <= MAX_SEGMENTS:
        return False
    return sent is None or sent.count(b"/") > MAX_SEGMENTS


def check_items(headers: Iterable[Header]) -> None:
    """Raise `HeadTooLargeError` for headers of more than `MAX_LIST_ITEMS`."""
    values = b",".join([value for _, value in headers])
    if values.count(b",") + values.count(b";") + values.count(b"\\") > MAX_LIST_ITEMS:
        raise HeadTooLargeError(
            f"The headers have more than {MAX_LIST_ITEMS} list items, parameters and cookies."
        )


def has_too_many_fields(form: bytes) -> bool:
    """Whether a form (``application/x-www-form-urlencoded``) has more than `MAX_FIELDS`."""
    return form.count(b"&") >= MAX_FIELDS


def check_query(query: bytes) -> None:
    """Raise `HeadTooLargeError` for a query of more than `MAX_PARAMETERS`."""
    if query.count(b"&") >= MAX_PARAMETERS:
        raise HeadTooLargeError(f"The query has more than {MAX_PARAMETERS} parameters.")


def check_members(body: bytes, most: int = MAX_MEMBERS) -> None:
    """Raise `ValidationError` for a JSON body of more than ``most`` members.

    It counts commas, those of texts too: the longest valid texts of a request have fewer.
    """
    if body.count(b",") >= most:
        raise ValidationError(("body", f"has more than {most} members and list items"))
