"""What a form of the dashboard sends."""

import hmac
from collections.abc import Mapping
from typing import Final

from litestar.datastructures import FormMultiDict
from litestar.exceptions import ClientException

from tenantry.api.guards import AnyRequest

TOKEN_FIELD: Final = "form_token"  # noqa: S105  # a name
MOST_BYTES: Final = 64 * 1024
_ELSEWHERE: Final = frozenset({"cross-site", "same-site"})


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
