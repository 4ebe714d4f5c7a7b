"""What axe-core, the npm package, finds wrong with a page in a browser."""

import os
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Page

_SCRIPT: Final = Path(__file__).parent / "axe" / "node_modules" / "axe-core" / "axe.min.js"
# Every rule of WCAG 2.2 A and AA, the best practices and what is on trial; of AAA none. Style sheets that the page has
# not loaded itself are not asked for: its policy need not allow that.
_RUN: Final = """
async (part) => {
  const left_out = ["wcag2aaa", "wcag21aaa", "wcag22aaa", "wcag2a-obsolete", "deprecated"];
  const rules = {};
  for (const rule of axe.getRules()) rules[rule.ruleId] = { enabled: !rule.tags.some((tag) => left_out.includes(tag)) };
  const found = await axe.run(part, { rules, preload: false, resultTypes: ["violations"] });
  return found.violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html} ${node.failureSummary}`));
}
"""


def axe() -> str:
    """The checker's source, for `faults_of`.

    Where it is not installed, the test is skipped; with ``TENANTRY_TESTS_REQUIRE_ALL=1`` it fails.
    """
    if not _SCRIPT.is_file():
        missing = "needs axe-core: `npm ci` in tests/support/axe"
        if os.environ.get("TENANTRY_TESTS_REQUIRE_ALL") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    return _SCRIPT.read_text()


async def faults_of(page: Page, source: str, part: str = "html") -> list[str]:
    """Every fault of the page as it is now, or of the part with this selector, with the element that has it.

    The source is given to the browser, not to the page: no policy of the page has to allow it.
    """
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(source)
    faults: Any = await page.evaluate(_RUN, part)
    return [" ".join(str(fault).split()) for fault in faults]
