"""Errors that tests see, and credentials that stay masked in them."""

import reprlib
from collections.abc import Iterator, Mapping
from typing import Final

import httpx2


class StartError(RuntimeError):
    """The service did not start; the message says why, with the end of its log."""


class RefusedError(RuntimeError):
    """The service refused what was asked of it on a test's behalf; ``response`` is its answer."""

    def __init__(self, response: httpx2.Response) -> None:
        request = response.request
        super().__init__(f"{request.method} {request.url.path}: {response.status_code} {response.text}")
        self.response = response


class MailError(AssertionError):
    """A mail that was asked for did not arrive in time, or was given up."""


_LONGEST: Final = 240


class Credential(str):
    """A key's secret or a token: text like any other, but for its ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Credential(***)"


class Variables(Mapping[str, str]):
    """Variables, or headers, of which only the names are shown; what they are is a `Credential` each."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = {name: Credential(text) for name, text in values.items()}

    def __getitem__(self, name: str) -> Credential:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Variables({', '.join(self._values)})"


def explained(op: str, left: object, right: object) -> list[str] | None:
    """What pytest is to print of a comparison that failed: of a credential, nothing. None where there is none.

    A text on the other side is shown without the credential.
    """
    credentials = [str(side) for side in (left, right) if isinstance(side, Credential) and side]
    if not credentials:
        return None
    return [f"{_shown(left, credentials)} {op} {_shown(right, credentials)}"]


def _shown(side: object, credentials: list[str]) -> str:
    if type(side) is not str:
        return reprlib.repr(side)
    for credential in credentials:
        side = side.replace(credential, "***")
    return repr(side) if len(side) <= _LONGEST else f"{side[:_LONGEST]!r}..."


def bearer(credential: str) -> Variables:
    """The headers of a request by whoever holds this credential."""
    return Variables({"Authorization": f"Bearer {credential}"})
