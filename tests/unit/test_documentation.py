"""The pages of the documentation, beside each other and the files that they name."""

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = sorted(
    [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *(ROOT / "sdk").glob("*.md"),
        *(ROOT / "typescript").glob("*.md"),
    ]
)
_CODE: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_INLINE_CODE: Final = re.compile(r"`[^`\n]+`")
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_REPOSITORY: Final = "https://github.com/tenantry/tenantry/blob/main/"
"""Pages that registries show name those of the repository by address."""
_GUIDES: Final = [
    DOCS / "index.md",
    *(DOCS / "tutorials").glob("*.md"),
    *(DOCS / "how-to").glob("*.md"),
]
_PACKAGES: Final = [ROOT / part / "README.md" for part in ("sdk", "devkit", "typescript")]
_FROM_A_CLONE: Final = re.compile(r'pip install "?\.(?:/\w+)?[\["`\s]|npm pack \./')
_FROM_A_REGISTRY: Final = re.compile(r"from\s+the\s+first\s+release\s+on", re.IGNORECASE)
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)


@cache
def prose(page: Path) -> str:
    """What a page says outside of its examples."""
    return _CODE.sub("", page.read_text("utf-8"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """What a link into a page may name, as GitHub makes it of the headings."""
    found: Counter[str] = Counter()
    names = set()
    for heading in _HEADING.findall(prose(page)):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return frozenset(names)


def target_of(page: Path, link: str) -> tuple[Path, str]:
    """The file that a link of a page leads to, and the anchor in it."""
    path, _, anchor = link.removeprefix(_REPOSITORY).partition("#")
    folder = ROOT if link.startswith(_REPOSITORY) else page.parent
    return (folder / path if path else page).resolve(), anchor


def leads_nowhere(page: Path, link: str) -> bool:
    target, anchor = target_of(page, link)
    return not target.exists() or (bool(anchor) and anchor not in anchors(target))


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        found = _LINK.findall(_INLINE_CODE.sub("code", prose(page)))
        links = [
            link for link in found if link.startswith(_REPOSITORY) or not re.match(r"\w+:", link)
        ]
        assert [link for link in links if leads_nowhere(page, link)] == [], page


def test_links_of_the_first_page_lead_on_to_every_page() -> None:
    pages = {page for page in PAGES if DOCS in page.parents}
    found, ahead = set[Path](), {DOCS / "index.md"}
    while ahead:
        found |= ahead
        linked = {target_of(page, link)[0] for page in ahead for link in _LINK.findall(prose(page))}
        ahead = (linked & pages) - found
    assert pages - found == set()


def test_one_guide_says_what_changes_with_the_first_release() -> None:
    saying = {page.name for page in _GUIDES if _FROM_A_REGISTRY.search(prose(page))}
    made_of_a_package = "typescript-client.md"
    assert saying == {"install.md", made_of_a_package}


def test_package_says_how_to_install_it_from_a_clone_and_then_from_a_registry() -> None:
    for page in _PACKAGES:
        text = page.read_text("utf-8")
        [published] = _FROM_A_REGISTRY.finditer(text)
        assert _FROM_A_CLONE.search(text, 0, published.start()), page


def test_a_link_to_a_page_or_a_heading_that_is_not_there_is_found() -> None:
    runbook = DOCS / "how-to" / "operations.md"
    assert leads_nowhere(runbook, "nothing.md")
    assert leads_nowhere(runbook, "#nothing")
    assert not leads_nowhere(runbook, "#alerts")


def test_pages_that_code_and_examples_name_are_there() -> None:
    folders = ("src", "devkit/src", "sdk/src", "examples", "charts")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = [path.read_text("utf-8") for path in files if path.parent.name != "__pycache__"]
    named = {name for text in texts for name in re.findall(r"\bdocs/[\w/-]+\.md", text)}
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_tests_that_keep_a_promise_of_security_are_there() -> None:
    named = re.findall(r"`([\w/]*test_\w+\.py)`", prose(DOCS / "explanation" / "security.md"))
    assert named
    there = [f"/{path.relative_to(ROOT)}" for path in (ROOT / "tests").rglob("test_*.py")]
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in there)] == []
