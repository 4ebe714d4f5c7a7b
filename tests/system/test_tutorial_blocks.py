"""The tutorials and some guides, followed from an empty folder as they are printed."""

import os
import re
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.test_demo import demo
from tests.support.commands import AS_INSTALLED
from tests.support.documentation import ROOT, BlockError, reader
from tests.support.installed import commit_all, copy_checkout
from tests.support.ports import free_port
from tests.support.required import node

DOCS: Final = ROOT / "docs"
REPOSITORY: Final = "https://github.com/tenantry/tenantry"
PAGES: Final = (
    "how-to/install",
    "tutorials/first-ten-minutes",
    "tutorials/protect-fastapi",
    "tutorials/sell-a-plan",
    "tutorials/sign-customers-up",
    "tutorials/you-already-have-stripe-customers",
    pytest.param("tutorials/protect-django", marks=pytest.mark.thorough),
    pytest.param("tutorials/protect-flask", marks=pytest.mark.thorough),
)
"""Each page installs everything anew, which takes a minute; `tests/e2e/test_in_process.py` runs the
applications of the last two.
"""
BESIDE_THE_DEMO: Final = (
    "how-to/api-keys",
    "how-to/audit",
    "how-to/members",
    "how-to/operations",
    "how-to/organizations",
)
"""These ask a service that runs already: its address and credentials are in the variables of the
environment.
"""
WITH_THE_COMMAND: Final = "how-to/sell-features"
"""This asks the reader to install tenantry first."""
WITHOUT_AN_INSTALLATION: Final = "reference/api-key-format"
WITH_NODE: Final = "tutorials/protect-express"


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a user who has nothing of tenantry: git takes what there is here for the
    repository.

    What they download is kept for the next one. The settings of pip and npm are those of this
    machine.
    """
    sources = copy_checkout(tmp_path_factory.mktemp("repository"))
    commit_all(sources)
    prefixes = ("PIP_", "npm_", "NODE_", "SSL_")
    return {
        **{name: value for name, value in os.environ.items() if name.startswith(prefixes)},
        "PYTHONPATH": "",
        "PIP_CACHE_DIR": str(tmp_path_factory.mktemp("pip")),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{sources.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": REPOSITORY,
    }


def activated(place: Path) -> dict[str, str]:
    """The variable of a terminal in which the environment that a page makes is activated."""
    return {"PATH": f"{place / '.venv' / 'bin'}:{os.environ['PATH']}"}


@pytest.mark.parametrize("page", PAGES)
async def test_each_block_does_what_its_page_says(
    page: str, place: Path, tmp_path: Path, newcomer: dict[str, str]
) -> None:
    async with reader(place, tmp_path, **newcomer, **activated(place)) as following:
        await following.follow(DOCS / f"{page}.md")


async def test_each_block_of_the_page_for_node_does_what_it_says(
    place: Path, tmp_path: Path, newcomer: dict[str, str]
) -> None:
    node()
    async with reader(place, tmp_path, **newcomer, **activated(place)) as following:
        await following.follow(DOCS / f"{WITH_NODE}.md")


async def test_each_block_of_the_page_without_an_installation_does_what_it_says(
    place: Path, tmp_path: Path
) -> None:
    async with reader(place, tmp_path) as following:
        await following.follow(DOCS / f"{WITHOUT_AN_INSTALLATION}.md")


async def test_requests_of_the_readme_are_answered_by_the_demo(place: Path, tmp_path: Path) -> None:
    port = free_port()
    async with demo(place, port), reader(place, tmp_path, PORT=str(port)) as following:
        await following.follow(ROOT / "README.md")


@pytest.mark.parametrize("page", BESIDE_THE_DEMO)
async def test_each_block_does_what_its_page_says_beside_the_demo(
    page: str, place: Path, tmp_path: Path
) -> None:
    port = free_port()
    async with demo(place, port):
        kept = dict(
            re.findall(
                r"^(\w+)=(.*)$", (place / ".tenantry" / "demo.env").read_text("utf-8"), re.MULTILINE
            )
        )
        values = {"KEY": kept["TENANTRY_DEMO_LIVE_KEY"], "OPERATOR_TOKEN": kept["OPERATOR_TOKEN"]}
        address = f"http://127.0.0.1:{port}"
        async with reader(place, tmp_path, TENANTRY_BASE_URL=address, **values) as following:
            await following.follow(DOCS / f"{page}.md")


async def test_each_block_of_the_page_for_an_installation_does_what_it_says(
    place: Path, tmp_path: Path
) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    async with reader(place, tmp_path, PATH=path, PYTHONPATH=AS_INSTALLED) as following:
        await following.follow(DOCS / f"{WITH_THE_COMMAND}.md")


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
