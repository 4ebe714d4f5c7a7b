"""Errors that tests see, and credentials that reports mask."""

import reprlib
from collections.abc import Mapping
from typing import Final

import httpx2

_LONGEST: Final = 240


class StartError(RuntimeError):
    """The service did not start; the message has the reason and the end of its log."""


class RefusedError(RuntimeError):
    """The service rejected a request; ``response`` is its answer."""

    def __init__(self, response: httpx2.Response) -> None:
        request = response.request
        super().__init__(
            f"{request.method} {request.url.path}: {response.status_code} {response.text}"
        )
        self.response = response


class MailError(AssertionError):
    """An expected mail did not arrive in time, or the service gave it up."""


class Credential(str):
    """A key's secret or a token: a string with a masked ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Credential(***)"


class Variables(dict[str, Credential]):
    """Variables or headers, whose ``repr`` shows only the names; each value is a `Credential`."""

    def __init__(self, values: Mapping[str, str]) -> None:
        super().__init__({name: Credential(text) for name, text in values.items()})

    def __repr__(self) -> str:
        return f"Variables({', '.join(self)})"


def bearer(credential: str) -> Variables:
    return Variables({"Authorization": f"Bearer {credential}"})


def explain_comparison(op: str, left: object, right: object) -> list[str] | None:
    """Return pytest's explanation of a failed comparison with a credential, masked; None without a
    credential.
    """
    credentials = [str(side) for side in (left, right) if isinstance(side, Credential) and side]
    return (
        [f"{_masked(left, credentials)} {op} {_masked(right, credentials)}"]
        if credentials
        else None
    )


def _masked(side: object, credentials: list[str]) -> str:
    if type(side) is not str:
        return reprlib.repr(side)
    for credential in credentials:
        side = side.replace(credential, "***")
    return repr(side) if len(side) <= _LONGEST else f"{side[:_LONGEST]!r}..."
