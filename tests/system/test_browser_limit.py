"""What waits for a browser that does not answer ends."""

import psutil
import pytest
from playwright.async_api import Error

from tests.support.browser import Browsers, browser_processes, killed_unless_ended


def driver_since(before: set[psutil.Process]) -> psutil.Process:
    """The driver of playwright that was started since then."""
    [driver] = {*psutil.Process().children()} - before
    return driver


@pytest.mark.parametrize("silent", ["browser", "driver"])
async def test_call_to_a_browser_that_does_not_answer_fails(silent: str) -> None:
    before = {*psutil.Process().children()}
    async with Browsers() as browsers:
        browser = await browsers.connected()
        driver = driver_since(before)
        [chromium] = driver.children()
        {"browser": chromium, "driver": driver}[silent].suspend()
        with killed_unless_ended(1), pytest.raises(Error, match=r"new_context.*has been closed"):
            await browser.new_context()
        context = await (await browsers.connected()).new_context()
        await context.close()
    assert {*psutil.Process().children()} <= before


async def test_browser_whose_crash_handlers_hang_is_closed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with Browsers() as browsers:
        browser = await browsers.connected()
        for handler in crash_handlers():
            handler.suspend()
        with killed_unless_ended(1):
            await browser.close()
    assert "chrome_crashpad" in capsys.readouterr().err


def crash_handlers() -> list[psutil.Process]:
    """Those of the browsers of this process; they are children of none of its processes."""
    return [one for one in browser_processes() if one.name().startswith("chrome_crashpad")]
