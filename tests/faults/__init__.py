"""Deliberate faults in the product code, each with the tests that fail because of it.

`faults.toml` is the table. ``python -m tests.faults`` shows that the tests catch every fault in it.
"""

import re
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[2]
_WORDS: Final = re.compile(r"\w+|[^\w\s]")
_CLOSING: Final = (")", "]", "}")
_TABLE: Final = Path(__file__).with_name("faults.toml")


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change that a plausible mistake would make: ``find`` becomes ``replace`` in ``file``.

    ``find`` occurs exactly once in the file, in whatever layout the formatter gave it. ``also``
    names files that have the same text and change with it, such as the generated synchronous half
    of the SDK. ``caught_by`` are test files or node ids; at least one test fails.
    """

    name: str
    area: str
    file: str
    find: str
    replace: str
    caught_by: list[str]
    also: list[str] = []

    @property
    def files(self) -> list[str]:
        """The files that the fault changes, relative to the repository."""
        return [self.file, *self.also]

    def changed(self, root: Path) -> dict[Path, str]:
        """The text of each file below ``root`` with the fault. Raises `ValueError` if ``find`` does
        not occur once.
        """
        pattern = _in_any_layout(self.find)
        # the match begins at the first word, after the indentation
        indentation = self.find[: -len(self.find.lstrip())]
        replacement = self.replace.removeprefix(indentation)
        changed = {}
        for path in (root / file for file in self.files):
            text = path.read_text()
            found = list(pattern.finditer(text))
            if len(found) != 1:
                place = path.relative_to(root)
                raise ValueError(
                    f"{self.name}: the text to find occurs {len(found)} times in {place}"
                )
            start, end = found[0].span()
            changed[path] = text[:start] + replacement + text[end:]
        return changed


def _in_any_layout(text: str) -> re.Pattern[str]:
    """Match the text with other white space, and with trailing commas before closing brackets."""
    words = _WORDS.findall(text)
    return re.compile(
        r"\s*".join(
            rf",?\s*{re.escape(word)}" if word in _CLOSING else re.escape(word) for word in words
        )
    )


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    faults: list[Fault]


def load_faults() -> list[Fault]:
    """Read the table. Raises `msgspec.ValidationError`."""
    return msgspec.toml.decode(_TABLE.read_bytes(), type=_Table).faults
