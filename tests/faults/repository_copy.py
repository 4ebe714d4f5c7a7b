"""A copy of the repository in which faults are applied, so that the working tree never holds
one.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sysconfig
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.faults import ROOT, Fault

CAUGHT: Final = "caught"
NOT_CAUGHT: Final = "NOT CAUGHT"
ERROR: Final = "ERROR"
_TESTS_FAILED: Final = 1
_FAILED: Final = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)
_TIMED_OUT: Final = "Timeout (>"  # of pytest-timeout
_OPTIONS: Final = (
    *("-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--timeout=180"),
    *("-m", ""),  # the thorough tests too
)
_SHOW_FILES: Final = (
    "import tenantry, tenantry_cli as cli, tenantry_devkit, tenantry_sdk as sdk, tests; "
    "print(*(one.__file__ for one in (tenantry, cli, tenantry_devkit, sdk, tests)))"
)


class Result(NamedTuple):
    """What the tests of a fault showed; ``detail`` is the first test that failed, or what went
    wrong.
    """

    fault: Fault
    verdict: str
    detail: str
    seconds: float


class RepositoryCopy:
    """All files that git tracks or would track, and an interpreter that imports the product and the
    tests from them.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        listing = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
        listed = subprocess.run(
            listing, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        for name in listed.split("\0"):
            if (ROOT / name).is_file():  # git also lists files that were deleted just now
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        paths = [str(root / "src"), str(root / "sdk/src"), str(root / "devkit/src"), str(root)]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        # Tests start commands without our PYTHONPATH, so the interpreter itself must find the copy.
        venv.create(root / ".venv", symlinks=True)
        self._python = str(root / ".venv/bin/python")
        [packages] = (root / ".venv/lib").glob("python*/site-packages")
        (packages / "copy.pth").write_text("\n".join([*paths, sysconfig.get_path("purelib")]))
        for environment in (self._environment, {}):
            self._check_imports(environment)

    def _check_imports(self, environment: dict[str, str]) -> None:
        command = [self._python, "-c", _SHOW_FILES]
        found = subprocess.check_output(command, cwd=self._root.parent, env=environment, text=True)
        if not all(file.startswith(f"{self._root}/") for file in found.split()):
            raise RuntimeError(f"the copy at {self._root} imports other code: {found}")

    @property
    def python(self) -> str:
        """The interpreter that imports from the copy."""
        return self._python

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run pytest; returns its exit code and output."""
        command = [self._python, "-m", "pytest", *_OPTIONS, *arguments]
        done = subprocess.run(
            command,
            cwd=self._root,
            env=self._environment,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return done.returncode, done.stdout

    def check(self, fault: Fault) -> Result:
        """Apply a fault, run its tests, and remove the fault."""
        began = time.monotonic()
        with self.applied(fault):
            verdict, detail = _judge(*self.run("-x", *fault.caught_by))
        return Result(fault, verdict, detail, time.monotonic() - began)

    @contextlib.contextmanager
    def applied(self, fault: Fault) -> Iterator[None]:
        """Hold a fault in the copy, and remove it afterwards. Raises `ValueError` if it does not
        apply.
        """
        before = {self._root / file: (self._root / file).read_text() for file in fault.files}
        try:
            for path, text in fault.changed(self._root).items():
                path.write_text(text)
            yield
        finally:
            for path, text in before.items():
                path.write_text(text)


def _judge(code: int, output: str) -> tuple[str, str]:
    """What pytest's exit code and output say: only a test that fails by itself catches a fault."""
    failed = _FAILED.search(output)
    if code == 0:
        return NOT_CAUGHT, "all tests pass"
    if _TIMED_OUT in output:
        return NOT_CAUGHT, "a test does not end"
    if code != _TESTS_FAILED or failed is None:
        return ERROR, f"pytest exits with {code}: {output.strip()[-500:]}"
    return CAUGHT, failed[1]
