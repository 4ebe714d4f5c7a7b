"""A real browser."""

import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

import psutil
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    async_playwright,
)

from tests.support.required import debian_program

_MARK: Final = "TENANTRY_TEST_BROWSER"
"""The variable by which processes of a browser are found, whatever process is their parent."""
EXTENSION_WORKER: Final = "worker.js"
"""The file of an extension's service worker."""
_ENDING: Final = 30.0
"""Seconds for a browser to end."""
_REPORTING: Final = 5.0
"""Seconds for playwright to report that a browser was killed."""


class Browsers:
    """The system's chromium, which is required (`tests.support.required`), and a new one after one
    that was killed. Use it as a context manager.
    """

    def __init__(self) -> None:
        self._started = AsyncExitStack()
        self._newest: Browser | None = None
        self._driver: psutil.Process | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._started.aclose()

    async def connected(self) -> Browser:
        """Return the browser that runs; start it if none does."""
        if self._newest is not None and self._newest.is_connected() and self._driver in _drivers():
            return self._newest
        self._newest = await self._started.enter_async_context(_running_browser())
        self._driver = max(_drivers(), key=psutil.Process.create_time)
        return self._newest


@asynccontextmanager
async def _running_browser() -> AsyncIterator[Browser]:
    path = debian_program("chromium")
    async with AsyncExitStack() as started:
        # Crash handlers of all browsers would share one database, and wait for each other.
        dumps = started.enter_context(TemporaryDirectory(prefix="chromium-dumps-"))
        playwright = await started.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(
            executable_path=path,
            args=["--disable-gpu"],
            env={**os.environ, _MARK: str(os.getpid()), "BREAKPAD_DUMP_LOCATION": dumps},
        )
        started.push_async_callback(browser.close)
        yield browser
        with killed_unless_ended(_ENDING):
            await started.aclose()


@asynccontextmanager
async def browser_with_extension(folder: Path) -> AsyncIterator[tuple[BrowserContext, str]]:
    """A browser of its own with the unpacked extension in this folder, and the extension's
    origin. The extension has a service worker. Only a profile of its own loads extensions, and not
    the browser without windows that playwright's ``headless`` starts.
    """
    async with async_playwright() as playwright:
        with TemporaryDirectory(prefix="chromium-profile-") as profile:
            context = await playwright.chromium.launch_persistent_context(
                profile,
                executable_path=debian_program("chromium"),
                headless=False,
                ignore_default_args=["--disable-extensions"],
                args=["--headless=new", "--disable-gpu", f"--load-extension={folder}"],
                env={**os.environ, _MARK: str(os.getpid()), "BREAKPAD_DUMP_LOCATION": profile},
            )
            try:
                workers = context.service_workers
                worker = workers[0] if workers else await context.wait_for_event("serviceworker")
                yield context, worker.url.removesuffix(f"/{EXTENSION_WORKER}")
            finally:
                with killed_unless_ended(_ENDING):
                    await context.close()


@contextmanager
def killed_unless_ended(seconds: float) -> Iterator[None]:
    """Kill the browsers of this process if the block does not end within this time.

    Playwright has no limit of its own for contexts and pages that are made or closed, and waits for
    the end of stderr of a browser that has ended, which its crash handlers keep open. A call that
    waits for a killed browser fails where it waits, with what chromium wrote on stderr; one that
    waits for playwright's driver fails when that is killed too, ``_REPORTING`` later.
    """
    ended = threading.Event()
    watching = threading.Thread(target=_kill_unless_set, args=(ended, seconds), daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def _kill_unless_set(ended: threading.Event, seconds: float) -> None:
    for found, limit in ((browser_processes, seconds), (_drivers, _REPORTING)):
        if ended.wait(limit):
            return
        for process in found():
            sys.stderr.write(f"no answer within {seconds} s: killing {process}\n")
            process.kill()


def browser_processes() -> list[psutil.Process]:
    """Return the processes of the browsers of this process, with the handlers of their crashes,
    which are children of none of them.
    """
    return [process for process in psutil.process_iter() if _is_of_browser(process)]


def _is_of_browser(process: psutil.Process) -> bool:
    try:
        return process.environ().get(_MARK) == str(os.getpid())
    except psutil.Error:  # it has ended, or is of another user
        return False


def _drivers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if _is_driver(child)]


def _is_driver(process: psutil.Process) -> bool:
    try:
        return "run-driver" in process.cmdline()
    except psutil.Error:  # it has ended
        return False


class Watched:
    """What a page asked for, and what it complained of: console errors, which policy violations are
    too.
    """

    def __init__(self, page: Page) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", self._on_request)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _on_request(self, request: Request) -> None:
        self.requests.append(request.url)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)
