"""Fuzz every parser that reads untrusted bytes: ``python -m bench.fuzz --inputs 100000``.

Atheris (``make fuzz`` installs it) guides the inputs by coverage; each target runs in its own
process. The ``check`` of a target states its requirements. Prints a table, and exits with 1 after a
finding or if no input was tried; keeps the input in the folder ``--keep``. The tests run the same
targets for some seconds, without atheris.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from bench.fuzz.catalog import NAMES, target
from bench.fuzz.target import Target

_DONE: Final = re.compile(
    r"^#(\d+)\s+(?:DONE|pulse|NEW|REDUCE|RELOAD|INITED)\s+cov: (\d+) ft: (\d+)", re.MULTILINE
)
_UNITS: Final = re.compile(r"^stat::number_of_executed_units: (\d+)", re.MULTILINE)
_INPUT_TIMEOUT: Final = 10
"""Seconds for one input."""
_MAX_MEGABYTES: Final = 2048


class FuzzResult(NamedTuple):
    """The result of one target."""

    target: Target
    inputs: int
    seconds: float
    branches: int
    finding: str


def main() -> None:
    """Fuzz, print, and exit with 1 after a finding or if no input was tried."""
    given = _arguments()
    given.keep.mkdir(parents=True, exist_ok=True)
    print(
        "| target | what it reads | inputs | seconds | branches | found |\n|---|---|---:|---:|---:|---|",
        flush=True,
    )
    runs = []
    for name in given.only or NAMES:
        runs.append(run := _run(target(name), given))
        print(
            f"| `{name}` | {run.target.reads} | {run.inputs:,} | {run.seconds:.0f} | {run.branches:,} | "
            f"{run.finding or 'nothing'} |",
            flush=True,
        )
    print(
        f"| all | | {sum(run.inputs for run in runs):,} | {sum(run.seconds for run in runs):.0f} | | |"
    )
    sys.exit(any(run.finding for run in runs))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz")
    parser.add_argument(
        "--inputs", type=int, default=-1, help="the maximum for each target; unlimited by default"
    )
    parser.add_argument(
        "--seconds", type=int, default=60, help="the maximum for each target; 0 for unlimited"
    )
    parser.add_argument("--only", action="append", choices=list(NAMES), help="this target only")
    parser.add_argument("--seed", type=int, default=0, help="repeats a run; 0 for a random seed")
    parser.add_argument(
        "--keep",
        type=Path,
        default=Path("fuzz-findings"),
        help="a folder for inputs that find something",
    )
    return parser.parse_args()


def _run(one: Target, given: argparse.Namespace) -> FuzzResult:
    with tempfile.TemporaryDirectory() as folder:
        corpus, words = Path(folder, "corpus"), Path(folder, "words")
        corpus.mkdir()
        for number, seed in enumerate(one.seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in one.words))
        command = [
            sys.executable,
            "-m",
            "bench.fuzz.child",
            one.name,
            str(corpus),
            *([f"-dict={words}"] if one.words else []),
            f"-max_len={one.max_size}",
            f"-runs={given.inputs}",
            f"-max_total_time={given.seconds}",
            f"-seed={given.seed}",
            f"-artifact_prefix={given.keep.resolve()}/{one.name}-",
            f"-timeout={_INPUT_TIMEOUT}",
            f"-rss_limit_mb={_MAX_MEGABYTES}",
            "-print_final_stats=1",
            "-len_control=0",
            "-verbosity=1",
        ]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, check=False)
        seconds = time.monotonic() - began
    output = done.stderr.decode(errors="replace")
    progress = _DONE.findall(output)
    inputs, branches = (int(progress[-1][0]), int(progress[-1][1])) if progress else (0, 0)
    if units := _UNITS.search(output):
        inputs = int(units[1])
    finding = ""
    if done.returncode or not inputs:
        log = done.stdout.decode(errors="replace") + output
        Path(given.keep, f"{one.name}.log").write_text(log)
        finding = f"{'' if inputs else 'no input was tried: '}see {given.keep}/{one.name}.log"
    return FuzzResult(one, inputs, seconds, branches, finding)


def _escaped(word: bytes) -> str:
    """Escape a word for libFuzzer's dictionary."""
    return "".join(
        chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\x{byte:02x}" for byte in word
    )


if __name__ == "__main__":
    main()
