"""The documentation site, as `make docs` builds it: its links, its pages in a browser, its search
and its versions.
"""

import json
import re
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from playwright.async_api import Browser, Page, expect

from tests.support.accessibility import axe, violations_of
from tests.support.browser import Watched
from tests.support.documentation_site import ROOT, build, copy_sources, serving_files

Scheme = Literal["light", "dark"]
PAGES: Final = (
    "",
    "tutorials/first-ten-minutes/",
    "how-to/gateways/",
    "how-to/backup/",
    "reference/http-api/",
    "reference/configuration/",
    "reference/sdk/",
    "explanation/durability/",
    "explanation/performance/",
    "decisions/",
    "faq/",
    "glossary/",
)
DARK_PAGES: Final = ("", "how-to/gateways/", "reference/configuration/", "explanation/performance/")
"""Pages with what there is to color: listings, tables, notes and links."""
WIDTHS: Final = (390, 1280)
COMPLETE: Final = """
() => {
  const tables = [...document.querySelectorAll("article table")];
  const listings = [...document.querySelectorAll("article pre > code")];
  return tables.every((table) => table.parentElement.matches(".md-typeset__table"))
    && listings.every((code) => code.scrollWidth <= code.clientWidth || code.tabIndex === 0);
}
"""
"""Whether the theme's script has completed the page; on the longest page that takes a while."""
_COUNTED: Final = frozenset({"blockquote", "h2", "h3", "img", "li", "ol", "pre", "tr", "ul"})
_LOADED: Final = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
    "link": "href",
}
"""The attribute by which an element makes a browser load something."""


class Document(HTMLParser):
    """The elements of a page: all, and those of its article."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.counted: Counter[str] = Counter()
        self._in_article = "<article" not in text
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_article = self._in_article or tag == "article"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if self._in_article and tag in _COUNTED:
            self.counted[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._in_article = self._in_article and tag != "article"

    def meta(self, name: str) -> str:
        """The content of the only such element."""
        [content] = [
            attributes["content"]
            for tag, attributes in self.elements
            if tag == "meta" and name in {attributes.get("name"), attributes.get("property")}
        ]
        return content

    def links(self, kind: str) -> list[dict[str, str]]:
        return [attributes for _, attributes in self.elements if attributes.get("rel") == kind]

    @property
    def anchors(self) -> set[str]:
        return {attributes["id"] for _, attributes in self.elements if "id" in attributes} | {""}


def project_urls() -> dict[str, str]:
    urls: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "urls"
    ]
    return urls


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this release, below the folder that a web server serves."""
    folder = tmp_path_factory.mktemp("site") / "sources"
    copy_sources(folder)
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def documents(site: Path) -> dict[Path, Document]:
    return {
        page: Document(page.read_text("utf-8")) for page in sorted((site / "0.1").rglob("*.html"))
    }


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with serving_files(site) as address:
        yield f"{address}/latest/"


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    page = await browser.new_page(reduced_motion="reduce")
    yield page
    await page.close()


def leads_nowhere(link: str, page: Path, documents: dict[Path, Document]) -> bool:
    target = (page.parent / unquote(urlsplit(link).path)).resolve() if urlsplit(link).path else page
    target = target / "index.html" if target.is_dir() else target
    anchor = unquote(urlsplit(link).fragment)
    return not target.exists() or (target in documents and anchor not in documents[target].anchors)


def test_every_link_of_every_page_leads_somewhere(
    documents: dict[Path, Document], site: Path
) -> None:
    broken = [
        f"{page.relative_to(site)}: {link}"
        for page, document in documents.items()
        for tag, attributes in document.elements
        for link in (attributes.get("href"), attributes.get("src"))
        if link and tag != "base" and not urlsplit(link).scheme
        if leads_nowhere(link, page, documents)
    ]
    assert broken == []


def test_links_to_nothing_fail_the_build(tmp_path: Path) -> None:
    links = {
        "gateways.md": "nothing.md",
        "backup.md": "gateways.md#nothing",
        "audit.md": "#nothing",
    }
    folder = tmp_path / "sources"
    copy_sources(folder)
    for name, link in links.items():
        with (folder / "docs" / "how-to" / name).open("a") as page:
            page.write(f"\n[a link]({link})\n")
    done = build(folder)
    assert done.returncode != 0
    assert [name for name in links if f"how-to/{name}" not in done.stdout + done.stderr] == []


def test_link_to_a_file_of_the_repository_leads_there(
    documents: dict[Path, Document], site: Path
) -> None:
    page = documents[site / "0.1" / "how-to" / "gateways" / "index.html"]
    links = {attributes.get("href") for _, attributes in page.elements}
    assert f"{project_urls()['Repository']}/blob/HEAD/examples/gateways/nginx.conf" in links


def test_a_page_has_the_structure_that_markdown_gives_it_elsewhere(
    documents: dict[Path, Document], site: Path
) -> None:
    sources = ROOT / "docs"
    differing = {}
    for source in sources.rglob("*.md"):
        name = source.relative_to(sources).with_suffix("")
        folder = name.parent if name.name in {"index", "README"} else name
        shown = documents[site / "0.1" / folder / "index.html"].counted
        meant = Document(
            MarkdownIt("commonmark").enable("table").render(source.read_text("utf-8"))
        ).counted
        if shown != meant:
            differing[str(name)] = (shown - meant, meant - shown)
    assert differing == {}, (
        "a nested list or block needs four spaces, and a list a blank line before it"
    )


