"""Apply each fault to a copy of the repository, and run the tests that must catch it: ``python -m tests.faults``.

Exits with 1 if the tests do not pass without a fault, if a fault is not caught, or if it no longer applies. A fault is
caught when pytest runs and a test fails; a collection error, a failed fixture and a timeout are not a catch.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

from tests.faults import ROOT, Fault, load_faults

_SECONDS: Final = 180.0
_SECONDS_TO_STOP: Final = 30.0
_TESTS_FAILED: Final = 1
_FAILED: Final = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)
_PYTEST: Final = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0")
_WHICH_CODE: Final = (
    "import tenantry, tenantry_sdk, tests; print(tenantry.__file__, tenantry_sdk.__file__, tests.__file__)"
)


class Result(NamedTuple):
    """What the tests said of a fault."""

    fault: Fault
    verdict: str
    detail: str
    seconds: float


class Copy:
    """A copy of the repository, with an interpreter that imports the product and the tests from it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():  # git also lists files that were just deleted
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        # PYTHONPATH alone is not enough: tests start commands with an environment of their own.
        venv.create(root / ".venv", symlinks=True)
        self._python = root / ".venv/bin/python"
        paths = [str(root / "src"), str(root / "sdk/src"), str(root), sysconfig.get_path("purelib")]
        [packages] = (root / ".venv/lib").glob("python*/site-packages")
        (packages / "copy.pth").write_text("\n".join(paths))
        self._environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(paths[:3]), "PYTHONDONTWRITEBYTECODE": "1"
        }  # fmt: skip
        for environment in (self._environment, {}):
            found = subprocess.check_output([self._python, "-c", _WHICH_CODE], cwd=root, env=environment, text=True)
            if not all(file.startswith(f"{root}/") for file in found.split()):
                raise RuntimeError(f"the copy at {root} imports other code: {found}")

    def passes(self, tests: Sequence[str]) -> bool:
        """Run tests without a fault, and show what pytest says; whether they pass."""
        command = [self._python, *_PYTEST, *tests]
        return subprocess.run(command, cwd=self._root, env=self._environment, check=False).returncode == 0

    def check(self, fault: Fault) -> Result:
        """Run the tests of a fault with the fault."""
        began = time.monotonic()
        before = {self._root / file: (self._root / file).read_text() for file in fault.files}
        try:
            for path, text in fault.changed(self._root).items():
                path.write_text(text)
            verdict, detail = self._verdict(fault)
        finally:
            for path, text in before.items():
                path.write_text(text)
        return Result(fault, verdict, detail, time.monotonic() - began)

    def _verdict(self, fault: Fault) -> tuple[str, str]:
        command = [self._python, *_PYTEST, "-x", *fault.caught_by]
        process = subprocess.Popen(
            command, cwd=self._root, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            output, _ = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # pytest ends what its fixtures have started
            process.communicate(timeout=_SECONDS_TO_STOP)
            return "NOT CAUGHT", f"no result within {_SECONDS:.0f} s"
        failed = _FAILED.search(output)
        if process.returncode == 0:
            return "NOT CAUGHT", "all tests pass"
        if process.returncode != _TESTS_FAILED or failed is None or "Timeout (>" in output:
            return "ERROR", f"pytest exits with {process.returncode}: {output.strip()[-500:]}"
        return "caught", failed[1]


def _results(faults: Sequence[Fault], copies: Sequence[Copy]) -> Iterator[Result]:
    """Check the faults, as many at a time as there are copies; the results come in the order of the faults."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def check(fault: Fault) -> Result:
        copy = free.get()
        try:
            return copy.check(fault)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from pool.map(check, faults)


def _line(area: str, name: str, more: str = "") -> None:
    sys.stdout.write(f"{area:<19} {name:<62} {more}".rstrip() + "\n")
    sys.stdout.flush()


def main() -> None:
    """Check the faults that the arguments select."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME|AREA", help="this fault or area; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the faults and exit")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="faults to check at the same time")
    given = parser.parse_args()
    faults = [fault for fault in load_faults() if not given.only or {fault.name, fault.area} & set(given.only)]
    if not faults:
        sys.exit("no such fault or area")
    if given.list:
        for fault in faults:
            _line(fault.area, fault.name, ", ".join(fault.caught_by))
        return
    for fault in faults:
        fault.changed(ROOT)
    with tempfile.TemporaryDirectory(prefix="tenantry-faults-") as folder:
        copies = [Copy(Path(folder, str(number))) for number in range(max(1, given.jobs))]
        if not copies[0].passes(sorted({test for fault in faults for test in fault.caught_by})):
            sys.exit("the tests do not pass without a fault")
        results = []
        for result in _results(faults, copies):
            _line(
                f"{result.verdict:<10} {result.fault.area}",
                result.fault.name,
                f"{result.seconds:5.1f} s  {result.detail}",
            )
            results.append(result)
    missed = [result for result in results if result.verdict != "caught"]
    sys.stdout.write(f"{len(results) - len(missed)} of {len(results)} faults are caught\n")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
