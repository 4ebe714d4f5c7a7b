"""Secrets that do not show up in what pytest prints of a failed test."""

from collections.abc import Iterator, Mapping


class Credential(str):
    """A key's secret or a token: text like any other, but for its ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Credential(***)"


class Variables(Mapping[str, str]):
    """Variables, or headers, of which only the names are shown."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Variables({', '.join(self._values)})"


def bearer(credential: str) -> Variables:
    """The headers of a request by whoever holds this credential."""
    return Variables({"Authorization": f"Bearer {credential}"})
