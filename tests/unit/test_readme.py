"""The README: what a newcomer sees first, and what registries show of it."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.documentation import ROOT, blocks

README: Final = ROOT / "README.md"
MOST_WORDS: Final = 500
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
UNKNOWN_WORDS: Final = ("drift", "fold", "ledger", "parked", "pepper", "principal")
"""Our terms, which a newcomer cannot know."""
ADDRESS: Final = "https://"


def visible_text(page: str) -> str:
    """What a reader sees of a page: without comments, and without the targets of links."""
    return LINK.sub("]", re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL))


def test_readme_has_at_most_500_words() -> None:
    assert len(visible_text(README.read_text("utf-8")).split()) <= MOST_WORDS


def test_readme_has_no_word_that_a_newcomer_cannot_know() -> None:
    words = set(re.findall(r"[a-z]+", visible_text(README.read_text("utf-8")).lower()))
    assert {word for word in UNKNOWN_WORDS if {word, f"{word}s", f"{word}ed"} & words} == set()


def test_readme_begins_with_what_works_in_a_checkout() -> None:
    first, requests, *_ = blocks(README)
    assert [line.split("  ")[0] for line in first.text.splitlines()] == ["make run", "make test"]
    assert requests.text.count("curl ") == 3
    before, _, after = README.read_text("utf-8").partition("make run")
    assert all(tool not in before for tool in ("uvx", "pipx", "pip install"))
    assert "From the first release on" in after.partition("uvx")[0]


def test_readme_shows_both_pictures_before_its_first_command() -> None:
    before = README.read_text("utf-8").partition("```")[0]
    assert re.findall(r"!\[[^]]+\]\((\S+)\)", before) == [
        "docs/images/overview.svg",
        "docs/images/key-created.png",
    ]


def test_readme_does_not_age() -> None:
    assert re.findall(r"\b20\d\d\b", visible_text(README.read_text("utf-8"))) == []


def test_links_of_the_readme_are_relative() -> None:
    assert [
        link for link in LINK.findall(README.read_text("utf-8")) if link.startswith(ADDRESS)
    ] == []


def test_description_of_the_package_has_addresses_for_all_links_of_the_readme() -> None:
    command = [sys.executable, "-m", "hatchling", "metadata", "readme"]
    description = subprocess.check_output(command, cwd=ROOT, text=True)
    files, pictures = (
        f"{ADDRESS}github.com/tenantry/tenantry/blob/main/",
        f"{ADDRESS}raw.githubusercontent.com/",
    )
    links = LINK.findall(description)
    assert len(links) == len(LINK.findall(README.read_text("utf-8"))) > 10
    assert [link for link in links if not link.startswith((files, pictures))] == []
    assert [
        link for link in links if link.endswith((".svg", ".png")) is not link.startswith(pictures)
    ] == []


def test_picture_adapts_to_dark_pages_and_names_what_it_shows() -> None:
    picture = Path(ROOT, "docs", "images", "overview.svg").read_text("utf-8")
    assert "prefers-color-scheme: dark" in picture
    assert "<title" in picture
    assert re.findall(r"(?:href|src)=|url\((?!#)", picture) == [], (
        "pages show it without what it loads"
    )
