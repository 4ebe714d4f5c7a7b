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

_COVERED: Final = re.compile(r" cov: (\d+) ")
_UNITS: Final = re.compile(r"^stat::number_of_executed_units: (\d+)", re.MULTILINE)
_INPUT_TIMEOUT: Final = 10
"""Seconds for one input."""
_MAX_MEGABYTES: Final = 2048


class FuzzResult(NamedTuple):
    """The result of one target."""

    inputs: int
    seconds: float
    branches: int
    finding: str


def main() -> None:
    """Fuzz, print, and exit with 1 after a finding or if no input was tried."""
    given = _arguments()
    given.keep.mkdir(parents=True, exist_ok=True)
    print("| target | what it reads | inputs | seconds | branches | found |")
    print("|---|---|---:|---:|---:|---|", flush=True)
    results = []
    for name in given.only or NAMES:
        one = target(name)
        results.append(result := _run(one, given))
        figures = f"{result.inputs:,} | {result.seconds:.0f} | {result.branches:,}"
        print(f"| `{name}` | {one.reads} | {figures} | {result.finding or 'nothing'} |", flush=True)
    inputs, seconds = (sum(figures) for figures in list(zip(*results, strict=True))[:2])
    print(f"| all | | {inputs:,} | {seconds:.0f} | | |")
    sys.exit(any(result.finding for result in results))


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
        options = {
            **({"dict": words} if one.words else {}),  # libFuzzer rejects an empty file
            "max_len": one.max_size,
            "runs": given.inputs,
            "max_total_time": given.seconds,
            "seed": given.seed,
            "artifact_prefix": f"{given.keep.resolve()}/{one.name}-",
            "timeout": _INPUT_TIMEOUT,
            "rss_limit_mb": _MAX_MEGABYTES,
            "print_final_stats": 1,
            "len_control": 0,
        }
        command = [sys.executable, "-m", "bench.fuzz.child", one.name, str(corpus)]
        command += [f"-{name}={value}" for name, value in options.items()]
        began = time.monotonic()
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        seconds = time.monotonic() - began
    inputs = int(units[1]) if (units := _UNITS.search(done.stderr)) else 0
    finding = ""
    if done.returncode or not inputs:
        log = given.keep / f"{one.name}.log"
        log.write_text(done.stdout + done.stderr)
        finding = f"{'' if inputs else 'no input was tried: '}see {log}"
    return FuzzResult(inputs, seconds, int([0, *_COVERED.findall(done.stderr)][-1]), finding)


def _escaped(word: bytes) -> str:
    """Escape a word for libFuzzer's dictionary."""
    return "".join(
        chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\x{byte:02x}" for byte in word
    )


if __name__ == "__main__":
    main()
