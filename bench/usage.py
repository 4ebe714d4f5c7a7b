"""What processes take of the machine, as Linux counts it: of a process together with all that it has started."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class _Stat(NamedTuple):
    """A line of ``/proc/<pid>/stat``, as far as it counts here; times in ticks."""

    parent: int
    ticks: int
    """On a processor: its own time and that of children which have ended and were waited for."""
    started: int
    """Since the machine's start."""


class Machine(NamedTuple):
    """Seconds of all processors together, since the machine's start."""

    busy: float
    """Taken by any process, or by other guests of a shared machine; what interrupts take is left out."""
    total: float


def machine() -> Machine:
    """What the machine's processors have done so far."""
    ticks = [int(field) for field in (_PROC / "stat").read_text().split("\n")[0].split()[1:9]]
    user, nice, system, _idle, _waiting, _irq, _softirq, stolen = ticks
    return Machine((user + nice + system + stolen) / _TICKS, sum(ticks) / _TICKS)


def cpu_seconds(pid: int) -> float:
    """Seconds that a process and its descendants have been on a processor, ended ones included."""
    return sum(stat.ticks for _, stat in _tree(pid)) / _TICKS


def memory_mib(pid: int) -> float:
    """What a process and its descendants hold of the memory; a page that several share counts once."""
    return sum(_proportional_kib(one) for one, _ in _tree(pid)) / 1024


def age(pid: int) -> float:
    """Seconds since a process was started."""
    return float((_PROC / "uptime").read_text().split()[0]) - _stat(pid).started / _TICKS


def _tree(pid: int) -> Iterator[tuple[int, _Stat]]:
    """A process and its descendants."""
    stats = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            try:
                stats[int(folder.name)] = _stat(int(folder.name))
            except OSError:  # it has ended meanwhile
                continue
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        if one in stats:
            yield one, stats[one]
        waiting += [child for child, stat in stats.items() if stat.parent == one]


def _stat(pid: int) -> _Stat:
    # the name comes first, in brackets, and may have anything in it
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return _Stat(parent=int(fields[1]), ticks=sum(map(int, fields[11:15])), started=int(fields[19]))


def _proportional_kib(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
