"""Writes docs/images/ from a demo that has just been made and runs (`make run`): `python
docs/make_screenshots.py`.

Needs Debian's chromium, as the tests do.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, sync_playwright

from tenantry_cli.commands import main as tenantry_command
from tenantry_sdk import Tenantry
from tenantry_sdk.types import Mode

FOLDER: Final = Path(__file__).parent / "images"
_SIZE: Final = (1280, 800)
_EVENTS: Final = (
    ("customer.subscription.updated", "--plan", "pro"),
    ("invoice.payment_succeeded",),
    ("invoice.payment_failed",),
)


def furnish(base_url: str, key: str) -> None:
    """The keys and projects that a tenant has after its first weeks."""
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=180)
    with Tenantry(key, base_url=base_url) as tenantry:
        for name in ("Storefront", "Warehouse"):
            tenantry.projects.create(name=name)
        modes: dict[str, Mode] = {
            "Storefront": "live",
            "CI": "test",
            "Nightly export": "live",
            "Old laptop": "live",
        }
        made = {
            name: tenantry.api_keys.create(
                org_id="demo", name=name, scopes=["projects:read"], expires_at=until, mode=mode
            )
            for name, mode in modes.items()
        }
        tenantry.api_keys.rotate(made["Nightly export"].id, overlap_seconds=86_400)
        tenantry.api_keys.delete(made["Old laptop"].id)
    with Tenantry(made["Storefront"].secret, base_url=base_url) as storefront:
        storefront.auth.whoami()


def trigger(*arguments: str) -> None:
    """An event of the payment provider."""
    try:
        tenantry_command(["trigger", *arguments])
    except SystemExit as end:  # as a command, it ends the program
        if end.code:
            raise


@contextmanager
def signed_in(base_url: str) -> Iterator[Page]:
    """A page of the demo's owner, in a separate browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        width, height = _SIZE
        page = browser.new_page(
            base_url=base_url, viewport={"width": width, "height": height}, reduced_motion="reduce"
        )
        page.goto("/sign-in")
        page.get_by_role("link", name="Olivia").click()
        page.wait_for_url("**/orgs/demo/")
        yield page
        browser.close()


def take(page: Page, name: str) -> None:
    """A picture of what is on the screen."""
    page.screenshot(path=FOLDER / f"{name}.png")


def main() -> None:
    """All pictures."""
    lines = Path(".tenantry/demo.env").read_text(encoding="utf-8").splitlines()
    demo = dict(line.split("=", 1) for line in lines if "=" in line)
    base_url = demo["TENANTRY_DEMO_ADDRESS"]
    furnish(base_url, demo["TENANTRY_DEMO_LIVE_KEY"])
    FOLDER.mkdir(exist_ok=True)
    with signed_in(base_url) as page:
        page.goto("/orgs/demo/settings/api-keys")
        take(page, "api-keys")
        page.get_by_role("link", name="Create key").click()
        page.get_by_role("textbox", name="Name").fill("Reporting")
        page.get_by_label("Chosen scopes").check()
        page.get_by_role("checkbox", name="projects:read").check()
        page.get_by_role("button", name="Create key").click()
        take(page, "key-created")
    for event in _EVENTS:
        trigger(*event)
    with signed_in(base_url) as page:
        page.goto("/orgs/demo/billing")
        take(page, "billing")
        page.emulate_media(color_scheme="dark")
        page.goto("/orgs/demo/events")
        page.get_by_text("Live", exact=True).wait_for()
        take(page, "events")


if __name__ == "__main__":
    main()
