"""Every code block of the tutorials and how-to guides is run by a test, or marked as an excerpt."""

import re
from pathlib import Path
from typing import Final

from tests.support.cases import cases
from tests.support.documentation import ROOT, Kind, blocks, expected, with_next

_DOCS: Final = ROOT / "docs"
_RUN_BY: Final = {
    "command-line.md": "tests/system/cli/test_commands_of_the_guide.py",
    "in-process.md": "tests/e2e/test_in_process.py",
    "local-testing.md": "tests/system/test_local_testing_guide.py",
    "python-sdk.md": "tests/sdk/test_sdk_readme.py",
    "receive-webhooks.md": "tests/e2e/test_webhook_receivers.py",
    "simulator.md": "tests/integration/test_simulator_example.py",
    "testing.md": "tests/system/test_testing_guide.py",
    "webhooks-for-your-customers.md": "tests/system/test_webhook_forwarding.py",
    "typescript-client.md": "tests/system/typescript/test_typescript_package.py",
}
"""How-to guides whose blocks a separate test runs."""
_PAGES: Final = sorted(
    page
    for folder in ("tutorials", "how-to")
    for page in (_DOCS / folder).glob("*.md")
    if page.name not in _RUN_BY
)
_FOLLOWED: Final = "tests/system/test_tutorial_blocks.py"


def test_blocks_are_run_or_marked() -> None:
    for page in _PAGES:
        found = blocks(page)
        unmarked = [block.line for block in found if block.kind is Kind.UNMARKED]
        assert unmarked == [], f"{page}: write <!-- excerpt: why --> above, or let a test run it"
        silent = [
            block.line
            for block, below in with_next(found)
            if block.kind is Kind.SERVER and (below is None or below.kind is not Kind.OUTPUT)
        ]
        assert silent == [], f"{page}: show below what the command prints when it is ready"


def test_pages_with_blocks_to_run_are_followed() -> None:
    followed = (ROOT / _FOLLOWED).read_text("utf-8")
    to_run = [
        page for page in _PAGES if any(block.kind is not Kind.EXCERPT for block in blocks(page))
    ]
    assert [
        page.name for page in to_run if f'"{page.parent.name}/{page.stem}"' not in followed
    ] == []


def test_tests_that_run_blocks_are_there() -> None:
    notes = [block.note for page in _DOCS.rglob("*.md") for block in blocks(page)]
    named = {path for note in notes for path in re.findall(r"tests/[\w/]+\.py", note)} | set(
        _RUN_BY.values()
    )
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_a_block_that_is_neither_run_nor_marked_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\necho a\n```\n\n```text\na\n```\n\nBut:\n\n```text\na\n```\n\n"
        "<!-- excerpt: needs an account -->\n\n```sh\nb\n```\n\n```json\n{}\n```\n\n"
        '- a file:\n\n  ```toml title="a.toml"\n  b = 1\n  ```\n\n```python\nc\n```\n'
    )
    assert [(block.kind, block.text, block.line) for block in blocks(page)] == [
        (Kind.COMMANDS, "echo a\n", 1),
        (Kind.OUTPUT, "a\n", 5),
        (Kind.UNMARKED, "a\n", 11),
        (Kind.EXCERPT, "b\n", 15),
        (Kind.EXCERPT, "{}\n", 21),
        (Kind.FILE, "b = 1\n", 27),
        (Kind.UNMARKED, "c\n", 31),
    ]


@cases(
    ("shown", "actual", "matches"),
    [
        (
            '{"id":"evt_9XIF9uFJSYMpP8bc",\n "a":1,...}',
            '{"id":"evt_0123456789abcdef","a":1,"b":2}\n',
            True,
        ),
        ('{"at":"2026-11-20T14:58:48Z"}', '{"at":"2027-01-01T00:00:00.123456Z"}', True),
        ("200  19 ms", "200  3 ms", True),
        ("200  19 ms", "503  3 ms", False),
        ("OK", "OK\nInvalid signature", False),
        ('{"plan":"pro",...}', '{"plan":"free","a":1}', False),
        ("facade", "decade", False),
    ],
)
def test_output_matches_but_for_examples(shown: str, actual: str, matches: bool) -> None:
    assert bool(expected(shown).fullmatch(actual)) is matches
