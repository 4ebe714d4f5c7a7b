"""What a target is: a parser that meets bytes from outside, and what must hold of it whatever these are."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import msgspec

Result = TypeVar("Result")


class Finding(Exception):  # noqa: N818  # it is the fuzzer's catch, not a fault of its own
    """What must hold does not."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One parser, or several that must agree.

    ``check`` raises for a finding: a `Finding`, or whatever escapes the parser that it does not declare. ``seeds`` are
    inputs to begin with, those that have once found something among them; ``words`` are put into others.
    """

    name: str
    meets: str
    """What it reads, and whose that is, in words."""
    check: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    words: tuple[bytes, ...] = ()
    largest: int = 4096
    """Bytes of an input."""


def hold(holds: object, what: str, *seen: object) -> None:
    """Raise `Finding` unless it does."""
    if not holds:
        raise Finding(f"{what}: {', '.join(map(repr, seen))}" if seen else what)


def parts(data: bytes, number: int) -> list[bytes]:
    """The input as so many parts, which line ends separate; what is missing is empty."""
    found = data.split(b"\n", number - 1)
    return found + [b""] * (number - len(found))


def text(data: bytes) -> str:
    """Bytes as the text that they are meant to be, whatever they are."""
    return data.decode("utf-8", "replace")


def at_once(work: Coroutine[Any, Any, Result]) -> Result:
    """What a coroutine returns that waits for nothing outside of this process."""
    return _loop().run_until_complete(work)


def _loop() -> asyncio.AbstractEventLoop:
    global _own  # noqa: PLW0603  # one for all inputs: making one costs more than most of them
    if _own is None:
        _own = asyncio.new_event_loop()
    return _own


_own: asyncio.AbstractEventLoop | None = None


def only_text(value: object, longest: int = 1_000_000) -> None:
    """Whether every text in a value can be stored: it is UTF-8, no NUL is in it, and it is not too long."""
    if isinstance(value, str):
        value.encode()
        hold("\x00" not in value, "a text has a NUL", value)
        hold(len(value) <= longest, "a text is too long", len(value))
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            only_text(getattr(value, field), longest)
    elif isinstance(value, dict):
        for key, member in value.items():
            only_text(key, longest)
            only_text(member, longest)
    elif isinstance(value, list | tuple):
        for member in value:
            only_text(member, longest)
