"""A fuzz target: a parser of bytes from outside, and what must hold for every input."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec


class Finding(Exception):  # noqa: N818  # a result of the fuzzer, not an error in it
    """A requirement is violated."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One parser, or several that must agree.

    ``check`` raises a `Finding`, or the parser's undeclared exception. ``seeds`` are the first
    inputs, with those that found something once; the fuzzer inserts ``words`` into inputs.
    """

    name: str
    reads: str
    """What the parser reads, and who controls it."""
    check: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    words: tuple[bytes, ...] = ()
    max_size: int = 4096
    """The maximum size of an input."""


def require(holds: object, what: str, *seen: object) -> None:
    """Raise `Finding` unless ``holds``."""
    if not holds:
        raise Finding(f"{what}: {', '.join(map(repr, seen))}" if seen else what)


def parts(data: bytes, number: int) -> list[bytes]:
    """Split the input at line ends; missing parts are empty."""
    found = data.split(b"\n", number - 1)
    return found + [b""] * (number - len(found))


def text(data: bytes) -> str:
    """Decode bytes; replace what is not UTF-8."""
    return data.decode("utf-8", "replace")


run_now: Final = asyncio.Runner().run
"""Run a coroutine that does no I/O; one loop for all inputs costs less than most checks."""


def require_storable(value: object, longest: int = 1_000_000) -> None:
    """Require that PostgreSQL can store every text in a value: UTF-8, no NUL, not too long."""
    if isinstance(value, str):
        value.encode()
        require("\x00" not in value, "a text contains NUL", value)
        require(len(value) <= longest, "a text is too long", len(value))
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            require_storable(getattr(value, field), longest)
    elif isinstance(value, dict):
        for key, member in value.items():
            require_storable(key, longest)
            require_storable(member, longest)
    elif isinstance(value, list | tuple):
        for member in value:
            require_storable(member, longest)
