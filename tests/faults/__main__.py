"""Apply each fault to a copy of the repository, and run the tests that must catch it: ``python -m
tests.faults``.

Exits with 1 if the tests do not pass without a fault, if a fault is not caught, or if it no longer
applies. A fault is caught when pytest runs and a test fails; a collection error, a failed fixture
and a timeout are not a catch.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.faults import ROOT, Fault, load_faults
from tests.faults.repository_copy import CAUGHT, RepositoryCopy, Result


def _selected(only: Sequence[str]) -> list[Fault]:
    """The faults with one of these names or areas, all without any. Ends the program if one does
    not apply.
    """
    faults = [fault for fault in load_faults() if not only or {fault.name, fault.area} & set(only)]
    if not faults:
        sys.exit("There is no such fault or area.")
    try:
        for fault in faults:
            fault.changed(ROOT)
    except ValueError as error:
        sys.exit(str(error))
    return faults


def _results(faults: Sequence[Fault], copies: Sequence[RepositoryCopy]) -> Iterator[Result]:
    """Check the faults, as many at a time as there are copies; the results come in the order of the
    faults.
    """
    free: SimpleQueue[RepositoryCopy] = SimpleQueue()
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


def _check(faults: Sequence[Fault], jobs: int) -> bool:
    """Show a line for each fault; whether all are caught. Ends the program if the tests fail
    without a fault.
    """
    with tempfile.TemporaryDirectory(prefix="tenantry-faults-") as folder:
        copies = [RepositoryCopy(Path(folder, str(number))) for number in range(jobs)]
        code, output = copies[0].run(
            *sorted({test for fault in faults for test in fault.caught_by})
        )
        if code:
            sys.exit(f"{output}\nThe tests do not pass without a fault.")
        caught = 0
        for fault, verdict, detail, seconds in _results(faults, copies):
            caught += verdict == CAUGHT
            _show(f"{verdict:<11}{fault.area:<19}{fault.name:<61}{seconds:5.1f} s  {detail}")
    _show(f"{caught} of {len(faults)} faults are caught.")
    return caught == len(faults)


def _show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Check the faults that the arguments select."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description="Show that the tests catch each fault."
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME|AREA", help="this fault or area; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="list the faults and exit")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="faults to check at the same time"
    )
    given = parser.parse_args()
    faults = _selected(given.only or [])
    if given.list:
        for fault in faults:
            _show(f"{fault.area:<19}{fault.name:<61}{', '.join(fault.caught_by)}")
        return
    sys.exit(0 if _check(faults, max(1, given.jobs)) else 1)


if __name__ == "__main__":
    main()
