"""Every example of docs/how-to/testing.md, run as it is shown."""

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.support.suites import OWN_PLUGINS

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "how-to" / "testing.md"
BLOCK: Final = re.compile(r"^```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TEST: Final = re.compile(r"^(?:async )?def test_", re.MULTILINE)
SUITE_OF_ITS_OWN: Final = "special"


def files() -> dict[str, str]:
    """The blocks of the page by the names that they begin with."""
    blocks = BLOCK.findall(PAGE.read_text("utf-8"))
    return {block.partition("\n")[0].removeprefix("# "): block for block in blocks}


def written(folder: Path) -> Path:
    for name, text in files().items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    return folder


@pytest.mark.parametrize(("page", "extra"), [("testing", "testing"), ("in-process", "fastapi")])
def test_what_a_page_has_its_reader_install_is_an_extra(page: str, extra: str) -> None:
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text("utf-8")
    assert re.search(rf"[`\[]{extra}[`\]]", text)
    there = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    assert extra in there


def test_every_block_of_the_page_is_a_file() -> None:
    page = PAGE.read_text("utf-8")
    assert page.count("\n```") == 2 * len(files())
    assert all(re.fullmatch(r"[\w/]+\.(py|toml)", name) for name in files())


@pytest.mark.parametrize("suite", [".", SUITE_OF_ITS_OWN])
def test_examples_pass(pytester: pytest.Pytester, suite: str) -> None:
    folder = written(pytester.path)
    shown = {
        name: text
        for name, text in files().items()
        if name.startswith("special/") == (suite != ".")
    }
    count = sum(len(TEST.findall(text)) for text in shown.values())
    others = [] if suite == SUITE_OF_ITS_OWN else ["--ignore", str(folder / SUITE_OF_ITS_OWN)]
    arguments = [
        *OWN_PLUGINS,
        "--rootdir",
        str(folder),
        "-p",
        "no:cacheprovider",
        *others,
        str(folder / suite),
    ]
    pytester.runpytest_subprocess(*arguments, timeout=240).assert_outcomes(passed=count)
