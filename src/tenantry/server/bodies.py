"""Request bodies: JSON, taken strictly."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec
from litestar import Request
from litestar.exceptions import HTTPException, SerializationException

from tenantry.common.encoding import NOT_JSON
from tenantry.domain.errors import ValidationError

_PLACE: Final = re.compile(r"(?P<message>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"Object (?:missing required|contains unknown) field `(.*)`", re.DOTALL)
_LONGEST_TEXT: Final = 200


class JsonRequest(Request[Any, Any, Any]):
    """A request whose body is decoded straight into the type that its handler takes.

    Litestar itself would convert as for a query string: the text ``"5"`` into a number, a number into a moment.
    """

    async def json(self) -> Any:  # noqa: ANN401  # whatever the handler takes
        """The body. Raises what the exception handlers answer with 400, 415 and 422."""
        content_type = self.headers.get("content-type")
        if content_type is not None and not _is_json(content_type):
            raise HTTPException("The body must be JSON: Content-Type: application/json.", status_code=415)
        field = self.route_handler.parsed_data_field
        try:
            return _decoder(field.annotation if field else Any).decode(await self.body())
        except msgspec.ValidationError as error:
            raise ValidationError(*faults_of(error)) from error
        except NOT_JSON as error:
            raise SerializationException("The body is not JSON.") from error


def faults_of(error: msgspec.ValidationError, otherwise: str = "body") -> Iterator[tuple[str, str]]:
    """Where and what msgspec found: a field's path, or ``otherwise`` where it is about the whole."""
    found = _PLACE.fullmatch(str(error))
    message, path = (found["message"], found["path"] or "") if found else (str(error), "")
    if field := _FIELD.fullmatch(message):
        path = f"{path}.{field[1]}" if path else field[1]
    yield path[:_LONGEST_TEXT] or otherwise, message[:_LONGEST_TEXT]


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


@lru_cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401  # any type that msgspec knows
    return msgspec.json.Decoder(kind)
