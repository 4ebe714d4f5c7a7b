"""A Markdown extension for the site: what pages that a forge shows well lack there.

- A page links files of the repository, such as `../../examples/systemd`. On the site these links
  lead to the address `Repository` in pyproject.toml; while there is none, their text stays without
  a link.
- An empty cell in the head of a table is no heading, which screen readers would announce; where it
  is the first one, the cells below name their rows.
- In a table, a forge needs `\\|` for a vertical bar in code, and shows `|`.
- The first paragraph describes the page to search engines.
- A reader who searches wants no decision record above the guides.
"""

import tomllib
from html import escape
from pathlib import Path
from typing import Any, Final
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor
from markdown.util import STX

_DOCS: Final = Path(__file__).parent
_ROOT: Final = _DOCS.parent
_BEFORE_LINKS_ARE_RESOLVED: Final = 15
_NOT_SEARCHED: Final = ("contributing/specification.md", "decisions/")
_SHORTEST_DESCRIPTION: Final = 60
_CONTEXT: Final = "rendering_context"
"""The step by which Zensical tells its extensions what page they are in; MkDocs has none."""


def _text(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


class _Step(Treeprocessor):  # type: ignore[misc]  # the library is installed for the site alone
    def __init__(self, md: Markdown, files: str) -> None:
        super().__init__(md)
        self._files = files

    def run(self, root: Element) -> None:
        """Change the tree of a page."""
        for table in root.iter("table"):
            self._complete(table)
        for link in root.iter("a"):
            path = link.get("href", "").partition("#")[0]
            target = path.lstrip("./")
            if (
                not path.startswith("../")
                or (_DOCS / target).exists()
                or not (_ROOT / target).exists()
            ):
                continue
            if self._files:
                link.set("href", f"{self._files}/{target}")
            else:
                link.tag = "span"
                del link.attrib["href"]
        self._describe(root)

    def _complete(self, table: Element) -> None:
        headings = table.findall("thead/tr/th")
        empty = [heading for heading in headings if not _text(heading)]
        for heading in empty:
            heading.tag = "td"
        for cell in table.findall("tbody/tr/td[1]") if headings[:1] == empty[:1] else ():
            if _text(cell):
                cell.tag = "th"
                cell.set("scope", "row")
        for code in table.iter("code"):
            code.text = (code.text or "").replace("\\|", "|")

    def _describe(self, root: Element) -> None:
        if _CONTEXT not in self.md.preprocessors:
            return
        page = self.md.preprocessors[_CONTEXT].page
        first = next(text for text in map(_text, root.iter("p")) if STX not in text)
        description = first[: first.find(". ", _SHORTEST_DESCRIPTION) + 1] or first
        page.meta["description"] = escape(description)  # the theme's template does not
        if page.path.startswith(_NOT_SEARCHED):
            page.meta["search"] = {"exclude": True}


class SiteMarkdown(Extension):  # type: ignore[misc]
    """`markdown_extensions: [docs.site_markdown]`."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  # the library's name
        """Add the step."""
        urls = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"].get(
            "urls", {}
        )
        repository = str(urls.get("Repository", "")).rstrip("/")
        files = f"{repository}/blob/HEAD" if repository else ""
        md.treeprocessors.register(_Step(md, files), "site_markdown", _BEFORE_LINKS_ARE_RESOLVED)


def makeExtension(**_: Any) -> SiteMarkdown:  # noqa: ANN401, N802  # the library's name
    """Make the extension, as the library asks for it."""
    return SiteMarkdown()