def test_each_page_describes_itself_and_names_its_address_of_the_newest_release(
    documents: dict[Path, Document], site: Path
) -> None:
    published = f"{project_urls()['Documentation']}latest/"
    described = Counter(document.meta("description") for document in documents.values())
    assert max(described.values()) == 1
    assert min(len(one) for one in described) > 50
    for page, document in documents.items():
        address = published + str(page.parent.relative_to(site / "0.1")).strip(".").rstrip("/")
        address = address if address.endswith("/") else f"{address}/"
        assert [link["href"] for link in document.links("canonical")] == [address]
        assert document.meta("og:url") == address
        assert document.meta("og:description") == document.meta("description")
        assert f"<loc>{address}</loc>" in (site / "latest" / "sitemap.xml").read_text("utf-8")


def test_each_page_links_the_file_to_edit(documents: dict[Path, Document], site: Path) -> None:
    edit = f"{project_urls()['Repository']}/edit/main/"
    for document in documents.values():
        [link] = document.links("edit")
        assert (ROOT / link["href"].removeprefix(edit)).is_file()


def test_missing_page_leads_to_the_documentation(site: Path) -> None:
    page = Document((site / "404.html").read_text("utf-8"))
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert links == [f"{project_urls()['Documentation']}latest/"]


def test_code_in_a_table_shows_its_vertical_bars_as_they_are(site: Path) -> None:
    assert [page for page in site.rglob("*.html") if "\\|" in page.read_text("utf-8")] == []


def test_search_leaves_decisions_to_the_explanations(site: Path) -> None:
    found = json.loads((site / "latest" / "search.json").read_text("utf-8"))["items"]
    folders = {one["location"].partition("/")[0] for one in found}
    assert "decisions" not in folders
    assert folders >= {"tutorials", "how-to", "reference", "explanation", "faq", "glossary"}


def test_nothing_is_loaded_from_elsewhere(documents: dict[Path, Document], site: Path) -> None:
    loaded = {
        attributes.get(_LOADED[tag], "")
        for document in documents.values()
        for tag, attributes in document.elements
        if tag in _LOADED and attributes.get("rel") not in {"canonical", "prev", "next"}
    }
    assert len(loaded) > len(WIDTHS)
    assert {one for one in loaded if urlsplit(one).netloc} == set()
    styles = [style.read_text("utf-8") for style in site.rglob("*.css")]
    assert styles
    assert [
        found
        for style in styles
        for found in re.findall(r"(?:url\(|@import\s*)[\"']?(?:https?:)?//\S*", style)
    ] == []


@pytest.mark.parametrize(
    ("path", "scheme"),
    [*((path, "light") for path in PAGES), *((path, "dark") for path in DARK_PAGES)],
)
async def test_page_is_accessible_and_asks_only_its_own_origin(
    page: Page, address: str, path: str, scheme: Scheme
) -> None:
    watched = Watched(page)
    await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    found = []
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": 900})
        await page.goto(f"{address}{path}", wait_until="networkidle")
        await page.wait_for_function(COMPLETE)
        found += [f"{width}: {violation}" for violation in await violations_of(page, axe())]
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
    assert found == []
    assert watched.complaints == []
    assert [
        one
        for one in watched.requests
        if not one.startswith((address, address.replace("latest/", "")))
    ] == []


async def test_search_finds_a_page_and_opens_it(page: Page, address: str) -> None:
    watched = Watched(page)
    await page.goto(address, wait_until="networkidle")
    entry = page.get_by_placeholder("Search")
    await expect(entry).to_be_attached()  # the script has made the dialog: it hears the keys now
    await page.keyboard.press("Control+k")
    await entry.fill("after-restore")
    await page.get_by_role("option", name="Backup and restore").first.click()
    await expect(page.get_by_role("heading", level=1)).to_have_text(
        re.compile("^Backup and restore")
    )
    assert watched.complaints == []


async def test_reader_can_choose_the_dark_scheme(page: Page, address: str) -> None:
    await page.emulate_media(color_scheme="light")
    await page.goto(address)
    light = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    await page.get_by_title("Switch to light mode").click()
    await page.get_by_title("Switch to dark mode").click()
    await expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "slate")
    await page.reload()
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != light


async def test_each_release_keeps_its_pages_and_the_newest_is_shown_first(
    page: Page, tmp_path: Path
) -> None:
    folder = tmp_path / "sources"
    copy_sources(folder)
    glossary = folder / "docs" / "glossary.md"
    original = glossary.read_text("utf-8")
    for version in ("0.9.1", "0.10.0", "0.9.2"):
        glossary.write_text(original.replace("# Glossary", f"# Glossary of {version}"), "utf-8")
        assert build(folder, version).returncode == 0
    listed = json.loads((folder / "site" / "versions.json").read_text())
    assert [(one["version"], one["title"], one["aliases"]) for one in listed] == [
        ("0.10", "0.10.0", ["latest"]),
        ("0.9", "0.9.2", []),
    ]
    watched = Watched(page)
    with serving_files(folder / "site") as address:
        await page.goto(address)
        await page.wait_for_url(f"{address}/latest/")
        await page.goto(f"{address}/latest/glossary/")
        title = page.get_by_role("heading", level=1)
        await expect(title).to_have_text(re.compile("^Glossary of 0.10.0"))
        await page.get_by_role("button", name="Select version: 0.10.0").focus()
        await page.get_by_role("link", name="0.9.2").click()
        await page.wait_for_url(f"{address}/0.9/**")
        await page.goto(f"{address}/0.9/glossary/")
        await expect(title).to_have_text(re.compile("^Glossary of 0.9.2"))
        await page.get_by_role("link", name="Read that of the newest").click()
        await page.wait_for_url(f"{address}/latest/")
        await expect(page.get_by_text("an older release")).to_be_hidden()
        await page.goto(f"{address}/0.9/faq/")
        await expect(page.get_by_text("an older release")).to_be_visible()
    assert watched.complaints == []
