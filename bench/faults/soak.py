"""An hour of mixed load with a fault every minute: memory, open files, connections and latencies over time.

In the first half any fault comes that one PostgreSQL can have; in the second half no process of the service is killed,
so that each has time to grow, and none may be new. The rule for a leak: of each process that lived through the second
half, of which there must be one of each kind, the median of the last sixth of its samples is compared with that of its
first sixth.
"""

import asyncio
import contextlib
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import uvloop

from bench.faults.injuries import EVENTS, FAULTS, Fault, kill_server, kill_supervisor, kill_worker
from bench.faults.load import READS, Moment
from bench.faults.report import summary, table, wrong
from bench.faults.run import Phase, Trial
from bench.faults.site import Database, running_site
from bench.faults.soak_chart import Panel, Series, draw

EVERY: Final = 60.0
"""Seconds from one fault to the next."""
SAMPLE: Final = 10.0
GROWTH: Final = 1.15
SLACK_MIB: Final = 8.0
SLACK_FILES: Final = 10
"""A process must not have more than this times its memory, and more memory and files beside that."""
CONNECTIONS: Final = 13
"""That a process of the service may have to PostgreSQL."""
_SIXTH: Final = 6
_MIB: Final = 1 << 20


class Sample(NamedTuple):
    """A process at one moment."""

    at: float
    """Seconds since the beginning."""
    pid: int
    kind: str
    mib: float
    files: int


class Watch:
    """Looks at every process of the service, and at PostgreSQL's connections, again and again."""

    def __init__(self, trial: Trial) -> None:
        self.began = time.monotonic()
        self.kinds: set[str] = set()
        """Of processes that there should be."""
        self.samples: list[Sample] = []
        self.connections: list[tuple[float, int]] = []
        self._trial = trial

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            at = time.monotonic() - self.began
            processes = self._trial.site.processes()
            self.kinds |= processes.keys()
            for kind, family in processes.items():
                for process in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        mib = process.memory_info().rss / _MIB
                        self.samples.append(Sample(at, process.pid, kind, mib, process.num_fds()))
            if (count := await asyncio.to_thread(self._trial.count_connections)) is not None:
                self.connections.append((at, count))
            await asyncio.sleep(SAMPLE)


def run(seconds: float, chance: random.Random, options: Sequence[str], out: Path, logs: Path | None) -> int:
    """Soak, print, draw; returns the exit code."""
    phase, watch = uvloop.run(_soak(seconds, chance, options, logs))
    leaks = list(_leaks(watch, seconds))
    print("\n".join(["", *summary(phase), "", *table([phase]), "", *_growth(watch, seconds)]))
    for text in leaks:
        print(f"  WRONG: {text}")
    out.mkdir(parents=True, exist_ok=True)
    (out / "soak.svg").write_text(_chart(phase, watch, seconds))
    print(f"written to {out}: soak.svg")
    return 1 if leaks or wrong(phase) else 0


async def _soak(
    seconds: float, chance: random.Random, options: Sequence[str], logs: Path | None
) -> tuple[Phase, Watch]:
    async with running_site(Database.ALONE, options, logs) as site:
        trial = Trial(site, chance)
        watch = Watch(trial)
        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(trial.watch_mail()), group.create_task(watch.run())]
            loading = group.create_task(trial.load.run())
            await _inflict(trial, watch.began, seconds, chance)
            trial.load.end()
            await loading
            await trial.settle()
            for task in watching:
                task.cancel()
        return await trial.result(), watch


async def _inflict(trial: Trial, began: float, seconds: float, chance: random.Random) -> None:
    """A fault in each minute, at any moment of it, but the last one."""
    minute = began
    while minute + 2 * EVERY <= began + seconds:
        await asyncio.sleep(max(0.0, minute + chance.uniform(0, EVERY / 2) - time.monotonic()))
        # one fault earlier than the second half, so that whoever takes a killed one's place is there when it begins
        is_late = time.monotonic() - began >= seconds / 2 - EVERY
        fault = chance.choice([fault for fault in FAULTS if _may_come(fault, is_late=is_late)])
        print(f"  minute {(time.monotonic() - began) / EVERY:.1f}: {fault.name}", flush=True)
        await trial.inflict(fault)
        minute += EVERY
    await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))


def _may_come(fault: Fault, *, is_late: bool) -> bool:
    ends_processes = fault.inflict in (kill_server, kill_supervisor, kill_worker)
    return fault.needs is Database.ALONE and not (is_late and ends_processes)


