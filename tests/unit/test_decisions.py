"""The decision records: short, and listed in their index with their titles."""

import re
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parents[2] / "docs/decisions"
_MAX_WORDS: Final = 500


def _titles() -> dict[str, str]:
    titles = {}
    for page in sorted(_FOLDER.glob("[0-9]*.md")):
        heading = page.read_text().splitlines()[0]
        titles[page.name] = heading.removeprefix(f"# {page.name[:4]}: ")
    return titles


def test_the_index_lists_every_decision_with_its_title() -> None:
    index = (_FOLDER / "README.md").read_text()

    rows = re.findall(r"^\| \[(\d{4})\]\((\1-[a-z0-9-]+\.md)\) \| (.+) \|$", index, re.MULTILINE)

    assert {name: title for _, name, title in rows} == _titles()


def test_a_decision_has_at_most_500_words() -> None:
    words = {name: len((_FOLDER / name).read_text().split()) for name in _titles()}

    assert {name: number for name, number in words.items() if number > _MAX_WORDS} == {}
