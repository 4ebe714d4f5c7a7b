"""The API reference in a real browser."""

from collections.abc import AsyncIterator
from typing import Final, Literal

import pytest
from playwright.async_api import Browser, Page, expect

from tenantry.api.reference import PATH
from tenantry.app import build_app
from tests.support.app import make_settings
from tests.support.browser import Watched
from tests.support.postgres import PostgresServer
from tests.support.serving import served

Scheme = Literal["light", "dark"]
SCHEMES: Final[tuple[Scheme, ...]] = ("light", "dark")
WIDTHS: Final = (320, 390, 768, 961, 1040, 1280, 1920)
AA: Final = 4.5
"""The least contrast of text, WCAG 2.2 success criterion 1.4.3."""

LEAST_CONTRAST: Final = """
() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b]
    .map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = channels(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  let least = [21, "nothing"];
  for (const element of document.body.querySelectorAll("*")) {
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const [a, b] = [luminance(channels(getComputedStyle(element).color)), luminance(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < least[0]) least = [ratio, element.outerHTML.slice(0, 200)];
  }
  return least;
}
"""


@pytest.fixture(scope="module")
async def address(postgres: PostgresServer) -> AsyncIterator[str]:
    with postgres.database() as conninfo:
        async with served(build_app(make_settings(), conninfo)) as address:
            yield address


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    page = await browser.new_page()
    yield page
    await page.close()


async def show(page: Page, address: str, width: int = 1280, scheme: Scheme = "light") -> Watched:
    """Open the reference."""
    watched = Watched(page)
    await page.set_viewport_size({"width": width, "height": 844})
    await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    await page.goto(f"{address}{PATH}", wait_until="networkidle")
    return watched


async def base_of_assets(page: Page) -> str:
    """Where the page's assets are."""
    style = await page.evaluate("document.querySelector('link[rel=stylesheet]').href")
    return str(style).rpartition("/")[0]


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_it_asks_only_its_own_origin_and_the_browser_complains_of_nothing(
    page: Page, address: str, scheme: Scheme
) -> None:
    watched = await show(page, address, scheme=scheme)
    assert watched.requests[0] == f"{address}{PATH}"
    assert {request.rpartition("/")[0] for request in watched.requests[1:]} == {
        await base_of_assets(page)
    }
    names = {request.rpartition("/")[2] for request in watched.requests[1:]}
    assert names >= {"base.css", "reference.css", "dashboard.js"}
    assert watched.complaints == []


async def test_its_policy_blocks_foreign_scripts(page: Page, address: str) -> None:
    await show(page, address)
    ran = await page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.ran = true';"
        " document.body.append(s); return window.ran === true; }"
    )
    assert ran is False


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_it_never_scrolls_sideways(page: Page, address: str, scheme: Scheme) -> None:
    await show(page, address, scheme=scheme)
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": 844})
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, width


async def test_long_code_lines_scroll_in_their_block_on_a_phone(page: Page, address: str) -> None:
    await show(page, address, 390)
    scrolling = await page.evaluate(
        "[...document.querySelectorAll('pre')].filter(e => e.scrollWidth > e.clientWidth).length"
    )
    assert scrolling > 0


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_every_text_has_enough_contrast(page: Page, address: str, scheme: Scheme) -> None:
    await show(page, address, scheme=scheme)
    ratio, element = await page.evaluate(LEAST_CONTRAST)
    assert ratio >= AA, element


async def test_the_schemes_look_different(page: Page, address: str) -> None:
    colours = set()
    for scheme in SCHEMES:
        await show(page, address, scheme=scheme)
        colours.add(
            await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        )
    assert len(colours) == len(SCHEMES)


async def test_the_first_tab_stop_skips_to_the_content(page: Page, address: str) -> None:
    await show(page, address)
    await page.keyboard.press("Tab")
    skip = page.locator(":focus")
    assert await skip.inner_text() == "Skip to the content"
    box = await skip.bounding_box()
    assert box is not None
    assert box["y"] >= 0
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "content"


async def test_what_has_the_focus_is_outlined(page: Page, address: str) -> None:
    await show(page, address)
    for _ in range(3):
        await page.keyboard.press("Tab")
    outline = await page.evaluate(
        "(({outlineStyle, outlineWidth}) => [outlineStyle, outlineWidth])(getComputedStyle(document.activeElement))"
    )
    assert outline == ["solid", "2px"]


async def test_an_example_is_copied_whole(browser: Browser, address: str) -> None:
    context = await browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = await context.new_page()
    watched = await show(page, address)
    example = page.locator("figure", has=page.get_by_label("First request"))
    await example.get_by_role("button", name="Copy").click()
    await expect(example.get_by_role("button")).to_have_accessible_name("Copied First request")
    assert (
        await page.evaluate("navigator.clipboard.readText()")
        == await example.locator("code").text_content()
    )
    assert watched.complaints == []
    await context.close()


async def test_without_script_there_is_nothing_that_does_nothing(
    browser: Browser, address: str
) -> None:
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await show(page, address)
    assert await page.get_by_role("button").count() == 0
    await expect(page.get_by_label("First request")).to_be_visible()
    await context.close()


async def test_it_prints_dark_on_white_without_the_navigation(page: Page, address: str) -> None:
    await show(page, address, scheme="dark")
    await page.emulate_media(media="print")
    assert not await page.locator("nav").is_visible()
    ratio, element = await page.evaluate(LEAST_CONTRAST)
    assert ratio >= AA, element
