"""Sign-in to the commands with a real browser."""

from playwright.async_api import Browser

from tests.cli.sign_in_support import SignInHome, address_in
from tests.support.sign_in import ADA


async def test_choice_in_a_browser_signs_in(sign_in_home: SignInHome, browser: Browser) -> None:
    async with (
        await browser.new_context() as context,
        sign_in_home.start_login("--no-browser") as command,
    ):
        page = await context.new_page()
        await page.goto(await address_in(command))
        await page.click(f"button[value={ADA.sub}]")
        await page.wait_for_selector("text=Go back to the terminal")
        assert await command.wait() == 0, command.text
    assert f"as {ADA.sub} of org_demo." in command.text["err"]
    assert (await sign_in_home.home.run("whoami")).code == 0
