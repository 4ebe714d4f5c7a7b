"""Refusals, as the provider's API words them."""

from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class ApiError(Exception):
    """An error answer: its HTTP status and the fields of its ``error`` object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",  # noqa: A002  # the provider's name for it
        code: str | None = None,
        param: str | None = None,
        **more: str,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = {
            name: value
            for name, value in {"type": type, "code": code, "param": param, "message": message, **more}.items()
            if value is not None
        }

    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        return {"error": self.error}


def missing(kind: str, wanted: str, *, param: str = "id") -> ApiError:
    """There is no such object: 404 where the address names it, 400 where a parameter does."""
    status = 404 if param == "id" else 400
    return ApiError(status, f"No such {kind}: '{wanted}'", code="resource_missing", param=param)


def found(table: Mapping[str, T], kind: str, wanted: str, *, param: str = "id") -> T:
    """The object of this id; raises `ApiError` if there is none."""
    thing = table.get(wanted)
    if thing is None:
        raise missing(kind, wanted, param=param)
    return thing


def check_url(url: str | None, param: str) -> None:
    """Raise `ApiError` for a text that is not an address on the web."""
    if url is not None and not url.startswith(("https://", "http://")):
        raise ApiError(400, "Not a valid URL", code="url_invalid", param=param)
