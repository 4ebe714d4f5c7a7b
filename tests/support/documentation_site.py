"""The documentation site: built from a copy of its sources, and served on loopback."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from tests.support.required import skip_or_fail

ROOT: Final = Path(__file__).parents[2]
_PYTHON: Final = Path(sys.prefix, "tools", "bin", "python")
_LINKED: Final = ("bench", "charts", "devkit", "examples", "sdk", "src", "tests")
"""Folders that pages link, and that the generator does not read."""


def copy_sources(folder: Path) -> None:
    """Copy what the site is made from into a new folder."""
    folder.mkdir()
    shutil.copytree(ROOT / "docs", folder / "docs")
    for name in ("mkdocs.yml", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for name in _LINKED:
        (folder / name).symlink_to(ROOT / name)


def build(folder: Path, version: str = "0.1.0") -> subprocess.CompletedProcess[str]:
    """Build the site of these sources into their folder `site`; needs the generator
    (`tests.support.required`).
    """
    if not _PYTHON.exists():
        skip_or_fail("the site's generator is not installed: make .venv/.tools")
    command = [str(_PYTHON), "docs/make_site.py", version]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's name
        """Log nothing."""


@contextmanager
def serving_files(folder: Path) -> Iterator[str]:
    """The address of a server of these files."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
