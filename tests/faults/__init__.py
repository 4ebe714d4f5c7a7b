"""Deliberate faults in the product code, each with the tests that fail because of it.

`faults.toml` is the table. ``python -m tests.faults`` shows that the tests catch every fault in it.
"""

from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[2]
_TABLE: Final = Path(__file__).with_name("faults.toml")


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change that a plausible mistake would make: ``find`` becomes ``replace`` in ``file``.

    ``find`` occurs exactly once in the file. ``also`` names files that have the same text and change with it, such as
    the generated synchronous half of the SDK. ``caught_by`` are test files or node ids; at least one test fails.
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
        """The text of each file below ``root`` with the fault. Raises `ValueError` if ``find`` does not occur once."""
        texts = {root / file: (root / file).read_text() for file in self.files}
        for path, text in texts.items():
            if (count := text.count(self.find)) != 1:
                raise ValueError(f"{self.name}: the text to find occurs {count} times in {path.relative_to(root)}")
        return {path: text.replace(self.find, self.replace) for path, text in texts.items()}


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    faults: list[Fault]


def load_faults() -> list[Fault]:
    """Read the table. Raises `msgspec.ValidationError`."""
    return msgspec.toml.decode(_TABLE.read_bytes(), type=_Table).faults
