"""Overload: the service is offered up to three times what it can do, then little again at once.

The service and PostgreSQL share all processors but the last one, which is the load generator's own, so what they are
given does not depend on the load. First the capacity is found: the most answers of 200 a second that any number of
connections gets which ask again at once. Then requests come at fixed rates, whatever has become of those before.
Between the rates the capacity is measured anew: a machine is not always as fast as it was. Each rate is a multiple of
what was found last, and its peak is the mean of what was found last before it and first after it. Needs nothing but
what the service needs. Writes a JSON file and two charts.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import psutil
import psycopg

from bench import support
from bench.open_load import BROKEN, CLOSED, LOST, Answers, Phase, Plan, Report
from bench.overload_chart import Chart, draw

JOBS: Final = ("webhook", "list")
CONNECTIONS: Final = (64, 256, 1024)
"""Numbers of connections that the capacity is looked for with."""
TIMES: Final = (0.5, 1.0, 2.0, 3.0, 0.5)
"""What is offered, as multiples of the capacity; the last follows the one before it at once."""
OPEN: Final = 1000
MOST: Final = 12_000
SECONDS: Final = 10
PROBE_SECONDS: Final = 3
SAMPLE: Final = 0.25
REFUSALS: Final = ("429", "503")
SHARE: Final = 0.9
"""Of the peak, that must be served at three times the capacity."""
AT_ONCE_MS: Final = 1000.0
"""Milliseconds within which every request must have its answer."""
MEMORY_MIB: Final = 256
"""How much the service may grow."""


class Sample(NamedTuple):
    """The server process, and the machine, at one moment."""

    at: float
    mib: float
    """Proportional set size."""
    busy: float
    """Seconds of processor time so far."""
    others: float
    """Seconds of processor time that went to nobody who takes part, so far."""


class Step(msgspec.Struct):
    """What came of one rate."""

    times: float
    start: int
    """The second that it began in."""
    peak: float
    """The capacity before and after it, a second."""
    offered: float
    """A second, as everything but the answers."""
    served: float
    refused: float
    other: int
    """Requests that had another answer or none, or found no connection, in all."""
    ok: Answers | None
    refusals: Answers | None
    mib: float
    """Most memory of the server process."""
    core: float
    """Share of a processor that it took."""
    others: float
    """What programs that have no part in this took, as a share of one processor: their noise."""


class Result(msgspec.Struct):
    """What came of one job."""

    job: str
    seconds: int
    """Of each step."""
    capacity: float
    connections: int
    """That the capacity was found with."""
    mib: float
    """Before the first step."""
    untold: int
    acknowledged: int
    """Events that had a 200 (webhook)."""
    stored: int
    """Events in the ledger (webhook)."""
    steps: list[Step]
    report: Report
    memory: list[float]
    """MiB in each second."""


def main() -> None:
    """Measure both jobs, print tables and findings, write the files."""
    given = _arguments()
    last = max(os.sched_getaffinity(0))
    alone = len(os.sched_getaffinity(0)) > 1
    if alone:
        os.sched_setaffinity(0, os.sched_getaffinity(0) - {last})
    given.out.mkdir(parents=True, exist_ok=True)
    results = []
    with tempfile.TemporaryDirectory(prefix="tenantry-bench-") as folder, support.database(Path(folder)) as conninfo:
        bench = Bench(conninfo, support.load(conninfo), last if alone else None, given.seconds)
        for job in given.jobs:
            result = bench.measure(job)
            results.append(result)
            (given.out / f"overload-{job}.svg").write_text(_chart(result))
            _print(result)
    (given.out / "overload.json").write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
    print(f"written to {given.out}: overload.json, {', '.join(f'overload-{job}.svg' for job in given.jobs)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.overload")
    parser.add_argument("--job", dest="jobs", action="append", choices=JOBS, help="one alone")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of each rate")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    given = parser.parse_args()
    given.jobs = given.jobs or JOBS
    return given


class Bench:
    """Measures on a database with tenants and keys."""

    def __init__(self, conninfo: str, keys: Sequence[str], processor: int | None, seconds: int) -> None:
        self._conninfo = conninfo
        self._keys = list(keys)
        self._processor = processor
        self._seconds = seconds
        self._runs = 0

    def measure(self, job: str) -> Result:
        """Find the capacity of a fresh process, then offer it more."""
        port = support.free_port()
        with support.service(port, self._conninfo) as pid:
            self._send(job, port, [Phase(CLOSED, 2, CONNECTIONS[0])], CONNECTIONS[0])  # warm-up
            found = {many: self._capacity(job, port, many) for many in CONNECTIONS}
            connections = max(found, key=lambda many: found[many])
            capacity = found[connections]
            phases = self._phases(connections)
            before = _mib(pid)
            with _sampled(pid) as samples:
                report = self._send(job, port, phases, OPEN)
        stored = self._stored() if job == "webhook" else 0
        steps = [
            self._step(number, phases, report, samples) for number, phase in enumerate(phases) if phase.times != CLOSED
        ]
        return Result(
            job=job, seconds=self._seconds, capacity=capacity, connections=connections, mib=before,
            untold=report.untold, acknowledged=sum(_count(answers, "200") for answers in report.phases),
            stored=stored, steps=steps, report=report,
            memory=[_most(samples, report.began + n, 1) for n in range(len(report.seconds))],
        )  # fmt: skip

    def _phases(self, connections: int) -> list[Phase]:
        """The steps, and the capacity measured anew between them: no machine is always as fast as it was."""
        probe = Phase(CLOSED, PROBE_SECONDS, connections)
        steps = [Phase(times, self._seconds) for times in TIMES]
        return [probe, *(part for step in steps[:-2] for part in (step, probe)), *steps[-2:], probe]

    def _capacity(self, job: str, port: int, connections: int) -> float:
        report = self._send(job, port, [Phase(CLOSED, PROBE_SECONDS, connections)], connections)
        if not set(report.phases[0]) <= {"200", *REFUSALS}:
            sys.exit(f"bench: {job}: neither served nor refused: {report.phases[0]}")
        return sum(_count(second.answers, "200") for second in report.seconds[:PROBE_SECONDS]) / PROBE_SECONDS

    def _send(self, job: str, port: int, phases: list[Phase], connections: int) -> Report:
        self._runs += 1
        plan = Plan(
            port=port, phases=phases, connections=connections, most=MOST if len(phases) > 1 else connections,
            keys=self._keys if job == "list" else [], run=f"overload{self._runs}",
            first=int(time.time()) - 7 * 86_400 + self._runs * 3600, processor=self._processor,
        )  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "bench.open_load"],
            input=msgspec.json.encode(plan),
            stdout=subprocess.PIPE,
            check=True,
        )
        return msgspec.json.decode(done.stdout, type=Report)

    def _step(self, number: int, phases: Sequence[Phase], report: Report, samples: Sequence[Sample]) -> Step:
        start = round(sum(phase.seconds for phase in phases[:number]))
        probes = [n for n, phase in enumerate(phases) if phase.times == CLOSED]
        around = (max(n for n in probes if n < number), min(n for n in probes if n > number))
        peaks = [_count(report.phases[n], "200") / PROBE_SECONDS for n in around]
        within = report.seconds[start : start + self._seconds]
        answers = report.phases[number]
        per_second = {
            status: sum(second.answers[status].count for second in within if status in second.answers) / self._seconds
            for status in ("200", *REFUSALS)
        }
        spans = [s for s in samples if start <= s.at - report.began < start + self._seconds]
        return Step(
            times=phases[number].times,
            start=start,
            peak=sum(peaks) / len(peaks),
            offered=sum(second.offered for second in within) / self._seconds,
            served=per_second["200"],
            refused=sum(per_second[status] for status in REFUSALS),
            other=sum(second.unsent for second in within)
            + sum(one.count for status, one in answers.items() if status not in ("200", *REFUSALS)),
            ok=answers.get("200"),
            refusals=next((answers[status] for status in REFUSALS if status in answers), None),
            mib=_most(samples, report.began + start, self._seconds),
            core=(spans[-1].busy - spans[0].busy) / (spans[-1].at - spans[0].at),
            others=(spans[-1].others - spans[0].others) / (spans[-1].at - spans[0].at),
        )

    def _stored(self) -> int:
        with psycopg.connect(self._conninfo) as connection:
            row = connection.execute(
                "SELECT count(*) FROM billing_events WHERE id LIKE %s", (f"evt_overload{self._runs}_%",)
            ).fetchone()
        assert row is not None
        return int(row[0])


@contextlib.contextmanager
def _sampled(pid: int) -> Iterator[list[Sample]]:
    """Look at a process again and again for the length of the block."""
    samples: list[Sample] = []
    process, ended = psutil.Process(pid), threading.Event()

    def look() -> None:
        while not ended.is_set():
            times = process.cpu_times()
            samples.append(Sample(time.time(), _mib(pid), times.user + times.system, _others()))
            ended.wait(SAMPLE)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def _others() -> float:
    """Seconds of processor time so far but for idleness, this process, and all that it has started."""
    machine = psutil.cpu_times()
    busy = sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            busy -= times.user + times.system
    return busy


def _mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not say how much memory a process has")


def _most(samples: Sequence[Sample], start: float, seconds: float) -> float:
    return max((s.mib for s in samples if start <= s.at < start + seconds), default=0.0)


def _count(answers: dict[str, Answers], status: str) -> int:
    return answers[status].count if status in answers else 0


def _chart(result: Result) -> str:
    def per_second(*statuses: str) -> list[float]:
        return [
            sum(second.answers[status].count for status in statuses if status in second.answers)
            for second in result.report.seconds
        ]

    return draw(
        Chart(
            title=f"Overload, {result.job}: {result.capacity:,.0f} requests/s can be served",
            steps=[(step.start, f"{step.times:g} x") for step in result.steps],
            step_seconds=result.seconds,
            offered=[float(second.offered) for second in result.report.seconds],
            served=per_second("200"),
            refused=per_second(*REFUSALS),
            failed=[
                lost + second.unsent
                for lost, second in zip(per_second(LOST, BROKEN), result.report.seconds, strict=True)
            ],
            memory=result.memory,
        )
    )


def _print(result: Result) -> None:
    print(f"\n{result.job}: capacity {result.capacity:,.0f}/s with {result.connections} connections")
    print(
        f"{'':>5} {'peak/s':>7} {'offered/s':>9} {'200/s':>7} {'share':>5} {'refused/s':>9} {'other':>6} | "
        f"{'200: p50':>8} {'p99':>7} {'longest':>7} | {'refused: p50':>12} {'p99':>7} {'longest':>7} ms | "
        f"{'MiB':>5} {'core':>5} {'others':>6}"
    )
    for step in result.steps:
        print(
            f"{step.times:4g}x {step.peak:7,.0f} {step.offered:9,.0f} {step.served:7,.0f} "
            f"{step.served / step.peak:5.2f} {step.refused:9,.0f} {step.other:6,} | "
            f"{_told(step.ok, 8)} | {_told(step.refusals, 12)}    | {step.mib:5.0f} {step.core:5.0%} {step.others:6.0%}"
        )
    print(
        f"at most {result.report.connections:,} connections; the generator was late by "
        f"{max(second.late for second in result.report.seconds):.0f} ms at most"
    )
    if result.job == "webhook":
        print(f"{result.acknowledged:,} events had a 200, {result.stored:,} are in the ledger")
    for is_met, text in _findings(result):
        print(f"  {'met' if is_met else 'NOT MET':8} {text}")


def _told(answers: Answers | None, width: int) -> str:
    if answers is None:
        return f"{'-':>{width}} {'-':>7} {'-':>7}"
    return f"{answers.p50:{width}.0f} {answers.p99:7.0f} {answers.longest:7.0f}"


def _findings(result: Result) -> Iterator[tuple[bool, str]]:
    """Each target, and whether it was met."""
    highest = max(result.steps, key=lambda step: step.times)
    share = highest.served / highest.peak
    yield share >= SHARE, f"{share:.2f} of the peak ({highest.peak:,.0f}/s) served at {highest.times:g} times capacity"
    longest = max(one.longest for step in result.steps for one in (step.ok, step.refusals) if one)
    others = sum(step.other for step in result.steps)
    yield longest <= AT_ONCE_MS, f"the longest that any answer took: {longest:,.0f} ms"
    yield others == 0, f"{others:,} requests had another answer or none"
    yield result.untold == 0, f"{result.untold:,} refusals without Retry-After"
    grown = max(step.mib for step in result.steps) - result.mib
    yield grown <= MEMORY_MIB, f"memory: {result.mib:.0f} MiB before, {grown:+.0f} MiB at most"
    yield _recovers(result)


def _recovers(result: Result) -> tuple[bool, str]:
    """Whether the second after the load is gone is like any other."""
    first = result.steps[-1].start
    took = [
        n
        for n, second in enumerate(result.report.seconds[first : first + result.seconds], start=1)
        if any(status != "200" for status in second.answers) or second.answers["200"].p99 > AT_ONCE_MS / 4
    ]
    after = max(took, default=0)
    return after <= 1, f"recovery: {after} s until all is served, with a p99 below {AT_ONCE_MS / 4:.0f} ms"


if __name__ == "__main__":
    main()
