"""Request bodies: strictly decoded JSON."""

import re
from functools import lru_cache
from typing import Any, Final

import msgspec
from litestar import Request
from litestar.exceptions import HTTPException, SerializationException

from tenantry.common.encoding import NOT_JSON
from tenantry.domain.errors import ValidationError

_MESSAGE: Final = re.compile(r"(?P<message>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"Object (?:missing required|contains unknown) field `(.*)`", re.DOTALL)
_MAX_TEXT: Final = 200


class JsonRequest(Request[Any, Any, Any]):
    """A request whose body is decoded into its handler's type.

    Litestar would convert it as leniently as a query string: the text ``"5"`` to a number, a number to a time.
    """

    async def json(self) -> Any:  # noqa: ANN401  # the handler's type
        """Decode the body. Raises what the exception handlers answer with 400, 415 and 422."""
        content_type = self.headers.get("content-type")
        if content_type is not None and not _is_json(content_type):
            raise HTTPException("The body must be JSON: Content-Type: application/json.", status_code=415)
        field = self.route_handler.parsed_data_field
        try:
            return _decoder(field.annotation if field else Any).decode(await self.body())
        except msgspec.ValidationError as error:
            raise ValidationError(fault_of(error)) from error
        except NOT_JSON as error:
            raise SerializationException("The body is not JSON.") from error


def fault_of(error: msgspec.ValidationError, default: str = "body") -> tuple[str, str]:
    """Return a field's path, or ``default`` for the whole body, and msgspec's message."""
    found = _MESSAGE.fullmatch(str(error))
    message, path = (found["message"], found["path"] or "") if found else (str(error), "")
    if field := _FIELD.fullmatch(message):
        path = f"{path}.{field[1]}" if path else field[1]
    return path[:_MAX_TEXT] or default, message[:_MAX_TEXT]


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


@lru_cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401  # any type that msgspec supports
    return msgspec.json.Decoder(kind)
