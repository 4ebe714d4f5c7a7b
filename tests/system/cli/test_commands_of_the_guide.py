"""The commands of docs/how-to/command-line.md, in the shell of a reader."""

import asyncio
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.cli.command_support import SECRET, Workspace
from tests.sdk.test_sdk_readme import blocks
from tests.support.commands import AS_INSTALLED

GUIDE: Final = Path(__file__).parents[3] / "docs" / "how-to" / "command-line.md"


def keys_listed(text: str) -> list[dict[str, str]]:
    """The rows of the first table of keys in a text, by the titles of the columns."""
    lines = text.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("ID "))
    titles = re.split(" {2,}", lines[begin])
    rows = itertools.takewhile(lambda line: line.startswith("key_"), lines[begin + 1 :])
    return [dict(zip(titles, re.split(" {2,}", row), strict=True)) for row in rows]


async def test_commands_of_the_guide_run(workspace: Workspace) -> None:
    script = "set -euo pipefail\n" + "\n".join(blocks(GUIDE, "sh"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {
        "PATH": path,
        "PYTHONPATH": AS_INSTALLED,
        **workspace.home.values,
        **workspace.values,
    }
    done = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-c", script],
        cwd=workspace.home.folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "may           everything (OWNER)" in done.stdout
    assert "exit code 5" in done.stdout
    listed, shown = keys_listed(done.stdout)[:2], keys_listed(GUIDE.read_text("utf-8"))[:2]
    assert [list(row) for row in listed] == [list(row) for row in shown]
    assert [(row["NAME"], row["STATUS"], row["SCOPES"]) for row in listed] == [
        (row["NAME"], row["STATUS"], row["SCOPES"]) for row in shown
    ]
    assert not SECRET.search(done.stdout + done.stderr)
    assert '"id"' in (workspace.home.folder / "newest.json").read_text()
