"""The tutorials and some guides, followed from an empty folder as they are printed."""

import os
import re
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.test_demo import demo
from tests.support.documentation import ROOT, BlockError, reader
from tests.support.findings import free_port
from tests.support.installed import build_distributions, install
from tests.system.test_typescript_client import Package, package

__all__ = ["package"]

DOCS: Final = ROOT / "docs"
PAGES: Final = (
    "reference/api-key-format",
    "tutorials/first-ten-minutes",
    "tutorials/protect-django",
    "tutorials/protect-fastapi",
    "tutorials/protect-flask",
    "tutorials/sell-a-plan",
)
BESIDE_THE_DEMO: Final = ("how-to/api-keys", "how-to/audit", "how-to/members", "how-to/operations")
"""These ask a service that runs already: its address and credentials are in the variables of the environment."""
WITH_NODE: Final = "tutorials/protect-express"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a user who has installed the distributions, and has no checkout."""
    folder = tmp_path_factory.mktemp("user")
    dist = build_distributions(folder)
    install(dist, folder / "environment", "tenantry[demo,django,fastapi,flask]", "uvicorn", "waitress")
    return {"PATH": f"{folder / 'environment' / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": ""}


@pytest.mark.parametrize("page", PAGES)
async def test_each_block_does_what_its_page_says(
    page: str, place: Path, tmp_path: Path, installed: dict[str, str]
) -> None:
    async with reader(place, tmp_path, **installed) as following:
        await following.follow(DOCS / f"{page}.md")


@pytest.mark.parametrize("page", BESIDE_THE_DEMO)
async def test_each_block_does_what_its_page_says_beside_the_demo(page: str, place: Path, tmp_path: Path) -> None:
    port = free_port()
    async with demo(place, port):
        kept = dict(re.findall(r"^(\w+)=(.*)$", (place / ".tenantry" / "demo.env").read_text("utf-8"), re.MULTILINE))
        values = {"KEY": kept["TENANTRY_DEMO_LIVE_KEY"], "OPERATOR_TOKEN": kept["OPERATOR_TOKEN"]}
        async with reader(place, tmp_path, BASE_URL=f"http://127.0.0.1:{port}", **values) as following:
            await following.follow(DOCS / f"{page}.md")


async def test_each_block_of_the_page_for_node_does_what_it_says(package: Package, place: Path, tmp_path: Path) -> None:
    (place / "node_modules").symlink_to(package.folder / "node_modules")
    async with reader(place, tmp_path) as following:
        await following.follow(DOCS / f"{WITH_NODE}.md")


@pytest.mark.parametrize(
    ("block", "failure"),
    [
        ("```sh\necho a\n```\n\n```text\nb\n```\n", "the output is not the one below the block"),
        ("```sh\nfalse\n```\n", "a command failed"),
        ("<!-- keeps running -->\n\n```sh\necho no\n```\n\n```text\nready\n```\n", "it ended"),
        ("```text\nb\n```\n", "neither run nor marked"),
    ],
    ids=["other output", "failure", "server that ends", "unmarked"],
)
async def test_block_that_does_something_else_is_reported(
    block: str, failure: str, place: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{block}")
    async with reader(place, tmp_path) as following:
        with pytest.raises(BlockError, match=rf"page\.md:\d+: .*{failure}"):
            await following.follow(page)
