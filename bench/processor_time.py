"""What runs in a server's process: samples of Linux's ``perf``, by the file of the code."""

import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

_SAMPLES_A_SECOND: Final = 1999
_FEW: Final = 100
_START_SECONDS: Final = 10
_HINT: Final = "as root, or with kernel.perf_event_paranoid at most 1"

_AS_TABLE: Final = (
    "--stdio",
    "--no-children",
    "--sort=dso",
    "--fields=sample,dso",
    "--field-separator=;",
)


class ProfileError(RuntimeError):
    """There are no samples; the message has the reason."""


class TimeShares(NamedTuple):
    """Shares of a process's processor time, which add up to 1."""

    interpreter: float
    """Python itself: its executable or shared library, and the C modules that come with it."""
    libraries: float
    """The compiled code of packages (event loop, HTTP parser, JSON, database driver) and of the
    system (libc, OpenSSL).
    """
    kernel: float
    """Mostly the sockets of clients and of PostgreSQL."""


class Profile:
    """Samples a process during a ``with`` block. Raises `ProfileError`."""

    def __init__(self, pid: int, folder: Path) -> None:
        """``folder`` gets the samples."""
        self._pid = pid
        self._data = folder / "samples"
        self._process: subprocess.Popen[str] | None = None
        self._of_python: frozenset[str] = frozenset()

    def __enter__(self) -> Self:
        if shutil.which("perf") is None:
            raise ProfileError("perf is missing; install it with: apt-get install linux-perf")
        self._of_python = _files_of_python(self._pid)
        options = ["--quiet", "--event=cpu-clock", f"--freq={_SAMPLES_A_SECOND}"]
        self._process = subprocess.Popen(
            ["perf", "record", *options, f"--pid={self._pid}", f"--output={self._data}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._await_start(self._process)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()

    def _await_start(self, process: subprocess.Popen[str]) -> None:
        """Return when perf has begun, which is when it writes the head of its file."""
        until = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < until:
            if self._data.exists() and self._data.stat().st_size:
                return
            time.sleep(0.01)
        raise ProfileError(f"perf did not start; it works {_HINT}")

    def shares(self) -> TimeShares:
        """Return what ran during the block. Raises `ProfileError`."""
        done = subprocess.run(
            ["perf", "report", f"--input={self._data}", *_AS_TABLE],
            capture_output=True,
            text=True,
            check=False,
        )
        samples = parse_samples(done.stdout)
        if done.returncode or samples.total() < _FEW:
            raise ProfileError(f"perf took {samples.total()} samples; it works {_HINT}")
        return time_shares(samples, self._of_python)


def parse_samples(report: str) -> Counter[str]:
    """Return the samples of each file, by its name without folders, from perf's table."""
    samples = Counter[str]()
    for line in report.splitlines():
        number, found, name = line.partition(";")
        if found and not line.startswith("#"):
            samples[name.strip()] += int(number)
    return samples


def time_shares(samples: Counter[str], of_python: frozenset[str]) -> TimeShares:
    """Return the shares of these samples; ``of_python`` has the names of Python's own files."""
    kernel = sum(number for name, number in samples.items() if name.startswith("[kernel"))
    interpreter = sum(samples[name] for name in of_python)
    rest = samples.total() - kernel - interpreter
    return TimeShares(*(part / samples.total() for part in (interpreter, rest, kernel)))


def _files_of_python(pid: int) -> frozenset[str]:
    """Return the names of the executable, of Python's library, and of the modules that come with
    it, of those that a process has loaded.
    """
    executable = Path(f"/proc/{pid}/exe").readlink()
    # address, permissions, offset, device, inode, path
    lines = [line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    loaded = {Path(line[5]) for line in lines if len(line) == 6}
    own = {path.name for path in loaded if _is_python(path)}
    return frozenset(own | {executable.name})


def _is_python(path: Path) -> bool:
    return path.name.startswith("libpython") or path.parent.name == "lib-dynload"
