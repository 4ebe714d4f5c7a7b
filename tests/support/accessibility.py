"""Accessibility violations of a page in a browser, found by axe-core."""

from collections.abc import Sequence
from typing import Any, Final

from playwright.async_api import Page

from tests.support.required import node_package

# Every rule of WCAG 2.2 A and AA, the best practices and what is on trial; of AAA none. Style
# sheets that the page has not loaded itself are not asked for: its policy need not allow that.
_RUN: Final = """
async ([part, only]) => {
  const left_out = ["wcag2aaa", "wcag21aaa", "wcag22aaa", "wcag2a-obsolete", "deprecated"];
  const applies = ({ ruleId, tags }) =>
    only.length ? only.includes(ruleId) : !tags.some((tag) => left_out.includes(tag));
  const rules = {};
  for (const rule of axe.getRules()) rules[rule.ruleId] = { enabled: applies(rule) };
  const found = await axe.run(part, { rules, preload: false, resultTypes: ["violations"] });
  return found.violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html} ${node.failureSummary}`));
}
"""


def axe() -> str:
    """The checker's source, for `violations_of`; it is required (`tests.support.required`)."""
    return (node_package("axe", "axe-core") / "axe.min.js").read_text()


COLOR_RULES: Final = ("color-contrast", "link-in-text-block")
"""The rules that depend on colors."""


async def violations_of(
    page: Page, source: str, part: str = "html", only: Sequence[str] = ()
) -> list[str]:
    """Every violation in the page as it is now, or of the part with this selector, with the element
    that has it.

    ``only`` are the rules to apply, where not all.
    The source is given to the browser, not to the page: no policy of the page has to allow it.
    """
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(source)
    violations: Any = await page.evaluate(_RUN, [part, list(only)])
    return [" ".join(str(violation).split()) for violation in violations]