def _lives(watch: Watch, seconds: float) -> Iterator[list[Sample]]:
    """The second half of each process that lived through it."""
    lives: defaultdict[int, list[Sample]] = defaultdict(list)
    for sample in watch.samples:
        if seconds / 2 <= sample.at <= seconds:
            lives[sample.pid].append(sample)
    least = seconds / 2 / SAMPLE * (1 - 1 / _SIXTH)
    yield from (samples for samples in lives.values() if len(samples) >= max(_SIXTH, least))


def _new(watch: Watch, seconds: float) -> Iterator[Sample]:
    """The first sample of each process that was not there in the first half."""
    first: dict[int, Sample] = {}
    for sample in watch.samples:
        first.setdefault(sample.pid, sample)
    yield from (sample for sample in first.values() if sample.at >= seconds / 2)


def _ends(samples: Sequence[Sample]) -> tuple[Sequence[Sample], Sequence[Sample]]:
    sixth = max(1, len(samples) // _SIXTH)
    return samples[:sixth], samples[-sixth:]


def _growth(watch: Watch, seconds: float) -> Iterator[str]:
    for samples in _lives(watch, seconds):
        first, last = _ends(samples)
        yield (
            f"{samples[0].kind} {samples[0].pid}: {_mib(first):.1f} MiB, at the end {_mib(last):.1f}; "
            f"{_files(first):.0f} open files, at the end {_files(last):.0f}"
        )


def _leaks(watch: Watch, seconds: float) -> Iterator[str]:
    lives = list(_lives(watch, seconds))
    for kind in sorted(watch.kinds - {samples[0].kind for samples in lives}):
        yield f"no {kind} lived through the second half, or that was too short, so it may leak: take more minutes"
    for new in _new(watch, seconds):
        yield f"{new.kind} {new.pid} began {new.at:.0f} s after the beginning, when no process was killed any more"
    for samples in lives:
        first, last = _ends(samples)
        if _mib(last) > _mib(first) * GROWTH + SLACK_MIB:
            yield f"{samples[0].kind} {samples[0].pid} has grown from {_mib(first):.0f} to {_mib(last):.0f} MiB"
        if _files(last) > _files(first) + SLACK_FILES:
            yield f"{samples[0].kind} {samples[0].pid} had {_files(first):.0f} open files, and has {_files(last):.0f}"
    most = CONNECTIONS * len({sample.pid for sample in watch.samples if sample.at == watch.samples[-1].at})
    last_sixth = watch.connections[-max(1, len(watch.connections) // _SIXTH) :]
    count = statistics.median(count for _, count in last_sixth)
    if count > most:
        yield f"{count:g} connections to PostgreSQL at the end, {most} are allowed"


def _mib(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.mib for sample in samples)


def _files(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.files for sample in samples)


# The chart


def _chart(phase: Phase, watch: Watch, seconds: float) -> str:
    kinds = dict.fromkeys(sample.kind for sample in watch.samples)
    memory = [Series(kind, _by_moment(watch.samples, kind, "mib")) for kind in kinds]
    files = [Series(kind, _by_moment(watch.samples, kind, "files")) for kind in kinds]
    latencies = [
        Series(f"{name}, p{percent}", _by_minute(phase.moments, of, percent, watch.began))
        for name, of in (("events", EVENTS), ("reads", READS))
        for percent in (50, 99)
    ]
    connections = Series("connections to PostgreSQL", [(at, float(count)) for at, count in watch.connections])
    return draw(
        f"Soak: {seconds / 60:g} minutes, {len(phase.moments):,} requests, {len(phase.instances)} faults",
        [
            Panel("memory, MiB", memory),
            Panel("latency by minute, ms (logarithmic)", latencies, is_logarithmic=True),
            Panel("open files", files),
            Panel("connections", [connections]),
        ],
        marks=[each.began - watch.began for each in phase.instances],
        seconds=seconds,
    )


def _by_moment(samples: Sequence[Sample], kind: str, field: str) -> list[tuple[float, float]]:
    """The largest of a kind's processes at each moment."""
    largest: dict[float, float] = {}
    for sample in samples:
        if sample.kind == kind:
            largest[sample.at] = max(largest.get(sample.at, 0.0), getattr(sample, field))
    return list(largest.items())


def _by_minute(
    moments: Sequence[Moment], kinds: Sequence[str], percent: int, began: float
) -> list[tuple[float, float]]:
    """A percentile of what was served in each minute, in ms."""
    took: defaultdict[int, list[float]] = defaultdict(list)
    for moment in moments:
        if moment.kind in kinds and moment.is_success:
            took[int((moment.at - began) / EVERY)].append(moment.took * 1000)
    return [
        ((minute + 0.5) * EVERY, statistics.quantiles(times, n=100)[percent - 1])
        for minute, times in sorted(took.items())
        if len(times) > 1
    ]
