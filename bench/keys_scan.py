"""How fast ``tenantry keys scan`` goes through a large tree, beside ``grep -rE`` in the same run.

Makes 100,000 files of 1 GB in a temporary folder (name another place with TMPDIR), nine tenths of them text and the
rest binary, with keys in some. Both programs run in turn, from the page cache; the ratio is what holds.
"""

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tenantry.domain.access import Mode
from tenantry.domain.api_keys import compose_secret

FILES: Final = 100_000
FILES_IN_FOLDER: Final = 250
BYTES: Final = 1_000_000_000
KEYS: Final = 50
ROUNDS: Final = 5
PATTERN: Final = "svc_(live|test)_[0-9A-Za-z]{49}"
SCAN: Final = (sys.executable, "-m", "tenantry", "keys", "scan")
GREP: Final = ("grep", "-r", "-a", "-n", "-o", "-E", PATTERN)
GREP_C: Final = {**os.environ, "LC_ALL": "C"}


def main() -> None:
    """Make the tree, measure in turn, print a table."""
    with tempfile.TemporaryDirectory(prefix="tenantry-bench-") as folder:
        size = make_tree(Path(folder))
        print(f"{FILES:,} files, {size / 1e6:,.0f} MB, {KEYS} keys; medians of {ROUNDS} rounds, from the page cache")
        seconds: dict[str, list[float]] = {"tenantry keys scan": [], "grep -rE": []}
        for _ in range(ROUNDS + 1):
            seconds["tenantry keys scan"].append(run(SCAN, folder))
            seconds["grep -rE"].append(run(GREP, folder, GREP_C))
        show({name: statistics.median(taken[1:]) for name, taken in seconds.items()}, size)
    one = statistics.median(run(SCAN, str(Path(__file__)), found=0) for _ in range(ROUNDS))
    print(f"a single small file, as in a hook: {one * 1000:.0f} ms, most of it Python's start")


def make_tree(root: Path) -> int:
    """Fill a folder; returns how many bytes are in it."""
    chance = random.Random(1)  # noqa: S311  # the same tree each time
    sources = sorted(Path(__file__).parents[1].glob("src/**/*.py"))
    text = b"".join(path.read_bytes() for path in sources).replace(b"svc_live_0", b"svc_live-0")
    binary = chance.randbytes(4_000_000)
    sizes = [chance.paretovariate(1.2) for _ in range(FILES)]
    scale = BYTES / sum(min(one, 1000) for one in sizes)
    keyed = set(chance.sample(range(FILES), KEYS))
    total = 0
    for number, relative in enumerate(sizes):
        folder = root / f"{number // FILES_IN_FOLDER:04}"
        if number % FILES_IN_FOLDER == 0:
            folder.mkdir()
        source = text if number % 10 else binary
        size, begin = int(min(relative, 1000) * scale), chance.randrange(len(source))
        content = (source[begin:] + source * (size // len(source) + 1))[:size]
        if number in keyed:
            content += b"\n" + compose_secret(Mode.LIVE, chance.randbytes(32)).encode()
        (folder / f"file{number}").write_bytes(content)
        total += len(content)
    return total


def run(command: Sequence[str], folder: str, environment: Mapping[str, str] | None = None, found: int = KEYS) -> float:
    """Seconds that a command takes, which must find every key."""
    began = time.perf_counter()
    done = subprocess.run([*command, folder], env=environment, capture_output=True, check=False)
    taken = time.perf_counter() - began
    assert done.stdout.count(b"\n") == found, done
    return taken


def show(medians: Mapping[str, float], size: int) -> None:
    """Print a line for each command."""
    quickest = medians["grep -rE"]
    for name, seconds in medians.items():
        print(
            f"{name:20} {seconds:6.2f} s {size / seconds / 1e6:8,.0f} MB/s {FILES / seconds:10,.0f} files/s "
            f"{seconds / quickest:6.2f} x the time of grep"
        )


if __name__ == "__main__":
    main()
