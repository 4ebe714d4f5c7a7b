"""The file for the log of requests (LOG_REQUESTS_TO)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

PROCESS: Final = """
import logging, pathlib, shutil, sys
from tenantry.common import logs
from tenantry.common.secret import Secret
path = pathlib.Path(sys.argv[1])
logs.configure_service("console", [Secret("the-own-secret")], logs_requests=sys.argv[2] == "true", requests_to=path)
requests = logging.getLogger(logs.REQUESTS)
requests.info("one %s", "the-own-secret")
path.rename(path.with_name("rotated.log"))
requests.info("two")
moved = path.parent.rename(path.parent.with_name("moved"))
requests.info("lost")
moved.rename(path.parent)
requests.info("three")
logging.getLogger("tenantry.other").info("another")
"""


def messages(path: Path) -> list[str]:
    return [json.loads(line)["message"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("on_stderr", ["true", "false"])
def test_requests_are_written_to_the_file_over_a_rotation(tmp_path: Path, on_stderr: str) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "requests.log"
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(path), on_stderr],
        check=True,
        capture_output=True,
        text=True,
    )
    assert messages(folder / "rotated.log") == ["one [redacted]"]
    assert messages(path) == ["two", "three"]
    assert "another" in done.stderr
    assert ("two" in done.stderr) == (on_stderr == "true")
